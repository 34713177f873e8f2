"""The cost of publishing parameters to many readers on several nodes: latency, and bytes sent to each node.

The nodes are Ray nodes on this machine, each with its own raylet and object store, so that parameters are sent through
sockets as between machines.
"""

from __future__ import annotations

import logging
import os
import random
import re
import secrets
import sys
import threading
import time
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from podzero.config import Experiment
from podzero.runtime.cluster.local_cluster import local_node
from podzero.runtime.cluster.ray_cluster import Cluster, connect
from podzero.runtime.cluster.remote import STOP_TIMEOUT_S, Call, RemoteActor, current_node_id
from podzero.tools.bench.child_processes import BenchError
from podzero.tools.bench.publish import publish_for, spread
from podzero.types import Params

log = logging.getLogger(__name__)

NODES = 4
"""Nodes with readers, besides the publisher's."""
PROCESSES = 2
"""Reader processes of each node."""
READERS = 8
"""Readers of one process, each a thread with a `RayParamSource`."""
_METRICS_S = 1.0
"""How often raylets report the bytes that they have received."""
_SETTLE_S = 60.0
"""The longest wait until these reports stop changing."""
_REQUEST_S = 10.0
_LISTEN_S = 0.5
_START_S = 120.0
_RECEIVED = re.compile(r'^ray_object_manager_bytes\{[^}]*Type="Received"[^}]*\} (\S+)$', re.MULTILINE)


def bench_broadcast(experiment: Experiment, seconds: float) -> dict[str, Any]:
    """Measures publications through the parameter store, from one node to readers on `NODES` others.

    Args:
      experiment: its network's parameters are published. They should have more than 100 KB: Ray sends smaller objects
        inside its messages.
      seconds: how long to publish once all readers have their first parameters.

    Returns:
      `ratio`, the bytes of the parameters over the bytes that a node received through Ray's object manager for each
      publication (the node that received most; 1 means that they were sent once, None that nothing was sent); these
      bytes for each node; in milliseconds, median and 99th percentile of the time from the call of `publish` until a
      reader holds the arrays (`each`), and until the last one does (`last`); and `missed`, how many times a reader
      skipped a publication because the next one had replaced it.
    """
    log.info("starting Ray with %d nodes", 1 + NODES)
    with _ray_nodes(1 + NODES) as address, connect(address, cpus=0) as cluster:
        return _measure(experiment, cluster, seconds)


@contextmanager
def _ray_nodes(count: int) -> Iterator[str]:
    """A Ray cluster of `count` nodes on this machine; yields its address."""
    # As runtime/cluster/local_cluster.py does for the cluster of a run.
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    if "ray" not in sys.modules:
        os.environ.setdefault("RAY_AUTH_MODE", "token")
        os.environ.setdefault("RAY_AUTH_TOKEN", secrets.token_hex(32))
    from ray.cluster_utils import Cluster as RayNodes

    often = {"_system_config": {"metrics_report_interval_ms": round(1000 * _METRICS_S)}}
    ray_nodes = RayNodes(initialize_head=True, head_node_args=local_node(1) | often)
    try:
        for _ in range(1, count):
            ray_nodes.add_node(**{key: value for key, value in local_node(1).items() if key != "include_dashboard"})
        yield str(ray_nodes.address)
    finally:
        ray_nodes.shutdown()


def _measure(experiment: Experiment, cluster: Cluster, seconds: float) -> dict[str, Any]:
    import jax

    from podzero.runtime.ray_params import RayParamSink, start_param_store

    params = _params(experiment)
    size = sum(leaf.nbytes for leaf in jax.tree.leaves(params))
    store = start_param_store(current_node_id())
    sink = RayParamSink(store)
    sink.publish(0, params)
    log.info("starting processes with readers; each has %g s", 2 * _START_S)
    probes, running = _start_readers(cluster, store)
    log.info("waiting until Ray's counts of received bytes stand still, for at most %g s", _SETTLE_S)
    before = _received()
    log.info("publishing for %g s, then waiting for the counts again", seconds)
    published = publish_for(seconds, sink.publish, params, random.Random(experiment.seed))
    after = _received()
    stamps = [stamps for probe in probes for stamps in probe.ask("stamps")]
    for probe, run in zip(probes, running, strict=True):
        probe.ask("stop")
        run.result(STOP_TIMEOUT_S)
    crossed = {node: (after[node] - before[node]) / len(published) for node in _nodes_of(probes)}
    most = max(crossed.values())
    return {
        "ratio": size / most if most else None,
        "ratio_of": "bytes of the parameters over bytes received by a node for each publication",
        "bytes": size,
        "received_per_publication": list(crossed.values()),
        **_latency(published, stamps),
        "publications": len(published),
        "nodes": len(crossed),
        "reader_processes": len(probes),
        "readers": len(stamps),
    }


