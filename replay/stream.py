"""Samples of one table of one shard, read ahead of demand by a thread."""

from __future__ import annotations

import logging
import threading
import time
from contextlib import closing

import numpy as np
from numpy.typing import NDArray

from podzero.replay.errors import ReplayUnavailable, WrongServer
from podzero.replay.priorities import importance
from podzero.replay.shard import Address, Shard
from podzero.replay.wire.connection import SampleStream
from podzero.replay.wire.items import Items

log = logging.getLogger(__name__)

PRIORITY_FIELDS = np.dtype([("key", np.uint64), ("weight", np.float32)])
"""What follows the sample in each row of a prioritized table: the item's key and its importance weight."""
_RETRY_S = 0.5
"""How often to look whether a shard is back."""
_SILENCE_S = 15.0
"""After this long without an answer, a stream is taken for lost: a server ends one on which its limiter blocks before.
"""
_STOP_S = 5.0
"""The longest that `join` waits for the thread."""


class ShardStream:
    """Rows sampled from one shard.

    Items are asked for whenever rows at hand and items under way leave room for them, so at any time less than
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
        ahead = max(ahead, 2 * signature.samples_per_item)
        self._room = wanted + ahead - 1
        """The most rows that may be at hand or under way."""
        self._least = max(1, ahead // signature.samples_per_item // 2)
        """The fewest items that are asked for at once."""
        self._blocks = [np.empty((0, self.row_bytes), np.uint8)]
        self._under_way = 0
        """Items that the open stream was asked for and has not given."""
        self._stream: SampleStream | None = None
        self._heard = time.monotonic()
        """When the thread last did something else than wait for an answer."""
        self._changed = threading.Condition()
        """Guards the fields from `_blocks` on."""
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
            enough = self.at_hand >= rows
            if not enough and self._stream is not None and time.monotonic() - self._heard > _SILENCE_S:
                self._stream.close()  # its node may have vanished: the thread tries again
            return enough

    def take(self, rows: int) -> NDArray[np.uint8]:
        """Removes and returns the oldest `rows` rows, `[rows, row_bytes]`; they must be at hand."""
        with self._changed:
            held = np.concatenate(self._blocks)
            self._blocks = [held[rows:]]
            self._ask()
            return held[:rows]

    def inherit(self, other: ShardStream) -> None:
        """Stops another stream and takes over the rows that it has at hand."""
        other.stop()
        self._append(other.take(other.at_hand), 0)

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
            if self._stream is not None:
                self._stream.close()
            self._changed.notify_all()

    def join(self) -> None:
        """Waits up to `_STOP_S` for the thread to end, and closes the connection."""
        self._thread.join(_STOP_S)
        self.shard.close()

    def _run(self) -> None:
        try:
            while not self._stopped:
                try:
                    self._read()
                except ReplayUnavailable as error:
                    self._await_shard(error)
        except BaseException as failure:
            with self._changed:
                self._failure = failure
                self._changed.notify_all()

    def _read(self) -> None:
        """Reads until the limiter has blocked for some time or the stream is stopped.

        Raises:
          ReplayUnavailable: the shard has gone.
        """
        table = self.shard.table
        with closing(SampleStream(self.shard.connection, table.name, self._signature.item_bytes)) as stream:
            with self._changed:
                if self._stopped:
                    return
                self._stream, self._under_way, self._heard = stream, 0, time.monotonic()
                self._ask()
            try:
                for items in stream:
                    self._append(self._unpack(items), len(items.key))
            finally:
                with self._changed:
                    self._stream = None

    def _ask(self) -> None:
        """Asks for as many items as there is room for; `_changed` must be held."""
        samples_per_item = self._signature.samples_per_item
        items = (self._room - self.at_hand) // samples_per_item - self._under_way
        if self._stream is not None and items >= self._least:
            if self._under_way == 0:
                self._heard = time.monotonic()  # nothing could come before
            self._stream.ask(items)
            self._under_way += items

    def _append(self, rows: NDArray[np.uint8], items: int) -> None:
        """Adds rows, of which `items` items were under way."""
        with self._changed:
            self._blocks.append(rows)
            self._under_way -= items
            self._heard = time.monotonic()
            self._changed.notify_all()

    def _await_shard(self, reason: ReplayUnavailable) -> None:
        """Waits until a shard that is away answers again or the stream is stopped."""
        if self._stopped:
            return
        log.warning("%s; reading goes on when it is back", reason)
        answers = False
        while not self._stopped and not answers:
            with self._changed:
                self._changed.wait_for(lambda: self._stopped, _RETRY_S)
            answers = self._answers()

    def _answers(self) -> bool:
        """Whether the shard answers. A restarted shard may listen before its new address is known here."""
        try:
            return self.shard.limits() is not None
        except WrongServer as error:
            log.warning("%s", error)
            return False

    def _unpack(self, items: Items) -> NDArray[np.uint8]:
        """The rows of a block of items, `[n * samples_per_item, row_bytes]`."""
        rows = items.rows.reshape(-1, self._signature.row_bytes)
        if self._importance_exponent is None:
            return rows
        fields = np.empty(len(rows), PRIORITY_FIELDS)
        fields["key"] = items.key
        fields["weight"] = importance(items.probability, items.table_size, self._importance_exponent)
        return np.concatenate([rows, fields.view(np.uint8).reshape(len(rows), -1)], axis=1)
