"""The folder of a sweep: its description, and what its runs have done."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Literal, NamedTuple

from podzero.config import StopConfig, builtin_configs
from podzero.files.directory_lock import DirectoryLock
from podzero.files.workdir import SWEEP_FILE, Workdir, WorkdirError, read_json, refuse_url, write_atomically
from podzero.runtime.monitoring.status import RunStatus, read_status
from podzero.tools.sweep.grid import Grid, SweepRun, shown

METRICS = ("keeps_value", "mean_return", "rating")
"""The measures of strength in a status; of those that runs have, the first compares them best."""
State = Literal["finished", "stopped early", "unfinished"]
"""`finished`: a limit of the section `stop` is reached. `stopped early`: others were better, with `--asha`."""


class SweepProgress(NamedTuple):
    """How far a run has come."""

    state: State
    status: RunStatus | None
    """The newest status; None before the run has started."""


class SweepFolder:
    """The folder of a sweep, which need not exist; the run NAME has the working directory NAME in it."""

    def __init__(self, root: Path) -> None:
        refuse_url(root)
        self.root = root.expanduser().absolute()
        self._file = self.root / SWEEP_FILE

    def workdir(self, run: SweepRun) -> Workdir:
        """The working directory of a run."""
        return Workdir(self.root / run.name)

    def lock(self) -> DirectoryLock:
        """Reserves the folder for this process until the lock is closed; creates it if it is missing."""
        return Workdir(self.root).lock()

    def open(self, config: str, grid: Grid, runs: Sequence[SweepRun]) -> None:
        """Writes what the sweep is. Values and limits may differ from those with which the sweep was run before.

        Raises:
          WorkdirError: the folder holds another sweep, or a run, or cannot be written.
        """
        if Workdir(self.root).is_run:
            raise WorkdirError(f"{self.root} holds a run; a sweep has a folder of its own: choose another --to")
        fixed = {setting: value for setting, value in grid.fixed.items() if not setting.startswith("stop.")}
        given = {"config": absolute_config(config), "swept": sorted(grid.swept), "fixed": fixed}
        stored = self._read()
        for key, value in given.items():
            if stored and stored.get(key) != value:
                raise WorkdirError(
                    f"{self.root} holds another sweep: its {_WORDS[key]} {_said(stored.get(key))}, not {_said(value)}. "
                    "Choose another --to for this one"
                )
        for run in runs:
            self.workdir(run).check(run.experiment)
        try:
            self._write(given)
        except OSError as error:
            raise WorkdirError(f"cannot write {self._file}: {error.strerror}") from None

    def mark_stopped(self, run: SweepRun) -> None:
        """Records that a run was stopped early."""
        self._write({"stopped": sorted({*self._read().get("stopped", []), run.name})})

    def progress(self, run: SweepRun) -> SweepProgress:
        """What a run has done."""
        stopped = run.name in self._read().get("stopped", [])
        return progress(self.workdir(run), run.experiment.stop, stopped)

    def _read(self) -> dict[str, Any]:
        return read_json(self._file)

    def _write(self, facts: dict[str, Any]) -> None:
        write_atomically(self._file, json.dumps(self._read() | facts, indent=1) + "\n")


_WORDS = {"config": "experiment is", "swept": "swept settings are", "fixed": "other settings are"}


def _said(value: Any) -> str:
    match value:
        case dict():
            return shown(value) or "none"
        case list():
            return ", ".join(map(str, value)) or "none"
        case _:
            return str(value)


def absolute_config(config: str) -> str:
    """The name of a built-in experiment, or the absolute path of a YAML file."""
    return config if config in builtin_configs() else str(Path(config).expanduser().absolute())


def progress(workdir: Workdir, limits: StopConfig, stopped: bool = False) -> SweepProgress:
    """What the run in `workdir`, which may be new, has done; `stopped` says whether it was stopped early."""
    try:
        found = read_status(workdir)
    except WorkdirError:
        return SweepProgress("unfinished", None)
    status = found.status
    reached = limits.reached(status.elapsed_s / 60, status.step, status.games) is not None
    # While the last snapshot is judged, the last checkpoint is there already.
    if reached and not found.alive and status.phase in ("judging", "ended"):
        return SweepProgress("finished", status)
    return SweepProgress("stopped early" if stopped else "unfinished", status)
