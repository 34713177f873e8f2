"""Views of a run: its status as one line or as a panel, in plain lines or live on a terminal."""

from __future__ import annotations

import logging
import os
import sys
import time
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable, Iterator, Sequence, Sized
from typing import IO, Literal, Self

import psutil
from rich.console import Console, ConsoleOptions, Group, RenderableType, RenderResult
from rich.live import Live
from rich.markup import escape
from rich.panel import Panel
from rich.progress_bar import ProgressBar
from rich.rule import Rule
from rich.table import Table
from rich.text import Text

from podzero.runtime.monitoring.goodput import largest_first
from podzero.runtime.monitoring.ledger import COLUMNS, open_sums
from podzero.runtime.monitoring.reports import summary
from podzero.runtime.monitoring.status import PHASE_WORDS, RunStatus, duration

STARTING = "starting Ray, replay, learner and actors: libraries load, programs compile"
WIDEST = 120
"""Most columns of the panel."""
ViewKind = Literal["auto", "plain", "live"]
LINE_EVERY_S = 10.0
"""Interval between the lines of the plain view within a phase."""
LOG_LINES = 6
"""Newest log records that the live view shows."""
_LABEL_WIDTH = 12
"""Columns of the labels of rows."""
LONG_SAVE_S = 20.0
"""Once a checkpoint has been written for this long, that is shown."""
_FAILING = 3
"""Failing and silent workers that are named."""


def status_line(status: RunStatus, since_command_s: float | None = None) -> str:
    """The status in one line, without what is not known yet; shows `since_command_s` until training time passes."""
    passed = _time(status, since_command_s, clock)
    parts = [f"[{passed}] {PHASE_WORDS[status.phase]}", f"step {status.step:,}"]
    if status.steps_per_s:
        parts[-1] += f" ({_rate(status.steps_per_s)}/s)"
    _, games, moves = _units(status)
    parts.append(f"{games} {status.games:,}")
    if status.moves_per_s:
        parts.append(f"{moves}/s {_rate(status.moves_per_s)}")
    if status.replay_capacity:
        parts.append(f"replay {status.replay_size / status.replay_capacity:.0%}")
    parts.append(_known("loss {:.3f}", status.loss))
    parts += _evaluated(status)
    if status.checkpoint_age_s is not None:
        age = clock(status.checkpoint_age_s)
        none = f"no checkpoint for {age}" if status.failed_saves else "no checkpoint yet"
        failed = f" ({status.failed_saves:,} SAVES FAILED)" if status.failed_saves else ""
        saving = f", one being written for {clock(status.saving_s)}" if status.saving_s > LONG_SAVE_S else ""
        parts.append((none if status.checkpoint_step is None else f"checkpoint {age} old") + failed + saving)
    if found := open_sums(status.ledger):
        parts.append(f"THE LEDGER DOES NOT CLOSE: {found}")
    if status.chips is not None and status.chips > 1:
        parts.append(f"chips {status.chips:,}" + _known(" ({:.1%} of peak)", status.share_of_peak))
    parts.append(_known("cost {:,.2f}", status.cost))
    if status.silent:
        parts.append(f"silent: {_silent(status, clock)}")
    if status.failing:
        parts.append(f"failing: {', '.join(list(status.failing)[:_FAILING])}{_more(status.failing)}")
    parts.append(_left(status, clock))
    return "  ".join(part for part in parts if part)


def _time(status: RunStatus, since_command_s: float | None, form: Callable[[float], str]) -> str:
    """The training time; before it begins, the time since the command if that is given."""
    if status.elapsed_s or since_command_s is None:
        return form(status.elapsed_s)
    return f"{form(since_command_s)} since the command"


def _left(status: RunStatus, form: Callable[[float], str]) -> str:
    if status.time_left_s is None:
        return ""
    begins = " from the first step" if status.phase in ("starting", "collecting") else ""
    return f"{form(status.time_left_s)} left{begins}"


