"""What all sections of an experiment have in common."""

from __future__ import annotations

from typing import Annotated

from pydantic import BaseModel, ConfigDict, Field

Fraction = Annotated[float, Field(ge=0.0, le=1.0)]


class Section(BaseModel):
    """Common rules of all sections: frozen, no unknown keys."""

    model_config = ConfigDict(frozen=True, extra="forbid")
