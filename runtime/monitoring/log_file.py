"""The log file of a run: log records with tracebacks, and what libraries print to stderr; written and read."""

from __future__ import annotations

import logging
import os
import queue
import re
import sys
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from logging.handlers import RotatingFileHandler
from pathlib import Path

from podzero.core.reading import printable
from podzero.runtime.monitoring.monitor import kind_of

log = logging.getLogger(__name__)

FILE_BYTES = 16 * 2**20
"""Size at which the log file is rotated to `.1`, `.2`, ..."""
OLD_FILES = 3
"""Rotated files that are kept."""
MOST_WAITING = 10_000
"""Most records that wait to be written."""
HEAD = re.compile(r"(?P<time>\d{4}-\d\d-\d\d \d\d:\d\d:\d\d),\d{3} (?P<level>[A-Z]+) (?P<text>.*)")
"""The first line of a log record; the lines of a traceback follow it."""
DRIVER = "driver"
"""The name of the process whose records begin with no name."""
FOLLOW_EVERY_S = 0.5
"""How often a followed log file is read."""
_SUBJECT = re.compile(r"(?P<worker>[a-z]+(-\d+)?)(?P<said>:)? ")
"""How a record of a worker begins, `actor-0: ...`, and one of the driver about it, `actor-0 starts ...`."""
_STDERR = "stderr"
"""The beginning of what the driver and its libraries print to stderr."""
_COLOR = re.compile(r"\x1b\[[0-9;]*m")
_JOIN_TIMEOUT_S = 1.0
_CLOSE_TIMEOUT_S = 5.0


@contextmanager
def log_to_file(path: Path) -> Iterator[None]:
    """Writes to `path` what podzero logs and what this process prints to stderr."""
    handler = _LogFile(path)
    handler.setFormatter(logging.Formatter("%(asctime)s %(levelname)s %(message)s"))
    logger = logging.getLogger("podzero")
    before = logger.level, logger.propagate
    logger.setLevel(logging.INFO)
    # Libraries add handlers to the root logger, which would print to stderr.
    logger.propagate = False
    logger.addHandler(handler)
    try:
        # Libraries print to stderr from C++, past `logging`; their lines would break the view.
        with _stderr_to(handler):
            yield
    except Exception as error:
        handler.handle(_record(logging.ERROR, "the run failed", error))
        raise
    finally:
        logger.removeHandler(handler)
        logger.setLevel(before[0])
        logger.propagate = before[1]
        handler.close()


class _LogFile(RotatingFileHandler):
    """A log file that a thread writes, so that storage delays nobody who logs. Write errors are ignored."""

    def __init__(self, path: Path) -> None:
        super().__init__(path, maxBytes=FILE_BYTES, backupCount=OLD_FILES, encoding="utf-8")
        self._waiting: queue.Queue[logging.LogRecord | None] = queue.Queue(MOST_WAITING)
        self._writer = threading.Thread(target=self._write, name="log", daemon=True)
        self._writer.start()

    def emit(self, record: logging.LogRecord) -> None:
        """Lets the thread write a record; drops it if too many wait."""
        with suppress(queue.Full):
            self._waiting.put_nowait(record)

    def close(self) -> None:
        """Waits a while until all records are written."""
        with suppress(queue.Full):
            self._waiting.put_nowait(None)
        self._writer.join(_CLOSE_TIMEOUT_S)
        if not self._writer.is_alive():
            super().close()

    def format(self, record: logging.LogRecord) -> str:
        """The record as text, without the escape sequences of colours, which Ray puts into tracebacks."""
        return _COLOR.sub("", super().format(record))

    def _write(self) -> None:
        while (record := self._waiting.get()) is not None:
            super().emit(record)

    def handleError(self, record: logging.LogRecord) -> None:  # noqa: N802 (the name in `logging`)
        """Drops the record; the default would print a traceback to stderr."""


@contextmanager
def _stderr_to(handler: logging.Handler) -> Iterator[None]:
    """Sends the lines printed to stderr (file descriptor 2, so C++ libraries too) to `handler`."""
    # What was printed before belongs to the terminal.
    sys.stderr.flush()
    stderr = os.dup(2)
    reading, writing = os.pipe()
    os.dup2(writing, 2)
    os.close(writing)

    def read() -> None:
        with open(reading, encoding="utf-8", errors="replace") as lines:
            for line in lines:
                # To the file alone: by way of the logger the line would also reach the view.
                handler.handle(_record(logging.INFO, f"{_STDERR}: {line.rstrip()}"))

    reader = threading.Thread(target=read, name="stderr", daemon=True)
    reader.start()
    try:
        yield
    finally:
        sys.stderr.flush()
        os.dup2(stderr, 2)
        os.close(stderr)
        # Bounded, since a child process that inherited stderr may keep the pipe open.
        reader.join(_JOIN_TIMEOUT_S)


def _record(level: int, text: str, error: Exception | None = None) -> logging.LogRecord:
    exc_info = (type(error), error, error.__traceback__) if error is not None else None
    return log.makeRecord(log.name, level, __file__, 0, text, (), exc_info)


def read_log(path: Path, follow: Callable[[], bool] = lambda: False) -> Iterator[str]:
    """The lines of a log file, after those of its rotated files; raises `OSError` if one cannot be read.

    While `follow` returns True, more may be written, and further lines are waited for.
    """
    for number in range(OLD_FILES, 0, -1):
        old = path.with_name(f"{path.name}.{number}")
        if old.exists():
            yield from old.read_text(encoding="utf-8", errors="replace").splitlines()
    half, ended = "", False
    while not ended:
        with path.open(encoding="utf-8", errors="replace") as file:
            inode, rotated = os.fstat(file.fileno()).st_ino, False
            while not (ended or rotated):
                # Asked before the lines are read, and in this order, so that the last ones are not missed.
                more = follow()
                rotated = _inode(path) not in (inode, None)
                for text in file:
                    half += text
                    if half.endswith("\n"):
                        yield half.rstrip("\n")
                        half = ""
                ended = not (more or rotated)
                if more and not rotated:
                    time.sleep(FOLLOW_EVERY_S)
    if half:
        yield half


def _inode(path: Path) -> int | None:
    """None while the file is being rotated."""
    try:
        return path.stat().st_ino
    except FileNotFoundError:
        return None


def of_process(lines: Iterable[str], process: str | None, level: int) -> Iterator[str]:
    """The printable lines of a log that one process, or those of one kind, have logged, with their tracebacks.

    What the driver says of a worker, such as that it starts or failed, belongs to the worker too. `process` is a name
    such as `actor-0`, `actor` or `driver`, None for all; `level` the least level, such as `logging.WARNING`.
    """
    shown = process is None and level <= logging.INFO
    for line in lines:
        if (head := HEAD.match(line)) is not None:
            shown = _is_of(head["text"], process) and logging.getLevelNamesMapping().get(head["level"], 0) >= level
        if shown:
            yield printable(line)


def _is_of(text: str, process: str | None) -> bool:
    subject = _SUBJECT.match(text)
    worker = subject["worker"] if subject and subject["worker"] != _STDERR else None
    if process is None:
        return True
    if process == DRIVER:
        return worker is None or subject is None or not subject["said"]
    return worker is not None and process in (worker, kind_of(worker))
