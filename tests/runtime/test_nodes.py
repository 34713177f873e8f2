"""Waiting for the nodes of a run, over a cluster in memory; the machines of a run, recorded for its report."""

from __future__ import annotations

import json
import logging
import os

import pytest
from fake_cluster import FakeCluster, cpu_node

from podzero.core.errors import ClusterError
from podzero.files.workdir import Workdir
from podzero.runtime.cluster.placement import ClusterEnded, MissingNodes, Node
from podzero.runtime.cluster.preflight import PreflightCheck, RunNodes
from podzero.runtime.program import program
from podzero.runtime.train import processor, record_hardware

SLICE = {"cluster": {"slice": "v5e-16"}, "replay": {"shards": 4}}
TWO_HOSTS = {"cluster": {"hosts": 2}, "replay": {"shards": 2, "min_size": 8192}}


@pytest.fixture
def make_nodes(experiment):
    def make(nodes, **sections):
        made = experiment(**sections)
        return RunNodes(nodes, made.cluster, program(made), nodes.listed[0].id)

    return make


def test_a_wait_logs_which_hosts_are_missing_and_ends_when_they_join(make_nodes, tpu_host, no_wait, caplog):
    cluster = FakeCluster(cpu_node("home", 4), tpu_host(3))
    stopping = no_wait(lambda: cluster.listed.append(tpu_host(3 - len(stopping.waits))))
    with caplog.at_level(logging.INFO, "podzero"):
        chosen = make_nodes(cluster, **SLICE).wait(stopping.wait)
    assert len(stopping.waits) == 3
    assert [node.id for node in chosen.learner] == [f"tpu-{rank}" for rank in range(4)]
    (line,) = caplog.messages  # the next one follows after half a minute
    assert "slice 'x' host(s) 0, 1, 2" in line


def test_a_wait_ends_after_join_minutes_and_names_missing_and_refused_nodes(make_nodes, tpu_host, no_wait):
    cluster = FakeCluster(cpu_node("home", 4), tpu_host(0))
    cluster.answers[PreflightCheck]["versions"] = {"python": "2.7"}
    late = SLICE | {"cluster": {"slice": "v5e-16", "join_minutes": 1e-6}}
    with pytest.raises(ClusterError) as ended:
        make_nodes(cluster, **late).wait(no_wait().wait)
    for part in ("cluster.join_minutes", "v5e-16 has 4 hosts", "not used: node tpu-0 at 10.0.1.0: python 2.7"):
        assert part in str(ended.value)


@pytest.mark.parametrize(("min_slices", "found"), [(1, ["b"]), (2, None), (None, None)])
def test_after_join_minutes_fewer_slices_are_enough_if_the_experiment_says_so(
    make_nodes, tpu_host, no_wait, min_slices, found
):
    """Of three slices one is there, and half of another."""
    hosts = [tpu_host(worker, name) for name, last in (("a", 2), ("b", 4)) for worker in range(last)]
    late = {"slice": "v5e-16", "slices": 3, "min_slices": min_slices, "join_minutes": 1e-6}
    learner = {"batch_size": 768}
    nodes = make_nodes(FakeCluster(cpu_node("home", 4), *hosts), cluster=late, replay={"shards": 24}, learner=learner)
    if found is None:
        with pytest.raises(ClusterError, match=r"slices .*of slice 'a' host\(s\) 2, 3"):
            nodes.wait(no_wait().wait)
    else:
        assert [node.id for node in nodes.wait(no_wait().wait).learner] == [f"b-{rank}" for rank in range(4)]


def test_a_cluster_of_this_machine_whose_only_node_is_gone_has_ended(make_nodes, no_wait):
    cluster = FakeCluster(cpu_node("home", 4), joined=False)
    nodes = make_nodes(cluster)
    cluster.listed.clear()
    with pytest.raises(ClusterEnded):
        nodes.wait(no_wait().wait)
    with pytest.raises(ClusterEnded):
        nodes.for_learner({}, 0.0)


def test_a_learner_that_restarts_waits_for_a_lost_slice_and_then_goes_on_without(make_nodes, tpu_host, no_wait):
    slices = {name: [tpu_host(worker, name) for worker in range(4)] for name in "abc"}
    cluster = FakeCluster(cpu_node("home", 4), *slices["a"], *slices["b"])
    some = {"slice": "v5e-16", "slices": 2, "min_slices": 1, "join_minutes": 5}
    nodes = make_nodes(cluster, cluster=some, replay={"shards": 8})
    assert len(nodes.wait(no_wait().wait).learner) == 8
    cluster.listed = [cluster.listed[0], *slices["b"]]
    with pytest.raises(MissingNodes):
        nodes.for_learner({}, waited_s=299)
    assert nodes.for_learner({}, waited_s=301) == tuple(slices["b"])
    assert nodes.for_learner({}, waited_s=0) == tuple(slices["b"])
    cluster.listed += slices["c"]
    nodes.usable(wait=True)
    assert nodes.for_learner({}, waited_s=0) == (*slices["b"], *slices["c"])


