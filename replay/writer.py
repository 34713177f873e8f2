"""Writes samples to whichever replay shard accepts them."""

from __future__ import annotations

import hashlib
import logging
import random
import secrets
import threading
import time
from collections import Counter
from collections.abc import Iterable, Sequence
from contextlib import suppress
from typing import Any

import numpy as np
from numpy.typing import NDArray

from podzero.config import Experiment
from podzero.core.types import EnvSpec
from podzero.core.waiting import Wait
from podzero.envs import Stored
from podzero.replay.errors import RequestRefused, SignatureError, WrongServer
from podzero.replay.shard import SAMPLES, Address, Addresses, Limits, Shard, tables_of
from podzero.replay.wire import InsertStream, Sent

log = logging.getLogger(__name__)

_PIECE = 64
"""Items sent to one shard at once."""
_AHEAD = 2 * _PIECE
"""Unconfirmed items with which a shard still gets more, so that it is never idle."""
_CHUNK_BYTES = 512
"""Most bytes compressed together. Longer chunks are cheaper to write, but are sent whole for each item that is read."""
_POLL_S = 0.02
"""How long to wait for one shard before trying the next."""
PROBE_S = 10.0
"""How often to ask a silent shard whether it answers."""
_RESUME_S = 0.5
"""How often to check whether a lost shard is back."""
MOST_REFUSED = 16
"""So many refused writes in a row raise an error, since then more than single numbers are wrong."""
_ASKING_SHARE = 0.1
"""Largest share of time spent on these checks: each takes seconds if the shard hangs, in which nothing is written."""
_LONGEST_PAUSE_S = 30.0
"""Longest time between two checks: one during which this machine itself stood still says nothing about the shard."""
NUMBERS = 2**32
"""Keys that share their upper bits."""


