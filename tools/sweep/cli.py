"""The command `sweep`: many runs of one experiment, and a table of what they reached."""

from __future__ import annotations

import shlex
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from statistics import fmean, stdev
from typing import Annotated, Any, Literal, NamedTuple

import numpy as np
import typer

from podzero.config import Experiment
from podzero.core.errors import ConfigError
from podzero.core.importing import import_extra
from podzero.core.machine import keep_compiled_programs
from podzero.evaluation.statistics import Difference
from podzero.files.players import as_resumed
from podzero.files.workdir import Workdir
from podzero.runtime.stopping import StopSignals
from podzero.tools.commands.options import RUNS, Address, Config, Env, Json, read_env
from podzero.tools.commands.printing import ReportTable, print_json, print_tables
from podzero.tools.commands.trust import approve_code
from podzero.tools.report.comparison import ABSENT, paired_by_seed
from podzero.tools.report.figures import MetricCurves
from podzero.tools.report.record import RunReader
from podzero.tools.report.sections import Evaluations
from podzero.tools.sweep.folder import METRICS, SweepFolder, SweepRun, absolute_config, plan, read_grid, shown

Metric = Literal["keeps_value", "mean_return", "rating"]


_Settings = Annotated[
    list[str],
    typer.Argument(
        metavar="SECTION.FIELD=VALUES",
        help="Settings to try, as a,b,c, or whole numbers from 0 to 4 as 0..4. All combinations are run; a setting "
        "with one value has it in all runs.",
        show_default=False,
    ),
]
_To = Annotated[
    Path | None,
    typer.Option(
        metavar="DIR", help="The folder of the sweep; the run NAME is in DIR/NAME.", show_default="runs/CONFIG-sweep"
    ),
]
_Steps = Annotated[
    int | None,
    typer.Option(
        min=1,
        help="Learner steps of each run, so that equal steps are compared: stop.steps, without CONFIG's other limits.",
        show_default="as in CONFIG",
    ),
]


