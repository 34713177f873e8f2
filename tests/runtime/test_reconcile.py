"""Reconciling over a cluster in memory: which workers are replaced, where, and what ends a run."""

from __future__ import annotations

import logging
from collections import Counter
from concurrent.futures import Future
from pathlib import Path

import pytest
from fake_cluster import PENDING, FakeRemoteActor, cpu_node

from podzero.core.errors import ConfigError
from podzero.core.waiting import in_thread
from podzero.files.storage import StorageError, shard_folder
from podzero.replay.errors import PortTaken
from podzero.runtime import supervisor as supervisor_module
from podzero.runtime import workers
from podzero.runtime.checkpoints import Checkpoint, SavedShard
from podzero.runtime.cluster.remote import BUILD_TIMEOUT_S, START_TIMEOUT_S, NodeLost, WorkerDied
from podzero.runtime.failures import LIMITS
from podzero.runtime.kinds import ReplayProcess
from podzero.runtime.monitoring.reports import MetricsReport
from podzero.runtime.workers import LearnerFailed, RunFailed

TWO_SHARDS = {"shards": 2, "min_size": 8192}
REANALYSE = {"share": 0.5, "count": 2}


def saved_at(step):
    folder = Path(f"saves/{step}")
    return Checkpoint(step, folder, {}, {}, [SavedShard(shard_folder(folder, index), 100) for index in range(2)], step)


SAVED = saved_at(40)


def nothing_saved():
    return None


def test_actors_without_room_start_on_nodes_that_join_later(start):
    supervisor, cluster = start(cpu_node("a", 2), actors={"count": 5})
    assert cluster.places("actor") == {"actor-0": "a", "actor-1": "a"}
    assert supervisor.reconcile(nothing_saved) == []
    cluster.listed.append(cpu_node("b", 2))
    assert supervisor.reconcile(nothing_saved) == []
    assert cluster.places("actor") == {"actor-0": "a", "actor-1": "a", "actor-2": "b", "actor-3": "b"}
    cluster.listed.append(cpu_node("c", 8))
    assert supervisor.reconcile(nothing_saved) == []
    assert cluster.places("actor")["actor-4"] == "c"


def test_room_for_absent_workers_is_requested_until_they_have_started(start):
    sections = {"reanalyse": REANALYSE, "actors": {"count": 4}}
    supervisor, cluster = start(cpu_node("a", 2), **sections)
    assert cluster.requests[-1] == ([1.0, 1.0, 1.0, 1.0], ["a"])
    cluster.listed.append(cpu_node("b", 8))
    supervisor.reconcile(nothing_saved)
    assert cluster.requests[-1] == ([], ["a", "b"])


def test_replay_shards_reserve_cpus_beside_the_actors(start):
    _, cluster = start(cpu_node("a", 4), cpu_node("b", 2), actors={"count": 6}, replay=TWO_SHARDS | {"cpus": 0.5})
    assert [cluster.options[f"replay-{index}"]["cpus"] for index in (0, 1)] == [0.5, 0.5]
    assert sorted(cluster.places("actor").values()) == ["a", "a", "a", "b"]


@pytest.mark.parametrize("name", ["actor-1", "reanalyser-1"])
def test_a_dead_worker_is_replaced_once_and_its_successor_differs_in_its_seed(start, name, caplog):
    supervisor, cluster = start(cpu_node("home", 8), reanalyse=REANALYSE)
    first, before = cluster.named(name), cluster.started[name]
    first.die(WorkerDied(f"{name} is gone: SIGKILL"))
    with caplog.at_level(logging.WARNING, "podzero"):
        assert supervisor.reconcile(nothing_saved) == [name]
    assert any(record.exc_info and "SIGKILL" in str(record.exc_info[1]) for record in caplog.records)
    assert first.killed
    assert cluster.named(name) is not first
    assert cluster.started[name].attempt != before.attempt
    assert supervisor.reconcile(nothing_saved) == []


@pytest.mark.parametrize("end", [ValueError("wrong board"), None], ids=["raised", "returned"])
def test_a_worker_whose_work_ends_by_itself_is_replaced(start, end):
    supervisor, cluster = start(cpu_node("home", 4))
    cluster.named("actor-0").last("run").end(end)
    assert supervisor.reconcile(nothing_saved) == ["actor-0"]
    assert cluster.places("actor").keys() == {"actor-0", "actor-1"}


