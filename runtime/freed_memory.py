"""Gives memory that compilations have used and freed back to the system."""

from __future__ import annotations

import ctypes
import time
from collections.abc import Callable
from typing import Any

_COMPILED = "/jax/core/compile/backend_compile_duration"
"""JAX's name of the event that a program was compiled."""
_QUIET_S = 10.0
"""After so long without a compilation the programs of a process are taken to be complete."""


def _trim() -> None:
    """Has the C library give back all pages that hold nothing; does nothing where it is not glibc."""
    trim: Any = getattr(ctypes.CDLL(None), "malloc_trim", None)
    if trim is not None:
        trim(0)


class FreedMemory:
    """Notes when JAX compiles. XLA frees some 150 MB afterwards, which glibc keeps for the process that compiled."""

    def __init__(self, trim: Callable[[], None] = _trim) -> None:
        """Begins as if a program had just been compiled; `trim` gives free pages back."""
        import jax

        self._trim = trim
        self._compiled_at: float | None = time.monotonic()
        jax.monitoring.register_event_duration_secs_listener(self._heard)

    def give_back(self) -> None:
        """Gives free pages back if something was compiled, and nothing more for some time; call it now and then."""
        if self._compiled_at is not None and time.monotonic() - self._compiled_at > _QUIET_S:
            self._compiled_at = None
            self._trim()

    def _heard(self, event: str, duration_secs: float, **_: str | int) -> None:
        del duration_secs
        if event == _COMPILED:
            self._compiled_at = time.monotonic()
