"""Reads an experiment from a YAML file and overrides, and explains its faults."""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Iterator, Mapping
from types import MappingProxyType
from typing import Any, get_args

import pydantic
from pydantic import BaseModel

from podzero.config.checks import check
from podzero.config.experiment import Experiment
from podzero.config.layers import EXTENDS, flatten, read_layers
from podzero.config.section import ByName
from podzero.core.errors import ConfigError, nearest


def load(config: str, overrides: Iterable[str] = ()) -> Experiment:
    """The experiment of a name or a YAML file, with those that it extends, and overrides (`read_layers`)."""
    layers = read_layers(config, overrides)
    return parse(layers.tree, config, layers.inherited)


def parse(tree: dict[str, Any], origin: str, inherited: Mapping[str, str] = MappingProxyType({})) -> Experiment:
    """Checks a tree of plain values against the schema.

    Args:
      tree: the content of a YAML file.
      origin: the name of the experiment or file. A `ConfigError` begins with it, and has one line for each fault.
      inherited: the files of settings that another file gives, by dotted name, for these lines.
    """
    lines = list(_too_large(tree))
    try:
        experiment = Experiment.model_validate(tree)
        check(experiment)
        if not lines:
            return experiment
    except pydantic.ValidationError as error:
        lines += explain(error, inherited)
    except ValueError as broken_rule:
        lines.append(str(broken_rule))
    raise ConfigError("\n  ".join([f"{origin}: this experiment cannot be run:", *lines])) from None


_LARGEST = 10**15
"""The largest number of a setting: what is computed from two of them is still a number."""


def _too_large(tree: Any) -> Iterator[str]:
    """A line for each number that is too large."""
    for setting, value in flatten(tree).items() if isinstance(tree, dict) else ():
        if isinstance(value, int | float) and _LARGEST < abs(value) < math.inf:
            yield f"{setting} = {value!r:.40}: must be at most {_LARGEST:g} in size"


_MUST_BE = {
    "model_type": "a section, for example `{field: value}`",
    "dict_type": "a mapping, for example `{name: value}`",
    **dict.fromkeys(("int_type", "int_parsing", "int_from_float"), "an integer"),
    **dict.fromkeys(("float_type", "float_parsing"), "a number"),
    **dict.fromkeys(("bool_type", "bool_parsing"), "true or false"),
    "string_type": "a string",
    "tuple_type": "a list, for example `[a, b]`",
}
"""The expected value by pydantic's type of error."""


def explain(error: pydantic.ValidationError, inherited: Mapping[str, str]) -> Iterator[str]:
    """One line for each fault: the field, its value, what was expected, and the most similar valid name."""
    for fault in error.errors(include_url=False):
        location, section = _located(fault["loc"])
        setting = ".".join(location)
        source = f" (inherited from {inherited[setting]})" if setting in inherited else ""
        yield _line(location, section, fault) + source


def _located(parts: Iterable[int | str]) -> tuple[list[str], type[BaseModel]]:
    """The path of a fault without the kinds of sections, which pydantic adds, and the section at its end."""
    path: list[str] = []
    section: type[BaseModel] = Experiment
    kinds: dict[str, type[BaseModel]] = {}
    several = False
    for part in map(str, parts):
        if several:  # of which pydantic took this one
            section, several = kinds.get(part, section), False
            continue
        path.append(part)
        if (field := section.model_fields.get(part)) is not None:
            kinds = {kind.__name__: kind for kind in _kinds(field.annotation)}
            several = any(isinstance(each, ByName | pydantic.Discriminator) for each in field.metadata)
            section = next(iter(kinds.values()), section)
    return path, section


def _line(location: list[str], section: type[BaseModel], fault: Any) -> str:
    value, where = fault.get("input"), ".".join(location)
    what = f"{where} = {value!r:.200}"
    match fault["type"]:
        case "extra_forbidden":
            known = [*([] if location[1:] else [EXTENDS]), *section.model_fields]
            meant = nearest(location[-1], known) or " (CHANGELOG.md lists those of earlier versions)"
            line = f"{where}: no such field{meant}; known here: {', '.join(known)}"
        case "missing":
            line = f"{where}: required, but missing"
        case "literal_error":
            # pydantic writes "'a', 'b' or 'c'".
            line = _unknown(where, value, re.findall(r"'([^']*)'", fault["ctx"]["expected"]))
        case "unknown_kind":  # from `ByName`
            known = fault["ctx"]["known"].split(", ")
            if isinstance(value, dict) and "name" not in value:
                line = f"{where}.name: required, but missing; one of {', '.join(known)}"
            else:
                line = _unknown(f"{where}.name", value.get("name") if isinstance(value, dict) else value, known)
        case "value_error":
            line = f"{where}: {fault['ctx']['error']}".removeprefix(": ")
        case "invalid_key":
            line = f"{where}: the name of a field must be a string"
        case kind if kind in _MUST_BE:
            line = f"{what}: must be {_MUST_BE[kind]}"
        case _:
            line = f"{what}: {fault['msg'].replace('Input should be', 'must be')}"
    return line


def _unknown(where: str, value: Any, known: list[str]) -> str:
    return f"{where} = {value!r:.200}: unknown{nearest(str(value), known)}; known: {', '.join(known)}"


def _kinds(annotation: Any) -> Iterator[type[BaseModel]]:
    """The sections in the annotation of a field: one, several of a union, or the items of a list."""
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        yield annotation
    for option in get_args(annotation):
        yield from _kinds(option)
