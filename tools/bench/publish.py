"""Stages of publishing parameters: the delay until an actor uses them, and the bytes sent to many readers on several
nodes.
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
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import numpy as np

from podzero.config import Experiment
from podzero.core.types import Params, Sample, StoredState, Versioned, Window
from podzero.runtime.cluster.ray_cluster import Cluster, connect
from podzero.runtime.cluster.ray_start import local_node
from podzero.runtime.cluster.remote import STOP_TIMEOUT_S, Call, RemoteActor, current_node_id
from podzero.runtime.cluster.services import start_param_store
from podzero.tools.bench.measuring import BenchError

if TYPE_CHECKING:
    from podzero.runtime.params import RayParamSink

log = logging.getLogger(__name__)

GAP_S = (0.5, 1.5)
"""The random time between two publications, so that they arrive at random times of a move."""
LISTEN_EVERY_S = 0.001
START_S = 600.0
"""The longest wait until the actor has compiled and plays."""


def bench_publish(experiment: Experiment, seconds: float) -> dict[str, Any]:
    """Measures the delay of publications to two other processes: an actor that plays, and one that only listens.

    Args:
      experiment: its network's parameters are published, and its game is played.
      seconds: how long to publish once the actor plays; the last publication then has three seconds to arrive.

    Returns:
      in milliseconds, median and 99th percentile of `acting` (from the call of `publish` until the actor's first move
      with the parameters begins, after the move in progress), of `transit` (until the listener holds them) and of
      `move` (one move of the actor); the bytes of a publication; and `ratio`, the median of half a move, which is the
      mean time until the move in progress ends, over the median of `acting`.

    Raises:
      BenchError: the actor did not play within `START_S`, or used no publication.
    """
    log.info("starting Ray")
    with connect(None, cpus=2) as cluster:
        return _measure_delays(experiment, cluster, seconds)


def _measure_delays(experiment: Experiment, cluster: Cluster, seconds: float) -> dict[str, Any]:
    import jax

    store, sink, params = _published(experiment)
    probes = [
        cluster.spawn(probe, probe.__name__, experiment, store, cpus=1, environment={"JAX_PLATFORMS": "cpu"})
        for probe in (ActorProbe, Listener)
    ]
    work = [probe.begin("run") for probe in probes]
    log.info("waiting for the actor, which has %g s to start, to compile and to play", START_S)
    until = time.monotonic() + START_S
    while not probes[0].ask("moves"):
        if time.monotonic() > until:
            raise BenchError(f"the actor has not played a move for {START_S:g} s: measure a smaller experiment")
        time.sleep(0.2)
    log.info("publishing for %g s", seconds)
    published = publish_for(seconds, sink.publish, params, random.Random(experiment.seed))
    moves = probes[0].ask("moves")
    for probe, run in zip(probes, work, strict=True):
        probe.ask("stop")
        run.result(STOP_TIMEOUT_S)
    acting, transit = (_delays(published, probe.ask("stamps")) for probe in probes)
    return {
        "ratio": 500.0 * float(np.median(moves)) / acting["median_ms"],
        "ratio_of": "half a move over the delay until an actor uses new parameters",
        "acting": acting,
        "transit": transit,
        "move": spread(moves),
        "bytes": sum(leaf.nbytes for leaf in jax.tree.leaves(params)),
        "publications": len(published),
    }


def _published(experiment: Experiment) -> tuple[Any, RayParamSink, Params]:
    """A parameter store, its sink, and new parameters, on the host, that it holds as version 0."""
    import jax

    from podzero.envs import spec_of
    from podzero.networks import make_network
    from podzero.runtime.params import RayParamSink

    store = start_param_store(current_node_id())
    network = make_network(experiment.network, spec_of(experiment.env))
    params = jax.device_get(jax.jit(network.init)(jax.random.key(experiment.seed)))
    sink = RayParamSink(store)
    sink.publish(0, params)
    return store, sink, params


def publish_for(
    seconds: float, publish: Callable[[int, Params], None], params: Params, gaps: random.Random
) -> list[float]:
    """Publishes versions 1, 2, ... for `seconds`; returns the Unix time of each."""
    published: list[float] = []
    until = time.monotonic() + seconds
    while time.monotonic() < until:
        time.sleep(gaps.uniform(*GAP_S))
        published.append(time.time())
        publish(len(published), params)
    time.sleep(2 * GAP_S[1])
    return published


def _delays(published: list[float], stamps: dict[int, float]) -> dict[str, float]:
    """Delays from publication to use; a version that was skipped counts until the use of the next one."""
    seen = sorted(stamps)
    delays = []
    for version, at in enumerate(published, start=1):
        reached = next((stamps[later] for later in seen if later >= version), None)
        if reached is not None:
            delays.append(reached - at)
    return spread(delays)


def spread(seconds: list[float]) -> dict[str, float]:
    """Median and 99th percentile, in milliseconds.

    Raises:
      BenchError: there are no `seconds`, because no publication arrived.
    """
    if not seconds:
        raise BenchError(f"no publication was used within {2 * GAP_S[1]:g} s: measure for longer (--seconds)")
    return {
        "median_ms": 1e3 * float(np.median(seconds)),
        "p99_ms": 1e3 * float(np.percentile(seconds, 99)),
    }


class ActorProbe:
    """A self-play actor that records when it begins to use parameters. Its samples are dropped."""

    def __init__(self, name: str, experiment: Experiment, store: Any) -> None:
        import jax

        from podzero.actors import ActorClients, SelfPlayActor
        from podzero.actors.build import actor_parts
        from podzero.inference import FoldedSource
        from podzero.runtime.params import RayParamSource

        core, fold, _ = actor_parts(experiment)
        self._source = RayParamSource(store)
        self._newest = 0
        self._stamps: dict[int, float] = {}
        self._moves: list[float] = []
        self._polled = 0.0

        def stamped(params: Params) -> Params:
            """Is called just before the first move with new parameters."""
            folded = jax.tree.map(lambda x: x.block_until_ready(), fold(params))
            self._stamps[self._newest] = time.time()
            return folded

        self._actor = SelfPlayActor(
            experiment=experiment,
            name=name,
            seed=experiment.seed,
            core=core,
            clients=ActorClients(FoldedSource(self, stamped), writer=self, report=lambda worker, metrics: None),
        )

    def wait(self, timeout_s: float) -> Versioned:
        """The actor's `ParamSource`."""
        return self._source.wait(timeout_s)

    def poll(self) -> Versioned | None:
        """The actor's `ParamSource`; is called once after each move."""
        now = time.time()
        if self._polled:
            self._moves.append(now - self._polled)
        newest = self._source.poll()
        if newest is not None:
            self._newest = newest.version
        self._polled = time.time()
        return newest

    def write(self, samples: Sample | Window | StoredState, priorities: Any = None, stopping: Any = None) -> None:
        """The actor's `ReplayWriter`: drops the samples."""

    def flush(self) -> None:
        """Returns at once."""

    def close(self) -> None:
        """Does nothing."""

    def run(self) -> None:
        """Plays until stopped."""
        self._actor.run()

    def stop(self) -> None:
        """Ends `run`."""
        self._actor.stop()

    def moves(self) -> list[float]:
        """Seconds of each move but the first, which compiles."""
        return self._moves

    def stamps(self) -> dict[int, float]:
        """Unix time at which the first move with each version began."""
        return self._stamps


