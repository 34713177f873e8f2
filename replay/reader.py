"""The learner's way out of replay."""

from __future__ import annotations

import logging
import math
import queue
import threading
import time
from collections.abc import Iterator, Sequence
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from podzero.config import Experiment
from podzero.replay.errors import ReplayTimeout, WrongServer
from podzero.replay.priorities import PriorityWriter, importance
from podzero.replay.shard import TABLE, Address, Shard
from podzero.replay.signature import SampleSignature
from podzero.types import Batch, EnvSpec, Keys

log = logging.getLogger(__name__)

_BLOCK = 512
"""Most items that Reverb hands over in one piece."""
_REOPEN_MS = 500
"""A dataset held back this long by the limiter ends (without an error) and is opened anew, so that what it had
gathered comes out, and its thread can see that it should stop."""
_LOOK_S = 0.1
_TAIL = np.dtype([("key", np.uint64), ("weight", np.float32)])
"""What follows the sample in a row of a prioritized table."""


def make_reader(addresses: Sequence[str], spec: EnvSpec, experiment: Experiment, hosts: int = 1) -> ShardedReader:
    """Connects to the shards at `addresses` (`ReplayServer.address()`), all of which must answer.

    Args:
      addresses: the shards of this host.
      spec: of the environment whose samples are kept.
      experiment: what is trained.
      hosts: machines that train together; each reads its part of every batch from shards of its own.

    Raises:
      ReplayTimeout: a shard does not answer within `replay.timeout_s`.
      WrongServer: another server answers at an address.
    """
    return ShardedReader([Address.parse(address) for address in addresses], spec, experiment, hosts)


