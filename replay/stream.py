"""Reads samples of one table of one shard ahead of demand, in a thread."""

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
"""Appended to each row of a prioritized table: the item's key and its importance weight."""
_RETRY_S = 0.5
"""How often to check whether a shard is back."""
_SILENCE_S = 15.0
"""A stream that is silent for this long is considered lost. While its limiter blocks, a server ends streams earlier."""
_STOP_S = 5.0
"""Longest wait for the thread in `join`."""


class ShardStream:
    """Rows sampled from one shard; those not yet taken are fewer than `wanted` plus the rows of two items."""

    def __init__(self, shard: Shard, wanted: int, importance_exponent: float | None) -> None:
        """Starts the thread.

        Args:
          shard: the shard.
          wanted: largest number of rows that one `take` asks for.
          importance_exponent: exponent of the importance weights of a prioritized table, whose rows end with
            `PRIORITY_FIELDS`; None for a uniform one.
        """
        signature = shard.table.signature
        self.shard = shard
        self.row_bytes = signature.row_bytes + (0 if importance_exponent is None else PRIORITY_FIELDS.itemsize)
        self._signature = signature
        self._importance_exponent = importance_exponent
        # More room made no reader faster, also with one step per dispatch and shards 4 ms away; it only ages samples.
        self._room = wanted + 2 * signature.samples_per_item - 1
        """Largest number of rows at hand or under way."""
        self._blocks = [np.empty((0, self.row_bytes), np.uint8)]
        self._under_way = 0
        """Items that the open stream was asked for and has not delivered."""
        self._stream: SampleStream | None = None
        self._heard = time.monotonic()
        """When the last items arrived, or the wait for them began."""
        self._changed = threading.Condition()
        """Guards the fields from `_blocks` on."""
        self._stopped = False
        self._failure: BaseException | None = None
        self._thread = threading.Thread(target=self._run, name=f"replay-{shard.address.endpoint}", daemon=True)
        self._thread.start()

    @property
    def address(self) -> Address:
        """The shard's address."""
        return self.shard.address

    @property
    def at_hand(self) -> int:
        """The number of rows that can be taken without waiting."""
        return sum(map(len, self._blocks))

    def gather(self, rows: int, timeout_s: float) -> bool:
        """Whether at least `rows` rows are at hand; waits for them up to `timeout_s`. Raises what ended the thread."""
        with self._changed:
            self._changed.wait_for(lambda: self.at_hand >= rows or self._failure or self._stopped, timeout_s)
            if self._failure is not None:
                raise self._failure
            enough = self.at_hand >= rows
            if not enough and self._stream is not None and time.monotonic() - self._heard > _SILENCE_S:
                # The shard's node may have vanished. The thread then opens a new stream.
                self._stream.close()
            return enough

    def take(self, rows: int) -> NDArray[np.uint8]:
        """Removes and returns the oldest `rows` rows, `[rows, row_bytes]`; they must be at hand."""
        with self._changed:
            held = np.concatenate(self._blocks)
            self._blocks = [held[rows:]]
            self._ask()
            return held[:rows]

    def inherit(self, other: ShardStream) -> None:
        """Stops another stream and takes over its rows at hand."""
        other.stop()
        self._append(other.take(other.at_hand), 0)

    def explain(self) -> str:
        """The reason why no rows come."""
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
        """Waits up to `_STOP_S` for the thread to end, then closes the connection."""
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
        """Reads until the limiter has blocked for some time or the stream is stopped."""
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
        if self._stream is not None and items > 0:
            if self._under_way == 0:
                # Nothing was asked for, so the silence begins now.
                self._heard = time.monotonic()
            self._stream.ask(items)
            self._under_way += items

    def _append(self, rows: NDArray[np.uint8], items: int) -> None:
        """Adds rows, which come from `items` items that were under way."""
        with self._changed:
            self._blocks.append(rows)
            self._under_way -= items
            self._heard = time.monotonic()
            self._changed.notify_all()

    def _await_shard(self, reason: ReplayUnavailable) -> None:
        """Waits until the shard answers again or the stream is stopped."""
        if self._stopped:
            return
        log.warning("%s; reading continues when it is back", reason)
        answers = False
        while not self._stopped and not answers:
            with self._changed:
                self._changed.wait_for(lambda: self._stopped, _RETRY_S)
            answers = self._answers()

    def _answers(self) -> bool:
        """Whether the shard answers."""
        try:
            return self.shard.limits() is not None
        except WrongServer as error:
            # The shard may have restarted, and its new identity is not known here yet.
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