class ShardedWriter:
    """Writes to the shards in turn, first to those on the writer's own node; a `ReplayWriter`.

    A shard that is lost, or whose limiter blocks inserts, is skipped while another one accepts; otherwise all writers
    could wait for a full shard while the reader waits for an empty one. At most `_AHEAD + _PIECE` items per shard are
    unconfirmed; they are sent again if the shard restarts.
    """

    def __init__(
        self,
        addresses: Addresses,
        spec: EnvSpec,
        experiment: Experiment,
        near: str = "",
        table: str = SAMPLES,
        lenient: bool = False,
        writer: str = "",
    ) -> None:
        """Connects to the shards; skips those that do not answer, with a warning, until they do.

        Shards on the machine whose host name in addresses is `near` are preferred. Writes of samples that do not match
        the table raise `SignatureError`; a `lenient` writer leaves them out. `writer` names run, writer and attempt in
        the ids of samples, and must differ from those of all other writers; by default it is random. Raises
        `WrongServer` if another server answers at an address.
        """
        self._addresses, self._near, self._lenient = addresses, near, lenient
        self._table = tables_of(experiment, spec)[table]
        self._signature = self._table.signature
        self._refused_in_row = 0
        self._ids = SampleIds(f"{writer or secrets.token_hex(8)}/{table}")
        self._counting = threading.Lock()
        """Guards the fields below: `metrics` may be asked while another thread writes."""
        self._sums: Counter[str] = Counter()
        """What became of samples, but for those of open connections; `in_flight` has those that `write` holds."""
        self._told: Counter[str] = Counter()
        """What `metrics` has told so far."""
        self._connections = [self._connect(index, address) for index, address in enumerate(addresses())]
        # Writers that start together begin at different shards.
        random.shuffle(self._connections)

    def write(
        self,
        samples: Stored | NDArray[np.uint8],
        priorities: NDArray[Any] | None = None,
        stopping: threading.Event | None = None,
    ) -> None:
        """Writes T samples or packed rows; waits while all limiters block. `flush` waits for confirmations.

        See `ReplayWriter`. Each `replay.samples_per_item` consecutive samples make one item, which is always read as a
        whole, so they should come from different games (`actors/assembly.py`).
        """
        length = len(samples) if isinstance(samples, np.ndarray) else len(samples.version)
        self._count(made=length, in_flight=length)
        try:
            priorities = np.ones(length) if priorities is None else _checked(priorities, length)
            if isinstance(samples, np.ndarray):
                items, priorities = self._valid(samples, priorities)
            else:
                self._signature.check(samples)
                items = self._signature.pack(samples)
        except SignatureError as refusal:
            self._refused_in_row += 1
            self._leave_out(length, refusal)
            if not self._lenient or self._refused_in_row >= MOST_REFUSED:
                raise
            return
        self._refused_in_row, per_item = 0, self._signature.samples_per_item
        priorities = priorities[::per_item]
        for start in range(0, len(items), _PIECE):
            piece = slice(start, start + _PIECE)
            if (connection := self._free_connection(stopping)) is None:
                left = (len(items) - start) * per_item
                self._count(in_flight=-left, lost=left)
                log.debug("dropped %d samples for which replay has no room", left)
                return
            keys = self._ids.take(len(items[piece]), per_item)
            with self._counting:
                connection.send(items[piece], priorities[piece], keys)
                self._sums["in_flight"] -= per_item * len(keys)

    def _valid(self, rows: NDArray[np.uint8], priorities: NDArray[Any]) -> tuple[NDArray[np.uint8], NDArray[Any]]:
        """The items of the rows that hold a valid sample, and the priorities of these; leaves out the others."""
        signature, per_item = self._signature, self._signature.samples_per_item
        kept = np.flatnonzero(signature.valid(rows))
        refusal = SignatureError(f"{len(rows) - len(kept)} of {len(rows)} rows do not decode", "bytes")
        # What is left must fill whole items.
        kept = kept[: len(kept) // per_item * per_item]
        if len(kept) < len(rows):
            if not self._lenient or not len(kept):
                raise refusal
            self._leave_out(len(rows) - len(kept), refusal)
        return rows[kept].reshape(-1, signature.item_bytes), priorities[kept]

    def _leave_out(self, samples: int, refusal: SignatureError) -> None:
        self._count(in_flight=-samples, **{f"refused/{refusal.reason}": samples})
        log.warning("%d samples are refused: %s", samples, refusal)

    def _count(self, **samples: int) -> None:
        with self._counting:
            self._sums.update(samples)

    def flush(self) -> None:
        """Waits until everything written has been confirmed."""
        wait = Wait(stage="write")
        while waiting := [one for one in self._connections if one.pending and not one.settled()]:
            _check(wait, waiting)
            self._follow_restarts()

    def close(self) -> None:
        """Closes the connections at once; logs a warning if unconfirmed samples are dropped."""
        for connection in list(self._connections):
            ended = connection.close()
            with self._counting:
                self._connections.remove(connection)
                self._sums.update(ended)

    def metrics(self) -> dict[str, float]:
        """What has become of samples since the last call, as changes of `count/TABLE/WHAT`: `made` are those given to
        `write`, which become `confirmed`, `lost` or `refused/REASON` (`SignatureError`) and are `in_flight` before.
        """
        with self._counting:
            sums = Counter(self._sums)
            for connection in self._connections:
                sums.update(connection.counts)
            changes = {what: count - self._told[what] for what, count in sums.items()}
            self._told = sums
        return {f"count/{self._table.name}/{what}": float(change) for what, change in changes.items() if change}

    def _free_connection(self, stopping: threading.Event | None) -> _Connection | None:
        """The next connection in turn that takes more items; None if there is none while `stopping` is set."""
        wait = Wait(stage="write")
        while True:
            self._follow_restarts()
            # The sort is stable: shards on this node come first, and within both groups turns are kept.
            for connection in sorted(self._connections, key=lambda connection: connection.remote):
                if connection.ready():
                    # Next time the others come first.
                    with self._counting:
                        self._connections.remove(connection)
                        self._connections.append(connection)
                    return connection
            if stopping is not None and stopping.is_set():
                return None
            _check(wait, self._connections)

    def _follow_restarts(self) -> None:
        """Replaces connections to shards that restarted elsewhere, and sends them what these had not confirmed."""
        addresses = self._addresses()
        for place, connection in enumerate(self._connections):
            old, new = connection.shard.address, addresses[connection.index]
            if new != str(old):
                log.info("the replay shard at %s was restarted at %s", old.endpoint, Address.parse(new).endpoint)
                # The keys stay the same: what the shard has of them in its checkpoint is not inserted again.
                successor = self._connect(connection.index, new, connection.end())
                with self._counting:
                    self._sums["confirmed"] += connection.counts["confirmed"]
                    self._connections[place] = successor

    def _connect(self, index: int, address: str, unconfirmed: Iterable[Sent] = ()) -> _Connection:
        """Connects to the shard with an index, which may be away, and sends it `unconfirmed` items."""
        parsed = Address.parse(address)
        remote = parsed.endpoint.rpartition(":")[0] != self._near
        return _Connection(index, Shard(parsed, self._table), remote, unconfirmed)


class SampleIds:
    """Ids of the samples of one attempt of a writer, which cost no bytes: a Reverb item needs a key, and the writer
    chooses it. Not thread-safe.

    The upper 32 bits of a key stand for the writer with its attempt, the lower ones for a running number. An item of n
    samples has the key of its first one; the others have the numbers after it.
    """

    def __init__(self, writer: str) -> None:
        """`writer` names run, writer, attempt and table: keys of two tables must differ too, since a checkpoint of
        Reverb holds the chunks of all tables by their keys.
        """
        self._writer, self._next = writer, 0

    def take(self, items: int, samples_per_item: int) -> list[int]:
        """The keys of the next items."""
        count = items * samples_per_item
        if self._next % NUMBERS + count > NUMBERS:
            self._next += -self._next % NUMBERS  # the next series of `NUMBERS` numbers, with upper bits of its own
        series, begin = divmod(self._next, NUMBERS)
        self._next += count
        # Each series counts on from a number of its own: among 10,000 writers, two with the same upper bits are likely.
        digest = hashlib.blake2b(f"{self._writer}/{series}".encode(), digest_size=8).digest()
        upper, first = divmod(int.from_bytes(digest), NUMBERS)
        numbers = np.arange(begin, begin + count, samples_per_item, dtype=np.uint64)
        keys: list[int] = ((numbers + first) % NUMBERS + upper * NUMBERS).tolist()
        return keys


def _checked(priorities: NDArray[Any], length: int) -> NDArray[Any]:
    if np.shape(priorities) != (length,):
        raise SignatureError(f"priorities: found shape {list(np.shape(priorities))}; expected [{length}]")
    # A single wrong priority would block a prioritized table forever.
    wrong = ~(np.isfinite(priorities) & (priorities >= 0))
    if wrong.any():
        at = int(np.argmax(wrong))
        raise SignatureError(f"priorities[{at}]: found {priorities[at]}; expected finite numbers of at least 0")
    return priorities


class _Connection:
    """The connection to one shard."""

    def __init__(self, index: int, shard: Shard, remote: bool, unconfirmed: Iterable[Sent] = ()) -> None:
        self.index, self.shard, self.remote = index, shard, remote
        """Whether the shard is on another node than this writer."""
        self.timed_out = False
        """Whether the last wait timed out; the next one then does not wait."""
        self._probed, self._resume_s = time.monotonic(), _RESUME_S
        # A wrong server is an error here; later, it is away.
        self.alive = shard.limits() is not None
        signature = shard.table.signature
        chunk_steps = min(max(_CHUNK_BYTES // signature.item_bytes, 1), 4)
        self._stream = InsertStream(shard.connection, shard.table.name, signature.item_bytes, chunk_steps, *unconfirmed)
        if not self.alive:
            self._warn()

    @property
    def works(self) -> bool:
        """Whether the shard answers and the stream is open."""
        return self.alive and not self._stream.broken

    @property
    def pending(self) -> int:
        """Number of samples that were sent and not yet confirmed."""
        return self._stream.pending * self.shard.table.signature.samples_per_item

    def probe(self) -> None:
        """Asks whether the shard answers, logs a change, and resumes its stream if that is broken."""
        was, began = self.alive, time.monotonic()
        try:
            self.alive = self.shard.limits() is not None
        except WrongServer as error:
            self.alive = False
            log.error("%s", error)
        self._probed = time.monotonic()
        self._resume_s = min(max(_RESUME_S, (self._probed - began) / _ASKING_SHARE), _LONGEST_PAUSE_S)
        if self.alive and self._stream.broken:
            self._stream.resume()
        if self.alive and not was:
            log.info("replay at %s answers again", self.shard.address.endpoint)
        elif was and not self.alive:
            self._warn()

    def ready(self) -> bool:
        """Whether the shard takes more samples; asks it if it is silent or lost."""
        return self.settled(_AHEAD) and not self._stream.broken

    def settled(self, at_most: int = 0) -> bool:
        """Whether all items but `at_most` have been confirmed; asks the shard if it is silent or lost."""
        answered = self._stream.wait(0.0 if self.timed_out or not self.alive else _POLL_S, at_most)
        self.timed_out, lost = not answered, not self.works
        if (not answered or lost) and time.monotonic() - self._probed > (self._resume_s if lost else PROBE_S):
            self.probe()
        return self.alive and answered

    @property
    def counts(self) -> dict[str, int]:
        """How many of the samples that were sent are `confirmed` and `in_flight`, at one moment."""
        confirmed, pending = self._stream.counts
        per_item = self.shard.table.signature.samples_per_item
        return {"confirmed": confirmed * per_item, "in_flight": pending * per_item}

    def send(self, items: NDArray[np.uint8], priorities: NDArray[np.float64], keys: Sequence[int]) -> None:
        """Sends items `[n, item_bytes]` without waiting for their confirmation; the connection must be `ready`."""
        self._stream.send(items, priorities, keys)
        self._probed = time.monotonic()

    def close(self) -> dict[str, int]:
        """Closes the connection and drops unconfirmed samples; returns how many were `confirmed` and are `lost`."""
        # If the server refuses them, the samples are dropped as well.
        with suppress(RequestRefused, WrongServer):
            self._stream.wait(_POLL_S)
        if self.pending:
            endpoint = self.shard.address.endpoint
            log.warning("closing: %d samples sent to replay at %s were not confirmed", self.pending, endpoint)
        self.end()
        return {"confirmed": self.counts["confirmed"], "lost": self.counts["in_flight"]}

    def end(self) -> list[Sent]:
        """Closes the connection at once; returns what was not confirmed."""
        unconfirmed = self._stream.close()
        self.shard.close()
        return unconfirmed

    def _warn(self) -> None:
        log.warning(
            "replay at %s does not answer; it is skipped until it does, %d samples sent to it are unconfirmed",
            self.shard.address.endpoint,
            self.pending,
        )


def _check(wait: Wait, connections: Sequence[_Connection]) -> None:
    """Called in each round of a wait for `connections`: logs a long wait, and keeps the rounds from spinning."""
    if wait.message_due():
        state = "; ".join(connection.shard.explain(Limits.explain_insert) for connection in connections)
        log.warning("samples have waited %s to be inserted: %s", wait, state)
    works = next((connection for connection in connections if connection.works), None)
    if works is None:
        time.sleep(_POLL_S)
    else:
        # The next `ready` waits for this one, and ends as soon as it accepts more.
        works.timed_out = False
