"""The commands about experiments and agents: `configs`, `zoo`, `diff`, `check-env` and `settings`."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator, Mapping
from itertools import takewhile
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.markdown import Markdown

from podzero.config import FOR_SLICES, Experiment, GymnasiumConfig, builtin_configs, load
from podzero.config.section import IMPORT_PATH
from podzero.core.errors import ConfigError, nearest
from podzero.files.players import PREFIX, zoo_card, zoo_names
from podzero.files.workdir import Workdir, differences
from podzero.tools.commands.options import Json
from podzero.tools.commands.printing import plain_table, print_json

ABSENT = "absent"
"""Shown for a setting that only the other experiment has, such as a field of another network."""

_Compared = Annotated[
    str,
    typer.Argument(
        help="An experiment (see `podzero configs`), a YAML file, or the working directory of a run.",
        autocompletion=builtin_configs,
    ),
]


def configs(as_json: Json = False) -> None:
    """List the experiments that come with podzero."""
    files = builtin_configs()
    cards = {name: card(path) for name, path in files.items()}
    if as_json:
        print_json({"configs": [{"name": name, "file": str(files[name]), "card": cards[name]} for name in cards]})
        return
    table = plain_table("name", "experiment", "result")
    table.columns[0].no_wrap, table.columns[0].style = True, "cyan"
    general = {name: text for name, text in cards.items() if not name.startswith(FOR_SLICES)}
    for name, text in general.items():
        found = re.search(r"^Result:(.*?)(?=^\w+:|\Z)", text, re.DOTALL | re.MULTILINE)
        table.add_row(name, text.partition("\n")[0], " ".join(found[1].split()) if found else "")
    table.add_row()
    table.add_row("[bold]for TPU slices[/]", "[bold]docs/tpu.md says how to start one[/]")
    for name in [*cards][len(general) :]:
        table.add_row(name, cards[name].partition("\n")[0])
    console = Console()
    console.print(table)
    console.print("\nEach file's first comment says more. Start one with: podzero train NAME", style="dim")


def card(config: Path) -> str:
    """The comment at the top of an experiment's file."""
    lines = takewhile(lambda line: line.startswith("#"), config.read_text(encoding="utf-8").splitlines())
    return "\n".join(line.removeprefix("#").removeprefix(" ").rstrip() for line in lines)


def zoo(as_json: Json = False) -> None:
    """List the trained agents that come with podzero."""
    cards = {f"{PREFIX}{name}": zoo_card(name) for name in zoo_names()}
    if as_json:
        print_json(cards)
        return
    console = Console()
    for name, card in cards.items():
        console.print(f"[bold cyan]{name}[/]  {card['network']}; {card['hours']:g} h on {card['hardware']}")
        for sentence in card["judged"]:
            console.print(f"  {sentence}", highlight=False)
        console.print(f"  {card['command']}  (commit {card['commit']}, {card['date']})", highlight=False, style="dim")
    console.print("\nPlay in the browser: podzero demo go_9x9", highlight=False)


def check_env(
    environment: Annotated[
        str,
        typer.Argument(metavar="ENV", help="Your class, as file.py:Class or module:Class, or an experiment with it."),
    ],
    games: Annotated[int, typer.Option(min=1, help="Random games to play.")] = 32,
    max_plies: Annotated[int, typer.Option(min=1, help="The largest number of plies of each.")] = 256,
    as_json: Json = False,
) -> None:
    """Check the contract of a game in random games, or of a gymnasium environment in random episodes."""
    from podzero.envs import check_env, own_env

    env = own_env(environment) if ":" in environment else load(environment).env
    spec = check_env(env, games, max_plies)
    if as_json:
        print_json(spec._asdict())
        return
    actions = f"{spec.num_actions} actions" if spec.num_actions else f"actions of shape {list(spec.action_shape)}"
    played = "episodes" if isinstance(env, GymnasiumConfig) else "games"
    print(
        f"{spec.name} keeps its contract in {games} random {played}. Players: {spec.players}. Observations: "
        f"{spec.observation_dtype} {list(spec.observation_shape)}, {actions}."
    )


def diff(a: _Compared, b: _Compared, as_json: Json = False) -> None:
    """Print the settings that differ between two experiments, each as `section.field: a -> b`.

    Settings that a file inherits, and defaults, count too; the names of the experiments do not.
    """
    found = differences(_experiment(a), _experiment(b), exclude={"name"}, absent=ABSENT)
    if as_json:
        listed = [{"setting": setting, "a": old, "b": new} for setting, old, new in found]
        print_json({"a": a, "b": b, "differences": listed})
    elif found:
        for setting, *values in found:
            old, new = (value if isinstance(value, str) else json.dumps(value) for value in values)
            print(f"{setting}: {old} -> {new}")
    else:
        print(f"{a} and {b} have the same settings.")


def _experiment(name: str) -> Experiment:
    """The experiment of a name, a file or a working directory."""
    run = Workdir(name)
    return run.experiment() if run.root.is_dir() else load(name)


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
    page, console = "\n".join(lines).strip(), Console()
    if console.is_terminal:
        console.print(Markdown(page))
    else:
        print(page)


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
        case {"anyOf": kinds}:
            return ", or ".join(map(_type, kinds))
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
