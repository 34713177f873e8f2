"""Metrics for Prometheus: an HTTP endpoint that gives the newest values."""

from __future__ import annotations

import re
from contextlib import suppress

from prometheus_client import CollectorRegistry, Counter, Gauge, start_http_server

from podzero.errors import ConfigError
from podzero.runtime.monitoring.reports import MetricsReport

_LABELS = ("run", "worker")


class PrometheusWriter:
    """Gives metrics at `http://ADDRESS/metrics` until it is closed; a `MetricsWriter`.

    `replay/size` becomes the gauge `podzero_replay_size{run="...", worker="..."}`, `count/moves` becomes the counter
    `podzero_moves_total`.

    Args:
      address: `HOST:PORT`; port 0 takes any free one.
      run: the name of the experiment.

    Raises:
      ConfigError: it cannot listen there.
    """

    def __init__(self, address: str, run: str) -> None:
        host, _, port = address.rpartition(":")
        self._run = run
        self._registry = CollectorRegistry()
        self._gauges: dict[str, Gauge] = {}
        self._counters: dict[str, Counter] = {}
        try:
            self._server, self._thread = start_http_server(int(port), host, self._registry)
        except OSError as error:
            raise ConfigError(f"metrics.prometheus = {address}: cannot listen there: {error.strerror}") from None

    @property
    def port(self) -> int:
        """The port on which it listens."""
        return int(self._server.server_port)

    def write(self, report: MetricsReport, step: int) -> None:
        """Replaces the values of a worker, and adds to its counters."""
        labels = self._run, report.worker
        self._gauge("step").labels(*labels).set(step)
        for name, value in report.metrics.items():
            stage, _, quantity = name.partition("/")
            if stage != "count":
                self._gauge(name).labels(*labels).set(value)
            elif value >= 0:
                self._counter(quantity).labels(*labels).inc(value)

    def close(self) -> None:
        """Stops the endpoint."""
        with suppress(OSError):
            self._server.shutdown()
            self._server.server_close()
        self._thread.join()

    def _gauge(self, name: str) -> Gauge:
        metric = metric_name(name)
        if metric not in self._gauges:
            self._gauges[metric] = Gauge(metric, f"podzero's {name}", _LABELS, registry=self._registry)
        return self._gauges[metric]

    def _counter(self, quantity: str) -> Counter:
        metric = metric_name(quantity)
        if metric not in self._counters:
            self._counters[metric] = Counter(
                metric, f"podzero's {quantity}, summed up", _LABELS, registry=self._registry
            )
        return self._counters[metric]


def metric_name(name: str) -> str:
    """The name of a metric in Prometheus: letters, digits and underscores."""
    return f"podzero_{re.sub(r'[^a-zA-Z0-9]+', '_', name).strip('_')}"