class Listener:
    """A process that only waits for parameters."""

    def __init__(self, name: str, experiment: Experiment, store: Any) -> None:
        from podzero.runtime.params import RayParamSource

        del name, experiment
        self._source = RayParamSource(store)
        self._stopping = threading.Event()
        self._stamps: dict[int, float] = {}

    def run(self) -> None:
        """Records arrival times until stopped."""
        while not self._stopping.wait(LISTEN_EVERY_S):
            newest = self._source.poll()
            if newest is not None:
                self._stamps[newest.version] = time.time()

    def stop(self) -> None:
        """Ends `run`."""
        self._stopping.set()

    def stamps(self) -> dict[int, float]:
        """Unix time of each version's arrival."""
        return self._stamps


# Many readers on several nodes.

NODES = 4
"""The number of nodes with readers, in addition to the publisher's."""
PROCESSES = 2
"""The reader processes of each node."""
READERS = 8
"""The readers of one process, each a thread with a `RayParamSource`."""
_METRICS_S = 1.0
"""How often raylets report the bytes that they have received."""
_SETTLE_S = 60.0
"""The longest wait until these reports stop changing."""
_REQUEST_S = 10.0
_LISTEN_S = 0.5
_READERS_START_S = 120.0
_RECEIVED = re.compile(r'^ray_object_manager_bytes\{[^}]*Type="Received"[^}]*\} (\S+)$', re.MULTILINE)


def bench_broadcast(experiment: Experiment, seconds: float) -> dict[str, Any]:
    """Measures publications from one node to many readers on `NODES` others.

    They are Ray nodes on this machine, each with its own raylet and object store, so parameters go through sockets as
    between machines.

    Args:
      experiment: its network's parameters are published. They should have more than 100 KB: Ray sends smaller objects
        inside its messages.
      seconds: how long to publish once all readers have their first parameters.

    Returns:
      `ratio`, the bytes of the parameters over the bytes that a node received per publication, at the node with most (1
      means that they were sent once, None that nothing was sent); these bytes for each node; in milliseconds, median
      and 99th percentile of the time from the call of `publish` until a reader holds the arrays (`each`), and until the
      last one does (`last`); and `missed`, how many times a reader skipped a publication because the next one had
      replaced it.
    """
    log.info("starting Ray with %d nodes", 1 + NODES)
    with _ray_nodes(1 + NODES) as address, connect(address, cpus=0) as cluster:
        return _measure_bytes(experiment, cluster, seconds)


@contextmanager
def _ray_nodes(count: int) -> Iterator[str]:
    """A Ray cluster of `count` nodes on this machine; yields its address."""
    # As runtime/cluster/ray_start.py does for the cluster of a run.
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


def _measure_bytes(experiment: Experiment, cluster: Cluster, seconds: float) -> dict[str, Any]:
    import jax

    store, sink, params = _published(experiment)
    size = sum(leaf.nbytes for leaf in jax.tree.leaves(params))
    log.info("starting processes with readers; each has %g s", 2 * _READERS_START_S)
    probes, running = _start_readers(cluster, store)
    log.info("waiting until Ray's counts of received bytes stop changing, for at most %g s", _SETTLE_S)
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
    for started in [probe.begin("wait", _READERS_START_S) for probe in probes]:
        started.result(2 * _READERS_START_S)
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
        # Several reports apart, so that equal counts are not those of one report.
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
        from podzero.runtime.params import RayParamSource

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
