"""Samples of one table of one shard, read ahead of demand by a thread."""

from __future__ import annotations

import logging
import threading
from typing import Any

import numpy as np
from numpy.typing import NDArray

from podzero.replay.errors import WrongServer
from podzero.replay.priorities import importance
from podzero.replay.shard import Address, Shard

log = logging.getLogger(__name__)

PRIORITY_FIELDS = np.dtype([("key", np.uint64), ("weight", np.float32)])
"""What follows the sample in each row of a prioritized table: the item's key and its importance weight."""
_MAX_BLOCK = 512
"""The most items that the thread takes from Reverb at once."""
_REOPEN_MS = 500
"""After this long without an item, Reverb's dataset ends and is opened again. So an incomplete block is delivered, and
the thread notices `stop`."""
_STOP_S = 5.0
"""The longest that `join` waits for the thread."""


class ShardStream:
    """Rows sampled from one shard.

    The thread reads another block of items whenever fewer than `wanted` rows are at hand; Reverb itself has a further
    number of items in flight to the thread. Block and items in flight together are `ahead`, so at any time less than
    `wanted + ahead` rows have been sampled and not taken.
    """

    def __init__(self, shard: Shard, wanted: int, ahead: int, importance_exponent: float | None) -> None:
        """Starts the thread.

        Args:
          shard: to sample from.
          wanted: the most rows that one `take` asks for.
          ahead: rows that may be sampled beyond `wanted`; at least two items are.
          importance_exponent: of a prioritized table, whose rows end with `PRIORITY_FIELDS`; None for a uniform one.
        """
        signature = shard.table.signature
        self.shard = shard
        self.row_bytes = signature.row_bytes + (0 if importance_exponent is None else PRIORITY_FIELDS.itemsize)
        self._signature = signature
        self._importance_exponent = importance_exponent
        self._wanted = wanted
        items = max(2, ahead // signature.samples_per_item)
        self._block = min(_MAX_BLOCK, items // 2)
        self._in_flight = min(items - self._block, 3 * self._block)
        self._blocks = [np.empty((0, self.row_bytes), np.uint8)]
        self._changed = threading.Condition()
        """Guards `_blocks`, `_stopped` and `_failure`."""
        self._stopped = False
        self._failure: BaseException | None = None
        self._thread = threading.Thread(target=self._run, name=f"replay-{shard.address.endpoint}", daemon=True)
        self._thread.start()

    @property
    def address(self) -> Address:
        """Of the shard."""
        return self.shard.address

    @property
    def at_hand(self) -> int:
        """The number of rows that can be taken without waiting."""
        return sum(map(len, self._blocks))

    def gather(self, rows: int, timeout_s: float) -> bool:
        """Whether at least `rows` rows are at hand; waits for them up to `timeout_s`.

        Raises:
          BaseException: what ended the thread.
        """
        with self._changed:
            self._changed.wait_for(lambda: self.at_hand >= rows or self._failure or self._stopped, timeout_s)
            if self._failure is not None:
                raise self._failure
            return self.at_hand >= rows

    def take(self, rows: int) -> NDArray[np.uint8]:
        """Removes and returns the oldest `rows` rows, `[rows, row_bytes]`; they must be at hand."""
        with self._changed:
            held = np.concatenate(self._blocks)
            self._blocks = [held[rows:]]
            self._changed.notify_all()
            return held[:rows]

    def inherit(self, other: ShardStream) -> None:
        """Stops another stream and takes over the rows that it has at hand."""
        other.stop()
        self._append(other.take(other.at_hand))

    def explain(self) -> str:
        """Why no rows come."""
        try:
            limits = self.shard.limits()
        except WrongServer as error:
            return str(error)
        if limits is None:
            return self.shard.explain_silence()
        return f"{self.shard.address.endpoint}: {limits.explain_sample()}"

    def stop(self) -> None:
        """Asks the thread to end."""
        with self._changed:
            self._stopped = True
            self._changed.notify_all()

    def join(self) -> None:
        """Waits up to `_STOP_S` for the thread to end, and logs a warning if it has not."""
        self._thread.join(_STOP_S)
        if self._thread.is_alive():
            log.warning(
                "closing: replay at %s still sends samples after %g s; its connection stays open until this process "
                "ends",
                self.shard.address.endpoint,
                _STOP_S,
            )

    def _run(self) -> None:
        from tensorflow import errors

        # What gRPC gives when a connection breaks, depending on when and how it does.
        broken = (errors.UnavailableError, errors.CancelledError, errors.UnknownError, errors.InternalError)
        try:
            if not self._answers():  # to open a dataset of a server that is away takes half a minute
                self._await_shard("no answer")
            while not self._stopped:
                try:
                    self._read(self._dataset())
                except broken as error:
                    self._await_shard(type(error).__name__)
        except BaseException as failure:
            with self._changed:
                self._failure = failure
                self._changed.notify_all()

    def _read(self, blocks: Any) -> None:
        """Reads until the dataset ends or the stream is stopped."""
        while self._await_room():
            block = next(blocks, None)
            if block is None:
                return
            self._append(self._unpack(block))

    def _await_room(self) -> bool:
        """Waits until another block is wanted; False when the stream is stopped instead."""
        with self._changed:
            self._changed.wait_for(lambda: self.at_hand < self._wanted or self._stopped)
            return not self._stopped

    def _append(self, rows: NDArray[np.uint8]) -> None:
        with self._changed:
            self._blocks.append(rows)
            self._changed.notify_all()

    def _await_shard(self, reason: str) -> None:
        """Waits until a shard that is away answers again or the stream is stopped."""
        endpoint = self.shard.address.endpoint
        log.warning("replay at %s is gone (%s); reading goes on when it is back", endpoint, reason)
        answers = False
        while not self._stopped and not answers:
            with self._changed:
                self._changed.wait_for(lambda: self._stopped, _REOPEN_MS / 1000)
            answers = self._answers()

    def _answers(self) -> bool:
        """Whether the shard answers. A restarted shard may listen before its new address is announced."""
        try:
            return self.shard.limits() is not None
        except WrongServer as error:
            log.warning("%s", error)
            return False

    def _unpack(self, block: Any) -> NDArray[np.uint8]:
        """The rows of a block of items, `[n * samples_per_item, row_bytes]`."""
        rows: NDArray[np.uint8] = block.data.reshape(-1, self._signature.row_bytes)
        if self._importance_exponent is None:
            return rows
        fields = np.empty(len(rows), PRIORITY_FIELDS)
        fields["key"] = block.info.key
        fields["weight"] = importance(block.info.probability, block.info.table_size, self._importance_exponent)
        return np.concatenate([rows, fields.view(np.uint8).reshape(len(rows), -1)], axis=1)

    def _dataset(self) -> Any:
        """Blocks of items `[n, item_bytes]`, until none has come for `_REOPEN_MS`.

        Autotuning is off. It would append a prefetch of blocks, which count as sampled long before they are taken; and
        its optimizer, which sleeps for as long as it has run, can miss the signal to stop, so that deleting the
        iterator would wait for it.
        """
        import tensorflow as tf
        from reverb import TrajectoryDataset

        options = tf.data.Options()
        options.autotune.enabled = False
        options.experimental_optimization.inject_prefetch = False
        return (
            TrajectoryDataset(
                self.shard.address.endpoint,
                self.shard.table.name,
                dtypes=tf.uint8,
                shapes=tf.TensorShape([self._signature.item_bytes]),
                max_in_flight_samples_per_worker=self._in_flight,
                num_workers_per_iterator=1,
                rate_limiter_timeout_ms=_REOPEN_MS,
            )
            .batch(self._block)
            .with_options(options)
            .as_numpy_iterator()
        )
