"""What a run's paid time went into: seconds of the driver's wall clock by cause. Pure: the time is an argument.

Goodput is the share of training that no restart took back, as in ml-goodput-measurement, which needs Cloud Logging.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Mapping
from types import MappingProxyType

CAUSES = (
    "training", "lost", "start", "compile", "restore", "checkpoint", "wait_actors", "wait_replay", "wait_nodes", "idle",
    "other",
)  # fmt: skip
"""What a second went into. `lost` is training that a restart took back; `start` includes pauses between attempts,
`restore` the wait for restored shards, `checkpoint` that for the last one, `idle` the end of workers, the judgement of
the last snapshot and a silent learner, `other` what no stage of the learner names, and hours of earlier versions."""
SILENT_S = 60.0
"""After this time without a report, a learner counts as idle, until it reports what it did."""
_OF_TRAINING = ("step", "host_to_device", "update_priorities", "publish")
"""Stages of the learner's loop in which it feeds its devices."""


class PaidTime:
    """Divides the driver's wall clock among `CAUSES`, from `now` on; `before` are the seconds of earlier drivers.

    All methods take `now` from one monotonic clock, in seconds. Not thread-safe. Time since the last event counts as
    the learner's last report divided it, until the next report says what it was.
    """

    def __init__(self, now: float, before: Mapping[str, float] = MappingProxyType({})) -> None:
        self._seconds = {cause: before.get(cause, 0.0) for cause in CAUSES}
        self._counted = now
        self._shares: Mapping[str, float] = {"start": 1.0}
        self._limit_s = math.inf

    def seconds(self, now: float) -> dict[str, float]:
        """The seconds by cause until `now`, which add up to the wall time of all drivers."""
        since = max(0.0, now - self._counted)
        known, result = min(since, self._limit_s), dict(self._seconds)
        for cause, share in self._shares.items():
            result[cause] += share * known
        result["idle"] += since - known
        return result

    def enter(self, cause: str, now: float) -> None:
        """From now on all time has this cause, until the learner reports."""
        self._count(now)
        self._shares, self._limit_s = {cause: 1.0}, math.inf

    def divide(self, shares: Mapping[str, float], now: float) -> None:
        """Divides the time since the last event by the `shares` of causes, which add up to one."""
        self._shares, self._limit_s = shares, math.inf
        self._count(now)
        self._limit_s = SILENT_S

    def move(self, cause: str, to: str, seconds: float) -> None:
        """Gives seconds that were counted for `cause`, as many as there are, to another one."""
        moved = min(max(0.0, seconds), self._seconds[cause])
        self._seconds[cause] -= moved
        self._seconds[to] += moved

    def restart(self, kept_s: float, now: float) -> None:
        """The learner starts again from a state that `kept_s` seconds of training had made: the others are lost."""
        self.enter("start", now)
        self.move("training", "lost", self._seconds["training"] - kept_s)

    def _count(self, now: float) -> None:
        self._seconds, self._counted = self.seconds(now), max(now, self._counted)


def learner_shares(stages: Mapping[str, float], busy: float, blocked: float) -> dict[str, float]:
    """The shares of causes in the time of a learner's report, which add up to one.

    `stages` are the shares of its loop, `busy` that of its devices: they may execute a step while the loop already
    waits for the samples of the next one, and this is training. Where both sides of replay wait, it is itself what is
    slow: so `blocked`, the share of time in which the actors wait to write, divides the learner's wait between replay
    and actors.
    """
    causes: dict[str, float] = defaultdict(float)
    for stage, share in stages.items():
        if stage in ("wait_replay", "wait_hosts"):  # another host has no samples
            causes["wait_replay"] += share * blocked
            causes["wait_actors"] += share * (1.0 - blocked)
        else:
            causes["training" if stage in _OF_TRAINING else stage if stage in CAUSES else "other"] += share
    training = min(1.0, max(causes.pop("training", 0.0), busy))
    if (rest := sum(causes.values())) <= 0.0:
        return {"training": 1.0}
    return {"training": training} | {cause: share * (1.0 - training) / rest for cause, share in causes.items()}


def largest_first(seconds: Mapping[str, float]) -> list[tuple[str, float]]:
    """The causes in words with their shares, the largest first."""
    total, ranked = sum(seconds.values()), sorted(seconds.items(), key=lambda item: -item[1])
    return [(cause.replace("_", " "), part / total) for cause, part in ranked if part > 0]
