"""Scalars in TensorBoard's file format. `SummaryWriter` would start a thread for every worker."""

from __future__ import annotations

import socket
import struct
import time
from collections.abc import Mapping
from pathlib import Path

from tensorboardX.proto.event_pb2 import Event, SessionLog
from tensorboardX.proto.summary_pb2 import Summary
from tensorboardX.record_writer import masked_crc32c

from podzero.runtime.monitoring.reports import MetricsReport
from podzero.runtime.monitoring.writing import AppendFile, WriteAttempts


class TensorBoardWriter:
    """Writes event files below `folder`, one for each worker; a `MetricsWriter`.

    Args:
      folder: it may hold the files of earlier processes of the run.
      purge_step: TensorBoard drops what these earlier files hold from this step on.
      attempt: makes the writes to the files, which it may delay until they succeed.
    """

    def __init__(self, folder: Path, purge_step: int, attempt: WriteAttempts) -> None:
        self._folder = folder
        self._purge_step = purge_step
        self._attempt = attempt
        self._files: dict[str, AppendFile] = {}

    def write(self, report: MetricsReport, step: int) -> None:
        """Adds the metrics of a worker to its file, for the next flush."""
        if report.worker not in self._files:
            self._files[report.worker] = event_file(self._folder / report.worker, self._purge_step)
        self._files[report.worker].add(scalar_record(report.metrics, step))

    def flush(self) -> None:
        """Writes what waits in memory."""
        for file in self._files.values():
            self._attempt(file.path, file.flush)

    def close(self) -> None:
        """Writes what waits in memory."""
        self.flush()


def event_file(folder: Path, purge_step: int) -> AppendFile:
    """A new event file in `folder`, for records from `scalar_record`.

    Args:
      folder: one per worker; the files of earlier processes of the run stay in it.
      purge_step: TensorBoard drops what these earlier files hold from this step on.
    """
    start = SessionLog(status=SessionLog.START)
    header = _record(Event(wall_time=time.time(), file_version="brain.Event:2")) + _record(
        Event(wall_time=time.time(), step=purge_step, session_log=start)
    )
    # The purge step makes names of the same second differ.
    name = f"events.out.tfevents.{int(time.time())}.{socket.gethostname()}.{purge_step:09d}"
    return AppendFile(folder / name, header)


def scalar_record(metrics: Mapping[str, float], step: int) -> bytes:
    """The record of metrics at a learner step."""
    values = [Summary.Value(tag=name, simple_value=value) for name, value in metrics.items()]
    return _record(Event(wall_time=time.time(), step=step, summary=Summary(value=values)))


def _record(event: Event) -> bytes:
    """An event in TFRecord format: length, checksum of the length, event, checksum of the event."""
    data: bytes = event.SerializeToString()
    length = struct.pack("<Q", len(data))
    return length + struct.pack("<I", masked_crc32c(length)) + data + struct.pack("<I", masked_crc32c(data))
