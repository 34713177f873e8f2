"""The commands about runs: `runs`, `status`, `logs`, `trace` and `stop`."""

from __future__ import annotations

import logging
import shlex
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Literal, NamedTuple

import typer
from rich.console import Console, Group
from rich.live import Live
from rich.markup import escape
from rich.text import Text

from podzero.core.errors import ConfigError, nearest
from podzero.files.store import store_of
from podzero.files.workdir import Workdir, WorkdirError, refuse_url
from podzero.runtime.checkpoints import checkpoints
from podzero.runtime.monitoring.log_file import DRIVER, of_process, read_log
from podzero.runtime.monitoring.status import StoredStatus, duration, read_status
from podzero.runtime.monitoring.view import status_panel
from podzero.runtime.stopping import stop_run
from podzero.tools.commands.options import Json
from podzero.tools.commands.printing import plain_table, print_json, readable

Directory = Annotated[Path, typer.Argument(metavar="DIR", help="The run's working directory.")]
REFRESH_S = 2.0
"""Interval at which a watched status is read, the same as that at which a run writes it."""
METRICS = ("loss", "rating", "keeps_value", "mean_return")
"""The metrics in the list of runs."""

RunState = Literal["running", "ended", "interrupted", "not started", "damaged"]


def runs(
    directory: Annotated[Path, typer.Argument(metavar="DIR", help="The folder that contains the runs.")] = Path("runs"),
    as_json: Json = False,
) -> None:
    """List the runs in a folder with state, step and newest metrics."""
    found = find_runs(directory)
    if as_json:
        print_json({"runs": [run._asdict() for run in found]})
        return
    table = plain_table("directory", "experiment", "state", "status age", "step", "newest metrics")
    table.columns[3].justify = table.columns[4].justify = "right"
    for run in found:
        age = "" if run.age_s is None else duration(run.age_s)
        metrics = ", ".join(f"{name} {readable(value)}" for name, value in run.metrics.items())
        table.add_row(run.directory, run.experiment, run.state, age, f"{run.step:,}", metrics or escape(run.problem))
    Console().print(table)


class ListedRun(NamedTuple):
    """A run in the list of runs."""

    directory: str
    experiment: str
    state: RunState
    """`interrupted`: the run has not ended, but no process trains it. `damaged`: its files cannot be read."""
    age_s: float | None
    """Seconds since the status was written; None without a status."""
    step: int
    metrics: dict[str, float]
    """The newest values of those `METRICS` that the run has."""
    problem: str = ""
    """Why a damaged run cannot be read."""


def find_runs(root: Path) -> list[ListedRun]:
    """The runs in `root` and its subdirectories, at most two levels deep, sorted by directory."""
    refuse_url(root)
    if not root.is_dir():
        raise WorkdirError(f"no such directory: {root}; name the one that contains your runs")
    folders = {file.parent for pattern in ("", "*/", "*/*/") for file in root.glob(f"{pattern}experiment.yaml")}
    return [_listed(folder) for folder in sorted(folders)]


def _listed(folder: Path) -> ListedRun:
    workdir, name = Workdir(folder), ""
    try:
        name = workdir.experiment().name
        found = read_status(workdir)
    except WorkdirError as error:
        if name and not workdir.status_file.exists():
            return ListedRun(str(folder), name, "not started", None, 0, {})
        return ListedRun(str(folder), name, "damaged", None, 0, {}, str(error))
    status = found.status
    state: RunState = "running" if found.alive else "ended" if status.phase == "ended" else "interrupted"
    metrics = {key: value for key in METRICS if (value := getattr(status, key)) is not None}
    return ListedRun(str(folder), name, state, round(found.age_s, 1), status.step, metrics)


def status(
    directory: Directory,
    watch: Annotated[bool, typer.Option("--watch", help="Refresh every two seconds until the end or Ctrl-C.")] = False,
    as_json: Json = False,
) -> None:
    """Show the status of a running or ended run."""
    workdir = Workdir(directory)
    statuses = watch_status(workdir) if watch else [read_status(workdir)]
    if as_json:
        for found in statuses:
            print(found.to_json(), flush=True)
        return
    console = Console()
    # Without a terminal only the last status is shown.
    with Live(console=console, auto_refresh=False) as live:
        for found in statuses:
            live.update(Group(status_panel(found.status), Text(f"{directory}: {found.summary}")), refresh=True)
    # Live ends the line only on a terminal.
    if not console.is_terminal:
        console.line()


