"""Placement of processes on described nodes, without Ray."""

from __future__ import annotations

from collections import Counter

import pytest
from fake_cluster import cpu_node
from hypothesis import given
from hypothesis import strategies as st

from podzero.config import ClusterConfig, parse
from podzero.runtime.cluster import placement as placement_module
from podzero.runtime.cluster.placement import (
    MissingNodes,
    Node,
    actor_nodes,
    actor_places,
    host_resources,
    learner_nodes,
    without_room,
)
from podzero.runtime.program import program, reserved_cpus


def tpu_host(worker, slice_name="x", kind="v5litepod-16", chips=4.0, cpus=100.0):
    labels = {
        placement_module.SLICE_NAME: slice_name,
        placement_module.WORKER_ID: str(worker),
        placement_module.POD_TYPE: kind,
    }
    return Node(f"{slice_name}-{worker}", f"10.0.0.{worker}", cpus, {"CPU": cpus, "TPU": chips}, labels)


def experiment_of(actors=2, cpus=1.0, min_count=None, shards=1, shard_cpus=0.0, batch=512, **cluster):
    tree = {
        "name": "placed",
        "env": {"name": "tic_tac_toe"},
        "actors": {"count": actors, "cpus": cpus, "min_count": min_count},
        "replay": {"shards": shards, "cpus": shard_cpus},
        "learner": {"batch_size": batch},
        "cluster": cluster,
    }
    return parse(tree, "test")


def place(nodes, experiment, home):
    """The placement of an experiment."""
    return placement_module.place(nodes, program(experiment), experiment.cluster, home)


V5E_16 = ClusterConfig(slice="v5e-16")


def test_actors_have_room_beside_the_cpus_that_the_learner_reserves():
    """Of 16 CPUs the learner takes 8 and the shard 1."""
    node, cluster = cpu_node("a", 16), {"host_resources": {"CPU": 8}}
    assert place([node], experiment_of(actors=4, cpus=1.5, shard_cpus=1.0, **cluster), "a").learner == (node,)
    with pytest.raises(MissingNodes, match=r"8 free CPUs.* 4 of 5 actors"):
        place([node], experiment_of(actors=5, cpus=1.5, shard_cpus=1.0, **cluster), "a")


def test_slice_labels_are_those_that_ray_puts_on_tpu_hosts(monkeypatch):
    from ray._private.accelerators.tpu import TPUAcceleratorManager

    for name, value in {"TPU_NAME": "x", "TPU_WORKER_ID": "1", "TPU_ACCELERATOR_TYPE": "v4-16"}.items():
        monkeypatch.setenv(name, value)
    labels = TPUAcceleratorManager.get_current_node_accelerator_labels()
    assert labels.items() >= tpu_host(1, "x", "v4-16").labels.items()


@pytest.mark.parametrize("order", [(0, 1, 2, 3), (3, 1, 0, 2), (2, 3, 1, 0)])
def test_slice_hosts_are_ranked_by_worker_id_whatever_the_order_of_the_nodes(order):
    nodes = [cpu_node("a"), *(tpu_host(worker) for worker in order), cpu_node("b")]
    assert [node.id for node in learner_nodes(nodes, V5E_16, "a")] == ["x-0", "x-1", "x-2", "x-3"]


def test_a_missing_slice_host_is_named_with_those_that_have_joined():
    nodes = [cpu_node("a"), tpu_host(0), tpu_host(1), tpu_host(3)]
    with pytest.raises(MissingNodes) as missing:
        learner_nodes(nodes, V5E_16, "a")
    assert str(missing.value) == (
        "v5e-16 has 4 hosts with 4 chips each (Ray's TPU resource); "
        "of slice 'x' host(s) 2 have not joined, 0, 1, 3 have"
    )


def test_a_host_with_fewer_chips_than_its_kind_has_counts_as_missing():
    nodes = [tpu_host(0), tpu_host(1, chips=3.0), tpu_host(2), tpu_host(3)]
    with pytest.raises(MissingNodes, match=r"host\(s\) 1 .*not joined, 0, 2, 3 "):
        learner_nodes(nodes, V5E_16, "x-0")


def test_the_error_says_that_a_cluster_has_no_tpus():
    with pytest.raises(MissingNodes, match=r"v5e-16 .* 4 hosts.*; .*2 node\(s\) .*no TPUs$"):
        learner_nodes([cpu_node("a"), cpu_node("b")], V5E_16, "a")


