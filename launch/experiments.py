"""The commands about experiments and agents: `configs`, `zoo`, `diff` and `check-env`."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, NamedTuple

import typer
from rich.console import Console
from rich.table import Table

from podzero.config import (
    FOR_SLICES,
    Experiment,
    GymnasiumConfig,
    builtin_configs,
    load,
)
from podzero.files.changes import differences
from podzero.files.players import PREFIX, zoo_card, zoo_names
from podzero.files.workdir import Workdir
from podzero.tools.commands.options import Json, config_names
from podzero.tools.commands.printing import print_json

if TYPE_CHECKING:
    pass

ABSENT = "absent"
"""Shown for a setting that only the other experiment has, such as a field of another network."""

_Compared = Annotated[
    str,
    typer.Argument(
        help="An experiment (see `podzero configs`), a YAML file, or the working directory of a run.",
        autocompletion=config_names,
    ),
]


def configs(as_json: Json = False) -> None:
    """List the experiments that come with podzero."""
    experiments = list_builtin()
    if as_json:
        print_json({"configs": [experiment._asdict() for experiment in experiments]})
        return
    console = Console()
    console.print(builtin_table(experiments))
    console.print("\nEach file's first comment says more. Start one with: podzero train NAME", style="dim")


class Builtin(NamedTuple):
    """An experiment that comes with podzero."""

    name: str
    file: str
    card: str
    """The comment at the top of the file: the experiment's results, hardware and training time."""


def list_builtin() -> list[Builtin]:
    """The experiments that come with podzero, sorted by name."""
    return [Builtin(name, str(path), card(path)) for name, path in builtin_configs().items()]


def builtin_table(experiments: list[Builtin]) -> Table:
    """A table of experiments with the first lines and results of their cards; those for slices come last."""
    table = Table(box=None, header_style="bold", pad_edge=False)
    table.add_column("name", no_wrap=True, style="cyan")
    table.add_column("experiment")
    table.add_column("result")
    general = [experiment for experiment in experiments if not experiment.name.startswith(FOR_SLICES)]
    for experiment in general:
        table.add_row(experiment.name, experiment.card.partition("\n")[0], _result(experiment.card))
    table.add_row()
    table.add_row("[bold]for TPU slices[/]", "[bold]docs/tpu.md says how to start one[/]")
    for experiment in experiments[len(general) :]:
        table.add_row(experiment.name, experiment.card.partition("\n")[0])
    return table


def _result(card: str) -> str:
    """The text after `Result:` in a card."""
    found = re.search(r"^Result:(.*?)(?=^\w+:|\Z)", card, re.DOTALL | re.MULTILINE)
    return " ".join(found[1].split()) if found else ""


def card(config: Path) -> str:
    """The comment at the top of an experiment's file."""
    lines: list[str] = []
    for line in config.read_text(encoding="utf-8").splitlines():
        if not line.startswith("#"):
            break
        lines.append(line.removeprefix("#").removeprefix(" ").rstrip())
    return "\n".join(lines)


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
    console.print(f"\nPlay: podzero play {next(iter(cards))} --web", highlight=False)


def check_env(
    environment: Annotated[
        str,
        typer.Argument(
            metavar="ENV", help="A class of your own, as file.py:Class or module:Class, or an experiment that has it."
        ),
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


def _text(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value)


def diff(a: _Compared, b: _Compared, as_json: Json = False) -> None:
    """Print the settings that differ between two experiments, each as `section.field: a -> b`.

    Settings that a file inherits, and defaults, count too; the names of the experiments do not.
    """
    found = differences(_experiment(a), _experiment(b), exclude={"name"}, absent=ABSENT)
    if as_json:
        listed = [{"setting": setting, "a": old, "b": new} for setting, old, new in found]
        print_json({"a": a, "b": b, "differences": listed})
    elif found:
        print("\n".join(f"{setting}: {_text(old)} -> {_text(new)}" for setting, old, new in found))
    else:
        print(f"{a} and {b} have the same settings.")


def _experiment(name: str) -> Experiment:
    """The experiment of a name, a file or a working directory."""
    return Workdir(name).experiment() if Path(name).expanduser().is_dir() else load(name)