def _units(status: RunStatus) -> tuple[str, str, str]:
    """The label and units of the actors' row: for environments of gymnasium, and for games."""
    return ("acting", "episodes", "steps") if status.episodic else ("self-play", "games", "moves")


def _evaluated(status: RunStatus) -> list[str]:
    """The return of the actors' episodes, and what the newest evaluation has found, which may be old."""
    found = [
        f"Elo {_elo(status)}" if status.rating is not None else "",
        f"mean return {_return(status)}" if status.mean_return is not None else "",
        _known("keeps value {:.1%}", status.keeps_value),
    ]
    if judged := ", ".join(filter(None, found)):
        judged = _known("at step {:,}: ", status.rated_step) + judged
    return [_known("return {:,.1f}", status.acting_return), judged]


def status_panel(
    status: RunStatus, log_lines: Sequence[tuple[int, str]] = (), since_command_s: float | None = None
) -> Panel:
    """The status as a panel, above the (level, text) of the newest log records; for the time see `status_line`."""
    times = " · ".join(filter(None, (_time(status, since_command_s, duration), _left(status, duration))))
    grid = Table.grid(padding=(0, 1, 0, 0), expand=True)
    grid.add_column(style="bold", no_wrap=True, width=_LABEL_WIDTH)
    grid.add_column(ratio=1)
    for label, value in _rows(status):
        grid.add_row(label, value)
    return _framed(f"[bold]{escape(status.name)}[/bold] · {PHASE_WORDS[status.phase]}", times, grid, log_lines)


def clock(seconds: float) -> str:
    """Formats seconds as `m:ss` or `h:mm:ss`."""
    minutes, second = divmod(max(round(seconds), 0), 60)
    hours, minute = divmod(minutes, 60)
    return f"{hours}:{minute:02d}:{second:02d}" if hours else f"{minute}:{second:02d}"


def _framed(title: str, times: str, body: RenderableType, log_lines: Sequence[tuple[int, str]]) -> Panel:
    text = Text(no_wrap=True, overflow="ellipsis")
    for number, (level, line) in enumerate(log_lines):
        style = "red" if level >= logging.ERROR else "yellow" if level >= logging.WARNING else "dim"
        text.append("\n" if number else "").append(line.splitlines()[0] if line else "", style=style)
    body, width = Group(body, Rule(style="dim"), text) if log_lines else body, min(Console().width, WIDEST)
    return Panel(
        body, title=title, title_align="left", subtitle=times, subtitle_align="right", width=width, border_style="cyan"
    )


def _rows(status: RunStatus) -> Iterator[tuple[str, RenderableType]]:
    yield from _work(status)
    if status.replay_capacity:
        yield "replay", _replay(status)
        yield from _ledger(status)
    yield "strength", _strength(status)
    if status.checkpoint_age_s is not None:
        yield "checkpoint", _joined(*_checkpoint_items(status, duration(status.checkpoint_age_s)))
    # Of a learner on accelerators, or on several devices.
    if (status.chips or 0) > 1 or status.share_of_peak is not None or status.hbm_bytes is not None:
        yield "chips", _chips(status)
    if status.cost is not None:
        per_million = _known("{:,.2f} per million samples", status.cost_per_million_samples)
        yield "cost", _joined(f"{status.cost:,.2f} so far", per_million)
    if status.goodput is not None:
        causes = [f"{cause} {share:.0%}" for cause, share in largest_first(status.paid_s) if share >= 0.005]
        yield "paid time", _joined(f"{duration(sum(status.paid_s.values()))}, goodput {status.goodput:.0%}", *causes)
    for kind, stages in status.shares.items():
        largest = sorted(stages.items(), key=lambda item: -item[1])
        shown = [f"{stage.replace('_', ' ')} {share:.0%}" for stage, share in largest if share >= 0.005]
        of_step = f"{_short_time(status.step_s)} per step" if kind == "learner" and status.step_s is not None else ""
        yield f"{kind} time"[:_LABEL_WIDTH], _joined(of_step, *shown)
    yield from _faults(status)
    if status.bottleneck:
        yield "limit", Text(status.bottleneck, style="yellow")


