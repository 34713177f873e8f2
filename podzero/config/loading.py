"""From a YAML file and overrides to a checked experiment; whatever is wrong is told in one `ConfigError`."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any, get_args

import pydantic
import yaml
from pydantic import BaseModel

from podzero.config.experiment import Experiment
from podzero.errors import ConfigError, nearest


def builtin_configs() -> dict[str, Path]:
    """Names and files of the experiments that come with podzero."""
    folder = Path(__file__).parents[1] / "configs"
    return {path.stem: path for path in sorted(folder.glob("*.yaml"))}


def load(config: str, overrides: Iterable[str] = ()) -> Experiment:
    """Reads an experiment.

    Args:
      config: the name of a built-in experiment, or the path of a YAML file.
      overrides: `section.field=value` items; values are YAML.

    Raises:
      ConfigError: no such file, no YAML, or content that the schema refuses.
    """
    path = _find(config)
    try:
        tree = yaml.safe_load(path.read_text())
    except (OSError, UnicodeDecodeError, yaml.YAMLError) as error:
        raise ConfigError(f"{path}: cannot be read as YAML: {error}") from None
    if not isinstance(tree, dict):
        raise ConfigError(f"{path}: expected `section: ...` lines, found {type(tree).__name__}")
    tree.setdefault("name", path.stem)
    for override in overrides:
        _apply(tree, override)
    _find_own_files(tree, path.parent)
    return parse(tree, str(path))


def parse(tree: dict[str, Any], origin: str) -> Experiment:
    """Checks a tree of plain values against the schema; `origin` names it in errors.

    Raises:
      ConfigError: with one line for each thing that is wrong.
    """
    try:
        return Experiment.model_validate(tree)
    except pydantic.ValidationError as error:
        lines = "\n".join(f"  {line}" for line in _explain(error, tree))
        raise ConfigError(f"{origin}: this experiment cannot be run:\n{lines}") from None


def _find_own_files(tree: dict[str, Any], folder: Path) -> None:
    """Makes files of one's own that `env` names, as `file.py` or `file.py:Class`, known wherever the experiment is
    opened next.

    They are looked for beside the experiment, then in the current folder.
    """
    env = tree.get("env")
    if not isinstance(env, dict):
        return
    found: dict[str, Any] = {field: _located(env[field], folder) for field in ("id", "module") if field in env}
    if isinstance(wrappers := env.get("wrappers"), list):
        found["wrappers"] = [
            wrapper | {"name": _located(wrapper["name"], folder)}
            if isinstance(wrapper, dict) and "name" in wrapper
            else wrapper
            for wrapper in wrappers
        ]
    tree["env"] = env | found


def _located(value: Any, folder: Path) -> Any:
    """`value` with the whole path of the file in it, if it names one that is there."""
    named = re.fullmatch(r"(.+\.py)(:.*)?", value) if isinstance(value, str) else None
    if named is None:
        return value
    found = next((place / named[1] for place in (folder, Path.cwd()) if (place / named[1]).is_file()), None)
    return value if found is None else f"{found.absolute()}{named[2] or ''}"


def _find(config: str) -> Path:
    builtin = builtin_configs()
    if config in builtin:
        return builtin[config]
    path = Path(config)
    if path.is_file():
        return path
    known = ", ".join(builtin)
    raise ConfigError(
        f"no experiment '{config}'{nearest(config, builtin)}; built in: {known}; or give the path of a YAML file"
    )


def _apply(tree: dict[str, Any], override: str) -> None:
    key, equals, text = override.partition("=")
    if not equals or not key:
        raise ConfigError(f"override '{override}': expected section.field=value, as learner.batch_size=256")
    try:
        value = yaml.safe_load(text)
    except yaml.YAMLError as error:
        raise ConfigError(f"override '{override}': the value is not YAML: {error}") from None
    *sections, field = key.split(".")
    for section in sections:
        inner = tree.setdefault(section, {})
        if not isinstance(inner, dict):
            raise ConfigError(f"override '{override}': '{section}' is a value, not a section")
        tree = inner
    tree[field] = value


def _explain(error: pydantic.ValidationError, tree: dict[str, Any]) -> Iterator[str]:
    """One line for each fault: where, what stood there, what was expected, and the nearest right name."""
    for fault in error.errors(include_url=False):
        location = [str(part) for part in fault["loc"]]
        if len(location) > 1 and location[0] in ("env", "network"):
            location.pop(1)  # pydantic puts the union's tag into the path
        where = ".".join(location)
        value = fault.get("input")
        match fault["type"]:
            case "extra_forbidden":
                section, _, key = where.rpartition(".")
                known = _fields(section, tree)
                yield f"{where}: no such field{nearest(key, known)}; known here: {', '.join(known)}"
            case "missing":
                yield f"{where}: missing"
            case "literal_error":
                known = _choices(fault["ctx"]["expected"])
                yield f"{where} = {value!r}: unknown{nearest(str(value), known)}; known: {', '.join(known)}"
            case "union_tag_invalid":
                tag = value.get("name") if isinstance(value, dict) else value
                known = _choices(fault["ctx"]["expected_tags"])
                yield f"{where}.name = {tag!r}: unknown{nearest(str(tag), known)}; known: {', '.join(known)}"
            case "union_tag_not_found":
                yield f"{where}.name: missing; one of {', '.join(_names(where))}"
            case "value_error":
                message = str(fault["ctx"]["error"])
                yield f"{where}: {message}" if where else message
            case _:
                yield f"{where} = {value!r}: {fault['msg'][0].lower()}{fault['msg'][1:]}"


def _choices(expected: str) -> list[str]:
    return [word.strip().strip("'") for word in expected.replace(" or ", ", ").split(",")]


def _names(section: str) -> list[str]:
    """What the `name` of a section with several kinds may be."""
    return [name for kind in _kinds(Experiment, section) for name in get_args(kind.model_fields["name"].annotation)]


def _fields(section: str, tree: dict[str, Any]) -> list[str]:
    """Field names of the section at a dotted path."""
    model: type[BaseModel] = Experiment
    for part in filter(None, section.split(".")):
        tree = tree.get(part) or {}
        kinds = _kinds(model, part)
        model = next((kind for kind in kinds if len(kinds) > 1 and _is_called(kind, tree.get("name"))), kinds[0])
    return list(model.model_fields)


def _kinds(model: type[BaseModel], field: str) -> list[type[BaseModel]]:
    """The sections that a field may hold."""
    annotation = model.model_fields[field].annotation
    options = (annotation, *get_args(annotation))
    return [option for option in options if isinstance(option, type) and issubclass(option, BaseModel)]


def _is_called(kind: type[BaseModel], name: object) -> bool:
    return name in get_args(kind.model_fields["name"].annotation)
