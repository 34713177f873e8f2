"""The metrics of all workers: `metrics.jsonl` for scripts, and the writers that the experiment chooses."""

from __future__ import annotations

import json
import math
import os
import time
from collections.abc import Mapping, Sequence
from functools import partial

from podzero.runtime.monitoring.reports import MetricsReport, merge_metrics
from podzero.runtime.monitoring.tensorboard import TensorBoardWriter
from podzero.runtime.monitoring.writers import MetricsWriter
from podzero.runtime.monitoring.writing import AppendFile, WriteAttempts
from podzero.workdir import Workdir

FLUSH_EVERY_S = 5.0
"""Longest time that a written line waits in memory."""
RESOLUTION = 1 / 5_000
"""Shortest time between two lines of a worker, as a share of the run's elapsed time.

A worker that reports every 2 s has every report written for 2.8 hours. After that its lines become sparser: 5,000 per
factor e of elapsed time, 16,000 after a day, 45,000 after a year.
"""
LOST_FILE = "metrics.lost.jsonl"
"""Holds the lines of steps that were lost in a crash."""
LOST_BYTES = 64 * 2**20
"""Size from which `LOST_FILE` is started anew."""


class MetricsLog:
    """Appends metrics to `metrics.jsonl` and gives them to writers. Not thread-safe: it has one owner.

    A line holds `t` (Unix seconds), `step` (the learner step), `worker` and `metrics`. A failed write is a warning, and
    is repeated with the next one.

    Args:
      workdir: the run's directory; it must exist.
      resume_step: the step of the checkpoint from which the run resumes, or -1. Lines of later steps, which will be
        made again, move to `metrics.lost.jsonl`, so that every curve has one value per step.
      tensorboard: whether to write files for TensorBoard.
      writers: get each line as well; they stay open.
    """

    def __init__(
        self,
        workdir: Workdir,
        resume_step: int = -1,
        tensorboard: bool = True,
        writers: Sequence[MetricsWriter] = (),
    ) -> None:
        self._attempt = WriteAttempts()
        self._attempt(workdir.metrics_file, partial(move_lost_lines, workdir, resume_step))
        self._lines = AppendFile(workdir.metrics_file)
        events = TensorBoardWriter(workdir.tensorboard, resume_step + 1, self._attempt)
        self._events = events if tensorboard else None
        self._writers = [*([self._events] if self._events else []), *writers]
        self._unwritten: dict[str, dict[str, float]] = {}
        self._written_at: dict[str, float] = {}
        self._flushed = time.monotonic()

    def add(self, worker: str, metrics: Mapping[str, float], step: int, elapsed_s: float) -> None:
        """Adds the metrics of a worker; merges them into its next line if one was written a short time ago.

        Args:
          worker: its name.
          metrics: those called `count/...` are counted since the worker's previous report.
          step: the present learner step.
          elapsed_s: the run's elapsed time.
        """
        self._unwritten[worker] = merge_metrics(self._unwritten.get(worker, {}), metrics)
        if elapsed_s - self._written_at.get(worker, -math.inf) >= RESOLUTION * elapsed_s:
            self._written_at[worker] = elapsed_s
            self._write(worker, step)
        if time.monotonic() - self._flushed >= FLUSH_EVERY_S:
            self.flush()

    def flush(self) -> None:
        """Writes the lines that wait in memory."""
        self._attempt(self._lines.path, self._lines.flush)
        if self._events is not None:
            self._events.flush()
        self._flushed = time.monotonic()

    def close(self, step: int) -> None:
        """Writes everything, with merged metrics at the learner step `step`."""
        for worker in list(self._unwritten):
            self._write(worker, step)
        self.flush()

    def _write(self, worker: str, step: int) -> None:
        metrics = self._unwritten.pop(worker)
        finite = {name: value if math.isfinite(value) else None for name, value in metrics.items()}
        now = time.time()
        line = {"t": round(now, 3), "step": step, "worker": worker, "metrics": finite}
        self._lines.add(json.dumps(line).encode() + b"\n")
        for writer in self._writers:
            writer.write(MetricsReport(now, worker, metrics), step)


def move_lost_lines(workdir: Workdir, step: int) -> int:
    """Moves the lines of steps after `step` from `metrics.jsonl` to `metrics.lost.jsonl`; returns how many.

    Drops lines that are not reports, for example a last line of which only a part was written.
    """
    if not workdir.metrics_file.exists():
        return 0
    kept, lost = workdir.metrics_file.with_name(".metrics.kept"), workdir.root / LOST_FILE
    mode = "a" if lost.exists() and lost.stat().st_size < LOST_BYTES else "w"
    moved = 0
    with (
        workdir.metrics_file.open(encoding="utf-8", errors="replace") as lines,
        kept.open("w", encoding="utf-8") as kept_lines,
        lost.open(mode, encoding="utf-8") as lost_lines,
    ):
        for line in lines:
            line_step = _step_of(line)
            if line_step is None:
                continue
            if line_step > step:
                lost_lines.write(line)
                moved += 1
            else:
                kept_lines.write(line)
    os.replace(kept, workdir.metrics_file)
    if lost.stat().st_size == 0:
        lost.unlink()
    return moved


def _step_of(line: str) -> int | None:
    """The step of a line; None if the line is incomplete or not a report."""
    if not line.endswith("\n"):
        return None
    try:
        step = json.loads(line)["step"]
    except (ValueError, KeyError, TypeError):
        return None
    return step if isinstance(step, int) else None
