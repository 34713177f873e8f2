"""Calls that may hang: made in a thread of their own, which is left behind when it takes too long."""

from __future__ import annotations

import ctypes
import queue
import threading
from collections.abc import Callable
from typing import Any, TypeVar


class Abandoned(BaseException):
    """Raised in a thread that was left behind, wherever it is in Python, so that it ends."""


_Argument = TypeVar("_Argument")
_Result = TypeVar("_Result")


class DeadlineThread:
    """A thread that makes one call after the other for somebody who waits a limited time for each.

    A call costs about 20 us more than without it: two changes of threads.
    """

    def __init__(self, name: str) -> None:
        self._name = name
        self._begin()

    def call(self, function: Callable[[_Argument], _Result], argument: _Argument, timeout_s: float) -> _Result:
        """`function(argument)`, or what it raises; what is no `Exception`, as `sys.exit()`, as a `RuntimeError`.

        Raises:
          TimeoutError: it took longer. What it works on must not be touched again: it may be at it still.
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
        answer: _Result = result
        return answer

    def stop(self) -> None:
        """Lets the thread end."""
        self._calls.put(None)

    def _begin(self) -> None:
        self._calls: queue.SimpleQueue[tuple[Callable[[Any], Any], Any] | None] = queue.SimpleQueue()
        self._results: queue.SimpleQueue[tuple[Any, BaseException | None]] = queue.SimpleQueue()
        self._thread = threading.Thread(target=_serve, args=(self._calls, self._results), name=self._name, daemon=True)
        self._thread.start()

    def _abandon(self) -> None:
        """Another thread takes over. The old one ends when its call returns, or at once if that loops in Python."""
        self.stop()
        # Raises in that thread at its next bytecode: nothing of Python's reaches into a blocking call.
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
        del call, function, argument  # a thread that waits should keep nothing alive
