"""What a person sees of a run: a live picture in a terminal, a line now and then elsewhere."""

from __future__ import annotations

import logging
import sys
import time
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Iterator
from types import TracebackType
from typing import IO, Literal, Self

from rich.console import Console, ConsoleOptions, Group, RenderableType, RenderResult
from rich.live import Live
from rich.markup import escape
from rich.measure import Measurement
from rich.panel import Panel
from rich.progress_bar import ProgressBar
from rich.rule import Rule
from rich.table import Table
from rich.text import Text

from podzero.launch.status import PHASE_WORDS, RunStatus, duration

STARTING = "starting Ray, replay, learner and actors: libraries load, programs compile"
ViewKind = Literal["auto", "plain", "live"]
LINE_EVERY_S = 10.0
"""Time between two lines of the plain view, if nothing remarkable happens."""
LOG_LINES = 6
WIDEST = 120
"""Columns beyond which the picture does not grow."""


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
        self._live = Live(console=console, get_renderable=self._picture, refresh_per_second=4)

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

    def _picture(self) -> RenderableType:
        lines = list(self._lines)
        if self._status is None:
            return _opening(time.monotonic() - self._began, lines)
        return picture(self._status, lines)


class _Handler(logging.Handler):
    """Hands log records to a view."""

    def __init__(self, view: View) -> None:
        super().__init__(logging.INFO)
        self._view = view

    def emit(self, record: logging.LogRecord) -> None:
        """Shows the message, without a traceback: that is what the log file is for."""
        self._view.log(record.levelno, record.getMessage())


def plain_line(status: RunStatus) -> str:
    """The run in one line; figures that are not known yet are left out."""
    parts = [f"[{clock(status.elapsed_s)}] {PHASE_WORDS[status.phase]}", f"step {status.step:,}"]
    if status.steps_per_s:
        parts[-1] += f" ({_rate(status.steps_per_s)}/s)"
    parts.append(f"games {status.games:,}")
    if status.moves_per_s:
        parts.append(f"moves/s {_rate(status.moves_per_s)}")
    if status.replay_capacity:
        parts.append(f"replay {status.replay_size / status.replay_capacity:.0%}")
    if status.loss is not None:
        parts.append(f"loss {status.loss:.3f}")
    if status.rating is not None:
        parts.append(f"Elo {_elo(status)}")
    if status.keeps_value is not None:
        parts.append(f"keeps value {status.keeps_value:.1%}")
    if status.time_left_s is not None and status.phase != "ended":
        parts.append(f"left {clock(status.time_left_s)}")
    return "  ".join(parts)


def picture(status: RunStatus, lines: list[tuple[int, str]] | None = None) -> Panel:
    """The run as a panel of at most `WIDEST` columns; `lines` are (level, text) of the newest log records."""
    times = duration(status.elapsed_s)
    if status.time_left_s is not None and status.phase != "ended":
        times += f" · {duration(status.time_left_s)} left"
    grid = Table.grid(padding=(0, 1, 0, 0), expand=True)
    grid.add_column(style="bold", no_wrap=True, width=12)
    grid.add_column(ratio=1)
    for label, value in _rows(status):
        grid.add_row(label, value)
    return _framed(f"[bold]{escape(status.name)}[/bold] · {PHASE_WORDS[status.phase]}", times, grid, lines or [])


def clock(seconds: float) -> str:
    """Seconds as `m:ss` or `h:mm:ss`."""
    minutes, second = divmod(max(round(seconds), 0), 60)
    hours, minute = divmod(minutes, 60)
    return f"{hours}:{minute:02d}:{second:02d}" if hours else f"{minute}:{second:02d}"


def _opening(elapsed_s: float, lines: list[tuple[int, str]]) -> Panel:
    """What is shown until there is a status."""
    return _framed("[bold]podzero[/bold] · starting up", duration(elapsed_s), Text(STARTING), lines)


def _framed(title: str, times: str, body: RenderableType, lines: list[tuple[int, str]]) -> Panel:
    parts = [body, Rule(style="dim"), _log_text(lines)] if lines else [body]
    return Panel(
        Group(*parts),
        title=title,
        title_align="left",
        subtitle=times,
        subtitle_align="right",
        width=_width(),
        border_style="cyan",
    )


