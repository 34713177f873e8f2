"""The reference of all settings, generated from the schema of an experiment."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from podzero.config import Experiment
from podzero.errors import ConfigError, nearest

INTRODUCTION = """\
# Settings

Every setting of an experiment, with its type, default and meaning. Set one in a YAML file, or on the command line as
`section.field=value`, for example `learner.optimizer.learning_rate=3e-4`.

This page is generated: `podzero settings > docs/settings.md`.
"""
_BOUNDS = {"exclusiveMinimum": ">", "minimum": ">=", "exclusiveMaximum": "<", "maximum": "<="}

_Schema = Mapping[str, Any]


def settings_page(section: str | None = None) -> str:
    """All settings, or those of one section, as Markdown.

    Raises:
      ConfigError: there is no such section.
    """
    schema = Experiment.model_json_schema()
    fields = schema["properties"]
    sections = {name: field for name, field in fields.items() if _models(field)}
    if section is None:
        own = {name: field for name, field in fields.items() if name not in sections}
        chosen, lines = sections, [INTRODUCTION, *_table(own, schema["required"])]
    elif section in sections:
        chosen, lines = {section: sections[section]}, []
    else:
        raise ConfigError(f"no section '{section}'{nearest(section, sections)}; known: {', '.join(sections)}")
    for name, field in chosen.items():
        lines += _section(name, field, schema["$defs"], "##")
    return "\n".join(lines).strip()


def _section(path: str, field: _Schema, models: Mapping[str, _Schema], heading: str) -> Iterator[str]:
    """A section, in each of its kinds if there are several, and the sections inside it."""
    kinds = [models[name] for name in _models(field)]
    if len(kinds) > 1:
        yield from ("", f"{heading} {path}", "", f"{_words(field)} One of the following, selected by `name`.")
        heading += "#"
    for kind in kinds:
        fields = kind["properties"]
        names = f": {', '.join(_choices(fields['name']))}" if len(kinds) > 1 else ""
        yield from ("", f"{heading} {path}{names}", "", _words(kind), "")
        yield from _table(fields, kind.get("required", ()))
        for name, inner in fields.items():
            if _models(inner):
                yield from _section(f"{path}.{name}", inner, models, f"{heading}#")


def _table(fields: Mapping[str, _Schema], required: Iterable[str]) -> Iterator[str]:
    yield "| field | type | default | meaning |"
    yield "|---|---|---|---|"
    for name, field in fields.items():
        default = "required" if name in required else _default(field)
        yield f"| `{name}` | {_type(field)} | {default} | {_words(field)} |"


def _type(field: _Schema) -> str:
    """The type of a field with its bounds."""
    match field:
        case {"anyOf": [inner, {"type": "null"}]}:
            return f"{_type(inner)}, or null"
        case {"const": _} | {"enum": _}:
            return ", ".join(f"`{choice}`" for choice in _choices(field))
        case {"type": "array", "items": items}:
            return f"list of {_type(items)}s"
        case {"type": "object"}:
            return "mapping"
        case {"type": kind}:
            bounds = " and ".join(f"{sign} {field[key]:g}" for key, sign in _BOUNDS.items() if key in field)
            return f"{kind} {bounds}".rstrip()
        case _:
            return "section"


def _choices(field: _Schema) -> list[str]:
    return [str(choice) for choice in field.get("enum", [field.get("const")])]


def _models(field: _Schema) -> list[str]:
    """The names of the sections that a field may hold."""
    if "$ref" in field:
        return [field["$ref"].removeprefix("#/$defs/")]
    inner = [*field.get("oneOf", ()), *field.get("anyOf", ()), *filter(None, [field.get("items")])]
    return [name for option in inner for name in _models(option)]


def _default(field: _Schema) -> str:
    if "$ref" in field:
        return "see below"
    default = field.get("default", {})  # pydantic leaves out the empty mapping that a factory makes
    return f"`{default if isinstance(default, str) else json.dumps(default)}`"


def _words(field: _Schema) -> str:
    return str(field["description"]).replace("\n", " ")
