"""Resources and nodes of Ray actors; reservations and requests of several drivers on one Ray cluster."""

from __future__ import annotations

import os
import time

import pytest

from podzero.core.errors import ClusterError
from podzero.runtime.cluster.ray_cluster import connect, resource_options
from podzero.runtime.cluster.remote import current_node_id
from podzero.runtime.cluster.services import start_param_store


@pytest.fixture
def cluster(shared_cluster):
    with connect(shared_cluster.address, 0) as cluster:
        yield cluster


def test_cpus_gpus_and_memory_are_options_of_their_own():
    options = resource_options({"CPU": 2.0, "GPU": 8.0, "memory": 1e9, "TPU": 4.0})
    assert options == {"num_cpus": 2.0, "num_gpus": 8.0, "memory": 1e9, "resources": {"TPU": 4.0}}


def test_no_memory_is_reserved_where_none_is_asked_for():
    assert resource_options({"CPU": 2.0, "memory": 0})["memory"] is None


def test_a_bundle_with_gpus_cpus_memory_and_others_gives_them_to_its_process(shared_cluster):
    class Process:  # known to this process alone: Ray sends it by value
        def reserved(self):
            import ray

            return ray.get_runtime_context().get_node_id(), len(ray.get_gpu_ids()), os.environ["CUDA_VISIBLE_DEVICES"]

    with connect(shared_cluster.address, 0) as cluster:
        (node,) = [node for node in cluster.nodes() if node.cpus]
        group = cluster.reserve([node], {"GPU": 2.0, "CPU": 1.0, "memory": 1e6}, 60)
        process = cluster.spawn(Process, "learner", cpus=0, environment={}, bundle=group.bundles[0])
        assert process.ask("reserved") == (node.id, 2, "0,1")
        with pytest.raises(ClusterError, match=r"1 s for 1 GPU .*node"):
            cluster.reserve([node], {"GPU": 1.0}, 1)
        group.release()
        cluster.reserve([node], {"GPU": 1.0}, 60).release()


def test_the_parameter_store_runs_on_the_node_that_it_is_given(cluster):
    """Ray alone would choose any node, also one that preflight refused or that may be preempted."""
    import ray
    from ray._private.state import actors

    for node in cluster.nodes():
        store = start_param_store(node.id)
        ray.get(store.other_than.remote("", 0, 0.0), timeout=120)
        assert actors(store._actor_id.hex())["Address"]["NodeID"] == node.id
        ray.kill(store)


RESERVE = """
class Process:
    pass

(node,) = [node for node in cluster.nodes() if node.cpus]
cluster.spawn(Process, "other", cpus=1.5, environment={}, node=node).ask("__ray_ready__")
"""
REQUEST = """
for _ in range(2):  # the first request for these nodes withdraws the one before
    cluster.request_capacity([3.0, 64.0], frozenset(node.id for node in cluster.nodes()))
"""


def await_value(expected, function, *arguments):
    deadline = time.monotonic() + 60
    while (value := function(*arguments)) != expected and time.monotonic() < deadline:
        time.sleep(0.2)
    assert value == expected


def free_cpus(cluster):
    return sorted(node.cpus for node in cluster.nodes())


def all_free_cpus():
    import ray

    return ray.available_resources().get("CPU")


def requests():
    """CPUs of all placement groups that Ray has not placed and not removed."""
    from ray.util import placement_group_table

    found = [group for group in placement_group_table().values() if group["state"] == "PENDING"]
    return sorted(bundle["CPU"] for group in found for bundle in group["bundles"].values())


def test_cpus_that_other_drivers_reserve_are_not_usable_until_they_end(cluster, other_driver):
    assert free_cpus(cluster) == [0.0, 4.0]
    other = other_driver(RESERVE)
    await_value([0.0, 2.5], free_cpus, cluster)
    other.kill()
    await_value([0.0, 4.0], free_cpus, cluster)


def test_cpus_that_this_driver_reserves_stay_usable_for_it(cluster):
    class Process:  # known to this process alone: Ray sends it by value
        pass

    (node,) = [node for node in cluster.nodes() if node.cpus]
    process = cluster.spawn(Process, "own", cpus=3.0, environment={}, node=node)
    process.ask("__ray_ready__")
    await_value(1.0, all_free_cpus)
    assert free_cpus(cluster) == [0.0, 4.0]
    process.kill()
    await_value(4.0, all_free_cpus)
    await_value([0.0, 4.0], free_cpus, cluster)


def test_cpus_of_a_placement_group_of_this_driver_stay_usable_for_it(cluster):
    """Whoever chooses nodes takes those of the learner off, before and after they are reserved."""
    (node,) = [node for node in cluster.nodes() if node.cpus]
    group = cluster.reserve([node], {"CPU": 3.0}, 60)
    await_value(1.0, all_free_cpus)
    assert free_cpus(cluster) == [0.0, 4.0]
    assert sorted(node.free.get("CPU", 0.0) for node in cluster.nodes()) == [0.0, 1.0]
    group.release()
    await_value(4.0, all_free_cpus)
    assert free_cpus(cluster) == [0.0, 4.0]


def test_a_request_for_capacity_ends_with_its_driver_even_if_that_is_killed(cluster, other_driver):
    assert requests() == []
    driver = other_driver(REQUEST)
    await_value([3.0, 64.0], requests)
    driver.kill()
    await_value([], requests)


def test_a_request_for_capacity_is_replaced_by_the_next_and_ends_when_it_is_empty(cluster):
    nodes = frozenset(node.id for node in cluster.nodes())
    cluster.request_capacity([], nodes)
    cluster.request_capacity([2.0, 0.0, 1.0], nodes)
    await_value([1.0, 2.0], requests)
    cluster.request_capacity([2.0], nodes)
    await_value([2.0], requests)
    cluster.request_capacity([], nodes)
    await_value([], requests)


def test_many_processes_without_room_are_few_requests(cluster, monkeypatch):
    monkeypatch.setattr("podzero.runtime.cluster.ray_cluster.MOST_REQUESTS", 4)
    nodes = frozenset(node.id for node in cluster.nodes())
    cluster.request_capacity([], nodes)
    cluster.request_capacity([50.0] * 30 + [70.0], nodes)
    await_value([50.0] * 30 + [70.0], requests)
    assert len(cluster._requests) == 4
    cluster.request_capacity([], nodes)
    await_value([], requests)


def test_a_node_that_joined_serves_a_request_until_it_is_known(cluster):
    (head, worker) = sorted(cluster.nodes(), key=lambda node: node.cpus)
    known = frozenset([head.id])
    cluster.request_capacity([], known)
    cluster.request_capacity([3.0], known)
    await_value([0.0, 1.0], free_cpus, cluster)
    await_value([], requests)  # no further node is requested in the meantime
    both = frozenset([head.id, worker.id])
    cluster.request_capacity([3.0], both)
    await_value([0.0, 4.0], free_cpus, cluster)
    assert requests() == []
    cluster.request_capacity([3.0], both)
    await_value([3.0], requests)
    cluster.request_capacity([], both)


def test_a_cluster_without_a_token_is_used_after_one_of_this_machine_that_has_one(shared_cluster):
    """Otherwise this process would ask the other cluster's processes for the token, and lose its actors."""
    import ray

    with connect(None, cpus=1):
        pass
    with connect(shared_cluster.address, 0):
        store = start_param_store(current_node_id())
        assert ray.get(store.other_than.remote("", 0, 0.0), timeout=120) is None
