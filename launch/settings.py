"""The command `settings`: a page about all settings, made from the schema of experiments."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.markdown import Markdown

from podzero.config import Experiment
from podzero.config.section import IMPORT_PATH
from podzero.core.errors import ConfigError, nearest

INTRODUCTION = """\
# Settings

Every setting of an experiment, with its type, default and meaning. Set one in a YAML file, or on the command line as
`section.field=value`, for example `learner.optimizer.learning_rate=3e-4`. A file that begins with
`extends: connect_four` takes over the settings of that experiment ([experiments](experiments.md)).

This page is generated: `podzero settings > docs/settings.md`.
"""
_BOUNDS = {"exclusiveMinimum": ">", "minimum": ">=", "exclusiveMaximum": "<", "maximum": "<="}

_Schema = Mapping[str, Any]


def settings(
    section: Annotated[str | None, typer.Argument(help="Print only this section.", show_default="all sections")] = None,
) -> None:
    """Print all settings of an experiment with type, default and meaning, as Markdown."""
    page, console = settings_page(section), Console()
    if console.is_terminal:
        console.print(Markdown(page))
    else:
        print(page)


def settings_page(section: str | None = None) -> str:
    """The settings of all sections or of one, as Markdown."""
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
    """The lines of a section, for each of its kinds if there are several, and of the sections inside it."""
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
        types = ", ".join(dict.fromkeys(map(_type, field.get("oneOf", [field]))))
        yield f"| `{name}` | {types} | {default} | {_words(field)} |"


def _type(field: _Schema) -> str:
    """The type of a field, with its bounds."""
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
    # A name that is none of a list is an import path.
    return [str(choice) for choice in field.get("enum", [field.get("const", IMPORT_PATH)])]


def _models(field: _Schema) -> list[str]:
    """The names of the models that a field may hold; empty for a plain value."""
    if "$ref" in field:
        return [field["$ref"].removeprefix("#/$defs/")]
    inner = [*field.get("oneOf", ()), *field.get("anyOf", ()), *filter(None, [field.get("items")])]
    return [name for option in inner for name in _models(option)]


def _default(field: _Schema) -> str:
    # pydantic leaves out empty mappings made by a factory.
    default = field.get("default", {})
    if _models(field) and isinstance(default, dict):
        return "see below"
    return f"`{default if isinstance(default, str) else json.dumps(default)}`"


def _words(field: _Schema) -> str:
    return str(field["description"]).replace("\n", " ")
