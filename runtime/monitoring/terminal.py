"""Views of a run: a live panel on a terminal, plain lines elsewhere."""

from __future__ import annotations

import logging
import os
import sys
import time
from abc import ABC, abstractmethod
from collections import deque
from typing import IO, Literal, Self

import psutil
from rich.console import Console, RenderableType
from rich.live import Live

from podzero.runtime.monitoring.reports import summary
from podzero.runtime.monitoring.status import RunStatus
from podzero.runtime.monitoring.view import STARTING, starting_panel, status_line, status_panel

ViewKind = Literal["auto", "plain", "live"]
LINE_EVERY_S = 10.0
"""Interval between the lines of the plain view within a phase."""
LOG_LINES = 6
"""Newest log records that the live view shows."""


def since_command_s() -> float:
    """Seconds since this process was started: its imports count."""
    return time.time() - psutil.Process().create_time()


class TerminalView(logging.Handler, ABC):
    """A context manager that shows the status of a run and podzero's log records."""

    def __init__(self) -> None:
        super().__init__(logging.INFO)

    def __enter__(self) -> Self:
        logging.getLogger("podzero").addHandler(self)
        return self

    def __exit__(self, *error: object) -> None:
        logging.getLogger("podzero").removeHandler(self)

    def emit(self, record: logging.LogRecord) -> None:
        """Shows a log record, and an exception in one line: tracebacks go to the log file only."""
        self.log(record.levelno, summary(record))

    @abstractmethod
    def show(self, status: RunStatus) -> None:
        """Shows a status."""

    @abstractmethod
    def log(self, level: int, text: str) -> None:
        """Shows the message `text` of a log record of level `level`, such as `logging.WARNING`."""


def make_view(kind: ViewKind) -> TerminalView:
    """The view on standard output; `auto` is live on a terminal and plain elsewhere."""
    if kind == "live" or (kind == "auto" and Console().is_terminal):
        return LiveView(Console())
    return PlainView(sys.stdout)


class PlainView(TerminalView):
    """Prints a line every `LINE_EVERY_S` seconds, when the phase changes, and after the first game."""

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
        news = last is None or last.phase != status.phase or (last.games == 0 and status.games > 0)
        if news or now - self._shown_at >= LINE_EVERY_S:
            self._print(status_line(status, since_command_s()))
            self._shown_at = now
        self._last = status

    def log(self, level: int, text: str) -> None:
        """Prints the message, with the level's name for warnings and errors."""
        prefix = f"{logging.getLevelName(level).lower()}: " if level >= logging.WARNING else ""
        self._print(f"{prefix}{text}")

    def _print(self, line: str) -> None:
        try:
            print(line, file=self._out, flush=True)
        except OSError:
            _silence(self._out)


class LiveView(TerminalView):
    """A panel that is redrawn four times a second."""

    def __init__(self, console: Console) -> None:
        super().__init__()
        self._status: RunStatus | None = None
        self._lines: deque[tuple[int, str]] = deque(maxlen=LOG_LINES)
        self._live = Live(
            console=console,
            get_renderable=self._panel,
            refresh_per_second=4,
            # stderr goes into the run's log file.
            redirect_stderr=False,
        )

    def __enter__(self) -> Self:
        super().__enter__()
        self._live.start()
        return self

    def __exit__(self, *error: object) -> None:
        try:
            self._live.stop()
        except (OSError, SystemExit):
            # rich raises SystemExit when a pipe is closed.
            _silence(self._live.console.file)
        finally:
            super().__exit__(*error)

    def show(self, status: RunStatus) -> None:
        """Shows the status when the panel is next redrawn."""
        self._status = status

    def log(self, level: int, text: str) -> None:
        """Adds the message to the `LOG_LINES` newest ones below the status."""
        self._lines.append((level, f"{time.strftime('%H:%M:%S')} {text}"))

    def _panel(self) -> RenderableType:
        # A copy, because rich draws in a thread of its own.
        lines = list(self._lines)
        if self._status is None:
            return starting_panel(since_command_s(), lines)
        return status_panel(self._status, lines, since_command_s())


def _silence(out: IO[str]) -> None:
    """Discards what is printed to `out` from now on, because it cannot be written."""
    # In `podzero train ... | tee log`, Ctrl-C ends `tee` at once, before the run has written its last checkpoint.
    # Replacing the descriptor also covers what others print, and the flush at exit.
    nowhere = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, out.fileno())
    os.close(nowhere)
