"""Imports what an experiment names by path, and optional packages."""

from __future__ import annotations

import hashlib
import importlib
import importlib.util
import inspect
import logging
import os
import sys
import threading
import zlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from importlib.machinery import SourceFileLoader
from pathlib import Path
from types import CodeType, ModuleType
from typing import Any, Literal

from podzero.core.errors import ConfigError, nearest

log = logging.getLogger(__name__)

SLOW_IMPORT_S = 20.0
"""Seconds after which a warning says which import is waited for."""


def how_to_install(extra: str) -> str:
    """How to install a missing package of `extra`, for messages."""
    return f"install it in podzero's checkout with `uv sync --inexact --extra {extra}` or `pip install .[{extra}]`"


def import_class(identifier: str, field: str) -> type[Any]:
    """The class named by `module:Class` or `path/to/file.py:Class`, as by `import_named`."""
    found: type[Any] = import_named(identifier, field, "Class")
    return found


def import_named(identifier: str, field: str, kind: Literal["Class", "Name"] = "Name") -> Any:
    """The class, function or other object named by `module:Name` or `path/to/file.py:Name`.

    If it does not exist, a `ConfigError` begins with the config `field` and lists what does.
    """
    wanted_by, place = f"{field} = '{identifier}'", place_of(identifier)
    name = identifier[len(place) + 1 :]
    if not (place and name):
        raise ConfigError(f"{wanted_by}: expected module:{kind}, or path/to/file.py:{kind}")
    approve(identifier)
    module = _import(place, wanted_by)
    public = {key: value for key, value in vars(module).items() if not key.startswith("_")}
    if kind == "Class":
        known = [key for key, value in public.items() if inspect.isclass(value)]
        missing, listed = "no class", f"; its classes: {', '.join(known) or 'none'}"
    else:
        # Packages only pass on what their modules define.
        own = [key for key, value in public.items() if getattr(value, "__module__", None) == module.__name__]
        known, missing, listed = list(public), "no", f"; it defines: {', '.join(own)}" if own else ""
    found = getattr(module, name, _MISSING)
    if found is _MISSING or (kind == "Class" and not inspect.isclass(found)):
        raise ConfigError(f"{wanted_by}: {place} has {missing} '{name}'{nearest(name, known)}{listed}")
    _approve_home(found, module)
    return found


_MISSING = object()


def place_of(import_path: str) -> str:
    """The file or module of `file.py:Name` or `module:Name`, or of a path without a name."""
    place, colon, name = import_path.rpartition(":")
    # A file's name may hold a colon itself.
    return place if colon and not name.endswith(".py") else import_path


def file_of(place: str) -> Path:
    """The path of a Python file, whose folder may be a user's, such as `~/mine.py`."""
    return Path(os.path.expanduser(place))  # of pathlib's, one raises an error for users that there are not


def file_digest(place: str) -> str | None:
    """The SHA-256 of a Python file; None for the name of a module, and for a file that cannot be read."""
    if not place.endswith(".py"):
        return None
    try:
        return hashlib.sha256(file_of(place).read_bytes()).hexdigest()
    except OSError:
        return None


def import_place(place: str, wanted_by: str) -> ModuleType:
    """Imports a module by its name, or by the path of its file; errors begin with `wanted_by`."""
    approve(place)
    return _import(place, wanted_by)


def _import(place: str, wanted_by: str) -> ModuleType:
    try:
        if place.endswith(".py"):
            return _import_file(file_of(place))
        with _named_if_slow(place):
            return importlib.import_module(place)
    except ConfigError:
        raise
    # A user's module may raise anything when it is imported.
    except Exception as error:
        raise ConfigError(f"{wanted_by}: {place} cannot be imported: {type(error).__name__}: {error}") from error


@contextmanager
def _named_if_slow(place: str) -> Iterator[None]:
    message = "the import of %s has taken %g s; podzero waits for it, so what it does at import should be short"
    timer = threading.Timer(SLOW_IMPORT_S, log.warning, (message, place, SLOW_IMPORT_S))
    timer.daemon = True
    timer.start()
    try:
        yield
    finally:
        timer.cancel()


