"""The metrics of a run by kind of worker in files: `metrics.jsonl`, and event files for TensorBoard.

A failed write is repeated with the next one: a full disk must not end training.
"""

from __future__ import annotations

import json
import logging
import math
import os
import socket
import struct
import time
from collections import defaultdict, deque
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path

from tensorboardX.proto.event_pb2 import Event, SessionLog
from tensorboardX.proto.summary_pb2 import Summary
from tensorboardX.record_writer import masked_crc32c

from podzero.files.workdir import Workdir
from podzero.runtime.monitoring.monitor import kind_of
from podzero.runtime.monitoring.reports import MetricsReport, merge_metrics, merge_workers
from podzero.runtime.monitoring.writers import MetricsWriter

log = logging.getLogger(__name__)

FLUSH_EVERY_S = 5.0
"""Longest time that a line waits in memory."""
RESOLUTION = 1 / 5_000
"""Shortest time between two lines of a kind, as a share of the run's elapsed time.

A kind whose workers report every 2 s has 5,000 lines after 2.8 hours, 16,000 after a day, 45,000 after a year.
"""
LATE_S = 5.0
"""Longest time that a line waits for the workers of the one before."""
RESTARTS = "count/restarts"
"""A report of this is a line of its own, with the worker's name: it has ended."""
LOST_FILE = "metrics.lost.jsonl"
"""Holds the lines of steps that a crash undid."""
LOST_BYTES = 64 * 2**20
"""A `LOST_FILE` of this size is overwritten."""
WARN_EVERY_S = 60.0
"""Shortest time between two warnings about failed writes."""
WAITING_BYTES = 4 * 2**20
"""Most bytes of a file that wait in memory; beyond that the oldest records are dropped."""


class MetricsLog:
    """Appends metrics to `metrics.jsonl` and TensorBoard's files, and passes them to writers. Not thread-safe.

    A line holds `t` (Unix seconds), `step` (the learner step), `worker` (a kind, such as `actor`) and `metrics`
    (`merge_workers`), so that files grow with time, but not with the workers. Lines of steps after `resume_step`, that
    of the checkpoint from which the run resumes, or -1, move to `metrics.lost.jsonl`, so that every curve has one value
    per step. `close` leaves the writers open.
    """

    def __init__(self, workdir: Workdir, resume_step: int = -1, writers: Sequence[MetricsWriter] = ()) -> None:
        self._attempt = WriteAttempts()
        self._attempt(workdir.metrics_file, partial(move_lost_lines, workdir, resume_step))
        self._lines = AppendFile(workdir.metrics_file)
        self._events: dict[str, AppendFile] = {}
        """TensorBoard's files, by kind, each in a folder of its own."""
        self._open_events = partial(_event_file, workdir.tensorboard, resume_step + 1)
        self._writers = writers
        self._reports: dict[str, dict[str, dict[str, float]]] = defaultdict(dict)
        """By kind, what each worker has reported since the last line."""
        self._awaited: dict[str, set[str]] = defaultdict(set)
        """By kind, the workers of the last line that have not reported since."""
        self._written_at: dict[str, float] = {}
        self._flushed = time.monotonic()

    def add(self, worker: str, metrics: Mapping[str, float], step: int, elapsed_s: float) -> None:
        """Adds the metrics of a worker at learner step `step`; `count/...` are counts since its previous report.

        The next line of its kind is written once all workers of the last one have reported, and `RESOLUTION` allows it.
        """
        kind = kind_of(worker)
        if RESTARTS in metrics:
            self._add_line(worker, metrics, step)
        else:
            self._reports[kind][worker] = merge_metrics(self._reports[kind].get(worker, {}), metrics)
            self._awaited[kind].discard(worker)
            pause_s = max(RESOLUTION * elapsed_s, LATE_S if self._awaited[kind] else 0.0)
            if elapsed_s - self._written_at.get(kind, -math.inf) >= pause_s:
                self._written_at[kind] = elapsed_s
                self._write(kind, step)
        if time.monotonic() - self._flushed >= FLUSH_EVERY_S:
            self.flush()

    def flush(self) -> None:
        """Writes the lines that wait in memory."""
        for file in (self._lines, *self._events.values()):
            self._attempt(file.path, file.flush)
        self._flushed = time.monotonic()

    def close(self, step: int) -> None:
        """Writes all lines; metrics still to be merged get the learner step `step`."""
        for kind in list(self._reports):
            self._write(kind, step)
        self.flush()

    def _write(self, kind: str, step: int) -> None:
        reports = self._reports.pop(kind)
        self._awaited[kind], metrics = set(reports), merge_workers(list(reports.values()))
        self._add_line(kind, metrics, step)
        if kind not in self._events:
            self._events[kind] = self._open_events(kind)
        values = [Summary.Value(tag=name, simple_value=value) for name, value in metrics.items()]
        self._events[kind].add(_record(Event(wall_time=time.time(), step=step, summary=Summary(value=values))))
        for writer in self._writers:
            writer.write(MetricsReport(time.time(), kind, metrics), step)

    def _add_line(self, worker: str, metrics: Mapping[str, float], step: int) -> None:
        finite = {name: value if math.isfinite(value) else None for name, value in metrics.items()}
        line = {"t": round(time.time(), 3), "step": step, "worker": worker, "metrics": finite}
        self._lines.add(json.dumps(line).encode() + b"\n")


