"""Waits that may be long: when to log them, when they are over, and the wait for the first parameters."""

from __future__ import annotations

import logging
import math
import threading
import time
from collections.abc import Callable
from concurrent.futures import Future, wait
from typing import TYPE_CHECKING, ClassVar

if TYPE_CHECKING:
    from podzero.core.protocols import ParamSource
    from podzero.core.types import Versioned

log = logging.getLogger(__name__)

FIRST_MESSAGE_S = 30.0
"""The length of a wait before its first message."""
LONGEST_SILENCE_S = 600.0
"""The longest time between two messages about a wait."""
_LOOK_EVERY_S = 5.0
"""How often the wait for parameters checks whether to stop."""
_MARKED_S = 60.0
"""A process that waits looks at its wait more often than this."""
_POLL_EVERY_S = 0.05
"""How often the wait for newer parameters looks for them."""


def doubled(first_s: float, failures: int, longest_s: float) -> float:
    """The pause after so many failures: `first_s` after the first, doubled by each further one up to `longest_s`."""
    return min(first_s * 2.0 ** min(failures - 1, 64), longest_s)  # 2 to the power of 1,100 is no float


class Wait:
    """One wait. The time between its messages doubles up to `LONGEST_SILENCE_S`; `str` gives its length and start.

    Args:
      first_s: seconds until the first message is due, by default `FIRST_MESSAGE_S`.
      limit_s: seconds after which the wait is over; None for a wait without a limit.
      stage: the stage of the loop that waits (`StageClock`), for `waits_in`.
    """

    looked_at: ClassVar[tuple[str, float]] = ("", -math.inf)
    """The stage of the wait of this process that was looked at last, and when that was."""

    def __init__(self, first_s: float | None = None, limit_s: float | None = None, stage: str = "wait") -> None:
        self._stage = stage
        self._began = time.monotonic()
        self._since = time.strftime("%Y-%m-%d %H:%M:%S")
        self._limit_s = math.inf if limit_s is None else limit_s
        self._silence_s = self._message_at_s = FIRST_MESSAGE_S if first_s is None else first_s

    def __str__(self) -> str:
        return f"{self.seconds:.0f} s, since {self._since},"

    @property
    def seconds(self) -> float:
        """How long the wait has lasted."""
        return time.monotonic() - self._began

    @property
    def over(self) -> bool:
        """Whether it has lasted longer than its limit."""
        return self.seconds > self._limit_s

    def message_due(self) -> bool:
        """Whether a message is due now; if so, schedules the next one. Call it in every round of the wait."""
        Wait.looked_at = self._stage, time.monotonic()
        if self.seconds < self._message_at_s:
            return False
        self._message_at_s = self.seconds + self._silence_s
        # A caller's `first_s` may exceed the longest silence; the silence then stays as long as it is.
        self._silence_s = min(2 * self._silence_s, max(LONGEST_SILENCE_S, self._silence_s))
        return True


def in_thread[Found](name: str, work: Callable[[], Found], patience_s: float = 0.0) -> Future[Found]:
    """The result of `work`, which a thread does: unlike an executor's, it keeps no process from ending.

    Waits at most `patience_s` for it, for work that is most often done at once.
    """
    outcome: Future[Found] = Future()

    def run() -> None:
        try:
            outcome.set_result(work())
        except BaseException as failure:
            outcome.set_exception(failure)

    threading.Thread(target=run, name=name, daemon=True).start()
    wait([outcome], patience_s)
    return outcome


def waits_in() -> str:
    """The stage in which this process waits for another one; empty if it does not, or has not lately."""
    stage, looked_at = Wait.looked_at
    return stage if time.monotonic() - looked_at < _MARKED_S else ""


def first_params(source: ParamSource, stopping: threading.Event) -> Versioned | None:
    """Waits without a limit for the learner's first parameters; None once `stopping` is set. Logs a long wait."""
    wait = Wait(stage="wait_params")
    while not stopping.is_set():
        try:
            return source.wait(_LOOK_EVERY_S)
        except TimeoutError as none_yet:
            if wait.message_due():
                log.warning("has waited %s for the first parameters: %s", wait, none_yet)
    return None


def fresh_params(source: ParamSource, params: Versioned, max_lag: int, stopping: threading.Event) -> Versioned:
    """Waits without a limit until these or newer parameters are at most `max_lag` publications behind, or `stopping` is
    set. Logs a long wait.
    """
    wait = Wait(stage="wait_params")
    while (lag := behind(source)) > max_lag and not stopping.wait(_POLL_EVERY_S):
        params = source.poll() or params
        if wait.message_due():
            what = f"those of step {params.version} are {lag} publications behind, actors.max_lag is {max_lag}"
            log.warning("has waited %s for newer parameters from the learner: %s", wait, what)
    return params


def behind(source: ParamSource) -> int:
    """How many publications the parameters that a source returned last are behind, as far as it has heard."""
    returned, heard = source.publications
    return heard - returned
