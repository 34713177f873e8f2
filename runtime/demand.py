"""How many actors a run needs, by how long its learner waits for replay. Pure: the time is an argument."""

from __future__ import annotations

import math
from statistics import fmean

from podzero.runtime.monitoring.monitor import WAIT_SHARE
from podzero.runtime.monitoring.status import RunStatus

DECIDE_EVERY_S = 60.0
"""The mean over this time decides, and a decision has this time to take effect."""
CHANGE = 0.1
"""Share of the actors that come or leave at once."""


class Demand:
    """The number of actors that a run wants, between `least` and `most`."""

    def __init__(self, least: int, most: int) -> None:
        self.wanted, self._least, self._most = most, least, most
        self._waits: list[tuple[float, float]] = []
        self._due = 0.0

    def look(self, status: RunStatus, running: int, now: float) -> bool:
        """Takes the shares of time of the status at `now`; returns whether another number is wanted from now on.

        Before the learner trains, and while it restarts, they tell nothing.
        """
        learner, actor, before = status.shares.get("learner"), status.shares.get("actor"), self.wanted
        if status.phase != "training" or learner is None or actor is None:
            self._waits = []
            return False
        self._due = self._due if self._waits else now + DECIDE_EVERY_S
        self._waits.append((learner.get("wait_replay", 0.0), actor.get("write", 0.0)))
        if now >= self._due:
            wanted = wanted_actors(before, running, *map(fmean, zip(*self._waits, strict=True)))
            self.wanted, self._waits = max(self._least, min(wanted, self._most)), []
        return self.wanted != before


def wanted_actors(wanted: int, running: int, starved: float, blocked: float) -> int:
    """How many actors are wanted after `wanted`, of which some are `running`.

    `starved` is the share of time in which the learner waits for replay, `blocked` that in which the actors do. Where
    both wait, replay itself is slow, and actors change nothing.
    """
    step = max(1, math.ceil(CHANGE * running))
    if starved > WAIT_SHARE >= blocked:
        return max(wanted, running + step)
    if blocked > WAIT_SHARE >= starved:
        # Those that stay can still do what all do now: else the learner would wait, and call them back.
        return min(wanted, max(math.ceil(running * (1.0 - blocked)), running - step))
    return wanted
