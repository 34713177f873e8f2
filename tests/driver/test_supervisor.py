"""The crew of a run over a cluster in memory: who goes where, who is replaced, and what ends a run."""

from __future__ import annotations

import logging
import threading
from pathlib import Path

import pytest
from fake_cluster import FakeCluster, cpu_node

from podzero.cluster import preflight as preflight_module
from podzero.cluster.placement import POD_TYPE, SLICE_NAME, WORKER_ID, Node
from podzero.cluster.remote import ClusterError, NodeLost, WorkerDied
from podzero.cluster.stale_processes import RUN_VARIABLE
from podzero.config import parse
from podzero.driver import supervisor as supervisor_module
from podzero.driver.learner_group import RunFailed
from podzero.driver.processes import LearnerProcess
from podzero.driver.savepoints import Savepoint
from podzero.driver.supervisor import Supervisor
from podzero.errors import ConfigError
from podzero.workdir import Workdir

VERSIONS = {"python": "3.11"}
TWO_SHARDS = {"shards": 2, "min_size": 8192}


class Impatient(threading.Event):
    """Waits for nobody; calls `meanwhile` instead, once for each wait."""

    def __init__(self, meanwhile):
        super().__init__()
        self._meanwhile = meanwhile

    def wait(self, timeout=None):
        self._meanwhile()
        return self.is_set()


def tpu_host(worker):
    labels = {SLICE_NAME: "x", WORKER_ID: str(worker), POD_TYPE: "v5litepod-16"}
    return Node(f"tpu-{worker}", f"10.0.1.{worker}", 100.0, {"CPU": 100.0, "TPU": 4.0}, labels)


@pytest.fixture
def recruit(monkeypatch, tmp_path):
    """A crew that is not started, over the given nodes of which the first is the driver's, and its cluster."""
    monkeypatch.setattr(preflight_module, "versions", lambda: VERSIONS)
    monkeypatch.setattr(supervisor_module, "LOOK_EVERY_S", 0.0)

    def make(*nodes, actors=2, joined=True, meanwhile=lambda: None, cluster=None, evaluation=None, **more):
        monkeypatch.setattr(supervisor_module, "current_node_id", lambda: nodes[0].id)
        tree = {
            "name": "crew",
            "env": {"name": "tic_tac_toe"},
            "actors": {"count": actors, "min_count": 1} | more.pop("actor", {}),
            "cluster": cluster or {},
            "evaluation": evaluation or {},
            "replay": {"cpus": 0.0} | more.pop("replay", {}),
            **more,
        }
        fake = FakeCluster(*nodes, joined=joined, versions=VERSIONS)
        supervisor = Supervisor(fake, parse(tree, "test"), Workdir(tmp_path), "the store", Impatient(meanwhile))
        return supervisor, fake

    return make


def nothing_saved():
    return None


def where(supervisor):
    """The node of each actor, by index."""
    return {index: worker.actor.node for index, worker in sorted(supervisor.actors.workers.items())}


def test_everybody_is_started_and_the_learner_at_work(recruit):
    supervisor, cluster = recruit(cpu_node("home", 4), replay=TWO_SHARDS)
    supervisor.start(None)
    assert {actor.name for actor in cluster.processes} == {"replay-0", "replay-1", "learner", "actor-0", "actor-1"}
    assert supervisor.learning
    assert cluster.named("actor-0").call("run").args == ()
    assert cluster.arguments["actor-1"]["store"] == "the store"
    assert {arguments["cpus"] for name, arguments in cluster.arguments.items() if "replay" in name} == {0.0}
    assert [cpus for cpus, _ in cluster.requests if cpus] == []


def test_replay_shards_reserve_cpus_beside_the_actors(recruit):
    supervisor, cluster = recruit(cpu_node("a", 4), cpu_node("b", 2), actors=6, replay=TWO_SHARDS | {"cpus": 0.5})
    supervisor.start(None)
    assert [cluster.arguments[f"replay-{index}"]["cpus"] for index in (0, 1)] == [0.5, 0.5]
    assert sorted(where(supervisor).values()) == ["a", "a", "a", "b"]


