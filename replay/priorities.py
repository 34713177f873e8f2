"""Prioritized replay: the learner's value errors become priorities (Schaul et al. 2016,
https://arxiv.org/abs/1511.05952).
"""

from __future__ import annotations

import logging
import queue
import threading
from collections.abc import Callable
from contextlib import suppress
from typing import Any

import numpy as np
from numpy.typing import NDArray

from podzero.replay.shard import Shard
from podzero.types import Keys

log = logging.getLogger(__name__)

LEAST_PRIORITY = 1e-3
"""Added to every error, so that samples without any error are still sampled sometimes."""
_QUEUE_SIZE = 8
"""Updates that may wait for a slow shard; beyond that the oldest are dropped, since newer errors replace older ones."""


def priorities_of(errors: NDArray[Any]) -> NDArray[np.float64]:
    """The priorities of samples with these value errors, both `[N]`."""
    return np.abs(np.asarray(errors, np.float64)) + LEAST_PRIORITY


def importance(probability: NDArray[Any], size: NDArray[Any], exponent: float) -> NDArray[np.float32]:
    """`(1 / (N P))^exponent`, `[N]`: with 1, weighted means over samples are means over the table.

    The mean weight is 1 (exponent 1) or less. The learner divides the weights by the largest of the batch, of which a
    reader has only a part. N would cancel there if it were the same for the whole batch; but it differs between shards,
    between new and reanalysed samples, and while a table fills.
    """
    weight: NDArray[np.float32] = np.power(size * np.maximum(probability, 1e-12), -exponent).astype(np.float32)
    return weight


class PriorityWriter:
    """Sets priorities in a thread, so that the learner never waits for it."""

    def __init__(self, table: str, shard: Callable[[int], Shard]) -> None:
        """Starts the thread; `shard` returns the shard with an index, whose `table` is updated."""
        self._table = table
        self._shard = shard
        self._updates: queue.Queue[tuple[Keys, NDArray[Any]] | None] = queue.Queue(_QUEUE_SIZE)
        self._dropped = 0
        self._thread = threading.Thread(target=self._run, name="replay-priorities", daemon=True)
        self._thread.start()

    def update(self, keys: Keys, errors: NDArray[Any]) -> None:
        """Queues an update of the priorities of `keys` (`[..., B]`) by their `errors` of the same shape.

        Errors that are not finite are skipped.
        """
        while True:
            try:
                self._updates.put_nowait((keys, np.asarray(errors)))
            except queue.Full:
                self._drop_oldest()
            else:
                return

    def close(self) -> None:
        """Ends the thread after the updates that are queued; waits at most three seconds."""
        try:
            self._updates.put(None, timeout=1.0)
        except queue.Full:
            log.warning("replay does not take priority updates: the last %d are dropped", self._updates.qsize())
            return
        self._thread.join(timeout=2.0)

    def _drop_oldest(self) -> None:
        with suppress(queue.Empty):  # the thread took it
            self._updates.get_nowait()
            self._dropped += 1
            if self._dropped.bit_count() == 1:
                log.warning("replay is slow to take priority updates: %d were dropped", self._dropped)

    def _run(self) -> None:
        from reverb.errors import ReverbError

        while (update := self._updates.get()) is not None:
            keys, errors = update
            finite = np.isfinite(errors)
            shards, items, priorities = keys.shard[finite], keys.key[finite], priorities_of(errors[finite])
            for index in np.unique(shards).tolist():
                mine = shards == index
                changes = dict(zip(items[mine].tolist(), priorities[mine].tolist(), strict=True))
                try:
                    self._shard(index).client.mutate_priorities(self._table, updates=changes)
                except (ReverbError, RuntimeError) as error:
                    log.warning(
                        "the priorities of %d samples were not updated, their shard does not answer: %s",
                        len(changes),
                        error,
                    )