class ShardedReader:
    """An endless iterator over host batches `[steps_per_dispatch, batch_size / hosts, ...]`; a `ReplayReader`.

    Position p of the stream comes from shard p modulo the number of shards, so each gives an equal part of every
    batch. One thread per shard samples ahead. What is sampled ahead counts as sampled for the rate limiter although
    nobody has learned from it, so it is kept within half of the limiter's tolerance, beyond the one dispatch that
    must be gathered anyway:

        ahead = clamp(tolerance / 2 - dispatch, batch_size, (prefetch - 1) * dispatch)

    samples over all shards, where dispatch = steps_per_dispatch * batch_size, and of all three only this host's part.
    A quarter of it lies in Reverb's own
    stream buffer, the rest in blocks that wait for `__next__`.
    """

    def __init__(self, addresses: Sequence[Address], spec: EnvSpec, experiment: Experiment, hosts: int) -> None:
        config = experiment.learner
        self._replay = experiment.replay
        self._leading = (config.steps_per_dispatch, config.batch_size // hosts)
        self._dispatch = math.prod(self._leading)
        self._offset = 0
        self._closed = threading.Event()
        self._signature = SampleSignature.of(experiment, spec)
        self._ahead = _samples_ahead(experiment) // hosts
        self._moves: queue.SimpleQueue[tuple[Address, Address]] = queue.SimpleQueue()
        self._streams: list[_Stream] = []
        self._priorities: PriorityWriter | None = None
        if self._replay.sampler == "prioritized":
            self._priorities = PriorityWriter(TABLE, lambda index: self._streams[index].shard)
        for address in addresses:
            self._streams.append(self._open(address, len(addresses)))

    def __iter__(self) -> Iterator[Batch]:
        return self

    def __next__(self) -> Batch:
        """The next batch (`[steps_per_dispatch, batch_size, ...]` on every field), with weights and keys if the table
        is prioritized.

        Raises:
          ReplayTimeout: none came within `replay.timeout_s`; says which limiter holds whom. What had arrived is kept
            for the next call.
          StopIteration: the reader was closed, perhaps meanwhile by another thread.
        """
        start = time.monotonic()
        warn_at = start + self._replay.warn_after_s
        missing = list(self._streams)
        while missing := [s for s in missing if not s.gather(self._share(s), _LOOK_S)]:
            if self._closed.is_set():
                raise StopIteration
            missing = [self._followed(stream) for stream in missing]
            for stream in missing:
                stream.raise_failure()
            waited = time.monotonic() - start
            if waited > self._replay.timeout_s:
                raise ReplayTimeout(f"no batch within {waited:.0f} s (replay.timeout_s): {_explain(missing)}")
            if time.monotonic() > warn_at:
                warn_at += self._replay.warn_after_s
                log.warning("the learner has waited %.0f s for a batch: %s", waited, _explain(missing))
        if self._closed.is_set():
            raise StopIteration
        return self._assemble()

    def moved(self, old: str, new: str) -> None:
        """The shard at the address `old` has come to life again at `new`: it is read there from now on. Thread-safe."""
        self._moves.put((Address.parse(old), Address.parse(new)))

    def rank(self, keys: Keys, errors: NDArray[Any]) -> None:
        """Sets the priorities of samples that a batch brought, by their absolute value errors; never waits."""
        if self._priorities is not None:
            self._priorities.update(keys, errors)

    def close(self) -> None:
        """Stops prefetching and gives the connections back; ends a `__next__` that still waits. Thread-safe."""
        self._closed.set()
        if self._priorities is not None:
            self._priorities.close()
        for stream in self._streams:
            stream.stop()
        for stream in self._streams:
            stream.join()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _open(self, address: Address, shards: int) -> _Stream:
        """Begins to read one of `shards` shards."""
        shard = Shard(address, self._signature)
        shard.wait(self._replay.timeout_s)
        per_shard = math.ceil((self._dispatch + self._ahead) / shards)
        exponent = self._replay.importance_exponent if self._replay.sampler == "prioritized" else None
        return _Stream(shard, self._signature, per_shard, self._ahead // (4 * shards), exponent)

    def _followed(self, stream: _Stream) -> _Stream:
        """The stream itself, or the one that reads where its shard has moved to."""
        for _ in range(self._moves.qsize()):
            old, new = self._moves.get()
            for index, known in enumerate(self._streams):
                if known.address == old:
                    log.info("replay at %s goes on at %s", old.endpoint, new.endpoint)
                    self._streams[index] = self._open(new, len(self._streams))
                    self._streams[index].inherit(known)
                    stream = self._streams[index] if known is stream else stream
        return stream

    def _positions(self, stream: _Stream) -> slice:
        """Where in the coming batch the samples of `stream` stand."""
        shards = len(self._streams)
        return slice((self._streams.index(stream) - self._offset) % shards, None, shards)

    def _share(self, stream: _Stream) -> int:
        """How many samples `stream` gives to the coming batch."""
        return len(range(self._dispatch)[self._positions(stream)])

    def _assemble(self) -> Batch:
        rows = np.empty((self._dispatch, self._streams[0].row_bytes), np.uint8)
        shard = np.empty(self._dispatch, np.int32)
        for index, stream in enumerate(self._streams):
            where = self._positions(stream)
            rows[where] = stream.take(self._share(stream))
            shard[where] = index
        self._offset = (self._offset + self._dispatch) % len(self._streams)
        samples = self._signature.unpack(rows[:, : self._signature.row_bytes], self._leading)
        if self._priorities is None:
            return Batch(samples)
        tail = np.ascontiguousarray(rows[:, self._signature.row_bytes :]).view(_TAIL).reshape(self._leading)
        keys = Keys(shard.reshape(self._leading), np.ascontiguousarray(tail["key"]))
        return Batch(samples, np.ascontiguousarray(tail["weight"]), keys)


class _Stream:
    """Rows sampled from one shard, ahead of demand and bounded, by a thread of its own."""

    def __init__(
        self, shard: Shard, signature: SampleSignature, ahead: int, in_flight: int, exponent: float | None
    ) -> None:
        """Starts reading up to `ahead` rows early, of which about `in_flight` lie in Reverb's stream.

        With an `exponent` each row ends with the item's key and its importance weight.
        """
        self.shard = shard
        self._exponent = exponent
        self.row_bytes = signature.row_bytes + (0 if exponent is None else _TAIL.itemsize)
        self._signature = signature
        ahead, in_flight = ahead // signature.bundle, in_flight // signature.bundle  # in items, as Reverb counts
        self._block = max(1, min(_BLOCK, ahead // 2))
        self._in_flight = max(self._block // 2, min(in_flight, 3 * self._block), 1)
        self._blocks: queue.Queue[NDArray[np.uint8]] = queue.Queue(maxsize=max(1, ahead // self._block - 1))
        self._held: list[NDArray[np.uint8]] = []
        self._failure: BaseException | None = None
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=self._run, name=f"replay-{shard.address.endpoint}", daemon=True)
        self._thread.start()

    @property
    def address(self) -> Address:
        """Of the shard."""
        return self.shard.address

    def inherit(self, other: _Stream) -> None:
        """Takes over the rows that another stream, of which no more will come, has gathered."""
        other.stop()
        self._held = other._held

    def gather(self, rows: int, timeout_s: float) -> bool:
        """Whether `rows` rows are at hand, waiting up to `timeout_s` for each block."""
        have = sum(map(len, self._held))
        while have < rows:
            try:
                block = self._blocks.get(timeout=timeout_s)
            except queue.Empty:
                return False
            self._held.append(block)
            have += len(block)
        return True

    def take(self, rows: int) -> NDArray[np.uint8]:
        """The next `rows` rows, `[rows, row_bytes]`; they must have been gathered."""
        held = np.concatenate(self._held) if len(self._held) > 1 else self._held[0]
        self._held = [held[rows:]]
        return held[:rows]

    def raise_failure(self) -> None:
        """Raises what ended the thread."""
        if self._failure is not None:
            raise self._failure

    def _await_shard(self) -> None:
        """After the connection broke: the shard may be back, or come to life again elsewhere."""
        log.warning("replay at %s is gone; what it held is waited for", self.shard.address.endpoint)
        while not self._stopped.wait(_REOPEN_MS / 1000) and self.shard.limits() is None:
            pass

    def explain(self) -> str:
        """Why no rows come."""
        endpoint = self.shard.address.endpoint
        try:
            limits = self.shard.limits()
        except WrongServer as error:
            return str(error)
        return f"replay at {endpoint} does not answer" if limits is None else f"{endpoint}: {limits.explain_sample()}"

    def stop(self) -> None:
        """Asks the thread to end."""
        self._stopped.set()

    def join(self) -> None:
        """Waits a bounded time for the thread; it can be stuck only in a read from a server that has died."""
        self._thread.join(timeout=4 * _REOPEN_MS / 1000)
        if self._thread.is_alive():
            log.warning("the thread that reads from %s is stuck and was left behind", self.shard.address.endpoint)

    def _run(self) -> None:
        from tensorflow.errors import UnavailableError

        try:
            while not self._stopped.is_set():
                try:
                    for item in self._dataset():
                        self._put(self._rows(item))
                        if self._stopped.is_set():
                            return
                except UnavailableError:
                    self._await_shard()
        except BaseException as failure:
            self._failure = failure

    def _rows(self, item: Any) -> NDArray[np.uint8]:
        """The rows of a block of items, `[n * bundle, row_bytes]`."""
        rows: NDArray[np.uint8] = item.data.reshape(-1, self._signature.row_bytes)
        if self._exponent is None:
            return rows
        tail = np.empty(len(rows), _TAIL)
        tail["key"] = item.info.key
        tail["weight"] = importance(item.info.probability, item.info.table_size, self._exponent)
        return np.concatenate([rows, tail.view(np.uint8).reshape(len(rows), -1)], axis=1)

    def _put(self, block: NDArray[np.uint8]) -> None:
        while not self._stopped.is_set():
            try:
                self._blocks.put(block, timeout=_LOOK_S)
            except queue.Full:
                continue
            return

    def _dataset(self) -> Any:
        """Blocks of items `[n, item_bytes]` until the limiter has held them back for a while."""
        import tensorflow as tf
        from reverb import TrajectoryDataset

        return (
            TrajectoryDataset(
                self.shard.address.endpoint,
                TABLE,
                dtypes=tf.uint8,
                shapes=tf.TensorShape([self._signature.item_bytes]),
                max_in_flight_samples_per_worker=self._in_flight,
                num_workers_per_iterator=1,
                rate_limiter_timeout_ms=_REOPEN_MS,
            )
            .batch(self._block)
            .as_numpy_iterator()
        )


def _samples_ahead(experiment: Experiment) -> int:
    """Samples that all hosts together hold beyond the dispatch that is being gathered."""
    config = experiment.learner
    dispatch = config.batch_size * config.steps_per_dispatch
    within_tolerance = int(experiment.replay_tolerance / 2) - dispatch
    return max(config.batch_size, min(within_tolerance, (config.prefetch - 1) * dispatch))


def _explain(streams: Sequence[_Stream]) -> str:
    return "; ".join(stream.explain() for stream in streams)