def test_a_lost_shard_starts_without_a_reservation_where_actors_took_its_cpus(recruit):
    supervisor, cluster = recruit(cpu_node("a", 2), cpu_node("b", 1.5), actors=4, replay=TWO_SHARDS | {"cpus": 0.5})
    supervisor.start(None)
    assert where(supervisor) == {0: "a", 1: "b"}
    lost = cluster.named("replay-1")
    lost.die(NodeLost("replay-1 is gone"))
    list(supervisor.listen())
    cluster.listed = [cpu_node("a", 1.5)]
    supervisor.reconcile(nothing_saved)
    assert (cluster.named("replay-1").node, cluster.arguments["replay-1"]["cpus"]) == ("a", 0.0)


def test_room_for_missing_processes_is_requested_until_they_have_started(recruit):
    evaluation = {"cpus": 0.5}
    supervisor, cluster = recruit(
        cpu_node("a", 2), actors=4, reanalyse=REANALYSE | {"cpus": 1.0}, evaluation=evaluation
    )
    supervisor.start(None)
    assert cluster.requests[-1] == ([0.5, 1.0, 1.0, 1.0, 1.0], ["a"])
    cluster.listed.append(cpu_node("b", 8))
    supervisor.reconcile(nothing_saved)
    assert cluster.requests[-1] == ([], ["a", "b"])


def test_room_is_requested_while_a_start_waits_for_it(recruit):
    def meanwhile():
        requested.append(cluster.requests[-1])
        cluster.listed.append(cpu_node("late", 8))

    requested = []
    supervisor, cluster = recruit(cpu_node("home", 1), actors=3, actor={"min_count": 3}, meanwhile=meanwhile)
    supervisor.start(None)
    assert requested == [([1.0, 1.0], ["home"])]
    assert cluster.requests[-1][0] == []


def test_each_process_but_the_learner_is_kept_off_accelerators_and_all_carry_the_run(recruit):
    supervisor, cluster = recruit(cpu_node("home", 4), actor={"cpus": 2.0})
    supervisor.start(None)
    environments = {name: arguments["environment"] for name, arguments in cluster.arguments.items()}
    assert {name for name, found in environments.items() if found.get("JAX_PLATFORMS") != "cpu"} == {"learner"}
    assert len({found[RUN_VARIABLE] for found in environments.values()}) == 1
    assert environments["actor-0"]["NPROC"] == "2"


def test_a_savepoint_is_given_to_all_who_hold_a_part_of_it(recruit):
    supervisor, cluster = recruit(cpu_node("home", 4))
    saved = Savepoint(40, Path("saves/40"), {}, {"rounds": 7})
    supervisor.start(saved)
    assert cluster.arguments["learner"]["restore_from"] == saved.folder
    assert cluster.arguments["replay-0"]["restore_from"] == saved.shard(0)
    assert supervisor.newest_ladder() == {"rounds": 7}


def test_actors_without_room_go_to_nodes_that_join_later(recruit):
    supervisor, cluster = recruit(cpu_node("a", 2), actors=5)
    supervisor.start(None)
    assert where(supervisor) == {0: "a", 1: "a"}
    assert supervisor.reconcile(nothing_saved) == []
    cluster.listed.append(cpu_node("b", 2))
    assert supervisor.reconcile(nothing_saved) == []
    assert where(supervisor) == {0: "a", 1: "a", 2: "b", 3: "b"}
    cluster.listed.append(cpu_node("c", 8))
    supervisor.reconcile(nothing_saved)
    assert where(supervisor)[4] == "c"
    assert supervisor.lives == supervisor.deaths == 0


def test_a_node_of_other_versions_that_joins_gets_no_actors(recruit, monkeypatch):
    supervisor, cluster = recruit(cpu_node("a", 1), actors=2)
    supervisor.start(None)
    cluster.answers[preflight_module.PreflightCheck]["versions"] = {"python": "3.12"}
    cluster.listed.append(cpu_node("b", 8))
    supervisor.reconcile(nothing_saved)
    assert where(supervisor) == {0: "a"}


def test_a_dead_actor_is_replaced_counted_and_plays_other_games(recruit, caplog):
    supervisor, cluster = recruit(cpu_node("home", 4))
    supervisor.start(None)
    first = cluster.named("actor-1")
    first.die(WorkerDied("actor-1 is gone: SIGKILL"))
    with caplog.at_level(logging.WARNING, "podzero"):
        assert supervisor.reconcile(nothing_saved) == ["actor-1"]
    assert (supervisor.lives, supervisor.deaths) == (1, 1)
    assert "actor-1 died and is started again (restart 1): actor-1 is gone: SIGKILL" in caplog.text
    assert first.killed
    assert cluster.named("actor-1") is not first
    assert cluster.arguments["actor-0"]["life"] != cluster.arguments["actor-1"]["life"]
    assert supervisor.reconcile(nothing_saved) == []


