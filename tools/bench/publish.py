"""The stage of publishing parameters: the delay until an actor uses them."""

from __future__ import annotations

import logging
import random
import threading
import time
from collections.abc import Callable
from typing import Any

import jax
import numpy as np

from podzero.actors import ActorClients
from podzero.actors.build import actor_parts
from podzero.actors.selfplay import SelfPlayActor
from podzero.config import Experiment
from podzero.core.types import Params, Versioned
from podzero.envs import spec_of
from podzero.inference import FoldedSource
from podzero.networks import make_network
from podzero.runtime.cluster.ray_cluster import Cluster, connect
from podzero.runtime.cluster.remote import STOP_TIMEOUT_S, current_node_id
from podzero.runtime.cluster.services import start_param_store
from podzero.runtime.params import RayParamSink, RayParamSource
from podzero.tools.bench.measuring import BenchError

log = logging.getLogger(__name__)

GAP_S = (0.5, 1.5)
"""The random time between two publications, so that they arrive at random times of a move."""
LISTEN_EVERY_S = 0.001
START_S = 600.0
"""The longest wait until the actor has compiled and plays."""


def bench_publish(experiment: Experiment, seconds: float) -> dict[str, Any]:
    """Measures the delay of publications to two other processes: an actor that plays, and one that only listens.

    Returns:
      in milliseconds, median and 99th percentile of `acting` (from the call of `publish` until the actor's first move
      with the parameters begins, after the move in progress), of `transit` (until the listener holds them) and of
      `move` (one move of the actor); the bytes of a publication; and `ratio`, the median of half a move, which is the
      mean time until the move in progress ends, over the median of `acting`.
    """
    log.info("starting Ray")
    with connect(None, cpus=2) as cluster:
        return _measure_delays(experiment, cluster, seconds)


def _measure_delays(experiment: Experiment, cluster: Cluster, seconds: float) -> dict[str, Any]:
    store = start_param_store(current_node_id())
    network = make_network(experiment.network, spec_of(experiment.env))
    params = jax.device_get(jax.jit(network.init)(jax.random.key(experiment.seed)))
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
    """Median and 99th percentile, in milliseconds; raises `BenchError` if no publication arrived."""
    if not seconds:
        raise BenchError(f"no publication was used within {2 * GAP_S[1]:g} s: measure for longer (--seconds)")
    return {
        "median_ms": 1e3 * float(np.median(seconds)),
        "p99_ms": 1e3 * float(np.percentile(seconds, 99)),
    }


class ActorProbe:
    """A self-play actor that records when it begins to use parameters. Its samples are dropped."""

    publications = 0, 0

    def __init__(self, experiment: Experiment, store: Any) -> None:
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
            name="actor-0",
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

    def write(self, samples: Any, priorities: Any = None, stopping: Any = None) -> None:
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

    def __init__(self, experiment: Experiment, store: Any) -> None:
        del experiment
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
