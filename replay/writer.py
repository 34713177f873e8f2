"""The actors' way into replay."""

from __future__ import annotations

import logging
import queue
import random
import time
from collections.abc import Collection, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from podzero.config import Experiment, ReplayConfig
from podzero.replay.errors import ReplayTimeout, SignatureError, WrongServer
from podzero.replay.shard import Address, Shard
from podzero.replay.signature import Stored
from podzero.replay.tables import SAMPLES, Table, tables_of
from podzero.types import EnvSpec

log = logging.getLogger(__name__)

_PIECE = 48
"""Items sent to one shard before it must confirm them. Reverb floods the log from 50 unconfirmed ones on."""
_CHUNK_BYTES = 512
"""Items are compressed together up to this size: longer chunks are cheaper to write but sent whole for every item
read, so reading suffers."""
_SEND_S = 0.001
"""Flushing is what sends a last, incomplete chunk; Reverb's shortest bounded flush (its zero means forever)."""
_POLL_S = 0.02
"""How long one shard is waited for before the next is looked at."""
_LOOK_S = 10.0
"""A shard that has been silent this long is asked whether it still lives; one that is gone, whether it is back."""


def make_writer(
    addresses: Sequence[str],
    spec: EnvSpec,
    experiment: Experiment,
    near: Sequence[str] = (),
    table: str = SAMPLES,
) -> ShardedWriter:
    """Connects to the shards at `addresses` (`ReplayServer.address()`); one that is gone is skipped, with a warning.

    Args:
      addresses: all shards.
      spec: of the environment whose samples are kept.
      experiment: what is trained.
      near: those of `addresses` that lie on this machine: they are written to while they accept.
      table: which of the shards' tables is written.

    Raises:
      ReplayTimeout: no shard answers.
      WrongServer: another server answers at an address.
    """
    parsed = [Address.parse(address) for address in addresses]
    held = tables_of(experiment, spec)[table]
    return ShardedWriter(parsed, held, experiment.replay, {Address.parse(address) for address in near})


class ShardedWriter:
    """Spreads samples over shards in turn; a `ReplayWriter`.

    A shard whose limiter holds inserts, or that is gone, is passed over while another one accepts: otherwise all
    writers could wait at a full shard while the reader waits for an empty one. Shards on the writer's own machine come
    first, others take what these do not. At most `_PIECE` items per shard are unconfirmed at any time. A shard that
    comes back at its address receives what it had not confirmed.
    """

    def __init__(
        self, addresses: Sequence[Address], table: Table, config: ReplayConfig, near: Collection[Address] = ()
    ) -> None:
        self._config = config
        self._table = table
        self._signature = table.signature
        self._moves: queue.SimpleQueue[tuple[Address, Address]] = queue.SimpleQueue()
        self._lanes = [_Lane(Shard(address, table), address not in near) for address in addresses]
        random.shuffle(self._lanes)  # many writers that start together should not all begin at the same shard
        for lane in self._lanes:
            lane.look()
        if not any(lane.alive for lane in self._lanes):
            names = ", ".join(address.endpoint for address in addresses)
            raise ReplayTimeout(f"no replay shard answers at {names}")

    def write(self, samples: Stored, priorities: NDArray[Any] | None = None) -> None:
        """Writes T samples (`[T, ...]` on every field), waiting while every shard's limiter holds inserts back.

        What was sent is confirmed by a later `write` or `flush`.

        Args:
          samples: at least one; checked before anything is sent. Each `replay.samples_per_item` neighbours become one
            item, which is always read as a whole, so they should come from different games (`actors/shuffling.py`).
          priorities: `[T]` for a prioritized table (whose items hold one sample), at least zero; 1 by default.

        Raises:
          SignatureError: samples or priorities are not what the table holds; nothing was written.
          ReplayTimeout: no shard accepted within `replay.timeout_s`; says why.
        """
        length = self._signature.check(samples)
        if priorities is None:
            priorities = np.ones(length)
        _check_priorities(priorities, length)
        items = self._signature.pack(samples)
        priorities = priorities[:: self._signature.samples_per_item]
        for start in range(0, len(items), _PIECE):
            piece = slice(start, start + _PIECE)
            self._free_lane().send(items[piece], priorities[piece])

    def flush(self) -> None:
        """Waits until everything written has been confirmed.

        Raises:
          ReplayTimeout: it was not within `replay.timeout_s`; says why.
        """
        patience = _Patience(self._config)
        while waiting := [lane for lane in self._lanes if lane.pending and not lane.ready()]:
            patience.spend(waiting)
            self._follow_moves()

    def moved(self, old: str, new: str) -> None:
        """The shard at the address `old` has come to life again at `new`: it is written to there. Thread-safe."""
        self._moves.put((Address.parse(old), Address.parse(new)))

    def close(self) -> None:
        """Gives the connections back, at once; says so when unconfirmed samples are dropped."""
        for lane in self._lanes:
            lane.close()

    def _free_lane(self) -> _Lane:
        """The next lane in turn that has nothing unconfirmed."""
        patience = _Patience(self._config)
        while True:
            self._follow_moves()
            for lane in sorted(self._lanes, key=lambda lane: lane.far):
                if lane.ready():
                    self._lanes.remove(lane)
                    self._lanes.append(lane)  # the others come first next time
                    return lane
            patience.spend(self._lanes)

    def _follow_moves(self) -> None:
        """Puts new lanes in the place of those whose shards have moved; what these had not confirmed is lost."""
        for _ in range(self._moves.qsize()):
            old, new = self._moves.get()
            for index, lane in enumerate(self._lanes):
                if lane.shard.address == old:
                    log.info("replay at %s goes on at %s", old.endpoint, new.endpoint)
                    lane.close()
                    self._lanes[index] = _Lane(Shard(new, self._table), lane.far)
                    self._lanes[index].look()