def test_workers_lost_with_their_node_are_no_failures_and_start_where_there_is_room(start, restart_limits):
    restart_limits(max_first_failures=1)
    supervisor, cluster = start(cpu_node("a", 3), cpu_node("b", 4))
    assert cluster.places("actor") == {"actor-0": "b", "actor-1": "b"}  # the last name, where room is equal
    cluster.listed.pop()
    for name in ("actor-0", "actor-1"):
        cluster.named(name).die(NodeLost(f"{name} is gone"))
    assert supervisor.reconcile(nothing_saved) == ["actor-0", "actor-1"]
    assert cluster.places("actor") == {"actor-0": "a", "actor-1": "a"}


def test_a_worker_lost_with_its_node_waits_for_room(start):
    supervisor, cluster = start(cpu_node("a", 1), cpu_node("b", 1))
    (lost,) = [name for name, node in cluster.places("actor").items() if node == "b"]
    cluster.listed.pop()
    cluster.named(lost).die(NodeLost("gone"))
    assert supervisor.reconcile(nothing_saved) == [lost]
    assert lost not in cluster.places("actor")
    assert supervisor.reconcile(nothing_saved) == []
    cluster.listed.append(cpu_node("b2", 1))
    supervisor.reconcile(nothing_saved)
    assert cluster.places("actor")[lost] == "b2"


def test_an_error_of_the_experiment_ends_the_run_at_once(start):
    supervisor, cluster = start(cpu_node("home", 4))
    cluster.named("actor-0").last("run").end(ConfigError("env.kwargs: no such map"))
    with pytest.raises(RunFailed, match=r"actor-0 .*env\.kwargs"):
        supervisor.reconcile(nothing_saved)


def test_the_evaluator_is_started_when_it_is_wanted_and_continues_its_ladder_after_a_failure(start):
    supervisor, cluster = start(cpu_node("home", 4))
    supervisor.reconcile(nothing_saved)
    assert cluster.alive("evaluator") == []
    supervisor.start_evaluator()
    supervisor.reconcile(nothing_saved)
    supervisor.ladder = {"rounds": 3}
    cluster.named("evaluator").die(WorkerDied("evaluator is gone"))
    assert supervisor.reconcile(nothing_saved) == ["evaluator"]
    assert cluster.started["evaluator"].context.ladder == {"rounds": 3}
    assert cluster.alive("evaluator") == ["evaluator"]


@pytest.mark.parametrize("failure", [NodeLost("evaluator is gone"), WorkerDied("evaluator is gone")])
def test_an_evaluator_without_room_starts_when_a_node_joins(start, failure):
    supervisor, cluster = start(cpu_node("a", 2), cpu_node("b", 8), evaluation={"cpus": 4.0})
    supervisor.start_evaluator()
    supervisor.reconcile(nothing_saved)
    assert cluster.places("evaluator") == {"evaluator": "b"}
    cluster.listed.pop()
    cluster.named("evaluator").die(failure)
    supervisor.reconcile(nothing_saved)
    assert cluster.alive("evaluator") == []
    cluster.listed.append(cpu_node("c", 8))
    supervisor.reconcile(nothing_saved)
    assert cluster.places("evaluator") == {"evaluator": "c"}


def test_one_reanalyser_starts_before_all_actors_and_the_others_after_them(start):
    supervisor, cluster = start(cpu_node("home", 3.5), reanalyse=REANALYSE)
    assert {*cluster.alive("actor"), *cluster.alive("reanalyser")} == {"reanalyser-0", "actor-0", "actor-1"}
    cluster.listed.append(cpu_node("late", 2))
    supervisor.reconcile(nothing_saved)
    assert cluster.places("reanalyser")["reanalyser-1"] == "late"


def lose_shard(supervisor, cluster, name, failure):
    """The process of a shard dies, and the driver listens to it."""
    lost = cluster.named(name)
    lost.die(failure)
    lost.last("drain").end(failure)
    list(supervisor.listen())
    return lost


