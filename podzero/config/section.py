"""The base class of all sections of an experiment."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any, Self, get_args

from pydantic import BaseModel, ConfigDict, Field, PrivateAttr

from podzero.core.importing import place_of

Fraction = Annotated[float, Field(ge=0.0, le=1.0)]
IMPORT_PATH = "file.py:Name"
"""The form of the name of a user's own class or function, for lists of names."""


class Section(BaseModel):
    """The base of all sections: frozen, without unknown keys, each field described by the string below it."""

    model_config = ConfigDict(frozen=True, extra="forbid", use_attribute_docstrings=True)


class OwnFile(Section):
    """A section that names code of the user's own, by an import path or as a file; a run keeps a copy of the file."""

    name: str
    """What it is."""
    sha256: str | None = None
    """SHA-256 of the file. podzero fills it in when the experiment is read, and then refuses another file of this
    name."""
    _kept: Path | None = PrivateAttr(default=None)

    @property
    def path_field(self) -> str:
        """The field that holds the import path or the file."""
        return path_field_of(self.name)

    @property
    def import_path(self) -> str:
        """The import path as it is given: `file.py:Name` or `module:Name`, or either without a name; empty for none."""
        return getattr(self, self.path_field) or ""

    @property
    def file(self) -> Path | None:
        """The file as it is given; None for the name of a module."""
        place = place_of(self.import_path)
        return Path(place).expanduser() if place.endswith(".py") else None

    @property
    def place(self) -> str:
        """The import path of the code to run: that of the run's copy, if there is one."""
        return self.import_path if self._kept is None else self._path_in(str(self._kept))

    def kept_at(self, copy: Path) -> Self:
        """The same section, whose code is imported from a copy of its file."""
        section = self.model_copy()
        section._kept = copy
        return section

    def moved_to(self, file: str) -> Self:
        """The same section, which names the code in another place."""
        return self.model_copy(update={self.path_field: self._path_in(file)})

    def _path_in(self, file: str) -> str:
        return file + self.import_path.removeprefix(place_of(self.import_path))


_PATH_FIELDS = {"simulator": "id", "gymnasium": "module", "gymnasium_simulator": "module"}


def path_field_of(name: str) -> str:
    """The field that holds the import path or the file of the user's own code, in the section with this `name`."""
    return _PATH_FIELDS.get(name, "name")


class OwnPart(OwnFile):
    """A part of the user's own, which an import path names. All further fields are its keyword arguments."""

    model_config = ConfigDict(extra="allow")

    name: str
    """Where it is: `file.py:Name`, found next to the experiment or in the current folder, or `module:Name`."""

    @property
    def arguments(self) -> dict[str, Any]:
        """The keyword arguments of the user's function or class: the fields that podzero does not know."""
        return dict(self.model_extra or {})


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
