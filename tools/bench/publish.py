"""The latency of a publication: from the call of `publish` to an actor's first move with the parameters."""

from __future__ import annotations

import logging
import random
import threading
import time
from collections.abc import Callable
from typing import Any

import numpy as np

from podzero.config import Experiment
from podzero.runtime.cluster.ray_cluster import Cluster, connect
from podzero.runtime.cluster.remote import STOP_TIMEOUT_S, current_node_id
from podzero.tools.bench.child_processes import BenchError
from podzero.types import Params, Sample, StoredState, Versioned, Window

log = logging.getLogger(__name__)

GAP_S = (0.5, 1.5)
"""Publications are this far apart, at random, so that they arrive at random times of a move."""
LISTEN_EVERY_S = 0.001
START_S = 600.0
"""The longest wait until the actor has compiled and plays."""


def bench_publish(experiment: Experiment, seconds: float) -> dict[str, Any]:
    """Measures publications through the parameter store to two other processes: an actor that plays, and a listener.

    Args:
      experiment: its network's parameters are published, and its game is played.
      seconds: how long to publish once the actor plays; the last publication then has three seconds to arrive.

    Returns:
      in milliseconds, median and 99th percentile of `acting` (from the call of `publish` until the actor's first move
      with the parameters begins, after the move in progress), of `transit` (until a process that only waits for them
      holds them) and of `move` (one move of the actor); the bytes of a publication; and `ratio`, the median of half a
      move, which an actor needs on average to finish the move in progress, over the median of `acting`.

    Raises:
      BenchError: the actor did not play within `START_S`, or took up no publication.
    """
    log.info("starting Ray")
    with connect(None, cpus=2) as cluster:
        return _measure(experiment, cluster, seconds)


def _measure(experiment: Experiment, cluster: Cluster, seconds: float) -> dict[str, Any]:
    import jax

    from podzero.envs import spec_of
    from podzero.networks import make_network
    from podzero.runtime.ray_params import RayParamSink, start_param_store

    store = start_param_store(current_node_id())
    params = make_network(experiment.network, spec_of(experiment.env)).init(jax.random.key(experiment.seed))
    params = jax.device_get(params)
    sink = RayParamSink(store)
    sink.publish(0, params)
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
        from podzero.runtime.build import actor_parts
        from podzero.runtime.ray_params import RayParamSource

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
            fold=stamped,
            clients=ActorClients(source=self, writer=self, report=lambda worker, metrics: None),
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

    def write(self, samples: Sample | Window | StoredState, priorities: Any = None) -> None:
        """The actor's `ReplayWriter`: drops the samples."""

    def flush(self) -> None:
        """There is nothing to confirm."""

    def close(self) -> None:
        """There is no connection."""

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
        from podzero.runtime.ray_params import RayParamSource

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
