"""Comparison of rates that are measured in turn."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Mapping, Sequence
from statistics import median
from typing import Any

log = logging.getLogger(__name__)

Side = Callable[[float], float]
"""Measures for about that many seconds, and returns a rate. What is under way when they are over is finished."""


def compare(
    sides: Mapping[str, Side], unit: str, ratio_of: str, seconds: float, *, longest_s: float, rounds: int
) -> dict[str, Any]:
    """Measures all sides in turn, in rounds, so that changes of the machine's speed affect all of them alike.

    It ends with the round whose end is expected to be nearest to `seconds`; the first one is finished in any case.

    Args:
      sides: what is measured, by name; the first is held against the others. All have been compiled.
      unit: of the rates.
      ratio_of: what is divided by what, for people.
      seconds: how long to measure.
      longest_s: the longest turn of a side.
      rounds: turns are shortened until so many rounds fit.

    Returns:
      `ratio`, the median over rounds of the first side's rate over the second's, and `ratio_to_NAME` for each side
      after that; `ratio_of`; for each side `NAME_UNIT`, the median rate, and `NAME_rounds`, all rates.
    """
    log.info("measuring %s in turn, for %g s and until the round under way ends", ", ".join(sides), seconds)
    turn_s = min(longest_s, seconds / (rounds * len(sides)))
    rates: dict[str, list[float]] = {name: [] for name in sides}
    names = list(sides)
    first, second, *others = names
    began, measured, round_s = time.perf_counter(), 0.0, 0.0
    while measured + round_s / 2 < seconds:
        names.reverse()
        for name in names:
            rates[name].append(sides[name](turn_s))
        measured = time.perf_counter() - began
        round_s = measured / len(rates[first])
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
