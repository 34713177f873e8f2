"""Actors that play on accelerators of their own: where they run, and what they do when these are missing or taken."""

from __future__ import annotations

import math

import jax
import pytest
from fake_cluster import PENDING, FakeRemoteActor, cpu_node

from podzero.core.errors import ClusterError
from podzero.core.machine import NoAccelerator
from podzero.runtime.cluster.remote import START_TIMEOUT_S
from podzero.runtime.monitoring.pace import LONGEST_LOOK_S
from podzero.runtime.process import own_devices
from podzero.runtime.workers import RunFailed

DEVICE = {"inference": "device", "resources": {"TPU": 4}}


def test_they_run_on_hosts_with_chips_beside_the_slice_of_the_learner(make_supervisor, tpu_host):
    """Four hosts form the learner's slice; two single hosts with four chips are free for actors, one has only one."""
    singles = [cpu_node(name, 24, TPU=chips) for name, chips in (("a", 4.0), ("b", 4.0), ("c", 1.0))]
    supervisor, cluster = make_supervisor(
        cpu_node("home", 8), *map(tpu_host, range(4)), *singles,
        actors={**DEVICE, "count": 2, "cpus": 2.0}, replay={"shards": 4}, cluster={"slice": "v5e-16"},
    )  # fmt: skip
    supervisor.start(None)
    assert {cluster.named(f"actor-{index}").node for index in range(2)} == {"a", "b"}
    actor = cluster.options["actor-0"]
    assert (actor["resources"], actor["cpus"]) == ({"TPU": 4.0}, 2.0)
    assert "JAX_PLATFORMS" not in actor["environment"]
    assert cluster.named("replay-0").node == "home"


def test_those_that_find_no_chips_start_when_a_host_joins(make_supervisor):
    supervisor, cluster = make_supervisor(
        cpu_node("home", 8), cpu_node("a", 24, TPU=4.0), actors={**DEVICE, "count": 2, "min_count": 1}
    )
    supervisor.start(None)
    assert cluster.alive("actor") == ["actor-0"]
    cluster.listed.append(cpu_node("b", 24, TPU=4.0))
    supervisor.scale()
    assert cluster.named("actor-1").node == "b"


def test_a_run_without_chips_for_the_first_says_how_many_are_missing(make_supervisor):
    supervisor, _ = make_supervisor(
        cpu_node("home", 8, TPU=4.0), joined=False, actors={**DEVICE, "min_count": 2},
    )  # fmt: skip
    with pytest.raises(ClusterError, match=r"1 of 2 actors .* 4 TPU .*actors\.resources"):
        supervisor.start(None)


def test_one_whose_chips_are_taken_is_given_up_and_they_are_named(make_supervisor, clock, monkeypatch, restart_limits):
    restart_limits(max_first_failures=1)

    def begin(actor, method, *args, begin=FakeRemoteActor.begin):
        if actor.name == "actor-0":
            actor.answers["drain"] = PENDING
        return begin(actor, method, *args)

    monkeypatch.setattr(FakeRemoteActor, "begin", begin)
    supervisor, _ = make_supervisor(cpu_node("home", 8, TPU=4.0), actors={**DEVICE, "count": 1})
    supervisor.start(None)
    for _ in range(math.ceil(START_TIMEOUT_S / LONGEST_LOOK_S) + 2):
        list(supervisor.listen())
        clock[0] += LONGEST_LOOK_S
    with pytest.raises(RunFailed, match=r"4 TPU .*actors\.resources"):
        supervisor.reconcile(lambda: None)


def test_a_process_that_reserved_chips_and_finds_none_says_what_is_missing():
    with pytest.raises(NoAccelerator, match=r"actor-0 .*TPU .*actors\.resources.*only CPUs"):
        own_devices("actor-0", "actors", {"TPU": 4.0})
    assert own_devices("actor-0", "actors", {"memory": 1e9}) == jax.local_devices()