@pytest.mark.parametrize("end", [ValueError("wrong board"), None], ids=["raised", "returned"])
def test_an_actor_whose_work_ends_by_itself_counts_as_dead(recruit, end):
    supervisor, cluster = recruit(cpu_node("home", 4))
    supervisor.start(None)
    cluster.named("actor-0").call("run").end(end)
    assert supervisor.reconcile(nothing_saved) == ["actor-0"]
    assert supervisor.deaths == 1


def test_an_actor_lost_with_its_machine_is_no_death_and_starts_again_where_there_is_room(recruit):
    supervisor, cluster = recruit(cpu_node("a", 3), cpu_node("b", 4), actors=2, actor={"max_restarts": 0})
    supervisor.start(None)
    assert where(supervisor) == {0: "b", 1: "b"}  # the last name, where room is equal
    cluster.listed.pop()
    for name in ("actor-0", "actor-1"):
        cluster.named(name).die(NodeLost(f"{name} is gone"))
    assert supervisor.reconcile(nothing_saved) == ["actor-0", "actor-1"]
    assert where(supervisor) == {0: "a", 1: "a"}
    assert (supervisor.lives, supervisor.deaths) == (2, 0)


def test_an_actor_lost_with_its_machine_waits_until_room_comes(recruit):
    supervisor, cluster = recruit(cpu_node("a", 1), cpu_node("b", 1), actors=2)
    supervisor.start(None)
    (lost,) = [index for index, node in where(supervisor).items() if node == "b"]
    cluster.listed.pop()
    cluster.named(f"actor-{lost}").die(NodeLost("gone"))
    assert supervisor.reconcile(nothing_saved) == [f"actor-{lost}"]
    assert lost not in supervisor.actors.workers
    assert supervisor.reconcile(nothing_saved) == []
    cluster.listed.append(cpu_node("b2", 1))
    supervisor.reconcile(nothing_saved)
    assert where(supervisor)[lost] == "b2"
    assert supervisor.deaths == 0


def test_more_deaths_than_max_restarts_end_the_run_with_the_last_words(recruit):
    supervisor, cluster = recruit(cpu_node("home", 4), actor={"max_restarts": 2})
    supervisor.start(None)
    for _ in range(2):
        cluster.named("actor-0").die(WorkerDied("actor-0 is gone: again"))
        supervisor.reconcile(nothing_saved)
    cluster.named("actor-1").die(WorkerDied("actor-1 is gone: a bug"))
    with pytest.raises(RunFailed, match=r"actor-1 died, the 3th death .* allows 2\. Its last words: .* a bug"):
        supervisor.reconcile(nothing_saved)


def test_what_the_experiment_is_to_blame_for_is_not_tried_again(recruit):
    supervisor, cluster = recruit(cpu_node("home", 4), actor={"max_restarts": 2})
    supervisor.start(None)
    cluster.named("actor-0").call("run").end(ConfigError("env.kwargs: no such map"))
    with pytest.raises(RunFailed, match=r"actor-0 cannot do what the experiment asks for: env\.kwargs: no such map"):
        supervisor.reconcile(nothing_saved)


def test_a_lost_learner_machine_is_told_to_the_driver(recruit):
    supervisor, cluster = recruit(cpu_node("home", 4))
    supervisor.start(None)
    cluster.named("learner").die(NodeLost("learner is gone"))
    with pytest.raises(NodeLost):
        assert supervisor.learning


def test_a_dead_evaluator_is_replaced_and_goes_on_from_the_last_ladder(recruit):
    supervisor, cluster = recruit(cpu_node("home", 4))
    supervisor.start(None)
    supervisor.start_evaluator()
    assert supervisor.newest_ladder() == {"rounds": 3}
    cluster.named("evaluator").die(WorkerDied("evaluator is gone"))
    assert supervisor.reconcile(nothing_saved) == ["evaluator"]
    assert cluster.arguments["evaluator"]["ladder"] == {"rounds": 3}
    assert len(cluster.living("evaluator")) == 1


