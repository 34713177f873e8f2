"""Every figure of every role, kept twice: one JSON object a line for scripts, TensorBoard files for people."""

from __future__ import annotations

import json
import math
import os
import time
from collections.abc import Mapping

from tensorboardX import SummaryWriter

from podzero.workdir import Workdir

FLUSH_EVERY_S = 5.0
"""Longest time that a figure waits in memory."""
LOST_FILE = "metrics.lost.jsonl"
"""Where the lines of steps that a crash took back are kept."""


class MetricsLog:
    """Appends reports to `metrics.jsonl` and to TensorBoard. Not thread-safe: one owner.

    A line holds `t` (Unix seconds), `step` (learner step when the report came), `worker` and `metrics`.

    Args:
      workdir: the run's directory; it must exist.
      resume_step: the step from which a run goes on. Lines beyond it, of steps that will be made again, move to
        `metrics.lost.jsonl`, so that every curve has one value per step. None for a new run.
    """

    def __init__(self, workdir: Workdir, resume_step: int | None) -> None:
        self._workdir = workdir
        self._purge_step = None if resume_step is None else resume_step + 1
        if resume_step is not None:
            take_back(workdir, resume_step)
        self._file = workdir.metrics_file.open("a", encoding="utf-8")
        self._writers: dict[str, SummaryWriter] = {}
        self._flushed = time.monotonic()

    def add(self, worker: str, metrics: Mapping[str, float], step: int) -> None:
        """Appends one report, made while the learner stood at `step`."""
        written = {name: float(value) for name, value in metrics.items()}
        finite = {name: value if math.isfinite(value) else None for name, value in written.items()}
        line = {"t": round(time.time(), 3), "step": step, "worker": worker, "metrics": finite}
        self._file.write(json.dumps(line) + "\n")
        writer = self._writer(worker)
        for name, value in written.items():
            writer.add_scalar(name, value, step)
        if time.monotonic() - self._flushed >= FLUSH_EVERY_S:
            self.flush()

    def flush(self) -> None:
        """Puts everything on disk."""
        self._file.flush()
        for writer in self._writers.values():
            writer.flush()
        self._flushed = time.monotonic()

    def close(self) -> None:
        """Flushes and closes all files."""
        self._file.close()
        for writer in self._writers.values():
            writer.close()
        self._writers.clear()

    def _writer(self, worker: str) -> SummaryWriter:
        if worker not in self._writers:
            self._writers[worker] = SummaryWriter(
                str(self._workdir.tensorboard / worker),
                purge_step=self._purge_step,
                max_queue=100,
                flush_secs=int(FLUSH_EVERY_S),
                filename_suffix=f".{self._purge_step or 0:09d}",  # a name's whole seconds are no difference
            )
        return self._writers[worker]


def take_back(workdir: Workdir, step: int) -> int:
    """Moves the lines beyond `step` from `metrics.jsonl` to `metrics.lost.jsonl`; returns how many.

    A last line that was cut off while being written is dropped, and so is any line that is no report.
    """
    if not workdir.metrics_file.exists():
        return 0
    kept, lost = workdir.metrics_file.with_name(".metrics.kept"), workdir.root / LOST_FILE
    moved = 0
    with (
        workdir.metrics_file.open(encoding="utf-8", errors="replace") as old,
        kept.open("w", encoding="utf-8") as good,
        lost.open("a", encoding="utf-8") as gone,
    ):
        for line in old:
            at = _step_of(line)
            if at is None:
                continue
            if at > step:
                gone.write(line)
                moved += 1
            else:
                good.write(line)
    os.replace(kept, workdir.metrics_file)
    if lost.stat().st_size == 0:
        lost.unlink()
    return moved


def _step_of(line: str) -> int | None:
    """The step of a line, or None when the line is torn or foreign."""
    if not line.endswith("\n"):
        return None
    try:
        step = json.loads(line)["step"]
    except (ValueError, KeyError, TypeError):
        return None
    return step if isinstance(step, int) else None
