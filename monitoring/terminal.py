"""How a person watches a run: a live picture in a terminal, a line now and then elsewhere."""

from __future__ import annotations

import logging
import sys
import time
from abc import ABC, abstractmethod
from collections import deque
from types import TracebackType
from typing import IO, Literal, Self

from rich.console import Console, RenderableType
from rich.live import Live

from podzero.monitoring.status import RunStatus
from podzero.monitoring.view import STARTING, plain_line, run_view, starting_view

ViewKind = Literal["auto", "plain", "live"]
LINE_EVERY_S = 10.0
"""Time between two lines of the plain view, if nothing remarkable happens."""
LOG_LINES = 6


class View(ABC):
    """A context manager that shows a run; log records of `podzero` appear in it as well."""

    def __init__(self) -> None:
        self._handler = _Handler(self)

    def __enter__(self) -> Self:
        logging.getLogger("podzero").addHandler(self._handler)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        logging.getLogger("podzero").removeHandler(self._handler)

    @abstractmethod
    def show(self, status: RunStatus) -> None:
        """Brings the view up to date."""

    @abstractmethod
    def log(self, level: int, text: str) -> None:
        """Shows a log record; `level` as in `logging`."""


def make_view(kind: ViewKind) -> View:
    """The view for standard output: `auto` is live on a terminal and plain otherwise."""
    if kind == "live" or (kind == "auto" and Console().is_terminal):
        return LiveView(Console())
    return PlainView(sys.stdout)


class PlainView(View):
    """A line every `LINE_EVERY_S` seconds, and at once when the phase changes or the first game is finished."""

    def __init__(self, out: IO[str]) -> None:
        super().__init__()
        self._out = out
        self._last: RunStatus | None = None
        self._shown_at = -LINE_EVERY_S

    def __enter__(self) -> Self:
        super().__enter__()
        self.log(logging.INFO, STARTING)
        return self

    def show(self, status: RunStatus) -> None:
        """Prints a line if one is due."""
        last, now = self._last, time.monotonic()
        remarkable = last is None or last.phase != status.phase or (last.games == 0 and status.games > 0)
        if remarkable or now - self._shown_at >= LINE_EVERY_S:
            print(plain_line(status), file=self._out, flush=True)
            self._shown_at = now
        self._last = status

    def log(self, level: int, text: str) -> None:
        """Prints the record, marked if it is a warning or worse."""
        mark = f"{logging.getLevelName(level).lower()}: " if level >= logging.WARNING else ""
        print(f"{mark}{text}", file=self._out, flush=True)


class LiveView(View):
    """A picture that is drawn anew four times a second."""

    def __init__(self, console: Console) -> None:
        super().__init__()
        self._status: RunStatus | None = None
        self._lines: deque[tuple[int, str]] = deque(maxlen=LOG_LINES)
        self._began = time.monotonic()
        self._live = Live(console=console, get_renderable=self._view, refresh_per_second=4)

    def __enter__(self) -> Self:
        super().__enter__()
        self._live.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._live.stop()
        super().__exit__(kind, error, traceback)

    def show(self, status: RunStatus) -> None:
        """Takes the status for the next drawing."""
        self._status = status

    def log(self, level: int, text: str) -> None:
        """Adds the record below the picture, where the newest few stay."""
        self._lines.append((level, f"{time.strftime('%H:%M:%S')} {text}"))

    def _view(self) -> RenderableType:
        lines = list(self._lines)
        if self._status is None:
            return starting_view(time.monotonic() - self._began, lines)
        return run_view(self._status, lines)


class _Handler(logging.Handler):
    """Hands log records to a view."""

    def __init__(self, view: View) -> None:
        super().__init__(logging.INFO)
        self._view = view

    def emit(self, record: logging.LogRecord) -> None:
        """Shows the message, without a traceback: that is what the log file is for."""
        self._view.log(record.levelno, record.getMessage())