def sweep(
    config: Config,
    settings: _Settings,
    to: _To = None,
    parallel: Annotated[int | None, typer.Option(min=1, help="Runs at once.", show_default="as the CPUs allow")] = None,
    minutes: Annotated[
        float | None, typer.Option(help="Minutes of training of each run: stop.minutes.", show_default="as in CONFIG")
    ] = None,
    steps: _Steps = None,
    samples: Annotated[
        int | None, typer.Option(min=1, help="Random search: run only so many of the combinations, with all seeds.")
    ] = None,
    asha: Annotated[
        bool,
        typer.Option("--asha", help="Stop a run at 1/9 and 1/3 of its limit unless it is in the best third so far."),
    ] = False,
    positions: Annotated[
        int | None,
        typer.Option(
            min=1,
            help="Let a solver judge the last snapshot of each finished run in so many positions.",
            show_default="no judgement",
        ),
    ] = None,
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
        _check_solved(run, positions)
        approve_code(as_resumed(run.experiment, folder.workdir(run)))
    if (note := _judgement_note(runs[0].experiment)) is not None:
        typer.echo(note, err=True)

    def say(text: str) -> None:
        if not as_json:
            print(text, flush=True)

    with StopSignals() as signals, Workdir(folder.root).lock():
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
        results = [read_result(folder, run, given_up.get(run.name)) for run in runs]
        result = summarize([_judged(folder, run, positions, signals, say) for run in results], metric)
    if as_json:
        print_json(result)
    else:
        print_tables(tables(result))
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


def _check_solved(run: SweepRun, positions: int | None) -> None:
    """Refuses `positions` to judge in a game without a solver."""
    if positions is not None:
        from podzero.evaluation.evaluate import check_solver

        check_solver(run.experiment.env.title, positions)


class RunResult(NamedTuple):
    """What a run of a sweep reached."""

    name: str
    combination: Mapping[str, str]
    """Its values of the swept settings, without the seed."""
    seed: str
    """Empty if seeds are not swept."""
    state: str
    """As in `folder.State`, or why the run was given up."""
    minutes: float
    """Minutes of training."""
    steps: int
    """Learner steps."""
    values: Mapping[str, float]
    """The newest evaluation, by the names of `folder.METRICS`."""
    measured_at: Mapping[str, int]
    """The learner step of each of these values."""
    judged: Mapping[str, float] = {}
    """A solver's judgement of its last snapshot, by the words of `measures_of`."""


def read_result(folder: SweepFolder, run: SweepRun, error: str | None = None) -> RunResult:
    """Reads what a run has reached; `error` is the last one of a run that was given up."""
    workdir, (state, status) = folder.workdir(run), folder.progress(run)
    newest: dict[str, float] = {}
    measured_at: dict[str, int] = {}
    if workdir.is_run:
        record = RunReader(workdir).read()
        evaluations = Evaluations(MetricCurves(record.history), record.ladder)
        for name in METRICS:
            values = evaluations.values("elo" if name == "rating" else name)
            if (known := np.flatnonzero(np.isfinite(values))).size:
                newest[name], measured_at[name] = float(values[known[-1]]), evaluations.steps[known[-1]]
    return RunResult(
        run.name,
        run.combination,
        run.seed,
        state if error is None else f"given up: {error}",
        status.elapsed_s / 60 if status else 0.0,
        status.step if status else 0,
        newest,
        measured_at,
    )


def _judged(
    folder: SweepFolder, run: RunResult, positions: int | None, signals: StopSignals, say: Callable[[str], None]
) -> RunResult:
    """The run with a solver's judgement, if it has finished and nobody has asked to stop; each run is judged once."""
    if positions is None or run.state != "finished" or signals.number:
        return run
    from podzero.evaluation.evaluate import evaluate

    judged = folder.judgement(run.name, positions)
    if judged is None:
        say(f"{run.name}: is judged in {positions:,} positions")
        judged = measures_of(evaluate(str(folder.root / run.name), positions=positions))
        folder.keep_judgement(run.name, positions, judged)
    return run._replace(judged=judged)


def measures_of(found: Mapping[str, Any]) -> dict[str, float]:
    """The shares of moves that keep the value, and the errors of the network's values, of what `evaluate` returned."""
    measures = {}
    for where, judged in (("", found), ("strong games, ", found.get("games"))):
        if judged is None:
            continue
        for plies in ("all plies", *judged["bands"]):
            with_search, alone = (one["bands"].get(plies, one) for one in (judged, judged["network"]))
            measures[f"{where}{plies}: keeps the value"] = with_search["keeps_value"]
            measures[f"{where}{plies}: value error"] = alone["value_error"]
    return measures


def summarize(runs: Sequence[RunResult], metric: str | None = None) -> dict[str, Any]:
    """Compares the combinations of the runs with that of the first run, as plain values; None for what is not known.

    `metric` is one of `folder.METRICS`; by default the first that a run has.

    Returns:
      `metric`, `runs` and `combinations`: `settings`, the number of `runs`, the metric's `values` in those that have
      finished and have it, their `mean`, their `spread` (sample standard deviation), and the `difference` from the
      first combination, paired by seed: its `mean`, `low` and `high` (95% interval by Student), and the `pairs`; and in
      `judged` such combinations for each measure of a solver's judgement.
    """
    metric = metric or next((name for name in METRICS if any(name in run.values for run in runs)), "rating")
    measures = dict.fromkeys(name for run in runs for name in run.judged)
    return {
        "metric": metric,
        "combinations": _combinations(runs, "values", metric),
        "judged": {name: _combinations(runs, "judged", name) for name in measures},
        "runs": [run._asdict() for run in runs],
    }


def _combinations(runs: Sequence[RunResult], kind: Literal["values", "judged"], measure: str) -> list[dict[str, Any]]:
    """See `summarize`; the measure is one of the runs' `values` or `judged`."""
    groups: dict[tuple[str, ...], list[RunResult]] = {}
    for run in runs:
        groups.setdefault(tuple(run.combination.values()), []).append(run)
    by_seed: list[dict[str, float]] = []
    for group in groups.values():
        finished = {run.seed: getattr(run, kind) for run in group if run.state == "finished"}
        by_seed.append({seed: found[measure] for seed, found in finished.items() if measure in found})
    return [
        {
            "settings": group[0].combination,
            "runs": len(group),
            "values": [*values.values()],
            "mean": fmean(values.values()) if values else None,
            "spread": stdev(values.values()) if len(values) > 1 else None,
            "difference": paired_by_seed(values, by_seed[0]),
        }
        for group, values in zip(groups.values(), by_seed, strict=True)
    ]


def tables(result: Mapping[str, Any]) -> list[ReportTable]:
    """A table of the combinations and one of the runs."""
    metric = result["metric"]
    word = METRICS[metric]
    caption = (
        f"The {word} in the newest evaluation of each finished run: how many runs have one, mean and standard "
        "deviation over seeds, mean difference from the first row, paired by seed, with its 95% interval."
    )
    runs = [RunResult(**run) for run in result["runs"]]
    steps = sorted({run.measured_at[metric] for run in runs if run.state == "finished" and metric in run.values})
    if len(steps) > 1:
        caption += f" They are of steps from {steps[0]:,} to {steps[-1]:,}; --steps N compares equal steps."
    header = ("settings", "measured", "mean", "spread", "difference")
    judged = [(name, *row) for name, found in result["judged"].items() for row in _rows(found)]
    rows = [
        (
            run.name,
            run.state,
            f"{run.minutes:.1f}",
            f"{run.steps:,}",
            _number(run.values.get(metric)),
            f"{run.measured_at[metric]:,}" if metric in run.measured_at else ABSENT,
        )
        for run in runs
    ]
    return [
        ReportTable(caption, header, _rows(result["combinations"])),
        *([ReportTable(_OF_SOLVER, ("positions", *header), judged)] if judged else []),
        ReportTable("All runs.", ("run", "state", "minutes", "steps", word, "at step"), rows),
    ]


_OF_SOLVER = (
    "A solver's judgement of the last snapshots of finished runs, likewise: the share of the search's moves that keep "
    "the game's value, and the mean absolute error of the network's values."
)


def _rows(combinations: Sequence[Mapping[str, Any]]) -> list[tuple[str, ...]]:
    return [
        (
            shown(one["settings"]) or "as they stand",
            f"{len(one['values'])} of {one['runs']}",
            _number(one["mean"]),
            _number(one["spread"]),
            str(Difference(**one["difference"])) if one["difference"] else ABSENT,
        )
        for one in combinations
    ]


def _number(value: float | None) -> str:
    return ABSENT if value is None else f"{value:.4g}"
