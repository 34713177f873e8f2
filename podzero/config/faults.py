"""Turns pydantic's validation errors into lines for the person who wrote the experiment."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, get_args

import pydantic
from pydantic import BaseModel

from podzero.config.experiment import Experiment
from podzero.errors import nearest

_MUST_BE = {
    "model_type": "a section, for example `{field: value}`",
    "model_attributes_type": "a section, for example `{name: value}`",
    "dict_type": "a mapping, for example `{name: value}`",
    "int_type": "an integer",
    "int_parsing": "an integer",
    "int_from_float": "an integer",
    "float_type": "a number",
    "float_parsing": "a number",
    "bool_type": "true or false",
    "bool_parsing": "true or false",
    "string_type": "a string",
    "tuple_type": "a list, for example `[a, b]`",
}
"""What was expected, by pydantic's type of error."""


def explain(error: pydantic.ValidationError, tree: dict[str, Any]) -> Iterator[str]:
    """One line for each fault: the field, its value, what was expected, and the most similar right name.

    Args:
      error: what validating `tree` as an `Experiment` raised.
      tree: the content of the experiment's file.
    """
    for fault in error.errors(include_url=False):
        location = [str(part) for part in fault["loc"]]
        if len(location) > 1 and location[0] in ("env", "network"):
            location.pop(1)  # pydantic adds the tag of the union to the path
        yield _line(".".join(location), fault, tree)


def _line(where: str, fault: Any, tree: dict[str, Any]) -> str:
    value = fault.get("input")
    what = f"{where} = {value!r}"
    match fault["type"]:
        case "extra_forbidden":
            section, _, key = where.rpartition(".")
            known = _fields(section, tree)
            line = f"{where}: no such field{nearest(key, known)}; known here: {', '.join(known)}"
        case "missing":
            line = f"{where}: required, but missing"
        case "literal_error":
            line = _unknown(where, value, _choices(fault["ctx"]["expected"]))
        case "union_tag_invalid":
            tag = value.get("name") if isinstance(value, dict) else value
            line = _unknown(f"{where}.name", tag, _choices(fault["ctx"]["expected_tags"]))
        case "union_tag_not_found":
            line = f"{where}.name: required, but missing; one of {', '.join(_names(where))}"
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
    return f"{where} = {value!r}: unknown{nearest(str(value), known)}; known: {', '.join(known)}"


def _choices(expected: str) -> list[str]:
    """The items of pydantic's `'a', 'b' or 'c'`."""
    return [word.strip().strip("'") for word in expected.replace(" or ", ", ").split(",")]


def _names(section: str) -> list[str]:
    """The values that `name` may have in a section with several kinds."""
    kinds = _kinds(Experiment.model_fields[section].annotation)
    return [name for kind in kinds for name in get_args(kind.model_fields["name"].annotation)]


def _fields(section: str, tree: Any) -> list[str]:
    """The field names of the section at a dotted path, in which numbers are indices of lists."""
    model: type[BaseModel] = Experiment
    for part in filter(None, section.split(".")):
        if isinstance(tree, list):
            tree = tree[int(part)]
            continue
        tree = tree[part]
        kinds = [*_kinds(model.model_fields[part].annotation)]
        model = next((kind for kind in kinds if len(kinds) > 1 and _has_name(kind, tree.get("name"))), kinds[0])
    return list(model.model_fields)


def _kinds(annotation: Any) -> Iterator[type[BaseModel]]:
    """The sections in the annotation of a field: one, several of a union, or the items of a list."""
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        yield annotation
    for option in get_args(annotation):
        yield from _kinds(option)


def _has_name(kind: type[BaseModel], name: object) -> bool:
    return name in get_args(kind.model_fields["name"].annotation)
