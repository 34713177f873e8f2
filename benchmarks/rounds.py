"""Comparison of rates that are measured in turn."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from statistics import median
from typing import Any


def compare(
    sides: Mapping[str, Callable[[], float]], unit: str, ratio_of: str, seconds: float, least: int
) -> dict[str, Any]:
    """Measures all sides in turn, in rounds, so that changes of the machine's speed affect all of them alike.

    Args:
      sides: functions that measure for one round and return a rate, by name; the first is held against the others.
      unit: of the rates.
      ratio_of: what is divided by what, for people.
      seconds: how long to go on.
      least: the number of rounds that are measured in any case.

    Returns:
      `ratio`, the median over rounds of the first side's rate over the second's, and `ratio_to_NAME` for each side
      after that; `ratio_of`; for each side `NAME_UNIT`, the median rate, and `NAME_rounds`, all rates.
    """
    rates: dict[str, list[float]] = {name: [] for name in sides}
    names = list(sides)
    first, second, *others = names
    until = time.perf_counter() + seconds
    while len(rates[first]) < least or time.perf_counter() < until:
        names.reverse()
        for name in names:
            rates[name].append(sides[name]())
    return {
        "ratio": median(ratios(rates[first], rates[second])),
        **{f"ratio_to_{name}": median(ratios(rates[first], rates[name])) for name in others},
        "ratio_of": ratio_of,
        **{f"{name}_{unit}": median(rates[name]) for name in sides},
        **{f"{name}_rounds": rates[name] for name in sides},
    }


def ratios(rates: Sequence[float], limits: Sequence[float]) -> list[float]:
    """The ratio of each round's two rates."""
    return [rate / limit for rate, limit in zip(rates, limits, strict=True)]


def calls_per_s(call: Callable[[], object], seconds: float) -> float:
    """Calls `call` repeatedly for at least `seconds`; returns the number of calls per second."""
    start, calls = time.perf_counter(), 0
    while time.perf_counter() - start < seconds:
        call()
        calls += 1
    return calls / (time.perf_counter() - start)