def test_the_error_names_tpus_of_other_kinds_by_their_labels():
    unnamed = Node("u", "10.0.0.9", 8.0, {"CPU": 8.0, "TPU": 4.0}, {})
    nodes = [tpu_host(0, kind="v4-16"), tpu_host(1, kind="v9-16"), tpu_host(2, kind="v9-16"), unnamed]
    with pytest.raises(MissingNodes) as missing:
        learner_nodes(nodes, V5E_16, "u")
    assert str(missing.value).endswith(
        "the 4 node(s) of the cluster have only v4-16 with 4 chips, v9-16 with 4 chips, "
        "an unnamed TPU with 4 chips without label ray.io/tpu-slice-name"
    )


def test_the_error_says_why_hosts_of_the_right_kind_cannot_be_used():
    few = [tpu_host(worker, chips=1.0) for worker in range(4)]
    with pytest.raises(MissingNodes, match=r"v5litepod-16 with 1 chips$"):
        learner_nodes(few, V5E_16, "x-0")
    nameless = [node._replace(labels={placement_module.POD_TYPE: "v5litepod-16"}) for node in map(tpu_host, range(4))]
    with pytest.raises(MissingNodes, match=r"v5litepod-16 with 4 chips without .*tpu-slice-name$"):
        learner_nodes(nameless, V5E_16, "x-0")


def test_of_two_slices_of_a_kind_the_complete_one_is_chosen():
    nodes = [tpu_host(worker, "a") for worker in (0, 1, 3)] + [tpu_host(worker, "b") for worker in (3, 2, 1, 0)]
    assert [node.id for node in learner_nodes(nodes, V5E_16, "a-0")] == ["b-0", "b-1", "b-2", "b-3"]


def test_hosts_of_two_incomplete_slices_are_never_mixed():
    nodes = [tpu_host(worker, "a") for worker in (0, 1)] + [tpu_host(worker, "b") for worker in (2, 3)]
    with pytest.raises(MissingNodes) as missing:
        learner_nodes(nodes, V5E_16, "a-0")
    assert str(missing.value).endswith(
        "of slice 'a' host(s) 2, 3 have not joined, 0, 1 have; of slice 'b' host(s) 0, 1 have not joined, 2, 3 have"
    )


def test_the_hosts_of_several_slices_are_ranked_by_slice_then_worker_id():
    nodes = [tpu_host(worker, name) for worker in (3, 1, 0, 2) for name in ("b", "c", "a")]
    two = ClusterConfig(slice="v5e-16", slices=2)
    assert [node.id for node in learner_nodes(nodes, two, "")] == [
        f"{name}-{rank}" for name in "ab" for rank in range(4)
    ]
    held = [node._replace(free={"TPU": 4.0 * (node.id[0] != "a")}) for node in nodes]
    assert [node.id[0] for node in learner_nodes(held, two, "")] == ["b"] * 4 + ["c"] * 4


def test_of_several_slices_only_the_incomplete_ones_are_named():
    nodes = [tpu_host(worker, "a") for worker in range(4)] + [tpu_host(worker, "b") for worker in (0, 1, 3)]
    with pytest.raises(MissingNodes) as missing:
        learner_nodes(nodes, ClusterConfig(slice="v5e-16", slices=2), "a-0")
    assert "1 of 2 slices" in str(missing.value)
    assert str(missing.value).endswith("; of slice 'b' host(s) 2 have not joined, 0, 1, 3 have")


def test_without_a_slice_the_learner_prefers_the_node_of_the_driver():
    nodes = [cpu_node("a", 64), cpu_node("home", 2), cpu_node("c", 32)]
    assert [node.id for node in learner_nodes(nodes, ClusterConfig(), "home")] == ["home"]
    assert [node.id for node in learner_nodes(nodes, ClusterConfig(hosts=2), "home")] == ["home", "a"]


def test_hosts_without_a_slice_are_nodes_with_host_resources():
    config = ClusterConfig(hosts=2, host_resources={"GPU": 1})
    nodes = [cpu_node("home"), cpu_node("b", GPU=1.0), cpu_node("c", 16, GPU=2.0)]
    assert [node.id for node in learner_nodes(nodes, config, "home")] == ["c", "b"]


def test_the_learner_leaves_the_drivers_node_if_another_run_holds_its_resources():
    config = ClusterConfig(host_resources={"GPU": 4})
    home, other = (cpu_node(name, GPU=4.0) for name in ("home", "other"))
    held, free = home._replace(free={"GPU": 0.0}), other._replace(free={"GPU": 4.0})
    assert [node.id for node in learner_nodes([held, free], config, "home")] == ["other"]
    assert [node.id for node in learner_nodes([home, free], config, "home")] == ["home"]
    both_held = [held, other._replace(free={})]
    assert [node.id for node in learner_nodes(both_held, config, "home")] == ["home"]  # and waits there