def test_a_lost_shard_restarts_on_another_node_from_the_checkpoint(start):
    nodes = cpu_node("a", 8), cpu_node("b", 4)
    supervisor, cluster = start(*nodes, replay=TWO_SHARDS, reanalyse=REANALYSE, cluster={"hosts": 1})
    lost, before = cluster.named("replay-1"), cluster.started["replay-1"]
    cluster.listed = [node for node in cluster.listed if node.id != lost.node]
    lose_shard(supervisor, cluster, "replay-1", NodeLost("replay-1 is gone"))
    assert supervisor.reconcile(lambda: SAVED) == ["replay-1"]
    found = cluster.named("replay-1")
    assert found is not lost
    assert found.node != lost.node
    assert cluster.started["replay-1"].contents == SAVED.shard(1)
    assert cluster.started["replay-1"].attempt > before.attempt  # the directory ignores announcements of the old one


def test_storage_that_hangs_keeps_only_a_lost_shard_waiting(start, monkeypatch):
    supervisor, cluster = start(cpu_node("home", 8))
    answer = Future()
    monkeypatch.setattr(supervisor_module, "in_thread", lambda name, work, patience_s: answer)
    lose_shard(supervisor, cluster, "replay-0", WorkerDied("replay-0 is gone"))
    assert supervisor.reconcile(nothing_saved) == []
    cluster.named("actor-0").die(WorkerDied("actor-0 is gone"))
    list(supervisor.listen())
    assert supervisor.reconcile(nothing_saved) == ["actor-0"]
    answer.set_result(SAVED)
    assert supervisor.reconcile(nothing_saved) == ["replay-0"]
    assert cluster.started["replay-0"].contents == SAVED.shard(0)


def test_a_lost_shard_restarts_without_a_reservation_where_actors_took_its_cpus(start):
    replay = TWO_SHARDS | {"cpus": 0.5}
    supervisor, cluster = start(cpu_node("a", 2), cpu_node("b", 1.5), actors={"count": 4}, replay=replay)
    cluster.listed = [cpu_node("a", 1.5)]
    lose_shard(supervisor, cluster, "replay-1", NodeLost("replay-1 is gone"))
    assert supervisor.reconcile(nothing_saved) == ["replay-1"]
    assert (cluster.named("replay-1").node, cluster.options["replay-1"]["cpus"]) == ("a", 0.0)


def test_no_other_process_takes_the_cpus_of_a_shard_that_waits_to_restart(start, clock):
    supervisor, cluster = start(cpu_node("a", 3), replay={"cpus": 0.5}, evaluation={"cpus": 1.0})
    for _ in range(2):  # the second failure is followed by a pause
        list(supervisor.listen())
        lose_shard(supervisor, cluster, "replay-0", WorkerDied("replay-0 is gone"))
        supervisor.reconcile(nothing_saved)
    supervisor.start_evaluator()
    assert supervisor.reconcile(nothing_saved) == []
    assert cluster.alive("evaluator") == []
    clock[0] += LIMITS.first_pause_s
    assert supervisor.reconcile(nothing_saved) == ["replay-0"]
    assert cluster.options["replay-0"]["cpus"] == 0.5


def test_a_shard_whose_checkpoint_was_deleted_meanwhile_takes_its_contents_from_the_next(start, restart_limits):
    restart_limits(first_pause_s=0.0)
    supervisor, cluster = start(cpu_node("home", 8))
    cluster.answers[ReplayProcess]["ready"] = PENDING
    lose_shard(supervisor, cluster, "replay-0", WorkerDied("replay-0 is gone"))
    assert supervisor.reconcile(lambda: SAVED) == ["replay-0"]
    del cluster.answers[ReplayProcess]["ready"]
    cluster.named("replay-0").last("ready").end(StorageError("saves/40 is not found"))
    newer = saved_at(80)
    assert supervisor.reconcile(lambda: newer) == ["replay-0"]
    assert cluster.started["replay-0"].contents == newer.shard(0)


def unseen():
    raise StorageError("saves shows no checkpoint, but the run had one of step 40")


def test_a_lost_shard_does_not_restart_empty_while_the_checkpoints_are_not_seen(start, restart_limits):
    restart_limits(first_pause_s=0.0, max_first_failures=9)
    supervisor, cluster = start(cpu_node("home", 8))
    lost = lose_shard(supervisor, cluster, "replay-0", WorkerDied("replay-0 is gone"))
    for _ in range(3):
        assert supervisor.reconcile(unseen) == []
    assert cluster.named("replay-0") is lost
    assert "one of step 40" in supervisor.failures.failing["replay-0"]
    assert supervisor.reconcile(lambda: SAVED) == ["replay-0"]
    assert cluster.started["replay-0"].contents == SAVED.shard(0)