def test_a_cluster_of_this_machine_alone_is_not_waited_for(make_nodes, no_wait):
    stopping = no_wait()
    with pytest.raises(ClusterError, match=r"2 host\(s\)"):
        make_nodes(FakeCluster(cpu_node("home", 4), joined=False), **TWO_HOSTS).wait(stopping.wait)
    assert stopping.waits == []


def test_a_wait_ends_when_the_run_is_stopped(make_nodes, no_wait):
    stopping = no_wait()
    stopping.set()
    with pytest.raises(ClusterError, match="stopped while waiting"):
        make_nodes(FakeCluster(cpu_node("home", 4)), **TWO_HOSTS).wait(stopping.wait)


def test_a_run_waits_for_room_for_a_reanalyser(make_nodes, no_wait):
    cluster = FakeCluster(cpu_node("home", 2), joined=False)
    with pytest.raises(ClusterError, match=r"0 of 1 reanalysers of 4 CPUs .*actors\.cpus"):
        make_nodes(cluster, actors={"cpus": 4.0}, reanalyse={"share": 0.5, "count": 2}).wait(no_wait().wait)


def test_room_is_requested_while_a_start_waits_for_it(make_nodes, no_wait):
    cluster, requests = FakeCluster(cpu_node("home", 1)), []

    def join():
        requests.append(cluster.requests[-1])
        cluster.listed.append(cpu_node("late", 8))

    make_nodes(cluster, actors={"count": 3, "min_count": 3}).wait(no_wait(join).wait)
    assert requests == [([1.0, 1.0], ["home"])]


def test_nodes_of_other_versions_get_no_workers(make_nodes):
    cluster = FakeCluster(cpu_node("a", 4))
    nodes = make_nodes(cluster)
    assert [node.id for node in nodes.for_workers()] == ["a"]
    cluster.answers[PreflightCheck]["versions"] = {"python": "2.7"}
    cluster.listed.append(cpu_node("b", 8))
    assert [node.id for node in nodes.for_workers()] == ["a"]


@pytest.mark.parametrize("joined", [True, False])
def test_the_cpus_of_the_learner_are_taken_off_once(make_nodes, no_wait, joined):
    """Of 16 CPUs and 6 GPUs the learner has 8 and 4: two servers of a GPU and 4 CPUs fit, and no more."""
    cluster = FakeCluster(cpu_node("home", 16, GPU=6.0), joined=joined)
    nodes = make_nodes(cluster, cluster={"host_resources": {"CPU": 8, "GPU": 4}})
    nodes.wait(no_wait().wait)
    assert [(node.cpus, node.resources["GPU"]) for node in nodes.for_workers(accelerators=True)] == [(8.0, 2.0)]
    assert [node.cpus for node in nodes.for_workers()] == [8.0]


def test_host_0_of_several_coordinates_the_others_at_a_reserved_port(make_nodes, tpu_host):
    hosts = [tpu_host(0), tpu_host(1)]
    with make_nodes(FakeCluster(*hosts)).prepared_hosts(hosts) as coordinator:
        assert coordinator == "10.0.1.0:4321"
    alone = FakeCluster(cpu_node("home"), joined=False)
    with make_nodes(alone).prepared_hosts(alone.listed) as coordinator:
        assert coordinator == ""


def test_processes_of_earlier_runs_that_were_ended_are_logged(make_nodes, tpu_host, caplog):
    cluster = FakeCluster(tpu_host(0))
    cluster.answers[PreflightCheck]["end_stale_processes"] = ["process 7"]
    with caplog.at_level(logging.WARNING, "podzero"), make_nodes(cluster).prepared_hosts(cluster.listed):
        assert any("process 7" in message for message in caplog.messages)


def test_the_nodes_with_their_accelerators_are_recorded(tmp_path, monkeypatch):
    """The driver's has no more CPUs than the machine, of which a run may have less on a cluster that others use."""
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: range(2))
    label = {"ray.io/accelerator-type": "TPU-V5E"}
    nodes = [
        Node("a", "10.0.0.1", 8.0, {"CPU": 8.0, "TPU": 4.0, "memory": 16 * 2.0**30}, label),
        Node("b", "10.0.0.2", 4.0, {"CPU": 4.0, "GPU": 0.0}, {}),
        Node("home", "10.0.0.3", 3.0, {"CPU": 3.0}, {}),
    ]
    record_hardware(Workdir(tmp_path), nodes, "home")
    tree = json.loads(Workdir(tmp_path).hardware_file.read_text())
    assert tree["nodes"] == [
        {"host": "10.0.0.1", "cpus": 8.0, "memory_gib": 16.0, "accelerators": {"TPU-V5E": 4}},
        {"host": "10.0.0.2", "cpus": 4.0, "memory_gib": 0.0, "accelerators": {}},
        {"host": "10.0.0.3", "cpus": 2.0, "memory_gib": 0.0, "accelerators": {}},
    ]
    assert tree["driver"].keys() == {"processor", "podzero", "Python", "JAX"}


def test_a_processor_has_its_own_name_or_that_of_its_architecture(tmp_path):
    file = tmp_path / "cpuinfo"
    assert processor(file)
    file.write_text("processor\t: 0\nmodel name\t: Fast CPU @ 3 GHz\nprocessor\t: 1\nmodel name\t: Other\n")
    assert processor(file) == "Fast CPU @ 3 GHz"