def watch_status(workdir: Workdir, every_s: float = REFRESH_S) -> Iterator[StoredStatus]:
    """Yields the status of a run every `every_s` seconds, and once more after its process has ended."""
    while (found := read_status(workdir)).alive:
        yield found
        time.sleep(every_s)
    yield found


def logs(
    directory: Directory,
    process: Annotated[
        str | None,
        typer.Argument(
            metavar="PROCESS",
            help="Only what is of this process or kind, such as actor-0, learner or driver.",
            show_default="all processes",
        ),
    ] = None,
    follow: Annotated[bool, typer.Option("--follow", "-f", help="Go on until the run ends or Ctrl-C.")] = False,
    level: Annotated[Literal["info", "warning", "error"], typer.Option(help="The least level.")] = "info",
) -> None:
    """Print what the processes of a run have logged, with tracebacks. The driver writes it into DIR/train.log."""
    workdir = Workdir(directory)
    _check_process(workdir, process)
    if follow and store_of(workdir.root).remote:
        raise ConfigError(f"{directory} is in a bucket, whose log is not followed; repeat the command without --follow")
    workdir.refresh(long=True)
    lines = read_log(workdir.log_file, lambda: follow and workdir.holder() is not None)
    try:
        for line in of_process(lines, process, logging.getLevelNamesMapping()[level.upper()]):
            print(line, flush=follow)
    except FileNotFoundError:
        raise WorkdirError(
            f"{workdir.log_file} does not exist: no run has started there; `podzero runs` lists those that have"
        ) from None
    except BrokenPipeError:
        raise  # whoever reads what is printed has seen enough, as `head` does
    except OSError as error:
        raise WorkdirError(f"cannot read {error.filename or workdir.log_file}: {error.strerror}") from None


def _check_process(workdir: Workdir, process: str | None) -> None:
    """Refuses a process that the run does not have; without an experiment, any may have logged."""
    if process is None or not workdir.is_run:
        return
    from podzero.runtime.program import program

    kinds = [kind for kind in program(workdir.experiment()) if kind.count]
    known = list(dict.fromkeys([DRIVER, *(name for kind in kinds for name in (kind.name, *kind.names))]))
    if process not in known:
        raise ConfigError(
            f"the run in {workdir.root} has no process '{process}'{nearest(process, known)}; it has: "
            f"{', '.join([DRIVER, *(kind.name for kind in kinds)])}, numbered from 0 as in {kinds[0].name}-0"
        )


def trace(
    directory: Directory,
    seconds: Annotated[float, typer.Option(min=0.1, max=60, help="The length of the traces.")] = 5.0,
    as_json: Json = False,
) -> None:
    """Write profiler traces of the learner, actors, inference servers and reanalysers of a running run."""
    from podzero.runtime.tracing import request_trace

    found = request_trace(Workdir(directory, works=True), seconds)
    if as_json:
        print_json({"folder": str(found.folder), "processes": found.processes})
        return
    for process, reason in found.processes.items():
        print(f"{process}: {'traced' if reason is None else f'not traced: {reason}'}")
    print(f"The traces are in {found.folder}. View them with: uv run --with xprof xprof --logdir {found.folder}")


def stop(
    directory: Directory,
    seconds: Annotated[float, typer.Option(min=1, help="Longest wait; the run then still goes on ending.")] = 900.0,
    as_json: Json = False,
) -> None:
    """End a run on this machine as Ctrl-C does: with a last checkpoint. Waits until it has ended."""
    workdir, began = Workdir(directory), time.monotonic()
    stopped = stop_run(workdir, seconds, lambda text: None if as_json else print(f"{text} ...", flush=True))
    if not stopped:
        # Raises an error if the folder is not a run.
        workdir.experiment()
    newest = next((found.step for found in checkpoints(workdir) if found.fault is None), None)
    if as_json:
        waited_s = round(time.monotonic() - began, 1)
        print_json({"directory": str(directory), "stopped": stopped, "checkpoint_step": newest, "waited_s": waited_s})
    elif not stopped:
        print(f"{directory}: {read_status(workdir).summary}")
    elif newest is None:
        print(f"The run in {directory} has ended without a checkpoint: it had not begun to train.")
    else:
        print(f"The run in {directory} has ended; its newest checkpoint is that of step {newest:,}.")
        print(f"Continue it with: podzero train {shlex.quote(str(directory))}")
