"""The web page on which a person watches an agent's episodes step by step."""

from __future__ import annotations

import threading
from functools import partial
from typing import Any

from nicegui import run, ui
from nicegui.events import KeyEventArguments

from podzero.core.errors import PodzeroError
from podzero.evaluation.arena import Interrupted
from podzero.tools.play.episode import (
    Curve,
    KeepGoing,
    PlayedEpisode,
    ShowFrame,
    Watcher,
    curves_of,
    described,
    number,
    size_of,
)
from podzero.tools.play.page import AXIS, STEPS, heading, icon_button
from podzero.tools.play.picture import data_address

TICKS_PER_SECOND = 15.0
"""Most frames shown per second; steps of faster environments are skipped."""
SMALL_FRAME = 320
"""Frames whose sides are all shorter (in pixels) are enlarged to about `LARGE_FRAME`."""
LARGE_FRAME = 480
_REFRESH_S = 0.25
_SPACE_DOES_NOT_SCROLL = """
document.addEventListener("keydown", event => {
  if (event.key === " " && event.target === document.body) event.preventDefault();
});
"""


class Recordings:
    """Records the episodes of all browsers with one `Watcher`, one at a time."""

    def __init__(self, watcher: Watcher) -> None:
        self.subject = watcher.subject
        self._watcher = watcher
        self._one_at_a_time = threading.Lock()
        self._stopped = threading.Event()

    def stop(self) -> None:
        """Abandons the current episode and all later ones, so that the server can stop."""
        self._stopped.set()

    def episode(self, seed: int, keep_going: KeepGoing, show: ShowFrame) -> PlayedEpisode | None:
        """Records an episode, see `Watcher`; None if it was abandoned."""

        def goes_on(step: int) -> bool:
            return not self._stopped.is_set() and keep_going(step)

        with self._one_at_a_time:
            try:
                return self._watcher.episode(seed, goes_on, show)
            except Interrupted:
                return None


class EpisodePage:
    """A page in one browser: an episode, and the step shown.

    Args:
      recordings: records the episodes.
      seed: the first episode's seed.
    """

    def __init__(self, recordings: Recordings, seed: int) -> None:
        self._recordings = recordings
        self._seed = seed
        self._episode: PlayedEpisode | None = None
        self._step = 0
        self._recorded = 0
        self._newest: bytes | None = None
        self._busy = self._gone = False
        self._build()

    def _build(self) -> None:
        subject = self._recordings.subject
        interval = 1.0 / min(TICKS_PER_SECOND, subject.steps_per_second)
        self._stride = max(1, round(subject.steps_per_second * interval))
        ui.keyboard(on_key=self._key)
        ui.run_javascript(_SPACE_DOES_NOT_SCROLL)
        ui.context.client.on_delete(self._leave)
        with ui.column().classes("w-full max-w-2xl mx-auto gap-2"):
            heading(f"{subject.environment.partition('/')[2]}: {subject.player}")
            self._about = ui.label().classes("text-sm opacity-70")
            self._frame = ui.interactive_image().classes("max-w-full self-center")
            self._frame.props(f'role=img aria-label="{subject.environment}"')
            self._status = ui.label().classes("tabular-nums").props("aria-live=polite")
            self._slider = ui.slider(min=0, max=1, value=0, on_change=lambda event: self._show(int(event.value)))
            self._slider.classes("w-full").props('aria-label="step" tabindex=-1')
            self._buttons()
            self._chart = ui.echart({}).classes("w-full h-72")
        self._clock = ui.timer(interval, self._tick, active=False)
        self._waiting = ui.timer(_REFRESH_S, self._tell_progress, active=False)
        # Once the page is shown: recording takes seconds, and shows its progress there.
        ui.timer(0, self._record, once=True)

    def _buttons(self) -> None:
        with ui.row().classes("gap-1"):
            for key, step in STEPS.items():
                if key == "ArrowRight":
                    self._player = icon_button("play_arrow", "play or pause (space)", self._play_or_pause)
                icon_button(step.icon, step.hint, partial(self._press, key))
            icon_button("restart_alt", "another episode (n)", self._another)

    async def _record(self) -> None:
        """Records an episode in a thread and shows it."""
        if self._busy:
            return
        self._busy, self._recorded, self._newest = True, 0, None
        self._pause()
        self._waiting.activate()
        self._tell_progress()
        try:
            found = await run.io_bound(self._recordings.episode, self._seed, self._keep_going, self._keep_newest)
        except PodzeroError as error:
            self._status.set_text(str(error))
            return
        finally:
            self._busy = False
            self._waiting.deactivate()
        if found is not None and not self._gone:
            self._open(found)

    def _open(self, episode: PlayedEpisode) -> None:
        self._episode, self._step = episode, 0
        cut = f" ({episode.cut})" if episode.cut else ""
        ends = f"return {number(episode.returns[-1])} in {episode.steps:,} steps"
        self._about.set_text(f"seed {episode.seed}: {ends}{cut}")
        self._slider.props(f"max={self._last}")
        self._chart.options.clear()
        self._chart.options.update(chart_of(episode))
        self._chart.update()
        self._draw()

    @property
    def _last(self) -> int:
        return self._episode.steps if self._episode else 0

    def _press(self, key: str) -> None:
        self._show(STEPS[key].target(self._step, self._last))

    def _show(self, step: int) -> None:
        step = min(max(step, 0), self._last)
        # `_draw` sets the slider, which calls this again with the same step.
        if self._episode is not None and step != self._step:
            self._step = step
            self._draw()

    def _draw(self) -> None:
        episode, step = self._episode, self._step
        assert episode is not None
        self._show_frame(episode.frames[min(step, len(episode.frames) - 1)])
        self._slider.set_value(step)
        self._status.set_text(described(episode, step))
        self._chart.run_chart_method("setOption", cursor_at(episode, step))

    def _show_frame(self, png: bytes) -> None:
        """Shows a frame, enlarged if it is small."""
        width, height = size_of(png)
        if max(width, height) < SMALL_FRAME:
            self._frame.style(f"width: {LARGE_FRAME // max(width, height) * width}px; image-rendering: pixelated")
        self._frame.set_source(data_address(png))

    def _tick(self) -> None:
        self._show(self._step + self._stride)
        if self._step >= self._last:
            self._pause()

    def _play_or_pause(self) -> None:
        if self._clock.active or self._episode is None:
            self._pause()
            return
        if self._step >= self._last:
            self._show(0)
        self._clock.activate()
        self._player.props("icon=pause")

    def _pause(self) -> None:
        self._clock.deactivate()
        self._player.props("icon=play_arrow")

    async def _another(self) -> None:
        if not self._busy:
            self._seed += 1
            await self._record()

    async def _key(self, event: KeyEventArguments) -> None:
        if not event.action.keydown:
            return
        key = str(event.key.name)
        if key in STEPS:
            self._press(key)
        # A space bar that is held down must not toggle.
        elif key == " " and not event.action.repeat:
            self._play_or_pause()
        elif key == "n":
            await self._another()

    def _keep_going(self, step: int) -> bool:
        self._recorded = step
        return not self._gone

    def _keep_newest(self, png: bytes) -> None:
        self._newest = png

    def _tell_progress(self) -> None:
        if self._newest is not None:
            self._show_frame(self._newest)
        self._status.set_text(f"records the episode of seed {self._seed}: step {self._recorded:,} ...")

    def _leave(self) -> None:
        self._gone = True