def test_checkpoints_that_stay_away_from_a_lost_shard_end_the_run_at_last(start, restart_limits):
    restart_limits(first_pause_s=0.0, max_first_failures=2)
    supervisor, cluster = start(cpu_node("home", 8))
    lose_shard(supervisor, cluster, "replay-0", WorkerDied("replay-0 is gone"))
    with pytest.raises(RunFailed, match="one of step 40"):
        supervisor.reconcile(unseen)


def test_a_restarted_shard_that_never_listens_is_a_failure_that_is_tried_again(start, clock, caplog):
    supervisor, cluster = start(cpu_node("home", 8))
    cluster.answers[ReplayProcess] |= {"ready": PENDING, "drain": PENDING}
    lose_shard(supervisor, cluster, "replay-0", WorkerDied("replay-0 is gone"))
    assert supervisor.reconcile(nothing_saved) == ["replay-0"]
    pass_time(supervisor, clock, int(BUILD_TIMEOUT_S))
    assert supervisor.reconcile(nothing_saved) == []
    pass_time(supervisor, clock, int(START_TIMEOUT_S) + 2)
    cluster.answers[ReplayProcess] |= {"ready": None, "drain": []}
    assert supervisor.reconcile(nothing_saved) == supervisor.reconcile(nothing_saved) == []
    clock[0] += LIMITS.first_pause_s
    assert supervisor.reconcile(nothing_saved) == ["replay-0"]
    assert supervisor.reconcile(nothing_saved) == []
    assert "replay-0 has not answered for 1982 s since it was to start" in caplog.text


def test_a_lost_shard_without_a_node_is_named_once_and_room_for_it_is_requested(start, caplog):
    supervisor, cluster = start(cpu_node("a", 4), actors={"count": 1}, replay={"cpus": 0.5})
    cluster.listed.clear()
    lose_shard(supervisor, cluster, "replay-0", NodeLost("replay-0 is gone"))
    for _ in range(3):
        assert supervisor.reconcile(nothing_saved) == []
    (line,) = [message for message in caplog.messages if "no node can run it" in message]
    assert line.startswith("replay-0 is lost")
    assert cluster.requests[-1][0] == [0.5]
    cluster.listed.append(cpu_node("b", 4))
    assert supervisor.reconcile(nothing_saved) == ["replay-0"]
    assert cluster.requests[-1][0] == []


def test_a_shard_that_fails_otherwise_keeps_its_contents_for_the_next_attempt(start, restart_limits):
    restart_limits(first_pause_s=0.0)
    supervisor, cluster = start(cpu_node("home", 8))
    cluster.answers[ReplayProcess]["ready"] = PortTaken("port 7 is taken")
    lose_shard(supervisor, cluster, "replay-0", WorkerDied("replay-0 is gone"))
    assert supervisor.reconcile(lambda: SAVED) == ["replay-0"]
    del cluster.answers[ReplayProcess]["ready"]
    assert supervisor.reconcile(lambda: SAVED) == ["replay-0"]
    assert cluster.started["replay-0"].contents == SAVED.shard(0)


def test_a_restarted_shard_that_cannot_be_built_is_a_failure_that_is_tried_again(start, restart_limits):
    restart_limits(first_pause_s=0.0)
    supervisor, cluster = start(cpu_node("home", 8))
    taken = RuntimeError("port 7 is taken")
    cluster.answers[ReplayProcess]["ready"] = taken
    lose_shard(supervisor, cluster, "replay-0", WorkerDied("replay-0 is gone"))
    assert supervisor.reconcile(nothing_saved) == ["replay-0"]
    del cluster.answers[ReplayProcess]["ready"]
    assert supervisor.reconcile(nothing_saved) == ["replay-0"]
    assert supervisor.reconcile(nothing_saved) == []


@pytest.fixture
def served(start, clock):
    """A supervisor with one inference server, its cluster, and the clock."""
    supervisor, cluster = start(
        cpu_node("home", 8), actors={"inference": "server"}, server={"timeout_s": 20.0}, cluster={"join_minutes": 10.0}
    )
    return supervisor, cluster, clock


