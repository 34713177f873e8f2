"""Warnings, errors and restarts in the log of a run."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import NamedTuple

from podzero.runtime.monitoring.log_file import OLD_FILES
from podzero.tools.report.figures import Section, Table
from podzero.workdir import Workdir

READ_BYTES = 2**20
"""Bytes that are read from the end of each log file."""
MAX_EVENTS = 200
"""Kinds of events that a report shows."""
MAX_TEXT = 400
"""Characters of a message that a report shows."""
_LINE = re.compile(r"(\d{4}-\d\d-\d\d \d\d:\d\d:\d\d),\d{3} ([A-Z]+) (.*)")
_SHOWN_LEVELS = ("WARNING", "ERROR", "CRITICAL")
_RESTART = re.compile(r"resumed from the checkpoint|starts on node")
_NUMBER = re.compile(r"\d[\d,.]*")


class Event(NamedTuple):
    """Messages of the log that differ by numbers only."""

    level: str
    text: str
    """The newest of them."""
    first: str
    """When it was logged first, in the local time of the driver."""
    last: str
    times: int


def read_events(workdir: Workdir) -> list[Event]:
    """The warnings, errors and starts of workers in the ends of the log files, the newest first."""
    files = [workdir.log_file.with_name(f"{workdir.log_file.name}.{k}") for k in range(OLD_FILES, 0, -1)]
    return events(line for file in (*files, workdir.log_file) for line in _last_lines(file))


def events(lines: Iterable[str]) -> list[Event]:
    """The events in lines of a log, oldest first; returns at most `MAX_EVENTS`, the newest first."""
    found: dict[tuple[str, str], Event] = {}
    for line in lines:
        parts = _LINE.match(line)
        if parts is None or not (parts[2] in _SHOWN_LEVELS or _RESTART.search(parts[3])):
            continue
        moment, level, text = parts[1], parts[2], parts[3][:MAX_TEXT]
        key = level, _NUMBER.sub("#", text)
        earlier = found.pop(key, None)  # the dictionary's order is that of the newest messages
        first, count = (earlier.first, earlier.times) if earlier else (moment, 0)
        found[key] = Event(level, text, first, moment, count + 1)
    return list(reversed(found.values()))[:MAX_EVENTS]


def faults(found: Sequence[Event], counts: dict[str, int]) -> Section:
    """What went wrong, and what was started again.

    Args:
      found: the events of the log.
      counts: how often what happened; zeros are shown too.
    """
    rows = [(event.last, event.level.lower(), f"{event.times:,}", event.text) for event in found]
    caption = (
        "Warnings, errors and starts of workers in the log, the newest first; messages that differ by numbers only are "
        "one row with the newest of them."
    )
    tables = [Table(caption, ("last time", "level", "times", "message"), rows)] if rows else []
    return Section("Faults and restarts", tables=tables, facts={name: f"{count:,}" for name, count in counts.items()})


def _last_lines(file: Path) -> list[str]:
    """The lines in the last `READ_BYTES` of a file; none if it cannot be read."""
    try:
        with file.open("rb") as log:
            size = log.seek(0, 2)
            log.seek(max(size - READ_BYTES, 0))
            return log.read(READ_BYTES).decode(errors="replace").splitlines()
    except OSError:
        return []