_TOP, _HEIGHT, _GAP = 28, 84, 44
"""In pixels: the top of the first curve, the height of each, and the gap between them."""


def chart_of(episode: PlayedEpisode) -> dict[str, Any]:
    """ECharts options for the episode's curves, one below another; `cursor_at` has those that change with the step."""
    curves = curves_of(episode)
    tops = [_TOP + number * (_HEIGHT + _GAP) for number in range(len(curves))]
    return {
        "animation": False,
        "tooltip": {"trigger": "axis"},
        "axisPointer": {"link": [{"xAxisIndex": "all"}]},
        "title": [
            {
                "text": f"{c.name}: {c.unit}",
                "left": 40,
                "top": top - 26,
                "textStyle": {"fontSize": 12, "color": c.colour},
            }
            for c, top in zip(curves, tops, strict=True)
        ],
        "grid": [{"left": 48, "right": 16, "top": top, "height": _HEIGHT} for top in tops],
        "xAxis": [
            AXIS | {"gridIndex": number, "min": 0, "max": max(episode.steps, 1), "minInterval": 1}
            for number in range(len(curves))
        ],
        "yAxis": [AXIS | {"gridIndex": number, "splitNumber": 3} for number in range(len(curves))],
        "series": [_series(curve, number) for number, curve in enumerate(curves)],
    }


def cursor_at(episode: PlayedEpisode, step: int) -> dict[str, Any]:
    """ECharts options for a vertical line through each curve at `step`."""
    return {"series": [{"id": curve.name, "markLine": {"data": [{"xAxis": step}]}} for curve in curves_of(episode)]}


def _series(curve: Curve, number: int) -> dict[str, Any]:
    return {
        "id": curve.name,
        "name": curve.name,
        "type": "line",
        "xAxisIndex": number,
        "yAxisIndex": number,
        "data": [[step, round(float(height), 4)] for step, height in enumerate(curve.heights)],
        "showSymbol": False,
        "sampling": "lttb",
        "lineStyle": {"width": 2, "color": curve.colour},
        "itemStyle": {"color": curve.colour},
        "markLine": {
            "symbol": "none",
            "silent": True,
            "label": {"show": False},
            "lineStyle": {"type": "solid", "color": "#6b7280"},
            "data": [{"xAxis": 0}],
        },
    }
