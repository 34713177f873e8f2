"""Resources and nodes of Ray actors, on a real cluster."""

from __future__ import annotations

import os

import pytest

from podzero.errors import ClusterError
from podzero.runtime.cluster.ray_cluster import connect
from podzero.runtime.cluster.scheduling import resource_options


def test_cpus_gpus_and_memory_are_options_of_their_own():
    options = resource_options({"CPU": 2.0, "GPU": 8.0, "memory": 1e9, "TPU": 4.0})
    assert options == {"num_cpus": 2.0, "num_gpus": 8.0, "memory": 1e9, "resources": {"TPU": 4.0}}


def test_no_memory_is_reserved_where_none_is_asked_for():
    assert resource_options({"CPU": 2.0, "memory": 0})["memory"] is None


def test_a_bundle_with_gpus_cpus_memory_and_others_gives_them_to_its_process(shared_cluster):
    class Process:  # known to this process alone: Ray sends it by value
        def __init__(self, name):
            pass

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