@pytest.mark.parametrize("failure", [NodeLost("evaluator is gone"), WorkerDied("evaluator is gone")])
def test_an_evaluator_without_room_comes_back_when_room_does(recruit, failure):
    supervisor, cluster = recruit(cpu_node("a", 2), cpu_node("b", 8), actors=2, evaluation={"cpus": 4.0})
    supervisor.start(None)
    supervisor.start_evaluator()
    assert cluster.named("evaluator").node == "b"
    cluster.listed.pop()
    cluster.named("evaluator").die(failure)
    supervisor.reconcile(nothing_saved)
    assert supervisor.evaluator is None
    cluster.listed.append(cpu_node("c", 8))
    supervisor.start_evaluator()
    assert cluster.named("evaluator").node == "c"


def test_a_start_waits_for_machines_names_what_is_missing_and_goes_on_when_they_join(recruit, caplog):
    waits = []

    def meanwhile():
        waits.append(1)
        cluster.listed.append(tpu_host(3 - len(waits)))

    supervisor, cluster = recruit(
        cpu_node("home", 4), tpu_host(3), meanwhile=meanwhile, cluster={"slice": "v5e-16"}, replay={"shards": 4}
    )
    with caplog.at_level(logging.INFO, "podzero"):
        supervisor.start(None)
    assert len(waits) == 3
    assert "waiting for machines: v5e-16 has 4 hosts" in caplog.text
    assert "of slice 'x' host(s) 0, 1, 2 have not joined, 3 have" in caplog.text
    assert caplog.text.count("waiting for machines") == 1  # then every half minute
    assert [actor.node for actor in cluster.living("learner")] == [f"tpu-{rank}" for rank in range(4)]


def test_a_start_ends_after_join_minutes_with_who_is_missing_and_who_was_refused(recruit):
    late = {"slice": "v5e-16", "join_minutes": 1e-6}
    supervisor, cluster = recruit(cpu_node("home", 4), tpu_host(0), cluster=late, replay={"shards": 4})
    cluster.answers[preflight_module.PreflightCheck]["versions"] = {"python": "3.12"}
    with pytest.raises(ClusterError) as ended:
        supervisor.start(None)
    words = str(ended.value)
    assert words.startswith("waited 1e-06 minutes (cluster.join_minutes) for machines: v5e-16 has 4 hosts")
    assert "\n  not used: node tpu-0 at 10.0.1.0: python 3.12, the driver has 3.11" in words
    assert cluster.processes == []


def test_one_machine_alone_is_not_waited_for(recruit):
    def meanwhile():
        raise AssertionError("nobody can join it")

    supervisor, _ = recruit(
        cpu_node("home", 4), joined=False, meanwhile=meanwhile, cluster={"hosts": 2}, replay=TWO_SHARDS
    )
    with pytest.raises(ClusterError, match=r"needs 2 host\(s\) .* 1 of 1 nodes have them"):
        supervisor.start(None)


def test_a_wait_for_machines_ends_when_the_run_shall(recruit):
    def meanwhile():
        supervisor.stopping.set()

    supervisor, cluster = recruit(cpu_node("home", 4), meanwhile=meanwhile, cluster={"hosts": 2}, replay=TWO_SHARDS)
    with pytest.raises(ClusterError, match=r"stopped while waiting for machines: the learner needs 2 host\(s\)"):
        supervisor.start(None)
    assert cluster.processes == []


def slice_crew(recruit, **more):
    hosts = [tpu_host(worker) for worker in range(4)]
    return recruit(cpu_node("home", 4), *hosts, cluster={"slice": "v5e-16"}, replay={"shards": 4}, **more)


def test_the_hosts_of_a_slice_are_reserved_together_and_told_where_host_0_is(recruit):
    supervisor, cluster = slice_crew(recruit)
    supervisor.start(None)
    (gang,) = cluster.gangs
    assert [node.id for node in gang.nodes] == ["tpu-0", "tpu-1", "tpu-2", "tpu-3"]
    assert gang.resources == {"TPU": 4.0}
    for rank, name in enumerate(["learner", "learner-1", "learner-2", "learner-3"]):
        arguments = cluster.arguments[name]
        assert (arguments["rank"], arguments["bundle"]) == (rank, f"bundle on tpu-{rank}")
        assert arguments["coordinator"] == "10.0.1.0:4321"


