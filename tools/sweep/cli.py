"""The command `sweep`: many runs of one experiment."""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import Annotated, Literal

import typer

from podzero.config import Experiment
from podzero.core.errors import ConfigError
from podzero.core.importing import import_extra
from podzero.core.machine import keep_compiled_programs
from podzero.files.players import as_resumed
from podzero.runtime.stopping import StopSignals
from podzero.tools.commands.options import RUNS, Address, Config, Env, Json, read_env
from podzero.tools.commands.printing import print_json, print_tables
from podzero.tools.commands.trust import approve_code
from podzero.tools.sweep.folder import SweepFolder, SweepRun, absolute_config, plan, read_grid
from podzero.tools.sweep.results import read_result, summarize

Metric = Literal["keeps_value", "mean_return", "rating"]


def sweep(
    config: Config,
    settings: Annotated[
        list[str],
        typer.Argument(
            metavar="SECTION.FIELD=VALUES",
            help="Settings to try, as a,b,c, or whole numbers from 0 to 4 as 0..4. All combinations are run; a setting "
            "with one value has it in all runs.",
            show_default=False,
        ),
    ],
    to: Annotated[
        Path | None,
        typer.Option(
            metavar="DIR",
            help="The folder of the sweep; the run NAME is in DIR/NAME.",
            show_default="runs/CONFIG-sweep",
        ),
    ] = None,
    parallel: Annotated[
        int | None,
        typer.Option(min=1, help="Runs at the same time.", show_default="as many as have CPUs"),
    ] = None,
    minutes: Annotated[
        float | None, typer.Option(help="Minutes of training of each run: stop.minutes.", show_default="as in CONFIG")
    ] = None,
    steps: Annotated[
        int | None,
        typer.Option(
            min=1,
            help="Learner steps of each run, so that equal steps are compared: stop.steps, without the other limits of "
            "CONFIG.",
            show_default="as in CONFIG",
        ),
    ] = None,
    samples: Annotated[
        int | None,
        typer.Option(min=1, help="Random search: run only so many of the combinations, with all seeds."),
    ] = None,
    asha: Annotated[
        bool,
        typer.Option(
            "--asha", help="Stop a run at 1/9 and at 1/3 of its limit unless it is in the best third of those so far."
        ),
    ] = False,
    metric: Annotated[
        Metric | None,
        typer.Option(help="What the table compares.", show_default="the first of these that the runs measure"),
    ] = None,
    address: Address = None,
    env: Env = None,
    as_json: Json = False,
) -> None:
    """Train an experiment with all combinations of some settings, and print a table of what the runs reached.

    Each run trains on one machine. A run that fails resumes from its checkpoint, at most twice.
    Typed again, the command goes on where it stopped: finished runs are not repeated.
    The table compares the means over seeds: podzero sweep CONFIG learner.optimizer.learning_rate=1e-3,3e-3 seed=0..4
    """
    address = None if address == "local" else address
    secrets = read_env(env)
    grid = read_grid([*settings, *_limits(settings, minutes, steps)])
    runs = plan(config, grid, samples)
    folder = SweepFolder(to or RUNS / f"{Path(config).stem}-sweep")
    for run in runs:
        _check_alone(run)
        approve_code(as_resumed(run.experiment, folder.workdir(run)))
    if (note := _judgement_note(runs[0].experiment)) is not None:
        typer.echo(note, err=True)

    def say(text: str) -> None:
        if not as_json:
            print(text, flush=True)

    with StopSignals() as signals, folder.lock():
        folder.open(config, grid, runs)
        left = [run for run in runs if folder.progress(run).state == "unfinished"]
        say(f"{len(runs)} runs in {folder.root}, of which {len(runs) - len(left)} have ended.")
        given_up: dict[str, str] = {}
        if left:
            import_extra("ray.tune", "podzero sweep", "sweep")
            from podzero.tools.sweep.tuning import train_runs

            if address is None:
                keep_compiled_programs()
            # ASHA needs to know what the others have reached.
            given_up = train_runs(
                folder, absolute_config(config), runs if asha else left, parallel, address, asha, signals, say, secrets
            )
        found = summarize([read_result(folder, run, given_up.get(run.name)) for run in runs], metric)
    if as_json:
        print_json(found.to_tree())
    else:
        print_tables(found.tables())
        print(f"Their curves: podzero report {shlex.quote(str(folder.root))}")
    if signals.number:
        say("Go on with the same command.")
        raise typer.Exit(128 + signals.number)
    if given_up:
        raise typer.Exit(1)


def _limits(settings: list[str], minutes: float | None, steps: int | None) -> list[str]:
    """The limits of `--minutes` and `--steps` as settings."""
    limits = {} if minutes is None else {"stop.minutes": f"{minutes:g}"}
    if steps is not None:
        given = {setting.partition("=")[0] for setting in settings}
        others = {name: "null" for name in ("stop.minutes", "stop.games") if name not in given}
        limits = {"stop.steps": f"{steps}"} | others | limits
    return [f"{name}={value}" for name, value in limits.items()]


def _judgement_note(experiment: Experiment) -> str | None:
    """What to expect of runs that end before a second judgement can begin; None for longer ones."""
    minutes, evaluation = experiment.stop.minutes, experiment.evaluation
    if minutes is None or minutes > evaluation.every_minutes:
        return None
    runs, every = f"Runs of {minutes:g} minutes", f"evaluation.every_minutes={evaluation.every_minutes:g}"
    if evaluation.final_minutes:
        return f"{runs} are judged at their end, and at most once before ({every}): they have no curve of strength."
    return (
        f"{runs} are judged at most once, and not at all if that round is under way when they end ({every}, "
        "evaluation.final_minutes=0): the table may be empty. Leave out evaluation.final_minutes, or train longer."
    )


def _check_alone(run: SweepRun) -> None:
    """Refuses a run that does not end by itself, or needs several machines."""
    if run.experiment.stop.unlimited:
        raise ConfigError(f"the run {run.name} would never end; give --minutes or --steps")
    if (hosts := run.experiment.cluster.learner_hosts) > 1:
        raise ConfigError(
            f"the run {run.name} trains on {hosts} machines (cluster.hosts or cluster.slice), but one of a sweep on "
            "one machine; train such runs one by one with `podzero train --address`"
        )
