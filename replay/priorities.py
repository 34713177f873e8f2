"""Prioritized replay: the learner's value errors become priorities (Schaul et al. 2016,
https://arxiv.org/abs/1511.05952).
"""

from __future__ import annotations

import logging
import threading
import time
from collections import deque
from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from podzero.core.types import Keys
from podzero.replay.errors import MalformedAnswer, ReplayUnavailable, RequestRefused
from podzero.replay.shard import Shard

log = logging.getLogger(__name__)

LEAST_PRIORITY = 1e-3
"""Added to every error, so that samples with no error are still sampled sometimes."""
_QUEUE_SIZE = 8
"""Number of updates that may wait for a slow shard."""
_ANSWER_S = 10.0
"""Longest time of one update."""
CLOSE_S = 3.0
"""Longest wait for queued updates at the end."""


def priorities_of(errors: NDArray[Any]) -> NDArray[np.float64]:
    """The priorities of samples with value errors `errors`, both `[N]`."""
    return np.abs(np.asarray(errors, np.float64)) + LEAST_PRIORITY


def importance(probability: NDArray[Any], size: NDArray[Any]) -> NDArray[np.float32]:
    """Importance weights `1 / (N P)`, `[n]`, which undo the bias of sampling with probabilities P from N items."""
    # The learner divides the weights by the largest of the batch. N does not cancel there: it differs between shards,
    # between new and reanalysed samples, and while a table fills.
    return np.asarray(1 / (size * np.maximum(probability, 1e-12)), np.float32)


class PriorityWriter:
    """Sets priorities in threads, one per shard, so that the learner never waits.

    A shard that does not answer only blocks its own thread; once it has restarted elsewhere, it gets a new one.
    """

    def __init__(self, table: str, shard: Callable[[int], Shard]) -> None:
        """`shard` maps an index to the shard whose `table` is updated."""
        self._table = table
        self._shard = shard
        self._updaters: dict[int, _Updater] = {}

    def update(self, keys: Keys, errors: NDArray[Any]) -> None:
        """Queues new priorities of `keys` `[..., B]` from their `errors`, of the same shape; skips NaN and infinity."""
        errors = np.asarray(errors)
        finite = np.isfinite(errors)
        shards, items, priorities = keys.shard[finite], keys.key[finite], priorities_of(errors[finite])
        for index in np.unique(shards).tolist():
            mine = shards == index
            self._updater(index).put((items[mine], priorities[mine]))

    def close(self) -> None:
        """Ends the threads after the queued updates; waits at most `CLOSE_S`."""
        deadline = time.monotonic() + CLOSE_S
        updaters = list(self._updaters.values())
        for updater in updaters:
            updater.put(None)
        for updater in updaters:
            updater.join(deadline)

    def _updater(self, index: int) -> _Updater:
        shard, updater = self._shard(index), self._updaters.get(index)
        if updater is None or updater.shard is not shard:
            if updater is not None:
                updater.put(None)
            updater = self._updaters[index] = _Updater(self._table, shard)
        return updater


_Changes = tuple[NDArray[np.uint64], NDArray[np.float64]]
"""Keys of items and their new priorities."""


class _Updater:
    """The thread that sets the priorities of one shard."""

    def __init__(self, table: str, shard: Shard) -> None:
        self._table = table
        self.shard = shard
        self._changes: deque[_Changes | None] = deque(maxlen=_QUEUE_SIZE)
        self._changed = threading.Condition()
        self._dropped = 0
        name = f"replay-priorities-{shard.address.endpoint}"
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)
        self._thread.start()

    def put(self, changes: _Changes | None) -> None:
        """Queues new priorities; None ends the thread."""
        with self._changed:
            if len(self._changes) == _QUEUE_SIZE:
                self._dropped += 1
                # Log at 1, 2, 4, 8, ... drops.
                if self._dropped.bit_count() == 1:
                    log.warning(
                        "replay at %s is slow to take priority updates: %d were dropped",
                        self.shard.address.endpoint,
                        self._dropped,
                    )
            # If the queue is full, this drops the oldest: newer errors are better.
            self._changes.append(changes)
            self._changed.notify()

    def join(self, deadline: float) -> None:
        """Waits until the thread has ended, at most until `deadline` on the monotonic clock."""
        self._thread.join(max(0.0, deadline - time.monotonic()))
        if self._thread.is_alive():
            log.warning(
                "replay at %s does not take priority updates: the last %d are dropped",
                self.shard.address.endpoint,
                len(self._changes),
            )

    def _next(self) -> _Changes | None:
        with self._changed:
            self._changed.wait_for(lambda: self._changes)
            return self._changes.popleft()

    def _run(self) -> None:
        while (changes := self._next()) is not None:
            keys, priorities = changes
            updates = list(zip(keys.tolist(), priorities.tolist(), strict=True))
            try:
                self.shard.connection.set_priorities(self._table, updates, _ANSWER_S)
            except (ReplayUnavailable, RequestRefused, MalformedAnswer) as error:
                log.warning("the priorities of %d samples were not updated: %s", len(updates), error)
