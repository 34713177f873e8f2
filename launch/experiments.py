"""The commands about experiments and agents: `configs`, `zoo`, `diff`, `new` and `check-env`."""

from __future__ import annotations

import json
import re
import shlex
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, NamedTuple, get_args

import typer
from rich.console import Console
from rich.table import Table

from podzero.config import (
    FOR_SLICES,
    ChanceGame,
    ChanceGameConfig,
    EnvConfig,
    Experiment,
    Game,
    GameConfig,
    GymnasiumConfig,
    JaxLibrary,
    JaxLibraryConfig,
    SimulatorConfig,
    builtin_configs,
    load,
)
from podzero.core.errors import ConfigError, nearest
from podzero.files.changes import differences
from podzero.files.players import PREFIX, zoo_card, zoo_names
from podzero.files.workdir import Workdir
from podzero.tools.commands.options import Json, config_names
from podzero.tools.commands.printing import print_json

if TYPE_CHECKING:
    from podzero.core.types import EnvSpec

ABSENT = "absent"
"""Shown for a setting that only the other experiment has, such as a field of another network."""
SIMULATORS = ("open_spiel", "pettingzoo")
"""Libraries with simulators; `new --game` takes LIBRARY/GAME for these and for each `JaxLibrary`."""

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


def new(
    env: Annotated[
        str | None,
        typer.Option(
            metavar="ID",
            help="A gymnasium environment, for example CartPole-v1; MODULE:ID if a module registers it.",
            show_default=False,
        ),
    ] = None,
    game: Annotated[
        str | None,
        typer.Option(
            metavar="NAME",
            help="A game, for example hex, backgammon, open_spiel/breakthrough, jumanji/Maze-v0 or gymnax/CartPole-v1.",
            show_default=False,
        ),
    ] = None,
    to: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Write the experiment there.", show_default="standard output")
    ] = None,
) -> None:
    """Write a first experiment for an environment: YAML with numbers for two CPU cores, and why they were chosen."""
    if (env is None) == (game is None):
        raise ConfigError("expected either --env ID or --game NAME, for example --env CartPole-v1 or --game hex")
    if to is not None and to.exists():
        raise ConfigError(f"{to} exists, and is not overwritten; give another file with --to, or remove it")
    from podzero.launch.starting import starting_experiment

    section, spec, length = _gymnasium(env) if env is not None else _game(game or "")
    head = (
        f"{spec.name}: an experiment to start from, for 2 CPU cores without an accelerator.\n"
        "Change what you know better; docs/settings.md says what each setting means."
    )
    text = starting_experiment(section, spec, length).to_yaml(head)
    if to is None:
        print(text, end="")
        return
    try:
        to.write_text(text, encoding="utf-8")
    except OSError as error:
        raise ConfigError(f"cannot write {to}: {error.strerror}") from None
    print(f"{to} is written. Check it with: podzero train {shlex.quote(str(to))} --check")


def _gymnasium(identifier: str) -> tuple[EnvConfig, EnvSpec, int | None]:
    """The section `env` of a gymnasium environment, its spec, and its time limit."""
    from podzero.config import GymnasiumConfig
    from podzero.envs import spec_of
    from podzero.envs.gymnasium_envs.making import REGISTERED_BY, find

    given, _, name = identifier.rpartition(":")
    namespace = name.partition("/")[0]
    module = given or REGISTERED_BY.get(namespace)
    registered = find(name, module)
    section = GymnasiumConfig(name="gymnasium", id=name, module=module)
    if registered.vector_entry_point is not None:
        # Frames are scaled and stacked there, and rewards are clipped unless one asks for the score.
        kwargs = {"reward_clipping": False} if namespace == "ALE" else {}
        own = section.model_copy(update={"vectorization": "own", "kwargs": kwargs})
        try:
            return own, spec_of(own), registered.max_episode_steps
        except ConfigError:
            # Not every vector environment can be reset as podzero needs it; single ones always can.
            pass
    return section, spec_of(section), registered.max_episode_steps


def _game(name: str) -> tuple[EnvConfig, EnvSpec, int | None]:
    """The section `env` of a game, its spec, and its largest number of plies."""
    from podzero.config import (
        JaxLibraryConfig,
    )
    from podzero.envs import spec_of

    library, _, game = name.partition("/")
    section: EnvConfig
    if library in get_args(JaxLibrary) and game:
        section, spec = _of_library(JaxLibraryConfig(name=library, id=game))  # type: ignore[arg-type]  # a JaxLibrary
        return section, spec, spec.max_plies
    if library in SIMULATORS and game:
        section = SimulatorConfig(name=library, id=game)  # type: ignore[arg-type]  # one of SIMULATORS
    elif name in get_args(ChanceGame):
        section = ChanceGameConfig(name=name)  # type: ignore[arg-type]
    elif name in get_args(Game):
        section = GameConfig(name=name)  # type: ignore[arg-type]
    else:
        games = (*get_args(Game), *get_args(ChanceGame))
        libraries = ", ".join(f"{library}/GAME" for library in (*SIMULATORS, *get_args(JaxLibrary)))
        raise ConfigError(f"unknown game '{name}'{nearest(name, games)}; known: {', '.join(games)}, {libraries}")
    spec = spec_of(section)
    return section, spec, spec.max_plies


def _of_library(section: JaxLibraryConfig) -> tuple[JaxLibraryConfig, EnvSpec]:
    """The section, with a scale of rewards if they sum to more than 1, and its spec."""
    from podzero.envs import spec_of

    try:
        return section, spec_of(section)
    except ConfigError:
        # Any other fault is raised again here.
        spec = spec_of(section.model_copy(update={"reward_scale": 1e-6}))
        if spec.max_plies is None:
            raise
        scaled = section.model_copy(update={"reward_scale": float(f"{1 / spec.max_plies:.3g}")})
        return scaled, spec_of(scaled)
