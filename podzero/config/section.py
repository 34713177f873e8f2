"""The base class of all sections of an experiment."""

from __future__ import annotations

from typing import Annotated

from pydantic import BaseModel, ConfigDict, Field

Fraction = Annotated[float, Field(ge=0.0, le=1.0)]


class Section(BaseModel):
    """The base of all sections: frozen, without unknown keys, each field described by the string below it."""

    model_config = ConfigDict(frozen=True, extra="forbid", use_attribute_docstrings=True)
