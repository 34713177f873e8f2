"""Handles foreign code that fails or hangs: errors in callbacks, counts of failures, and calls with a deadline."""

from __future__ import annotations

import ctypes
import logging
import queue
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import Any

import jax

from podzero.config import EnvConfig, JaxGameConfig
from podzero.core.errors import PodzeroError


class Violation(Exception):
    """A game violates its contract; the message says how."""


class SimulatorError(PodzeroError, RuntimeError):
    """A simulator failed during play; the message names the game, the seed, the moves so far and the error."""


_recent: deque[SimulatorError] = deque(maxlen=16)
"""The last errors of callbacks, of any thread: JAX reports only their text. Bounded, since not all are re-raised."""


@contextmanager
def recorded_errors() -> Iterator[None]:
    """Decorates a callback: records the `SimulatorError` that it raises, for `simulator_errors`."""
    try:
        yield
    except SimulatorError as error:
        _recent.append(error)
        raise


@contextmanager
def simulator_errors() -> Iterator[None]:
    """Re-raises the `SimulatorError` of a callback if it made the computation in the block fail."""
    try:
        yield
    # Which of the two JAX raises depends on how the program was dispatched.
    except (jax.errors.JaxRuntimeError, ValueError) as failure:
        # It contains the whole message of the callback's exception, which identifies the environment and the thread.
        text = str(failure)
        error = next((recent for recent in list(_recent) if str(recent) in text), None)
        if error is None:
            raise
        with suppress(ValueError):  # another thread may have removed it
            _recent.remove(error)
        raise error from error.__cause__


log = logging.getLogger(__name__)

MAX_FAILURES = 100
"""Failures in a row, without a completed game or episode in between, that an actor survives."""
_LOG_EVERY_S = 1.0


class EnvironmentFailed(PodzeroError, RuntimeError):
    """An environment failed too often in a row; the message gives the number of failures and the last error."""

    last = ""
    """The last error."""


class Faults:
    """Counts the failures of one vector of environments, or of the games of one actor; allows `most_in_a_row`."""

    def __init__(self, name: str, most_in_a_row: int) -> None:
        self._name = name
        self.most_in_a_row = most_in_a_row
        self._logged_at = -_LOG_EVERY_S
        self.total = 0
        """Lost episodes, including those whose reset failed."""
        self.in_a_row = 0
        """Failures since the last completed episode; simultaneous failures of several environments count once."""

    def add(self, what: str, *, episodes: int = 1, rounds: int = 1) -> None:
        """Counts `rounds` consecutive failures that lost `episodes`, and logs the last one, at most once a second.

        After more failures in a row than allowed it raises `EnvironmentFailed`.
        """
        self.in_a_row += rounds
        self.total += episodes
        if self.in_a_row > self.most_in_a_row:
            failed = EnvironmentFailed(
                f"{self._name} failed {self.in_a_row} times without completing an episode in between; "
                f"{self.most_in_a_row} are allowed. The last failure: {what}"
            )
            failed.last = what
            raise failed
        if time.monotonic() >= self._logged_at + _LOG_EVERY_S:
            self._logged_at = time.monotonic()
            log.warning("%s failed (%d episodes lost so far): %s", self._name, self.total, what)

    def completed(self) -> None:
        """Records a completed episode, which resets `in_a_row`."""
        self.in_a_row = 0


def faults_of(env: EnvConfig) -> Faults:
    """The failure counter of one process that plays `env`. Games in JAX are allowed no failure."""
    return Faults(env.title, 0 if isinstance(env, JaxGameConfig) else MAX_FAILURES)


class Abandoned(BaseException):
    """Raised inside an abandoned thread to end it."""


class DeadlineThread:
    """A thread that makes calls one after another, each with a time limit; a call costs about 20 us."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._begin()

    def call[R](self, function: Callable[[], R], timeout_s: float, setting: str = "") -> R:
        """Returns `function()`, or raises what it raised; `setting` names the time limit in the message.

        Raises:
          TimeoutError: it took longer than `timeout_s`. Do not use the objects it works on again: it may still be
            running.
          RuntimeError: it raised something that is not an `Exception`, such as `SystemExit`.
        """
        self._calls.put(function)
        try:
            result, error = self._results.get(timeout=timeout_s)
        except queue.Empty:
            self._abandon()
            limit = f" ({setting})" if setting else ""
            raise TimeoutError(f"no answer within {timeout_s:g} s{limit}") from None
        except BaseException:  # the caller was interrupted
            self._abandon()
            raise
        if isinstance(error, Exception):
            raise error
        if error is not None:
            raise RuntimeError(f"{type(error).__name__}: {error}") from error
        answer: R = result
        return answer

    def stop(self) -> None:
        """Ends the thread after its current call."""
        self._calls.put(None)

    def _begin(self) -> None:
        self._calls: queue.SimpleQueue[Callable[[], Any] | None] = queue.SimpleQueue()
        self._results: queue.SimpleQueue[tuple[Any, BaseException | None]] = queue.SimpleQueue()
        self._thread = threading.Thread(target=_serve, args=(self._calls, self._results), name=self._name, daemon=True)
        self._thread.start()

    def _abandon(self) -> None:
        """Starts a new thread; the old one ends when its call returns, or sooner if that executes Python code."""
        self.stop()
        # The exception is raised at the thread's next bytecode; Python cannot interrupt a blocking call.
        ident = ctypes.c_ulong(self._thread.ident or 0)
        ctypes.pythonapi.PyThreadState_SetAsyncExc(ident, ctypes.py_object(Abandoned))
        self._begin()


def _serve(
    calls: queue.SimpleQueue[Callable[[], Any] | None], results: queue.SimpleQueue[tuple[Any, BaseException | None]]
) -> None:
    while (function := calls.get()) is not None:
        try:
            results.put((function(), None))
        except BaseException as error:
            results.put((None, error))
        del function  # a waiting thread must not keep objects alive