def test_chips_that_somebody_else_holds_end_the_start_and_leave_nobody_behind(recruit):
    supervisor, cluster = slice_crew(recruit)
    cluster.answers[preflight_module.PreflightCheck]["end_stale_processes"] = ClusterError(
        "the TPU chips are held by process 7"
    )
    with pytest.raises(ClusterError, match="held by process 7"):
        supervisor.start(None)
    assert cluster.living("") == []
    assert cluster.gangs == []


def test_a_learner_that_cannot_be_built_ends_the_start_with_its_words_and_frees_its_machines(recruit):
    supervisor, cluster = slice_crew(recruit)
    cluster.answers[LearnerProcess]["ready"] = ValueError("the mesh does not fit")
    with pytest.raises(ValueError, match="the mesh does not fit"):
        supervisor.start(None)
    assert cluster.living("") == []
    assert cluster.gangs[0].released


def test_kill_ends_everybody_and_gives_machines_and_wishes_back(recruit):
    supervisor, cluster = slice_crew(recruit)
    supervisor.start(None)
    supervisor.start_evaluator()
    supervisor.kill()
    assert cluster.living("") == []
    assert cluster.gangs[0].released
    assert cluster.requests[-1] == ([], [])
    assert not supervisor.learning
    killed = [line.removesuffix(" killed") for line in cluster.diary if line.endswith("killed")]
    assert killed.index("learner") > killed.index("learner-1")
    supervisor.kill()  # there is nobody left to end


def test_a_crew_that_was_killed_can_be_started_again_on_other_machines(recruit):
    supervisor, cluster = slice_crew(recruit)
    supervisor.start(None)
    supervisor.kill()
    lost = cluster.listed[2]
    cluster.listed[2] = lost._replace(id="tpu-1-new")
    supervisor.start(Savepoint(40, Path("saves/40"), {}, {}))
    assert supervisor.learning
    assert [actor.node for actor in cluster.living("learner")] == ["tpu-0", "tpu-1-new", "tpu-2", "tpu-3"]
    assert not cluster.gangs[1].released
    assert len(cluster.living("replay")) == 4


def test_a_lost_shard_comes_to_life_elsewhere_and_everybody_is_led_there(recruit):
    supervisor, cluster = recruit(cpu_node("a", 8), cpu_node("b", 4), replay=TWO_SHARDS, cluster={"hosts": 1})
    supervisor.start(None)
    saved = Savepoint(40, Path("saves/40"), {}, {})
    list(supervisor.listen())
    lost = cluster.named("replay-1")
    cluster.listed = [node for node in cluster.listed if node.id != lost.node]
    lost.die(NodeLost("replay-1 is gone"))
    lost.calls[-1].end(NodeLost("replay-1 is gone"))
    assert supervisor.reconcile(lambda: saved) == ["replay-1"]
    found = cluster.named("replay-1")
    assert found is not lost
    assert found.node != lost.node
    assert cluster.arguments["replay-1"]["restore_from"] == saved.shard(1)
    moved = ("replay-1, life 0", "replay-1, life 1")
    assert cluster.named("learner").call("moved").args == moved
    assert all(worker.actor.call("moved").args == moved for worker in supervisor.actors.workers.values())
    assert supervisor.deaths == 0


def test_what_everybody_says_is_heard_and_no_answer_holds_the_others_up(recruit):
    supervisor, cluster = recruit(cpu_node("home", 4), replay={"shards": 1})
    supervisor.start(None)
    cluster.named("actor-0").answers["drain"] = ["words of actor-0"]
    cluster.named("actor-1").answers["drain"] = cluster.answers[LearnerProcess]["run"]  # pending
    cluster.named("learner").answers["drain"] = ["words of the learner"]
    assert list(supervisor.listen()) == []  # asked for, and heard the next time
    assert list(supervisor.listen()) == ["words of actor-0", "words of the learner"]
    assert cluster.named("replay-0").call("metrics").done


def test_actors_are_asked_to_end_before_they_are_killed_and_their_last_words_heard(recruit):
    supervisor, cluster = recruit(cpu_node("home", 4))
    supervisor.start(None)
    for index in range(2):
        actor = cluster.named(f"actor-{index}")
        actor.call("run").end(None)
        actor.answers["drain"] = [f"last words of {actor.name}"]
    cluster.diary.clear()
    assert supervisor.stop_actors() == ["last words of actor-0", "last words of actor-1"]
    assert cluster.diary[:2] == ["actor-0 stop", "actor-1 stop"]
    assert cluster.diary[-2:] == ["actor-0 killed", "actor-1 killed"]
    assert supervisor.actors.workers == {}


