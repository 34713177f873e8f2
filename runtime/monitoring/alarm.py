"""Messages to a webhook when a run stalls, goes on, ends or fails."""

from __future__ import annotations

import json
import logging
import os
import time
import urllib.request
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from queue import Full, Queue
from threading import Thread
from urllib.parse import urlsplit

from podzero.core.errors import ConfigError, described
from podzero.runtime.monitoring.status import RunStatus

log = logging.getLogger(__name__)

STALL_S = 600.0
"""Seconds without a learner step and without a game after which a run stalls."""
MOST_WAITING = 16
"""Messages that wait; beyond that they are dropped, and the log says so."""
_TRIES, _TIMEOUT_S, _PAUSE_S, _LAST_S = 3, 10.0, 2.0, 15.0


class Alarm:
    """Sends messages of a run in a thread, for which only its end waits, for a bounded time."""

    def __init__(self, run: str, send: Callable[[str], object]) -> None:
        self._run, self._send = run, send
        self._waiting: Queue[str | None] = Queue(MOST_WAITING)
        self._progress: tuple[object, ...] = ()
        self._moved_at, self._stalled = 0.0, False
        self._thread = Thread(target=self._work, name="alarm", daemon=True)

    def look(self, status: RunStatus, now: float | None = None) -> None:
        """Tells once that nothing has moved for `STALL_S`, and once that it moves again; `now` is a monotonic time."""
        now = time.monotonic() if now is None else now
        progress = status.phase, status.step, status.games
        # The end of a run is bounded, and judging its last snapshot moves neither.
        if progress != self._progress or status.phase in ("stopping", "judging"):
            if self._stalled and progress[1:] != self._progress[1:]:
                self.tell(f"goes on, at step {status.step:,}")
            self._progress, self._moved_at, self._stalled = progress, now, False
        elif not self._stalled and now - self._moved_at >= STALL_S:
            self._stalled, still = True, f"{STALL_S / 60:g} minutes without a step and a game"
            self.tell(f"stalls at step {status.step:,}: {still}. {status.bottleneck}")

    def tell(self, text: str) -> None:
        """Sends a message; drops it if too many wait."""
        try:
            self._waiting.put_nowait(f"podzero: {self._run} {text}"[:1000])
        except Full:
            log.warning("an alarm is dropped, since the webhook does not answer: %s", text)

    def __enter__(self) -> Alarm:
        self._thread.start()
        return self

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        if isinstance(error, Exception):
            self.tell(f"has failed: {described(error)}")
        with suppress(Full):
            self._waiting.put_nowait(None)
            self._thread.join(_LAST_S)

    def _work(self) -> None:
        while (text := self._waiting.get()) is not None:
            for left in reversed(range(_TRIES)):
                try:
                    self._send(text)
                    break
                except Exception as error:
                    log.warning("the webhook refuses an alarm, %d tries left: %s", left, described(error))
                    time.sleep(_PAUSE_S if left else 0.0)


def open_alarm(setting: str | None, run: str) -> Alarm:
    """The alarm of `metrics.alert`, which for None sends nothing.

    Raises `ConfigError` if a variable that it names holds no address.
    """
    url = setting
    if setting is not None and setting.startswith("env:"):
        url = os.environ.get(name := setting.removeprefix("env:"), "")
        if not url.startswith(("https://", "http://")):
            raise ConfigError(f"metrics.alert: the environment variable {name} holds no address such as https://...")
    return Alarm(run, (lambda text: None) if url is None else partial(_post, url))


def _post(url: str, text: str) -> None:
    """Posts a message as Slack, Mattermost and Google Chat read it, or as Discord does."""
    field = "content" if urlsplit(url).hostname in ("discord.com", "discordapp.com") else "text"
    # Discord refuses urllib's own name.
    headers = {"Content-Type": "application/json", "User-Agent": "podzero"}
    request = urllib.request.Request(url, json.dumps({field: text}).encode(), headers)
    urllib.request.urlopen(request, timeout=_TIMEOUT_S).close()