class _Lane:
    """The stream into one shard, with at most one piece on its way.

    Reverb's StructuredWriter is as fast, but with unconfirmed items its destructor waits without end and holds the
    interpreter. TrajectoryWriter closes at once; its C++ half is called directly because the Python half spends
    three quarters of the time on tree walks over what is always one column.
    """

    def __init__(self, shard: Shard, far: bool) -> None:
        signature = shard.table.signature
        self.shard = shard
        self.far = far
        """Whether the shard lies on another machine than this writer."""
        self.alive = False
        self._held = False  # when it was last waited for, in vain: it is not waited for again at the others' cost
        self._samples_per_item = signature.samples_per_item
        self._chunk = min(max(_CHUNK_BYTES // signature.item_bytes, 1), 4)
        self._writer: Any = None
        self.pending = 0
        """Samples that were sent and not yet confirmed."""
        self._looked = 0.0

    def look(self) -> None:
        """Finds out whether the shard answers; says so when that has changed."""
        was, self._looked = self.alive, time.monotonic()
        try:
            self.alive = self.shard.limits() is not None
        except WrongServer as error:
            if self._writer is None:
                raise
            self.alive = False
            log.error("%s", error)
        if self.alive and self._writer is None:
            self._open()
        if self.alive and not was and self.pending:
            log.info("replay at %s answers again", self.shard.address.endpoint)
        if not self.alive and (was or self._writer is None):
            log.warning(
                "replay at %s does not answer; it is passed over until it does, %d samples sent to it are unconfirmed",
                self.shard.address.endpoint,
                self.pending,
            )

    def ready(self) -> bool:
        """Whether everything sent has been confirmed and the shard may be used; looks after it when it is silent."""
        settled = self.settle(_SEND_S if self._held or not self.alive else _POLL_S)
        self._held = not settled
        if (not settled or not self.alive) and time.monotonic() - self._looked > _LOOK_S:
            self.look()
        return settled and self.alive

    def send(self, items: NDArray[np.uint8], priorities: NDArray[np.float64]) -> None:
        """Sends items `[n, item_bytes]`, hardly waiting for the answer; the lane must be settled."""
        cpp = self._writer._writer
        for item, priority in zip(items, priorities.tolist(), strict=True):
            cpp.CreateItem(self.shard.table.name, priority, [cpp.Append([item])], [True])
        self.pending = len(items) * self._samples_per_item
        self._looked = time.monotonic()
        if self._chunk > 1:
            self.settle(_SEND_S)

    def settle(self, timeout_s: float) -> bool:
        """Whether all that was sent has been confirmed within `timeout_s` (at least 1 ms)."""
        from reverb.errors import DeadlineExceededError

        if self.pending:
            try:
                self._writer.flush(timeout_ms=max(1, round(timeout_s * 1000)))
            except DeadlineExceededError:
                return False
            self.pending = 0
        return True

    def close(self) -> None:
        """Drops the stream."""
        if self._writer is None:
            return
        if not self.settle(_POLL_S):
            log.warning(
                "closing: %d samples sent to replay at %s were not confirmed",
                self.pending,
                self.shard.address.endpoint,
            )
        self._writer.close()
        self._writer = None
        self.alive = False

    def explain(self) -> str:
        """Why the shard does not accept samples."""
        try:
            limits = self.shard.limits()
        except WrongServer as error:
            return str(error)
        if limits is None:
            return f"replay at {self.shard.address.endpoint} does not answer"
        return f"{self.shard.address.endpoint}: {limits.explain_insert()}"

    def _open(self) -> None:
        from reverb.pybind import ConstantChunkerOptions

        self._writer = self.shard.client.trajectory_writer(num_keep_alive_refs=_PIECE, validate_items=False)
        self._writer._writer.ConfigureChunker(
            0, ConstantChunkerOptions(max_chunk_length=self._chunk, num_keep_alive_refs=_PIECE)
        )


class _Patience:
    """One bounded wait, explained in the log when it gets long."""

    def __init__(self, config: ReplayConfig) -> None:
        self._start = time.monotonic()
        self._config = config
        self._next_warning = config.warn_after_s

    def spend(self, lanes: Sequence[_Lane]) -> None:
        """Called on each round of waiting for `lanes`.

        Raises:
          ReplayTimeout: the wait has lasted `replay.timeout_s`.
        """
        waited = time.monotonic() - self._start
        if waited > self._config.timeout_s:
            reasons = "; ".join(lane.explain() for lane in lanes)
            raise ReplayTimeout(f"samples waited {waited:.0f} s (replay.timeout_s) to be inserted: {reasons}")
        if waited > self._next_warning:
            self._next_warning += self._config.warn_after_s
            log.warning("samples have waited %.0f s: %s", waited, "; ".join(lane.explain() for lane in lanes))
        if not any(lane.alive for lane in lanes):
            time.sleep(_POLL_S)


def _check_priorities(priorities: NDArray[np.float64], length: int) -> None:
    """One negative or NaN priority would wedge a Prioritized table for good."""
    if np.shape(priorities) != (length,):
        raise SignatureError(f"priorities: found shape {list(np.shape(priorities))}; expected [{length}]")
    wrong = ~(np.isfinite(priorities) & (priorities >= 0))
    if wrong.any():
        at = int(np.argmax(wrong))
        raise SignatureError(f"priorities[{at}]: found {priorities[at]}; expected finite numbers of at least 0")
