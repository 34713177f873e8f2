"""The base class of all sections of an experiment; those that name code of the user's own, its import and call."""

from __future__ import annotations

import inspect
import traceback
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import Annotated, Any, NamedTuple, Self, get_args

from pydantic import BaseModel, ConfigDict, Field, GetCoreSchemaHandler, PrivateAttr
from pydantic_core import CoreSchema, core_schema

from podzero.core.errors import ConfigError, nearest
from podzero.core.importing import file_digest, file_of, import_named, place_of

Fraction = Annotated[float, Field(ge=0.0, le=1.0)]
IMPORT_PATH = "file.py:Name"
"""The form of the name of a user's own class or function, for lists of names."""


class Section(BaseModel):
    """The base of all sections: frozen, without unknown keys, each field described by the string below it."""

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False, use_attribute_docstrings=True)


class ByName(NamedTuple):
    """The annotation of a union of sections, which `name` tells apart: a `Literal`, or an import path."""

    own: Callable[[dict[str, Any]], type[Section]]
    """The class of a section whose `name` is an import path, `module:Name` or `file.py:Name`."""
    default: str | None = None
    """The name of a section that gives none."""

    def __get_pydantic_core_schema__(self, union: Any, handler: GetCoreSchemaHandler) -> CoreSchema:
        kinds = get_args(union)
        tags = {name: kind.__name__ for kind in kinds for name in get_args(kind.model_fields["name"].annotation)}

        def tag(section: Any) -> str:
            if not isinstance(section, dict):  # an object when an experiment is written
                return type(section).__name__
            name = str(section.get("name", self.default))
            return self.own(section).__name__ if ":" in name else tags.get(name, name)

        schemas = {kind.__name__: handler.generate_schema(kind) for kind in kinds}
        return core_schema.tagged_union_schema(
            schemas,
            tag,
            custom_error_type="unknown_kind",
            custom_error_message="unknown kind",
            custom_error_context={"known": ", ".join([*tags, IMPORT_PATH])},
        )


_REST = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)
"""The kinds of `*args` and `**kwargs`."""
Parameters = Mapping[str, inspect.Parameter]
"""The parameters of a function or class by name."""


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
        field = path_field_of(self.name)
        return field if field in type(self).model_fields else "name"

    @property
    def import_path(self) -> str:
        """The import path as it is given: `file.py:Name` or `module:Name`, or either without a name; empty for none."""
        return getattr(self, self.path_field) or ""

    @property
    def file(self) -> Path | None:
        """The file as it is given; None for the name of a module."""
        place = place_of(self.import_path)
        return file_of(place) if place.endswith(".py") else None

    @property
    def place(self) -> str:
        """The import path of the code to run: that of the run's copy, if there is one."""
        return self.import_path if self._kept is None else self._path_in(str(self._kept))

    def copied_to(self, copy: Path) -> Self:
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


class OwnPart(OwnFile, extra="allow"):
    """A part of the user's own, which an import path names. All further fields are its keyword arguments."""

    name: str
    """Where it is: `file.py:Name`, found next to the experiment or in the current folder, or `module:Name`."""

    @property
    def arguments(self) -> dict[str, Any]:
        """The keyword arguments of the user's function or class: the fields that podzero does not know."""
        return dict(self.model_extra or {})


class OwnCode(NamedTuple):
    """A function or class of the user's own."""

    section: str
    """The dotted name of its section, such as `network`."""
    config: OwnPart
    target: Any
    """What the import path names."""
    parameters: Parameters

    @property
    def where(self) -> str:
        """The setting that names it, for messages."""
        return f"{self.section}.name = '{self.config.name}'"

    def make(self, offered: Mapping[str, Any], **more: Any) -> Any:
        """What the function or class returns when it is called; any other object is returned as it is.

        It is given `more`, and of the arguments `offered` those that it has parameters for.
        """
        if not callable(self.target):
            return self.target
        taken = {name: value for name, value in offered.items() if name in self.parameters}
        with self.running("the call"):
            return self.target(**self.config.arguments, **taken, **more)

    def make_function(self, offered: Mapping[str, Any], expected: str) -> Callable[..., Any]:
        """The function that `make` returns; `expected` describes it for messages."""
        made = self.make(offered)
        if not callable(made):
            raise ConfigError(f"{self.where} returned a {type(made).__name__}; expected a function {expected}")
        function: Callable[..., Any] = made
        return function

    @contextmanager
    def running(self, what: str) -> Iterator[None]:
        """Turns exceptions of the user's code, which does `what`, into errors with the innermost line of its file."""
        try:
            yield
        except ConfigError:
            raise
        except Exception as error:
            file = place_of(self.config.place)
            lines = [frame.lineno for frame in traceback.extract_tb(error.__traceback__) if frame.filename == file]
            at = f" at line {lines[-1]} of {Path(file).name}" if lines else ""
            reason = str(error).strip().partition("\n")[0]
            raise ConfigError(f"{self.where}: {what} failed{at}: {type(error).__name__}: {reason}") from error


def signature_of(target: Any) -> Parameters:
    """The parameters of a function or class; none of an object that is neither."""
    return dict(inspect.signature(target).parameters) if callable(target) else {}


def own_code(
    config: OwnPart, section: str, offered: Collection[str], parameters_of: Callable[[Any], Parameters] = signature_of
) -> OwnCode:
    """Imports what `config.name` names, and checks the experiment's arguments against its parameters.

    `section` is the dotted name of `config`; `offered` names the arguments that podzero passes to what takes them.
    """
    check_digest(config, f"{section}.name")
    target = import_named(config.place, f"{section}.name")
    code = OwnCode(section, config, target, parameters_of(target))
    _check_arguments(code, offered)
    return code


def check_digest(config: OwnFile, setting: str) -> None:
    """Checks that the file that `setting` names is the one with which the experiment was started, before its import.

    A process imports a file once, so that later changes of it do not matter.
    """
    digest, section = _first_digest(place_of(config.place)), setting.rpartition(".")[0]
    if digest is None and config.file is not None:
        return  # its import says that the file is missing
    if config.sha256 not in (None, digest):
        raise ConfigError(
            f"{setting} = '{config.import_path}': the file is not the one that this experiment was started with: its "
            f"SHA-256 is {digest}, the experiment has {section}.sha256 = {config.sha256}; restore the file, or train "
            f"the changed one in a new run (leave {section}.sha256 out)"
        )


_first_digest = cache(file_digest)
"""The digest of a file when this process first asked for it."""


def _check_arguments(code: OwnCode, offered: Collection[str]) -> None:
    section, name, given = code.section, code.config.name, code.config.arguments
    kinds = [parameter.kind for parameter in code.parameters.values()]
    own = [key for key, each in code.parameters.items() if each.kind not in _REST and key not in offered]
    for key in given:
        if key in offered:
            raise ConfigError(f"{section}.{key}: podzero passes {key} to '{name}' itself; remove it")
        if key not in own and inspect.Parameter.VAR_KEYWORD not in kinds:
            raise ConfigError(
                f"{section}.{key}: '{name}' has no argument '{key}'{nearest(key, own)}; its arguments: "
                f"{', '.join(own) or 'none'}"
            )
    for key in own:
        if code.parameters[key].default is inspect.Parameter.empty and key not in given:
            raise ConfigError(
                f"{section}.{key}: required by '{name}', but missing{nearest(key, offered)}; podzero itself passes "
                f"{', '.join(offered)}"
            )