def _rows(status: RunStatus) -> Iterator[tuple[str, RenderableType]]:
    yield (
        "learner",
        _joined(
            f"step {status.step:,}",
            f"{_rate(status.steps_per_s)} steps/s",
            f"loss {status.loss:.3f}" if status.loss is not None else "",
            f"policy {status.policy_loss:.3f}" if status.policy_loss is not None else "",
            f"value {status.value_loss:.3f}" if status.value_loss is not None else "",
        ),
    )
    yield (
        "self-play",
        _joined(
            f"{status.games:,} games",
            f"{status.moves:,} moves",
            f"{_rate(status.moves_per_s)} moves/s",
            f"{_rate(status.evaluations_per_s)} evaluations/s",
            f"[yellow]restarts {status.restarts:,}[/yellow]" if status.restarts else "",
        ),
    )
    yield "replay", _replay(status)
    yield "strength", _strength(status)
    for kind, stages in status.shares.items():
        largest = sorted(stages.items(), key=lambda item: -item[1])
        shown = [f"{stage.replace('_', ' ')} {share:.0%}" for stage, share in largest if share >= 0.005]
        yield f"{kind} time"[:12], _joined(*shown)
    if status.bottleneck:
        yield "limit", Text(status.bottleneck, style="yellow")


def _replay(status: RunStatus) -> RenderableType:
    bar = ProgressBar(total=max(status.replay_capacity, 1), completed=status.replay_size, width=20)
    row = Table.grid(padding=(0, 1, 0, 0))
    row.add_column(width=20)
    row.add_column()
    ratio = f"{status.samples_per_insert:.2f} samples/insert" if status.samples_per_insert is not None else ""
    age = f"age {status.policy_age:,.0f} steps" if status.policy_age is not None else ""
    row.add_row(bar, _joined(f"{status.replay_size:,} of {status.replay_capacity:,}", ratio, age))
    return row


def _strength(status: RunStatus) -> RenderableType:
    if status.rated_step is None:
        return Text("not judged yet", style="dim")
    scores = [f"vs {name} {score:.0%}" for name, score in status.scores.items()]
    return _joined(
        f"Elo {_elo(status)}" if status.rating is not None else "",
        f"[green]keeps value {status.keeps_value:.1%}[/green]" if status.keeps_value is not None else "",
        *scores,
        f"[dim]at step {status.rated_step:,}[/dim]",
    )


def _elo(status: RunStatus) -> str:
    error = f" ± {status.rating_error:.0f}" if status.rating_error is not None else ""
    return f"{status.rating:.0f}{error}"


def _rate(per_s: float) -> str:
    """A rate with three digits that matter."""
    return f"{per_s:,.0f}" if per_s >= 100 else f"{per_s:.1f}" if per_s >= 10 else f"{per_s:.2f}"


def _joined(*parts: str) -> _Items:
    return _Items([Text.from_markup(part) for part in parts if part])


class _Items:
    """Short texts with dots between them; a line breaks only between two of them."""

    def __init__(self, items: list[Text]) -> None:
        self._items = items

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        """Packs as many items into each line as fit."""
        line = Text()
        for item in self._items:
            if line and line.cell_len + 3 + item.cell_len > options.max_width:
                yield line
                line = Text()
            line.append(" · " if line else "").append_text(item)
        yield line

    def __rich_measure__(self, console: Console, options: ConsoleOptions) -> Measurement:
        """Anything from the longest item to all of them in one line."""
        lengths = [item.cell_len for item in self._items] or [0]
        return Measurement(max(lengths), sum(lengths) + 3 * (len(lengths) - 1)).with_maximum(options.max_width)


def _log_text(lines: list[tuple[int, str]]) -> Text:
    text = Text(no_wrap=True, overflow="ellipsis")
    for number, (level, line) in enumerate(lines):
        style = "red" if level >= logging.ERROR else "yellow" if level >= logging.WARNING else "dim"
        text.append("\n" if number else "").append(line.splitlines()[0] if line else "", style=style)
    return text


def _width() -> int:
    return min(Console().width, WIDEST)