def _params(experiment: Experiment) -> Params:
    """Fresh parameters of the experiment's network, on the host."""
    import jax

    from podzero.envs import spec_of
    from podzero.networks import make_network

    network = make_network(experiment.network, spec_of(experiment.env))
    return jax.device_get(jax.jit(network.init)(jax.random.key(experiment.seed)))


def _start_readers(cluster: Cluster, store: Any) -> tuple[list[RemoteActor], list[Call]]:
    """Starts readers on all other nodes and waits for their first parameters; returns them and their pending `run`."""
    import ray

    home = ray.get_runtime_context().get_node_id()
    environment = {"JAX_PLATFORMS": "cpu"}
    probes = [
        cluster.spawn(
            Readers, f"readers-{node.id[:6]}-{index}", store, READERS, cpus=0.0, environment=environment, node=node
        )
        for node in cluster.nodes()
        if node.id != home
        for index in range(PROCESSES)
    ]
    for started in [probe.begin("wait", _START_S) for probe in probes]:
        started.result(2 * _START_S)
    return probes, [probe.begin("run") for probe in probes]


def _nodes_of(probes: list[RemoteActor]) -> list[str]:
    return sorted({probe.node for probe in probes if probe.node is not None})


def _latency(published: list[float], stamps: list[dict[int, float]]) -> dict[str, Any]:
    """Delays of the publications 1, 2, ... at the Unix times `published` until the readers' arrival times `stamps`."""
    delays = [
        [reader[version] - at for reader in stamps if version in reader]
        for version, at in enumerate(published, start=1)
    ]
    return {
        "each": spread([delay for readers in delays for delay in readers]),
        "last": spread([max(readers) for readers in delays if len(readers) == len(stamps)]),
        "missed": sum(len(stamps) - len(readers) for readers in delays),
    }


def _received() -> dict[str, float]:
    """Bytes that each node has received from other object stores so far, once the counts have stopped changing.

    Raises:
      BenchError: the counts still change after `_SETTLE_S`.
    """
    counts: dict[str, float] = {}
    until = time.monotonic() + _SETTLE_S
    while time.monotonic() < until:
        time.sleep(5 * _METRICS_S)
        last, counts = counts, _count_received()
        if counts == last:
            return counts
    raise BenchError(f"the counts of received bytes still change after {_SETTLE_S:g} s: {counts}")


def _count_received() -> dict[str, float]:
    import ray

    counts = {}
    for node in ray.nodes():
        url = f"http://{node['NodeManagerAddress']}:{node['MetricsExportPort']}/metrics"
        with urllib.request.urlopen(url, timeout=_REQUEST_S) as page:
            counts[node["NodeID"]] = sum(map(float, _RECEIVED.findall(page.read().decode())))
    return counts


class Readers:
    """A process with several readers, each in a thread."""

    def __init__(self, name: str, store: Any, readers: int) -> None:
        from podzero.runtime.ray_params import RayParamSource

        del name
        self._sources = [RayParamSource(store) for _ in range(readers)]
        self._stamps: list[dict[int, float]] = [{} for _ in range(readers)]
        self._stopping = threading.Event()

    def wait(self, timeout_s: float) -> None:
        """Returns once all readers hold their first parameters."""
        for source in self._sources:
            source.wait(timeout_s)

    def run(self) -> None:
        """Records arrival times until stopped."""
        threads = [
            threading.Thread(target=self._listen, args=pair) for pair in zip(self._sources, self._stamps, strict=True)
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()

    def stop(self) -> None:
        """Ends `run`."""
        self._stopping.set()

    def stamps(self) -> list[dict[int, float]]:
        """For each reader, the Unix time of each version's arrival."""
        return self._stamps

    def _listen(self, source: Any, stamps: dict[int, float]) -> None:
        while not self._stopping.is_set():
            newest = source.newer(_LISTEN_S)
            if newest is not None:
                stamps[newest.version] = time.time()