def pass_time(supervisor, clock, seconds):
    """The driver listens every two seconds."""
    for _ in range(seconds // 2):
        clock[0] += 2.0
        list(supervisor.listen())


def test_a_server_that_falls_silent_is_replaced_and_the_actors_stay(served, caplog):
    supervisor, cluster, now = served
    list(supervisor.listen())
    first = cluster.named("inference-0")
    first.answers["drain"] = PENDING
    list(supervisor.listen())
    pass_time(supervisor, now, 60)
    assert supervisor.reconcile(nothing_saved) == []
    pass_time(supervisor, now, 2)
    with caplog.at_level(logging.WARNING, "podzero"):
        assert supervisor.reconcile(nothing_saved) == ["inference-0"]
    assert "inference-0 has not answered for 62 s" in caplog.text
    assert first.killed
    assert cluster.named("inference-0") is not first
    assert sorted(cluster.places("actor")) == ["actor-0", "actor-1"]
    assert supervisor.reconcile(nothing_saved) == []


def test_a_server_whose_chips_are_taken_is_given_up_and_they_are_named(start, clock, monkeypatch, restart_limits):
    """Ray never starts it, because another run has reserved the GPU."""
    restart_limits(max_first_failures=1)
    monkeypatch.setattr(FakeRemoteActor, "begin", pending_drains(FakeRemoteActor.begin))
    supervisor, _ = start(
        cpu_node("home", 8, GPU=1.0), actors={"inference": "server"},
        server={"resources": {"GPU": 1}},
    )  # fmt: skip
    pass_time(supervisor, clock, int(START_TIMEOUT_S))
    assert supervisor.reconcile(nothing_saved) == []
    pass_time(supervisor, clock, 2)
    with pytest.raises(RunFailed, match=r"1 GPU .*server\.resources"):
        supervisor.reconcile(nothing_saved)


def pending_drains(begin):
    """Remote actors of which those of inference servers never answer `drain`."""

    def begin_or_wait(actor, method, *args):
        if actor.name.startswith("inference"):
            actor.answers["drain"] = PENDING
        return begin(actor, method, *args)

    return begin_or_wait


def test_a_server_that_the_experiment_makes_impossible_ends_the_run(served):
    supervisor, cluster, _ = served
    cluster.named("inference-0").last("run").end(ConfigError("a batch of 9 positions does not fit"))
    with pytest.raises(RunFailed, match=r"inference-0 .*: a batch of 9"):
        supervisor.reconcile(nothing_saved)


@pytest.fixture
def playing(start, clock):
    """A supervisor with two actors that play, its cluster, and the clock."""
    supervisor, cluster = start(cpu_node("home", 8))
    for name in ("actor-0", "actor-1"):
        cluster.named(name).answers["drain"] = reported(name, "count/moves")
    cluster.named("learner").answers["drain"] = reported("learner", "time/step")
    cluster.named("replay-0").answers["drain"] = reported("replay-0", "replay/size")
    pass_time(supervisor, clock, 20)
    return supervisor, cluster, clock


def reported(name, metric):
    return [MetricsReport(0.0, name, {metric: 1.0})]


def test_a_worker_that_does_not_answer_is_named_and_examined_within_a_minute_and_later_replaced(playing, caplog):
    supervisor, cluster, clock = playing
    cluster.named("actor-0").answers["drain"] = PENDING
    pass_time(supervisor, clock, 36)
    assert supervisor.reconcile(nothing_saved) == []
    named, found = caplog.messages
    assert named.startswith("actor-0 has not answered for 3")
    assert found == "actor-0: its state is 'stopped'"
    assert set(supervisor.silent) == {"actor-0"}
    pass_time(supervisor, clock, 300)
    assert supervisor.reconcile(nothing_saved) == ["actor-0"]
    assert supervisor.silent == {}


def test_a_worker_that_comes_back_in_time_goes_on(playing, caplog):
    supervisor, cluster, clock = playing
    silent = cluster.named("actor-0")
    silent.answers["drain"] = PENDING
    pass_time(supervisor, clock, 200)
    silent.answers["drain"] = reported("actor-0", "count/moves")
    silent.last("drain").end(silent.answers["drain"])
    with caplog.at_level(logging.INFO, "podzero"):
        pass_time(supervisor, clock, 4)
    assert caplog.messages[-1] == "actor-0 goes on"
    pass_time(supervisor, clock, 400)
    assert supervisor.reconcile(nothing_saved) == []
    assert cluster.named("actor-0") is silent


def test_a_worker_that_answers_without_progress_is_replaced_and_one_that_waits_is_not(playing):
    supervisor, cluster, clock = playing
    cluster.named("actor-0").answers["drain"] = []
    cluster.named("actor-1").answers["drain"] = reported("actor-1", "time/write")
    pass_time(supervisor, clock, 120)
    assert set(supervisor.silent) == {"actor-0"}
    pass_time(supervisor, clock, 500)
    assert supervisor.reconcile(nothing_saved) == ["actor-0"]


def test_a_shard_whose_server_gives_no_metrics_is_replaced(playing):
    supervisor, cluster, clock = playing
    cluster.named("replay-0").answers["drain"] = []
    pass_time(supervisor, clock, 140)
    assert supervisor.reconcile(nothing_saved) == []
    pass_time(supervisor, clock, 20)
    assert supervisor.reconcile(nothing_saved) == ["replay-0"]


@pytest.mark.parametrize("hang", [PENDING, []])
def test_a_learner_that_hangs_has_failed(playing, hang):
    supervisor, cluster, clock = playing
    assert supervisor.learner.working
    cluster.named("learner").answers["drain"] = hang
    pass_time(supervisor, clock, 280)
    assert supervisor.learner.working
    assert set(supervisor.silent) == {"learner"}
    pass_time(supervisor, clock, 340)
    with pytest.raises(LearnerFailed, match="learner has not"):
        assert supervisor.learner.working


def test_a_learner_that_compiles_or_waits_for_samples_does_not_hang(start, clock):
    supervisor, cluster = start(cpu_node("home", 8))
    learner = cluster.named("learner")
    learner.answers["drain"] = reported("learner", "time/wait_replay")
    pass_time(supervisor, clock, 8000)
    assert supervisor.learner.working
    learner.answers["drain"] = []
    pass_time(supervisor, clock, 3000)
    assert supervisor.learner.working


def test_actors_leave_the_least_filled_node_first_in_order_and_without_having_failed(start, monkeypatch):
    monkeypatch.setattr(workers, "in_thread", in_thread)
    supervisor, cluster = start(cpu_node("home", 4), cpu_node("large", 7), actors={"count": 8, "min_count": 2})
    assert Counter(cluster.places("actor").values()) == {"large": 6, "home": 2}
    last = MetricsReport(0.0, "actor", {"count/games": 1.0})
    leaving = [actor for actor in cluster.processes if actor.name.startswith("actor") and actor.node == "home"]
    supervisor.actors.wanted = 6
    assert supervisor.actors.fit() == {}
    assert len(supervisor.actors.workers) == 6
    assert {actor.name for actor in leaving if "stop" in [call.method for call in actor.calls]} == {
        actor.name for actor in leaving
    }
    supervisor.scale()
    assert not any(actor.killed for actor in leaving), "they end their work"
    for actor in leaving:
        actor.answers["drain"] = [last]
        actor.last("run").end(None)
    left = {}
    while len(left) < 2:
        left |= supervisor.actors.fit()
    assert left == {actor.name: [last] for actor in leaving}
    assert all(actor.killed for actor in leaving)
    assert supervisor.reconcile(nothing_saved) == []
    assert (supervisor.failures.failing, set(cluster.places("actor").values())) == ({}, {"large"})
    supervisor.actors.wanted = 7
    supervisor.actors.fit()
    supervisor.scale()
    assert cluster.requests[-1][0] == []
    assert len(cluster.alive("actor")) == 7


def test_actors_that_are_wanted_and_have_no_room_are_asked_of_the_autoscaler_and_others_not(start):
    supervisor, cluster = start(cpu_node("home", 3), actors={"count": 8, "min_count": 2})
    assert cluster.requests[-1][0] == [1.0] * 5
    supervisor.actors.wanted = 4
    supervisor.actors.fit()
    supervisor.scale()
    assert cluster.requests[-1][0] == [1.0]
    supervisor.actors.wanted = 2
    supervisor.actors.fit()
    supervisor.scale()
    assert cluster.requests[-1][0] == []
