"""Other clusters on the machine: one that a run joins, and one that it must leave alone."""

from __future__ import annotations

import pytest

from podzero.cluster.ray_cluster import local_node
from podzero.driver.train import train


@pytest.fixture(scope="module")
def cluster():
    """A cluster of two nodes of one CPU each, started by somebody else."""
    from ray.cluster_utils import Cluster

    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("RAY_ENABLE_UV_RUN_RUNTIME_ENV", "0")
        nodes = Cluster(initialize_head=True, head_node_args=local_node(1))
        nodes.add_node(**{key: value for key, value in local_node(1).items() if key != "include_dashboard"})
        yield nodes
        nodes.shutdown()


@pytest.mark.slow
def test_actors_spread_over_the_nodes_of_a_cluster_that_runs_already(cluster, tmp_path, tiny, watch, running):
    raylets = set()

    def look(status):
        if status.games:
            raylets.update(actor.ppid() for actor in running("ray::ActorProcess"))
        return len(raylets) == 2

    train(tiny("actors.count=2", "stop.steps=200"), tmp_path / "run", cluster.address, watch(look))
    assert len(raylets) == 2


@pytest.mark.slow
def test_a_cluster_that_was_not_named_is_left_alone(cluster, tmp_path, monkeypatch, tiny, watch, running):
    monkeypatch.setenv("RAY_ADDRESS", cluster.address)  # what other tools would join
    others = {raylet.pid for raylet in running("raylet/raylet")}
    assert len(others) == 2
    homes = set()

    def look(status):
        homes.update(actor.ppid() for actor in running("ray::ActorProcess"))
        return bool(homes)

    assert train(tiny("stop.steps=40"), tmp_path / "run", None, watch(look)) == "40 steps are done"
    assert homes
    assert not homes & others
    assert {raylet.pid for raylet in running("raylet/raylet")} == others
