"""The log file of a run: log records with tracebacks, and what libraries print to stderr."""

from __future__ import annotations

import logging
import os
import re
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from logging.handlers import RotatingFileHandler
from pathlib import Path

log = logging.getLogger(__name__)

FILE_BYTES = 16 * 2**20
"""Size at which the log file is rotated to `.1`, `.2`, ..."""
OLD_FILES = 3
"""Rotated files that are kept."""
_COLOR = re.compile(r"\x1b\[[0-9;]*m")
_JOIN_TIMEOUT_S = 1.0


@contextmanager
def log_to_file(path: Path) -> Iterator[None]:
    """Writes to `path` what podzero logs and what this process prints to stderr.

    Raises:
      OSError: the file cannot be written.
    """
    handler = _LogFile(path, maxBytes=FILE_BYTES, backupCount=OLD_FILES, encoding="utf-8")
    handler.setFormatter(_Formatter("%(asctime)s %(levelname)s %(message)s"))
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
    """A log file whose write errors are ignored."""

    def handleError(self, record: logging.LogRecord) -> None:  # noqa: N802 (the name in `logging`)
        """Drops the record; the default would print a traceback to stderr."""


class _Formatter(logging.Formatter):
    """A `logging.Formatter` without colours."""

    def format(self, record: logging.LogRecord) -> str:
        """Formats the record as text and removes the escape sequences of colours, which Ray puts into tracebacks."""
        return _COLOR.sub("", super().format(record))


@contextmanager
def _stderr_to(handler: logging.Handler) -> Iterator[None]:
    """Sends the lines printed to stderr (file descriptor 2, so C++ libraries too) to `handler`."""
    # What was printed before belongs to the terminal.
    sys.stderr.flush()
    stderr = os.dup(2)
    reading, writing = os.pipe()
    os.dup2(writing, 2)
    os.close(writing)
    reader = threading.Thread(target=_read_lines, args=(reading, handler), name="stderr", daemon=True)
    reader.start()
    try:
        yield
    finally:
        sys.stderr.flush()
        os.dup2(stderr, 2)
        os.close(stderr)
        # Bounded, since a child process that inherited stderr may keep the pipe open.
        reader.join(_JOIN_TIMEOUT_S)


def _read_lines(pipe: int, handler: logging.Handler) -> None:
    with open(pipe, encoding="utf-8", errors="replace") as lines:
        for line in lines:
            # To the file alone: by way of the logger the line would also reach the view.
            handler.handle(_record(logging.INFO, f"stderr: {line.rstrip()}"))


def _record(level: int, text: str, error: Exception | None = None) -> logging.LogRecord:
    exc_info = (type(error), error, error.__traceback__) if error is not None else None
    return log.makeRecord(log.name, level, __file__, 0, text, (), exc_info)
