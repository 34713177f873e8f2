"""The base class of all sections of an experiment."""

from __future__ import annotations

from collections.abc import Callable
from typing import Annotated, Any, get_args

from pydantic import BaseModel, ConfigDict, Field

Fraction = Annotated[float, Field(ge=0.0, le=1.0)]
IMPORT_PATH = "file.py:Name"
"""The form of the name of a user's own class or function, for lists of names."""


class Section(BaseModel):
    """The base of all sections: frozen, without unknown keys, each field described by the string below it."""

    model_config = ConfigDict(frozen=True, extra="forbid", use_attribute_docstrings=True)


def kind_by_name(*kinds: type[Section], own: type[Section], default: str | None = None) -> Callable[[Any], str]:
    """The discriminator of a union of sections, which `name` tells apart; tags are the names of their classes.

    Args:
      kinds: sections whose `name` is a `Literal`.
      own: the section whose `name` is an import path, `module:Name` or `file.py:Name`.
      default: the name of a section that gives none.
    """
    tags = {name: kind.__name__ for kind in kinds for name in get_args(kind.model_fields["name"].annotation)}

    def tag(section: Any) -> str:
        # A mapping when a file is read, an object when an experiment is written.
        name = section.get("name", default) if isinstance(section, dict) else getattr(section, "name", None)
        return own.__name__ if ":" in str(name) else tags.get(str(name), str(name))

    return tag
