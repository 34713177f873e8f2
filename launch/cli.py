"""The command line: one verb per job. Rooms are imported inside the verbs, so that a wrong word is refused at once."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Mapping
from importlib import import_module
from pathlib import Path
from typing import Annotated, Any, Literal

import typer

from podzero.config import Experiment, builtin_configs, load
from podzero.errors import ConfigError
from podzero.launch.targets.verb import launch
from podzero.monitoring.status import read_status
from podzero.workdir import Workdir, WorkdirError

app = typer.Typer(
    help="Distributed AlphaZero: Ray actors, a Reverb replay server, a sharded JAX learner.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)

ERRORS_FOR_PEOPLE: Mapping[str, tuple[str, ...]] = {
    "podzero.envs": ("EnvironmentFailed", "SimulatorError"),
    "podzero.cluster.remote": ("ClusterError", "WorkerDied"),
    "podzero.driver.learner_group": ("RunFailed",),
    "podzero.launch.targets.perform": ("LaunchFailed",),
    "podzero.learner": ("CheckpointDamaged", "CheckpointMismatch", "HostLost", "TrainingDiverged"),
    "podzero.params": ("ParamStoreLost", "SnapshotError"),
    "podzero.replay": ("PortTaken", "ReplayRestoreError", "ReplayTimeout", "WrongServer"),
}
"""Errors whose message says all, by the door they come through; they are shown without a traceback."""

Json = Annotated[bool, typer.Option("--json", help="Print one line with one JSON object.")]
Who = Annotated[str, typer.Argument(help="A working directory, DIR@STEP, or a named player: random, mcts:400, solver.")]
Overrides = Annotated[list[str] | None, typer.Argument(help="section.field=value", show_default=False)]
Simulations = Annotated[int | None, typer.Option(min=1, help="Simulations per move; default: as trained.")]
Game = Annotated[str | None, typer.Option(help="The game, where no working directory tells it.")]
Stage = Literal["selfplay", "simulators", "acting", "learner", "replay", "publish", "actors", "broadcast", "mesh"]
ProgramName = Literal["learner", "evaluation", "selfplay"]


def main() -> None:
    """Runs the command line; what a person did wrong is told in one message and exit code 2."""
    spare_metadata_queries(Path("/dev"))
    try:
        app()
    except Exception as error:
        if not isinstance(error, (ConfigError, WorkdirError, *_loaded_errors())):
            raise
        print(f"podzero: {error}", file=sys.stderr)
        sys.exit(2)


@app.command()
def configs(as_json: Json = False) -> None:
    """List the experiments that come with podzero."""
    cards = [{"name": name, "file": str(path), "card": card(path)} for name, path in builtin_configs().items()]
    if as_json:
        _print_json({"configs": cards})
        return
    from rich.console import Console
    from rich.table import Table

    table = Table(box=None, header_style="bold", pad_edge=False)
    table.add_column("name", no_wrap=True, style="cyan")
    table.add_column("what it reaches")
    for entry in cards:
        table.add_row(entry["name"], entry["card"].partition("\n")[0])
    console = Console()
    console.print(table)
    console.print("\nThe whole card stands at the top of each file. Start one with: podzero train NAME", style="dim")


@app.command()
def train(
    config: Annotated[str, typer.Argument(help="An experiment's name (see `podzero configs`) or a YAML file.")],
    overrides: Overrides = None,
    workdir: Annotated[
        Path | None, typer.Option(help="Where everything goes; one that is in use is resumed.  [default: runs/NAME]")
    ] = None,
    address: Annotated[str | None, typer.Option(help="Join this Ray cluster instead of starting one.")] = None,
    view: Annotated[
        Literal["auto", "plain", "live"], typer.Option(help="A live picture, or plain lines; auto: as the output is.")
    ] = "auto",
) -> None:
    """Run an experiment, or go on with it."""
    experiment = load(config, overrides or ())
    root = workdir or Path("runs") / experiment.name
    from podzero.driver.train import train as run
    from podzero.monitoring.terminal import make_view

    reason = run(experiment, root, address, make_view(view))
    print(f"The run is over: {reason}. Everything is in {root}. To judge it: podzero evaluate {root}")
    print("To go on, train again; beyond the experiment's end with a later one, as stop.minutes=60")


@app.command()
def status(
    directory: Annotated[Path, typer.Argument(metavar="DIR", help="A working directory.")], as_json: Json = False
) -> None:
    """Show what a run is doing, from its files, while it runs or after."""
    found = read_status(Workdir(directory))
    if as_json:
        print(found.to_json())
        return
    from rich.console import Console

    from podzero.monitoring.view import run_view

    console = Console()
    console.print(run_view(found.status))
    console.print(f"{directory}: {found.words}", highlight=False)


@app.command()
def evaluate(
    who: Who,
    opponent: Annotated[str | None, typer.Option(help="Whom to play; a solver judges positions if left out.")] = None,
    games: Annotated[int, typer.Option(min=1, help="Games, half of them as the first player; or episodes.")] = 100,
    simulations: Simulations = None,
    positions: Annotated[int, typer.Option(min=1, help="Positions that the solver judges.")] = 1000,
    seed: Annotated[int, typer.Option(min=0, help="Of openings, positions and every random choice.")] = 0,
    game: Game = None,
    as_json: Json = False,
) -> None:
    """Play a match, be judged by a solver, or act in episodes, with confidence intervals."""
    from podzero.evaluation.evaluate import evaluate as run

    _print_result(run(who, opponent, games, simulations, positions, seed, game), as_json)


@app.command()
def analyze(
    who: Who,
    simulations: Simulations = None,
    game: Game = None,
) -> None:
    """Answer positions: JSON lines in, as {"id": 1, "moves": [3, 3, 4]}, JSON lines out."""
    from podzero.evaluation.evaluate import analyze as run

    for answer in run(who, sys.stdin, simulations, game):
        _print_json(answer)


@app.command()
def bench(
    which: Annotated[Stage, typer.Argument(help="The stage to hold against its own limit.")],
    overrides: Overrides = None,
    config: Annotated[str, typer.Option(help="The experiment whose sizes are used.")] = "connect_four",
    seconds: Annotated[float, typer.Option(min=0.1, help="How long to measure, without start and compilation.")] = 20.0,
    as_json: Json = False,
) -> None:
    """Measure a stage beside the limit that it could reach, in one run."""
    experiment: Experiment = load(config, overrides or ())
    measure = getattr(import_module(f"podzero.benchmarks.{which}"), f"bench_{which}")
    _print_result(measure(experiment, seconds), as_json)


@app.command("compile")
def compile_for(
    config: Annotated[
        str | None, typer.Argument(help="An experiment's name or a YAML file.", show_default=False)
    ] = None,
    overrides: Overrides = None,
    topology: Annotated[str, typer.Option(help="A slice, as v5e-16 or v5e:4x4.")] = "v5e-16",
    program: Annotated[ProgramName | None, typer.Option(help="Only this program.  [default: all]")] = None,
    scaling: Annotated[
        str | None, typer.Option(help="How well the learner scales over these slices, as v5e-4,v5e-256.")
    ] = None,
    per_chip: Annotated[
        int | None, typer.Option(min=1, help="With --scaling, samples a step and chip; default: of the first slice.")
    ] = None,
    table: Annotated[bool, typer.Option("--table", help="All built-in experiments into docs/compile.md.")] = False,
    again: Annotated[bool, typer.Option("--again", help="With --table, compile even what is known.")] = False,
    minutes: Annotated[float, typer.Option(min=0.1, help="With --table, for one program.")] = 15.0,
    as_json: Json = False,
) -> None:
    """Let the TPU compiler judge an experiment for a slice, or all for several (--table); no TPU is needed."""
    if table:
        from podzero.aot.table import make_table

        make_table(again, limit_s=60 * minutes)
        return
    if config is None:
        raise ConfigError("which experiment? Name one (see `podzero configs`), or ask for all with --table")
    from podzero.aot.command import judge_programs, judge_scaling

    experiment = load(config, overrides or ())
    found = (
        judge_programs(experiment, topology, program)
        if scaling is None
        else judge_scaling(experiment, scaling.split(","), per_chip)
    )
    if as_json:
        _print_json(found.to_dict())
    else:
        from rich.console import Console

        found.show(Console())
    raise typer.Exit(0 if found.fits else 1)


app.command()(launch)


@app.command()
def doctor(as_json: Json = False) -> None:
    """Say what this machine can do, and what is missing."""
    from podzero.launch.doctor import examine, show

    checks = examine()
    if as_json:
        _print_json({"ok": not any(c.failed for c in checks), "checks": [c._asdict() for c in checks]})
    else:
        show(checks)
    raise typer.Exit(1 if any(c.failed for c in checks) else 0)


def spare_metadata_queries(devices: Path) -> None:
    """Keeps libtpu, where it is installed, from asking Google's metadata server about TPUs on a machine without any.

    Where that server cannot be reached libtpu would try again for minutes before jax falls back to the CPU.
    """
    if not any(devices.glob("accel*")) and not (devices / "vfio").exists():
        os.environ.setdefault("TPU_SKIP_MDS_QUERY", "1")


def card(config: Path) -> str:
    """The comment that opens a config file: what it reaches, on what hardware, in how long, and the command."""
    lines: list[str] = []
    for line in config.read_text().splitlines():
        if not line.startswith("#"):
            break
        lines.append(line.removeprefix("#").removeprefix(" ").rstrip())
    return "\n".join(lines)


def _print_json(result: Mapping[str, Any]) -> None:
    print(json.dumps(result, allow_nan=False), flush=True)


def _print_result(result: Mapping[str, Any], as_json: bool) -> None:
    if as_json:
        _print_json(result)
        return
    width = max(map(len, result), default=0)
    for name, value in result.items():
        print(f"{name:<{width}}  {_readable(value)}")


def _readable(value: Any) -> str:
    match value:
        case float():
            return f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.4g}"
        case list() | tuple():
            return ", ".join(_readable(item) for item in value)
        case dict():
            return ", ".join(f"{key}: {_readable(item)}" for key, item in value.items())
        case _:
            return str(value)


def _loaded_errors() -> tuple[type[Exception], ...]:
    """The classes of `ERRORS_FOR_PEOPLE` whose modules were imported: no other can have been raised."""
    return tuple(
        getattr(sys.modules[module], name)
        for module, names in ERRORS_FOR_PEOPLE.items()
        if module in sys.modules
        for name in names
        if hasattr(sys.modules[module], name)
    )
