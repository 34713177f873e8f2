"""Calls that may hang, made in a separate thread that is abandoned after a timeout."""

from __future__ import annotations

import ctypes
import queue
import threading
from collections.abc import Callable
from typing import Any


class Abandoned(BaseException):
    """Raised inside an abandoned thread, at whatever Python code it is executing, to end it."""


class DeadlineThread:
    """A thread that makes calls one after another; the caller waits a limited time for each.

    The two thread switches of a call cost about 20 us.
    """

    def __init__(self, name: str) -> None:
        self._name = name
        self._begin()

    def call[A, R](self, function: Callable[[A], R], argument: A, timeout_s: float) -> R:
        """Returns `function(argument)`, or raises what it raised.

        Raises:
          TimeoutError: it took longer than `timeout_s`. Do not use the objects it works on again: it may still be
            running.
          RuntimeError: it raised something that is not an `Exception`, such as `SystemExit`.
        """
        self._calls.put((function, argument))
        try:
            result, error = self._results.get(timeout=timeout_s)
        except queue.Empty:
            self._abandon()
            raise TimeoutError(f"no answer within {timeout_s:g} s") from None
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
        self._calls: queue.SimpleQueue[tuple[Callable[[Any], Any], Any] | None] = queue.SimpleQueue()
        self._results: queue.SimpleQueue[tuple[Any, BaseException | None]] = queue.SimpleQueue()
        self._thread = threading.Thread(target=_serve, args=(self._calls, self._results), name=self._name, daemon=True)
        self._thread.start()

    def _abandon(self) -> None:
        """Starts a new thread. The old one ends when its call returns, or at once if that is executing Python code."""
        self.stop()
        # The exception is raised at the thread's next bytecode; Python cannot interrupt a blocking call.
        ident = ctypes.c_ulong(self._thread.ident or 0)
        ctypes.pythonapi.PyThreadState_SetAsyncExc(ident, ctypes.py_object(Abandoned))
        self._begin()


def _serve(
    calls: queue.SimpleQueue[tuple[Callable[[Any], Any], Any] | None],
    results: queue.SimpleQueue[tuple[Any, BaseException | None]],
) -> None:
    while (call := calls.get()) is not None:
        function, argument = call
        try:
            results.put((function(argument), None))
        except BaseException as error:
            results.put((None, error))
        del call, function, argument  # a waiting thread must not keep objects alive