def test_of_two_complete_slices_the_free_one_is_chosen():
    held = [tpu_host(worker, "a")._replace(free={"TPU": 4.0 * (worker != 2)}) for worker in range(4)]
    free = [tpu_host(worker, "b")._replace(free={"TPU": 4.0}) for worker in range(4)]
    assert [node.id for node in learner_nodes(held + free, V5E_16, "a-0")] == ["b-0", "b-1", "b-2", "b-3"]
    assert [node.id for node in learner_nodes(held, V5E_16, "a-0")] == ["a-0", "a-1", "a-2", "a-3"]


def test_the_error_counts_the_nodes_with_host_resources():
    config = ClusterConfig(hosts=3, host_resources={"GPU": 1})
    nodes = [cpu_node("home"), cpu_node("b", GPU=1.0), cpu_node("c", GPU=0.5)]
    with pytest.raises(MissingNodes) as missing:
        learner_nodes(nodes, config, "home")
    assert str(missing.value) == (
        "the learner needs 3 host(s) (cluster.hosts) with 1 GPU resources; 1 of 3 nodes have them"
    )
    with pytest.raises(MissingNodes, match=r"2 host\(s\) .*cluster\.hosts.*any resources; 1 of 1 "):
        learner_nodes([cpu_node("home")], ClusterConfig(hosts=2), "home")


def test_a_learner_process_reserves_all_chips_of_its_host_by_default():
    assert host_resources(V5E_16) == {"TPU": 4.0}
    assert host_resources(ClusterConfig(slice="v5e-1")) == {"TPU": 1.0}
    assert host_resources(ClusterConfig(slice="v5e-16", host_resources={"train": 1})) == {"train": 1.0}
    assert host_resources(ClusterConfig()) == {}


def test_actors_and_replay_use_tpu_hosts_only_if_the_experiment_allows_it():
    nodes = [tpu_host(0), cpu_node("a"), cpu_node("b", 4)]
    assert [node.id for node in actor_nodes(nodes, ClusterConfig())] == ["a", "b"]
    everywhere = ClusterConfig(actors_on_tpu_hosts=True)
    assert [node.id for node in actor_nodes(nodes, everywhere)] == ["x-0", "a", "b"]


def test_a_single_node_runs_everything_even_with_tpus():
    assert actor_nodes([tpu_host(0)], ClusterConfig()) == [tpu_host(0)]


def test_on_a_cluster_of_tpu_hosts_alone_the_error_names_the_setting_that_allows_actors_there():
    nodes = [tpu_host(0), tpu_host(1), cpu_node("head", 0)]
    with pytest.raises(MissingNodes) as missing:
        actor_nodes(nodes, ClusterConfig())
    assert str(missing.value) == (
        "all 2 nodes with free CPUs are TPU hosts; add CPU nodes, or let actors use the CPUs of TPU hosts with "
        "cluster.actors_on_tpu_hosts=true"
    )


@pytest.mark.parametrize("everywhere", [False, True])
def test_a_node_without_cpus_is_not_used(everywhere):
    nodes = [cpu_node("head", 0), cpu_node("a", 4), cpu_node("b", 4)]
    config = ClusterConfig(actors_on_tpu_hosts=everywhere)
    assert [node.id for node in actor_nodes(nodes, config)] == ["a", "b"]
    placement = place(nodes, experiment_of(shards=4, actors_on_tpu_hosts=everywhere), "head")
    assert {node.id for node in placement.shards} == {"a", "b"}


def test_each_actor_goes_to_the_node_with_most_free_cpus():
    nodes = [cpu_node("a", 4), cpu_node("b", 8), cpu_node("c", 6)]
    places = actor_places(nodes, {"b": 1.0}, 2.0, 5)  # free: 4, 7, 6
    assert [node.id for node in places] == ["b", "c", "b", "c", "a"]


def test_cpus_that_the_run_has_reserved_are_not_free():
    assert actor_places([cpu_node("a", 4)], {"a": 3.0}, 2.0, 1) == []
    assert actor_places([], {}, 1.0, 3) == []


amounts = st.sampled_from([0.5, 1.0, 2.0, 3.0])
clusters = st.lists(st.integers(0, 12), max_size=5).map(
    lambda sizes: [cpu_node(f"n{index}", float(size)) for index, size in enumerate(sizes)]
)


@given(clusters, st.dictionaries(st.sampled_from(["n0", "n1", "gone"]), st.integers(0, 12)), amounts, st.integers(0, 9))
def test_actors_never_exceed_the_cpus_of_a_node_and_all_are_placed_that_have_room(nodes, taken, cpus, count):
    places = actor_places(nodes, taken, cpus, count)
    load = Counter(node.id for node in places)
    left = {node.id: node.cpus - taken.get(node.id, 0) - cpus * load[node.id] for node in nodes}
    assert len(places) <= count
    assert all(left[name] >= 0 for name in load)
    assert len(places) == count or all(room < cpus for room in left.values())
    for node in places:  # no node had more free CPUs when its last actor was placed
        assert all(left[node.id] + cpus >= room for room in left.values())


