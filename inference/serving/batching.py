"""Decides which positions an inference server evaluates next, in which batch size; and the server's metrics.

The time of decisions is an argument.
"""

from __future__ import annotations

import math
import sys
import time
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from podzero.inference.evaluation_cache import Rows

RUNNING = 2
"""Batches on the device at once: one is computed while the next one is transferred."""
FILLED = 0.75
"""Below this filled share the next smaller batch size is chosen, and the rest waits for the next batch."""


@dataclass(eq=False)
class Request:
    """One client's request to evaluate positions."""

    client: bytes
    """ZeroMQ identity of the client."""
    number: int
    """Number of the request, repeated in the answer."""
    rows: Rows
    """`[B, S]` uint8."""
    arrived: float
    """Time of arrival in seconds."""
    evaluations: Rows | None = None
    """`[B, outputs]` float32, of which `evaluated` rows are filled."""
    evaluated: int = 0
    version: int = sys.maxsize
    """The oldest version of the parameters that evaluated any of the rows."""


class Piece(NamedTuple):
    """Rows `start` to `stop` of a request."""

    request: Request
    start: int
    stop: int


class EvaluationBatch(NamedTuple):
    """Positions of several requests in one batch of `size`."""

    pieces: Sequence[Piece]
    size: int

    @property
    def filled(self) -> int:
        """Number of positions in the batch."""
        return sum(piece.stop - piece.start for piece in self.pieces)

    def rows(self) -> Rows:
        """The positions, `[size, S]` uint8, with zeros in empty places."""
        (first, start, stop), *others = self.pieces
        if not others and self.filled == self.size:
            return first.rows[start:stop]
        rows = np.zeros((self.size, first.rows.shape[1]), np.uint8)
        np.concatenate([piece.request.rows[piece.start : piece.stop] for piece in self.pieces], out=rows[: self.filled])
        return rows

    def answer(self, version: int, evaluations: Rows) -> list[Request]:
        """Distributes the evaluations `[size, outputs]`; returns the requests that are now complete."""
        complete, end = [], 0
        for request, start, stop in self.pieces:
            part = evaluations[end : end + stop - start]
            end += stop - start
            if stop - start == len(request.rows):
                request.evaluations = part
            else:
                if request.evaluations is None:
                    request.evaluations = np.empty((len(request.rows), *evaluations.shape[1:]), evaluations.dtype)
                request.evaluations[start:stop] = part
            request.version = min(version, request.version)
            request.evaluated += stop - start
            if request.evaluated == len(request.rows):
                complete.append(request)
        return complete


class Batcher:
    """A server's queue. Positions are evaluated in order of arrival.

    A batch starts when it is full, when no client could add to it, or when the device is idle and the oldest position
    has waited for `deadline_s`. `sizes` are those that are compiled, ascending.
    """

    def __init__(self, sizes: Sequence[int], deadline_s: float) -> None:
        self._sizes, self._deadline_s = sizes, deadline_s
        self._queue: deque[Piece] = deque()
        self.queued = 0
        """Positions waiting for a batch."""

    def add(self, request: Request) -> None:
        """Appends the positions of a request."""
        self._queue.append(Piece(request, 0, len(request.rows)))
        self.queued += len(request.rows)

    def drop(self, client: bytes) -> None:
        """Removes a client's positions from the queue."""
        self._queue = deque(piece for piece in self._queue if piece.request.client != client)
        self.queued = sum(piece.stop - piece.start for piece in self._queue)

    def take(self, now: float, running: int, others_may_ask: bool) -> EvaluationBatch | None:
        """The batch to start at time `now` (seconds), with so many `running` on the device; or None.

        `others_may_ask` says whether a client without unanswered requests may soon send one.
        """
        if not self.queued or running >= RUNNING:
            return None
        waited = not running and now >= self._queue[0].request.arrived + self._deadline_s
        if self.queued < self._sizes[-1] and others_may_ask and not waited:
            return None
        size = self._size()
        return EvaluationBatch(self._remove(min(self.queued, size)), size)

    def wait_s(self, now: float, running: int) -> float:
        """Seconds until `take` may start a batch without another request; infinite if only an event can start one."""
        if not self.queued or running:
            return math.inf
        return max(0.0, self._queue[0].request.arrived + self._deadline_s - now)

    def _size(self) -> int:
        """The smallest size that holds the queue, or the next smaller one if the queue would fill too little of it."""
        up = next((index for index, size in enumerate(self._sizes) if size >= self.queued), len(self._sizes) - 1)
        down = up > 0 and self.queued < FILLED * self._sizes[up]
        return self._sizes[up - 1 if down else up]

    def _remove(self, positions: int) -> list[Piece]:
        """Removes the first `positions` of the queue."""
        self.queued -= positions
        pieces = []
        while positions:
            piece = self._queue.popleft()
            size = min(positions, piece.stop - piece.start)
            if piece.start + size < piece.stop:
                self._queue.appendleft(piece._replace(start=piece.start + size))
            pieces.append(piece._replace(stop=piece.start + size))
            positions -= size
        return pieces


_LATENCIES = 10_000
"""Most latencies per report that enter the quantiles."""


class ServerMetrics:
    """Throughput, batch filling, device use and latency between two reports."""

    def __init__(self) -> None:
        self._running = 0
        self._now = time.monotonic()
        self._begin()

    def _begin(self) -> None:
        self._since, self._busy_s = self._now, 0.0
        self._filled = self._places = self._batches = 0
        self._latencies: list[float] = []

    def _advance(self, now: float) -> None:
        self._busy_s += now - self._now if self._running else 0.0
        self._now = now

    def elapsed_s(self, now: float) -> float:
        """Seconds since the last `flush`."""
        return now - self._since

    def started(self, batch: EvaluationBatch, now: float) -> None:
        """Records that a batch is sent to the devices."""
        self._advance(now)
        self._running += 1
        self._filled += batch.filled
        self._places += batch.size
        self._batches += 1

    def finished(self, now: float) -> None:
        """Records that a batch has left the devices."""
        self._advance(now)
        self._running -= 1

    def answered(self, latency_s: float) -> None:
        """Records the time from the arrival of a request to its answer."""
        if len(self._latencies) < _LATENCIES:
            self._latencies.append(latency_s)

    def flush(self, now: float) -> dict[str, float]:
        """The metrics since the last call: `count/served` (positions), `server/fill` (filled share of batches),
        `server/busy` (share of time with a batch on the devices), and those whose names say all.
        """
        self._advance(now)
        metrics = {"count/served": float(self._filled), "server/busy": self._busy_s / max(self.elapsed_s(now), 1e-9)}
        if self._batches:
            metrics["server/fill"] = self._filled / self._places
            metrics["server/positions_per_batch"] = self._filled / self._batches
        if self._latencies:
            median, late = 1000 * np.quantile(self._latencies, [0.5, 0.99])
            metrics |= {"server/latency_ms_median": float(median), "server/latency_ms_p99": float(late)}
        self._begin()
        return metrics