def move_lost_lines(workdir: Workdir, step: int) -> None:
    """Moves the lines of steps after `step` from `metrics.jsonl` to `metrics.lost.jsonl`.

    Drops lines that are not reports, for example an incomplete last line.
    """
    if not workdir.metrics_file.exists():
        return
    kept, lost = workdir.metrics_file.with_name(".metrics.kept"), workdir.root / LOST_FILE
    mode = "a" if lost.exists() and lost.stat().st_size < LOST_BYTES else "w"
    with (
        workdir.metrics_file.open(encoding="utf-8", errors="replace") as lines,
        kept.open("w", encoding="utf-8") as kept_lines,
        lost.open(mode, encoding="utf-8") as lost_lines,
    ):
        for line in lines:
            if (line_step := _step_of(line)) is not None:
                (lost_lines if line_step > step else kept_lines).write(line)
    os.replace(kept, workdir.metrics_file)
    if lost.stat().st_size == 0:
        lost.unlink()


def _step_of(line: str) -> int | None:
    """The step of a line; None if the line is incomplete or not a report."""
    if not line.endswith("\n"):
        return None
    try:
        step = json.loads(line)["step"]
    except (ValueError, KeyError, TypeError):
        return None
    return step if isinstance(step, int) else None


def _event_file(folder: Path, purge_step: int, kind: str) -> AppendFile:
    """The event file of a kind of worker; TensorBoard drops the values of earlier files from `purge_step` on."""
    # Not tensorboardX's `SummaryWriter`, which would start a thread for every kind.
    start = SessionLog(status=SessionLog.START)
    # A file begins with the version of its format; the start of a session tells TensorBoard what to purge.
    header = _record(Event(wall_time=time.time(), file_version="brain.Event:2")) + _record(
        Event(wall_time=time.time(), step=purge_step, session_log=start)
    )
    # Two starts within a second differ in the purge step.
    name = f"events.out.tfevents.{int(time.time())}.{socket.gethostname()}.{purge_step:09d}"
    return AppendFile(folder / kind / name, header)


def _record(event: Event) -> bytes:
    """An event in TFRecord format: length, checksum of the length, event, checksum of the event."""
    data: bytes = event.SerializeToString()
    length = struct.pack("<Q", len(data))
    return length + struct.pack("<I", masked_crc32c(length)) + data + struct.pack("<I", masked_crc32c(data))


class WriteAttempts:
    """Attempts writes that the caller repeats later if they fail, and warns about failures."""

    def __init__(self) -> None:
        self._warned = -WARN_EVERY_S
        self._failing: set[Path] = set()

    def __call__(self, path: Path, write: Callable[[], object]) -> None:
        """Calls `write`, which writes `path`; an `OSError` becomes a warning, at most one in `WARN_EVERY_S`.

        `write` must leave its file usable when it fails.
        """
        try:
            write()
        except OSError as error:
            self._failing.add(path)
            if time.monotonic() - self._warned >= WARN_EVERY_S:
                self._warned = time.monotonic()
                log.warning("cannot write %s, will try again; training continues: %s", path, error)
        else:
            if path in self._failing:
                self._failing.remove(path)
                log.info("%s can be written again", path)


class AppendFile:
    """A file of complete records, at first `header`, to which records are appended. Not thread-safe.

    Records wait in memory until `flush` writes them.
    """

    def __init__(self, path: Path, header: bytes = b"") -> None:
        self.path = path
        self._header = header
        self._size: int | None = None
        self._waiting: deque[bytes] = deque()
        self._waiting_bytes = 0

    def add(self, record: bytes) -> None:
        """Adds a record for the next flush."""
        self._waiting.append(record)
        self._waiting_bytes += len(record)
        while self._waiting_bytes > WAITING_BYTES:
            self._waiting_bytes -= len(self._waiting.popleft())

    def flush(self) -> None:
        """Writes the waiting records."""
        if not self._waiting:
            return
        self.path.parent.mkdir(parents=True, exist_ok=True)
        with self.path.open("ab") as file:
            if self._size is None:
                self._size = file.tell()
            # The flush before may have failed in the middle of a record.
            file.truncate(self._size)
            content = b"".join(self._waiting)
            if self._size == 0:
                content = self._header + content
            file.write(content)
        self._size += len(content)
        self._waiting.clear()
        self._waiting_bytes = 0
