"""How fast something goes."""

from __future__ import annotations

import time
from collections.abc import Callable


def calls_per_s(call: Callable[[], object], seconds: float) -> float:
    """Calls `call` again and again for at least `seconds` and returns how often it did, per second."""
    start, calls = time.perf_counter(), 0
    while time.perf_counter() - start < seconds:
        call()
        calls += 1
    return calls / (time.perf_counter() - start)