def _work(status: RunStatus) -> Iterator[tuple[str, RenderableType]]:
    losses = _joined(
        f"step {status.step:,}",
        f"{_rate(status.steps_per_s)} steps/s",
        _known("loss {:.3f}", status.loss),
        _known("policy {:.3f}", status.policy_loss),
        _known("value {:.3f}", status.value_loss),
        _known("teacher's policy {:.3f}", status.teacher_policy_loss),
        _known("teacher's value {:.3f}", status.teacher_value_loss),
    )
    yield "learner", losses
    label, games, moves = _units(status)
    played = _joined(
        f"{status.games:,} {games}",
        f"{status.moves:,} {moves}",
        f"{_rate(status.moves_per_s)} {moves}/s",
        f"{_rate(status.evaluations_per_s)} evaluations/s",
        _known("return {:,.1f}", status.acting_return),
        f"[yellow]failed {status.failed_episodes:,}[/yellow]" if status.failed_episodes else "",
        f"[yellow]restarts {status.restarts:,}[/yellow]" if status.restarts else "",
        f"{status.actors:,} of {status.actors_wanted:,} actors" if status.actors != status.actors_wanted else "",
    )
    yield label, played
    if status.server_busy is not None:
        latency = _known("latency {:.1f} ms, p99 {:.1f} ms", status.server_latency_ms, status.server_latency_p99_ms)
        full, rate = _known("batches {:.0%} full", status.server_fill), f"{_rate(status.served_per_s)} positions/s"
        yield "servers", _joined(rate, f"busy {status.server_busy:.0%}", full, latency)
    if status.reanalysed_per_s:
        yield "reanalysis", _joined(f"{_rate(status.reanalysed_per_s)} samples/s reanalysed")


def _faults(status: RunStatus) -> Iterator[tuple[str, RenderableType]]:
    if status.silent:
        yield "silent", Text(_silent(status, duration), style="yellow")
    if status.failing:
        lines = [f"{worker} failed {failures}" for worker, failures in list(status.failing.items())[:_FAILING]]
        yield "failing", Text("\n".join(lines) + _more(status.failing), style="yellow")


def _ledger(status: RunStatus) -> Iterator[tuple[str, RenderableType]]:
    for table, row in status.ledger.items():
        found = open_sums({table: row})
        closing = f"[bold red]does not close: {found}[/bold red]" if found else "[green]closes[/green]"
        yield table, _joined(*(f"{row[name]:,} {words}" for name, words in COLUMNS.items() if row[name]), closing)


def _checkpoint_items(status: RunStatus, age: str) -> Iterator[str]:
    none = f"none for {age}" if status.failed_saves else "none yet"
    yield none if status.checkpoint_step is None else f"step {status.checkpoint_step:,}, {age} old"
    if status.saving_s > LONG_SAVE_S:
        yield f"one has been written for {duration(status.saving_s)}"
    if status.failed_saves:
        yield f"[bold red]{status.failed_saves:,} saves failed since: all that time is lost if the run ends[/bold red]"
    if status.damaged_shards:
        yield f"[yellow]{status.damaged_shards:,} replay shards were damaged[/yellow]"


def _silent(status: RunStatus, form: Callable[[float], str]) -> str:
    longest = sorted(status.silent.items(), key=lambda item: -item[1])[:_FAILING]
    return ", ".join(f"{worker} for {form(seconds)}" for worker, seconds in longest) + _more(status.silent)


def _more(workers: Sized) -> str:
    more = len(workers) - _FAILING
    return f" and {more} more" if more > 0 else ""


def _replay(status: RunStatus) -> RenderableType:
    bar = ProgressBar(total=max(status.replay_capacity, 1), completed=status.replay_size, width=20)
    row = Table.grid(padding=(0, 1, 0, 0))
    row.add_column(width=20)
    row.add_column()
    ratio = _known("{:.2f} samples/insert", status.samples_per_insert)
    age = _known("age {:,.0f} steps", status.policy_age)
    taken_back = _known("{:.0%} from steps taken back", status.taken_back or None)
    row.add_row(bar, _joined(f"{status.replay_size:,} of {status.replay_capacity:,}", ratio, age, taken_back))
    return row