_SAFE_PATH = "PYTHONSAFEPATH"
"""With this variable Python leaves the current folder out of its path."""


@contextmanager
def without_current_folder() -> Iterator[None]:
    """In this context, processes of `multiprocessing` start without the current folder on their path.

    A numpy.py there would hide the library. Each calls `restore_path` before it runs code of the user's.
    """
    before = os.environ.get(_SAFE_PATH)
    os.environ[_SAFE_PATH] = "1"
    try:
        yield
    finally:
        restore_path(before)


def restore_path(before: str | None = None) -> None:
    """Undoes what `without_current_folder` means for the programs that this process starts, such as simulators."""
    os.environ.pop(_SAFE_PATH, None)
    if before is not None:
        os.environ[_SAFE_PATH] = before


def import_extra(module: str, wanted_by: str, extra: str = "envs", remedy: str = "") -> Any:
    """Imports a module of an optional package; a `ConfigError` says which `extra` has it, or another `remedy`."""
    try:
        return importlib.import_module(module)
    except ImportError as error:
        how = remedy or how_to_install(extra)
        raise ConfigError(f"{wanted_by} needs a package that is not installed ({error}): {how}") from error


def import_openvino() -> Any:
    """Imports OpenVINO, or raises a `ConfigError` that names the settings that need it and how to install it."""
    # OpenVINO does without this package, which would report to Google Analytics from each process.
    sys.modules.setdefault("openvino_telemetry", None)  # type: ignore[arg-type]
    return import_extra("openvino", "actors.inference = int8 or learner.cpu_convolutions = openvino", "openvino")


_approve: list[Callable[[str], None]] = []


def ask_before_import(approve: Callable[[str], None]) -> None:
    """Makes this process call `approve` with each import path before its code is imported; it raises to refuse one."""
    _approve[:] = [approve]


def approve(*import_paths: str) -> None:
    """Asks for code, as its import would; what `ask_before_import` was given raises a `ConfigError` to refuse it.

    Each path is `file.py:Name` or `module:Name`, or either without a name.
    """
    for ask in _approve:
        for path in import_paths:
            ask(path)


def _approve_home(found: Any, module: ModuleType) -> None:
    """Asks for what `module` itself only imports from another package: whoever trusts `module` need not trust that."""
    home = sys.modules.get(str(getattr(found, "__module__", None)))
    if home is None or _package(home) == _package(module):
        return
    # What a library makes for a module, such as a transformed function, is not among the names of the library.
    for name, value in [*vars(home).items()]:  # other threads may import into it
        if value is found:
            approve(f"{home.__name__}:{name}")
            return


def _package(module: ModuleType) -> str:
    return module.__name__.partition(".")[0]


class _SourceLoader(SourceFileLoader):
    """Compiles the file itself: `__pycache__` beside it may hold other code than that which was approved."""

    def get_code(self, fullname: str) -> CodeType:
        return self.source_to_code(self.get_data(self.path), self.path)


def _import_file(path: Path) -> ModuleType:
    """Imports a file as a module, once per process."""
    file = path.absolute()
    # The checksum tells apart files of the same name; unlike `hash`, it is the same in every process, as pickle needs.
    name = f"podzero_file_{zlib.crc32(file.as_posix().encode()):08x}_{file.stem}"
    if name in sys.modules:
        return sys.modules[name]
    spec = importlib.util.spec_from_file_location(name, file, loader=_SourceLoader(name, str(file)))
    if not file.is_file() or spec is None or spec.loader is None:
        raise FileNotFoundError(f"there is no such file (looked for {file})")
    module = importlib.util.module_from_spec(spec)
    # Dataclasses and pickle look the module up there.
    sys.modules[name] = module
    try:
        with _named_if_slow(str(path)):
            spec.loader.exec_module(module)
    except BaseException:
        # The next attempt would find the half that was executed, and take it for the module.
        del sys.modules[name]
        raise
    return module
