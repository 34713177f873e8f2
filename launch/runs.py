"""The list of the runs below a directory, and the status of one."""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Literal, NamedTuple

from rich.console import Console, Group
from rich.live import Live
from rich.table import Table
from rich.text import Text

from podzero.launch.output import readable
from podzero.runtime.monitoring.status import StoredStatus, duration, read_status
from podzero.runtime.monitoring.view import status_panel
from podzero.workdir import Workdir, WorkdirError, refuse_url

REFRESH_S = 2.0
"""Time between two reads of a watched status: the interval in which a run writes it."""
METRICS = ("loss", "rating", "keeps_value", "mean_return")
"""The metrics of a status that the list of runs shows."""


State = Literal["running", "ended", "interrupted", "not started"]


class Run(NamedTuple):
    """A run in the list of runs."""

    directory: str
    experiment: str
    state: State
    """`interrupted`: no process trains there, and the run has not ended in order."""
    age_s: float | None
    """Seconds since the status was written; None if there is no status."""
    step: int
    metrics: dict[str, float]
    """The newest value of each of `METRICS` that the run has."""


def find_runs(root: Path) -> list[Run]:
    """The runs in `root` and its subdirectories, at most two levels deep, sorted by directory.

    Raises:
      WorkdirError: there is no such directory, or the experiment of a run cannot be read.
    """
    refuse_url(root)
    if not root.is_dir():
        raise WorkdirError(f"no such directory: {root}; name the one that contains your runs")
    folders = {file.parent for pattern in ("", "*/", "*/*/") for file in root.glob(f"{pattern}experiment.yaml")}
    return [_run(folder) for folder in sorted(folders)]


def runs_table(runs: Iterable[Run]) -> Table:
    """The runs for people."""
    table = Table(box=None, header_style="bold", pad_edge=False)
    for column in ("directory", "experiment", "state", "status age", "step", "newest metrics"):
        table.add_column(column, justify="right" if column in ("status age", "step") else "left")
    for run in runs:
        age = "" if run.age_s is None else duration(run.age_s)
        metrics = ", ".join(f"{name} {readable(value)}" for name, value in run.metrics.items())
        table.add_row(run.directory, run.experiment, run.state, age, f"{run.step:,}", metrics)
    return table


def watch_status(workdir: Workdir, every_s: float = REFRESH_S) -> Iterator[StoredStatus]:
    """The status of a run every `every_s` seconds; the last one is that after its process has ended.

    Raises:
      WorkdirError: there is no run, or it has no status.
    """
    while (found := read_status(workdir)).alive:
        yield found
        time.sleep(every_s)
    yield found


def show_statuses(statuses: Iterable[StoredStatus], directory: Path, as_json: bool) -> None:
    """Shows each status in place of the one before, or prints each as a line of JSON.

    Where standard output is not a terminal, only the last status is shown.
    """
    if as_json:
        for found in statuses:
            print(found.to_json(), flush=True)
        return
    console = Console()
    with Live(console=console, auto_refresh=False) as live:
        for found in statuses:
            live.update(Group(status_panel(found.status), Text(f"{directory}: {found.summary}")), refresh=True)
    if not console.is_terminal:
        console.line()  # which Live leaves out there


def _run(folder: Path) -> Run:
    workdir = Workdir(folder)
    name = workdir.experiment().name
    try:
        found = read_status(workdir)
    except WorkdirError:
        return Run(str(folder), name, "not started", None, 0, {})
    status = found.status
    metrics = {key: value for key in METRICS if (value := getattr(status, key)) is not None}
    return Run(str(folder), name, _state(found), round(found.age_s, 1), status.step, metrics)


def _state(found: StoredStatus) -> State:
    if found.alive:
        return "running"
    return "ended" if found.status.phase == "ended" else "interrupted"