def _strength(status: RunStatus) -> RenderableType:
    if status.rated_step is None:
        return Text("not evaluated yet", style="dim")
    scores = [f"vs {name} {score:.0%}" for name, score in status.scores.items()]
    return _joined(
        f"[green]mean return {_return(status)}[/green]" if status.mean_return is not None else "",
        f"Elo {_elo(status)}" if status.rating is not None else "",
        _known("[green]keeps value {:.1%}[/green]", status.keeps_value),
        *scores,
        f"[dim]at step {status.rated_step:,}[/dim]",
    )


def _chips(status: RunStatus) -> RenderableType:
    hosts = status.hosts or 1
    return _joined(
        f"{status.chips or 1:,} on {hosts:,} {'host' if hosts == 1 else 'hosts'}",
        _known("{:.1%} of peak", status.share_of_peak),
        _known("busy {:.0%}", status.device_busy),
        _per_chip(status.samples_per_s_per_chip, status.samples_per_s_per_host, "samples/s", hosts),
        _per_chip(status.moves_per_s_per_chip, status.moves_per_s_per_host, "moves/s", hosts),
        _memory(status),
    )


def _per_chip(chip: float | None, host: float | None, unit: str, hosts: int) -> str:
    """A rate per chip and, with several hosts, per host."""
    if chip is None or host is None:
        return ""
    return f"{_rate(chip)} {unit} per chip" + (f", {_rate(host)} per host" if hosts > 1 else "")


def _memory(status: RunStatus) -> str:
    if status.hbm_bytes is None:
        return ""
    limit = "" if status.hbm_limit_bytes is None else f" of {status.hbm_limit_bytes / 2**30:.1f}"
    peak = "" if status.hbm_peak_bytes is None else f", peak {status.hbm_peak_bytes / 2**30:.1f}"
    return f"HBM {status.hbm_bytes / 2**30:.1f}{limit} GiB{peak}"


def _short_time(seconds: float) -> str:
    return f"{seconds:.2f} s" if seconds >= 1 else f"{1000 * seconds:.3g} ms"


def _elo(status: RunStatus) -> str:
    return _known("{:.0f}", status.rating) + _known(" ± {:.0f}", status.rating_error)


def _return(status: RunStatus) -> str:
    return _known("{:,.1f}", status.mean_return) + _known(" (sd {:,.1f})", status.std_return)


def _rate(per_s: float) -> str:
    return f"{per_s:,.0f}" if per_s >= 100 else f"{per_s:.1f}" if per_s >= 10 else f"{per_s:.2f}"


def _known(text: str, *values: float | None) -> str:
    """`text` with the values filled in; empty if one is None."""
    return "" if None in values else text.format(*values)


def _joined(*parts: str) -> _Items:
    return _Items([Text.from_markup(part) for part in parts if part])


class _Items:
    """Short texts separated by dots; lines break only between them."""

    def __init__(self, items: list[Text]) -> None:
        self._items = items

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        """Fills each line with as many items as fit."""
        line = Text()
        for item in self._items:
            if line and line.cell_len + 3 + item.cell_len > options.max_width:
                yield line
                line = Text()
            line.append(" · " if line else "").append_text(item)
        yield line


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
            times = f"{duration(since_command_s())} since the command"
            return _framed("[bold]podzero[/bold] · starting up", times, Text(STARTING), lines)
        return status_panel(self._status, lines, since_command_s())


def _silence(out: IO[str]) -> None:
    """Discards what is printed to `out` from now on, because it cannot be written."""
    # In `podzero train ... | tee log`, Ctrl-C ends `tee` at once, before the run has written its last checkpoint.
    # Replacing the descriptor also covers what others print, and the flush at exit.
    nowhere = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, out.fileno())
    os.close(nowhere)