REANALYSE = {"share": 0.5, "count": 2, "cpus": 2.0}


def test_reanalysers_are_started_beside_actors_and_on_cpus_alone(recruit):
    supervisor, cluster = recruit(cpu_node("home", 8), reanalyse=REANALYSE)
    supervisor.start(None)
    assert [actor.name for actor in cluster.living("reanalyser")] == ["reanalyser-0", "reanalyser-1"]
    assert cluster.named("reanalyser-1").call("run").args == ()
    arguments = cluster.arguments["reanalyser-1"]
    assert (arguments["index"], arguments["store"]) == (1, "the store")
    assert arguments["environment"]["JAX_PLATFORMS"] == "cpu"
    assert arguments["environment"]["NPROC"] == "2"


def test_nobody_searches_again_where_no_share_is_asked_for(recruit):
    supervisor, cluster = recruit(cpu_node("home", 8), reanalyse={"count": 2})
    supervisor.start(None)
    assert cluster.living("reanalyser") == []


def test_where_room_is_scarce_one_reanalyser_comes_before_all_actors_and_the_others_after(recruit):
    supervisor, cluster = recruit(cpu_node("home", 4), actors=2, reanalyse=REANALYSE | {"cpus": 1.5})
    supervisor.start(None)
    assert {actor.name for actor in cluster.living("")} >= {"reanalyser-0", "actor-0", "actor-1"}
    assert cluster.living("reanalyser-1") == []
    cluster.listed.append(cpu_node("late", 2))
    supervisor.reconcile(nothing_saved)
    assert cluster.named("reanalyser-1").node == "late"


def test_a_run_waits_for_room_for_a_reanalyser(recruit):
    supervisor, cluster = recruit(cpu_node("home", 2), joined=False, reanalyse=REANALYSE | {"cpus": 4.0})
    with pytest.raises(ClusterError, match=r"have 2 free CPUs, no room for a reanalyser of 4 \(reanalyse.cpus\)"):
        supervisor.start(None)
    assert cluster.processes == []


def test_a_dead_reanalyser_is_replaced_and_counted(recruit, caplog):
    supervisor, cluster = recruit(cpu_node("home", 8), reanalyse=REANALYSE)
    supervisor.start(None)
    first = cluster.named("reanalyser-1")
    first.die(WorkerDied("reanalyser-1 is gone: SIGKILL"))
    assert supervisor.reconcile(nothing_saved) == ["reanalyser-1"]
    assert "reanalyser-1 died and is started again (restart 1)" in caplog.text
    assert (supervisor.lives, supervisor.deaths) == (1, 1)
    assert first.killed
    assert cluster.named("reanalyser-1") is not first
    assert cluster.arguments["reanalyser-1"]["life"] == 1


def test_reanalysers_are_heard_and_led_to_a_shard_that_moved(recruit):
    supervisor, cluster = recruit(cpu_node("a", 8), replay={"shards": 1}, reanalyse=REANALYSE)
    supervisor.start(None)
    cluster.named("reanalyser-0").answers["drain"] = ["words of reanalyser-0"]
    list(supervisor.listen())
    assert list(supervisor.listen()) == ["words of reanalyser-0"]
    lost = cluster.named("replay-0")
    lost.die(WorkerDied("replay-0 is gone"))
    lost.calls[-1].end(WorkerDied("replay-0 is gone"))
    supervisor.reconcile(nothing_saved)
    for name in ("reanalyser-0", "reanalyser-1", "actor-0", "learner"):
        assert cluster.named(name).call("moved").args == ("replay-0, life 0", "replay-0, life 1")


def test_reanalysers_end_with_the_actors_while_the_learner_still_takes_what_they_write(recruit):
    supervisor, cluster = recruit(cpu_node("home", 8), actors=1, reanalyse=REANALYSE | {"count": 1})
    supervisor.start(None)
    for name in ("actor-0", "reanalyser-0"):
        cluster.named(name).call("run").end(None)
    cluster.diary.clear()
    supervisor.stop_actors()
    assert cluster.diary[:2] == ["actor-0 stop", "reanalyser-0 stop"]
    assert cluster.diary[-2:] == ["actor-0 killed", "reanalyser-0 killed"]
    assert supervisor.learning
    assert supervisor.reanalysers.workers == {}
