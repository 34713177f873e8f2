"""The metrics of an inference server between two reports."""

from __future__ import annotations

import time

import numpy as np

from podzero.inference.serving.batching import EvaluationBatch

_LATENCIES = 10_000
"""Most latencies between two reports from which quantiles are computed; those after them are left out."""


class ServerMetrics:
    """Counts positions, how far batches were filled, how long devices were busy, and how long requests took."""

    def __init__(self) -> None:
        self._running = 0
        self._busy_since = 0.0
        self._begin(time.monotonic())

    def _begin(self, now: float) -> None:
        self._since, self._busy_s = now, 0.0
        self._filled = self._places = self._batches = 0
        self._latencies: list[float] = []

    def elapsed_s(self, now: float) -> float:
        """Seconds since the last `flush`."""
        return now - self._since

    def started(self, batch: EvaluationBatch, now: float) -> None:
        """Notes that a batch is sent to the devices."""
        if not self._running:
            self._busy_since = now
        self._running += 1
        self._filled += batch.filled
        self._places += batch.size
        self._batches += 1

    def finished(self, now: float) -> None:
        """Notes that a batch is back."""
        self._running -= 1
        if not self._running:
            self._busy_s += now - max(self._busy_since, self._since)

    def answered(self, latency_s: float) -> None:
        """Notes the time from the arrival of a request to its answer."""
        if len(self._latencies) < _LATENCIES:
            self._latencies.append(latency_s)

    def flush(self, now: float) -> dict[str, float]:
        """The metrics since the last call.

        Returns:
          `count/served` positions; `server/fill`, the share of places in batches that held positions;
          `server/busy`, the share of time with a batch on the devices; `server/positions_per_batch`; and quantiles of
          `server/latency_ms`.
        """
        busy_s = self._busy_s + (now - max(self._busy_since, self._since) if self._running else 0.0)
        metrics = {"count/served": float(self._filled), "server/busy": busy_s / max(self.elapsed_s(now), 1e-9)}
        if self._batches:
            metrics["server/fill"] = self._filled / self._places
            metrics["server/positions_per_batch"] = self._filled / self._batches
        if self._latencies:
            median, late = 1000 * np.quantile(self._latencies, [0.5, 0.99])
            metrics |= {"server/latency_ms_median": float(median), "server/latency_ms_p99": float(late)}
        self._begin(now)
        return metrics