def test_shards_are_spread_over_the_largest_nodes_first():
    nodes = [cpu_node("a", 4), cpu_node("b", 16), cpu_node("c", 8)]
    placement = place(nodes, experiment_of(shards=4), "a")
    assert [node.id for node in placement.shards] == ["b", "c", "a", "b"]
    assert [node.id for node in placement.learner] == ["a"]


def test_shards_are_not_placed_on_the_hosts_of_the_slice():
    nodes = [cpu_node("a", 4), *(tpu_host(worker) for worker in range(4))]
    placement = place(nodes, experiment_of(shards=4, slice="v5e-16"), "a")
    assert [node.id for node in placement.shards] == ["a"] * 4
    assert [node.id for node in placement.learner] == ["x-0", "x-1", "x-2", "x-3"]


def test_shards_share_a_node_only_when_no_other_has_room():
    nodes = [cpu_node("a", 4), cpu_node("b", 1.5), cpu_node("c", 0.25)]
    experiment = experiment_of(actors=1, shards=4, shard_cpus=0.75)
    assert [node.id for node in place(nodes, experiment, "a").shards] == ["a", "b", "a", "b"]


def test_shards_without_room_are_counted():
    with pytest.raises(MissingNodes) as missing:
        place([cpu_node("a", 2), cpu_node("b", 1)], experiment_of(shards=3, shard_cpus=1.5), "a")
    assert str(missing.value) == (
        "the nodes for actors have 3 free CPUs, room for 1 of 3 replay shards of 1.5 CPUs; "
        "add nodes, or lower replay.cpus"
    )


def test_actors_have_no_room_in_the_cpus_of_shards_and_the_error_says_so():
    nodes = [cpu_node("a", 3), cpu_node("b", 5)]
    with pytest.raises(MissingNodes) as missing:
        place(nodes, experiment_of(actors=4, cpus=2.0, shards=2, shard_cpus=0.5), "a")
    assert str(missing.value) == (
        "the nodes for actors have 8 free CPUs, room for 3 of 4 actors of 2 CPUs beside 2 replay shard(s) of 0.5 CPUs "
        "(replay.cpus); add nodes, or lower actors.count, actors.cpus or actors.min_count"
    )
    assert place(nodes, experiment_of(actors=3, cpus=2.0, shards=2, shard_cpus=0.5), "a")
    with pytest.raises(MissingNodes, match="room for 1 of 3 actors"):
        place(nodes, experiment_of(actors=3, cpus=2.0, shards=2, shard_cpus=1.5), "a")


def test_a_local_cluster_of_the_reserved_cpus_has_room_for_the_whole_run():
    experiment = experiment_of(actors=3, cpus=2.0, shards=2, shard_cpus=0.25)
    assert sum(reserved_cpus(experiment)) == 6.5
    assert place([cpu_node("a", 6.5)], experiment, "a")


def test_inference_servers_have_room_before_the_actors():
    tree = experiment_of(actors=2).model_dump() | {"server": {"count": 2, "cpus": 2.0}}
    tree["actors"]["inference"] = "server"
    experiment = parse(tree, "test")
    assert sum(reserved_cpus(experiment)) == 6.0
    assert place([cpu_node("a", 6)], experiment, "a")
    with pytest.raises(MissingNodes, match=r"1 of 2 inference servers .* 1 replay shard"):
        place([cpu_node("a", 3)], experiment, "a")
    with pytest.raises(MissingNodes, match="room for 0 of 2 actors"):
        place([cpu_node("a", 4)], experiment, "a")


def test_processes_without_room_are_those_that_no_node_can_take():
    nodes = [cpu_node("a", 3), cpu_node("b", 2)]
    assert without_room(nodes, {"a": 1.0}, [1.0, 2.0, 2.0, 0.5]) == [1.0, 0.5]
    assert without_room(nodes, {}, [2.0, 2.0, 1.0]) == []
    assert without_room([], {}, [1.0]) == [1.0]


def test_min_count_actors_are_enough_to_start():
    nodes = [cpu_node("a", 3), cpu_node("b", 5)]
    assert place(nodes, experiment_of(actors=4, cpus=2.0, min_count=3), "a").learner[0].id == "a"
    with pytest.raises(MissingNodes, match="room for 1 of 3 actors"):
        place([cpu_node("a", 3)], experiment_of(actors=4, cpus=2.0, min_count=3), "a")


def test_a_cluster_without_nodes_lacks_nodes():
    with pytest.raises(MissingNodes, match="0 of 0 nodes have them"):
        place([], experiment_of(), "a")
    with pytest.raises(MissingNodes, match=r"0 node\(s\) .*no TPUs"):
        place([], experiment_of(slice="v5e-1"), "a")
