"""What failures of workers do to a run, over a cluster in memory: pauses, nodes that are avoided, and the end."""

from __future__ import annotations

import pytest
from fake_cluster import PENDING, cpu_node

from podzero.config import RestartsConfig
from podzero.errors import ConfigError
from podzero.runtime.cluster.remote import NodeLost, WorkerDied
from podzero.runtime.learner_group import RunFailed
from podzero.runtime.monitoring.reports import MetricsReport
from podzero.runtime.processes.actor import ActorProcess
from podzero.runtime.processes.replay import ReplayProcess

DEFAULTS = RestartsConfig()
DAY_S = 86_400.0
PLAYED = {"count/moves": 128.0}
MISSING_FILE = ConfigError("env.id = 'own_game.py:Game': there is no such file")


def nothing_saved():
    return None


def tick(supervisor, clock, seconds=1.0):
    """A round of the driver's loop after so much time; returns the workers that ended."""
    clock[0] += seconds
    list(supervisor.listen())
    return supervisor.reconcile(nothing_saved)


def work(supervisor, cluster, name, metrics):
    """A worker reports metrics."""
    list(supervisor.listen())
    process = cluster.named(name)
    process.last("drain").end([MetricsReport(0.0, name, metrics)])
    process.answers["drain"] = []
    list(supervisor.listen())


def die(cluster, name, error="a bug"):
    """The process of a worker ends."""
    failure = error if isinstance(error, Exception) else WorkerDied(f"{name} is gone: {error}")
    cluster.named(name).last("run").end(failure)


def fail_for(seconds, supervisor, cluster, clock, names, error="a bug"):
    """The workers of these names die whenever they live, for so long."""
    until = clock[0] + seconds
    while clock[0] < until:
        for name in names:
            if name in cluster.alive(name):
                die(cluster, name, error)
        tick(supervisor, clock, 25.0)


def restarts_in_a_day(starts):
    """Whether a worker that failed all day was started with the longest pause between most of its attempts."""
    longest_s = DEFAULTS.longest_pause_s
    return DAY_S / (longest_s + 50.0) < starts < DAY_S / longest_s + 10


def processes(cluster, name):
    return sum(process.name == name for process in cluster.processes)


def test_the_second_failure_of_a_worker_waits_before_it_restarts(start, clock):
    supervisor, cluster = start(cpu_node("home", 4))
    work(supervisor, cluster, "actor-1", PLAYED)
    die(cluster, "actor-0")
    assert tick(supervisor, clock) == ["actor-0"]
    assert "actor-0" in cluster.alive()
    die(cluster, "actor-0")
    assert tick(supervisor, clock) == ["actor-0"]
    assert "actor-0" not in cluster.alive()
    assert tick(supervisor, clock, DEFAULTS.first_pause_s - 0.1) == []
    assert "actor-0" not in cluster.alive()
    tick(supervisor, clock, 0.1)
    assert "actor-0" in cluster.alive()


def test_a_node_on_which_actors_keep_failing_is_left_alone_and_used_again_later(start, clock, caplog):
    supervisor, cluster = start(cpu_node("a", 4), cpu_node("b", 8), actors={"count": 3})
    assert set(cluster.places("actor").values()) == {"b"}
    for index in range(3):
        work(supervisor, cluster, f"actor-{index}", PLAYED)
        die(cluster, f"actor-{index}", "no space left on device")
        tick(supervisor, clock)
    assert cluster.places("actor")["actor-2"] == "a"
    (line,) = [message for message in caplog.messages if "avoid" in message]
    assert line.startswith("actors avoid node b at host-b for 30 minutes (restarts.node_pause_minutes)")
    assert "no space left on device" in line
    clock[0] += 60 * DEFAULTS.node_pause_minutes
    work(supervisor, cluster, "actor-2", PLAYED)
    die(cluster, "actor-2")
    tick(supervisor, clock)
    assert cluster.places("actor")["actor-2"] == "b"


def test_workers_of_another_kind_still_use_a_node_that_actors_avoid(start, clock):
    supervisor, cluster = start(cpu_node("a", 4), cpu_node("b", 8), evaluation={"cpus": 5.0})
    work(supervisor, cluster, "actor-0", PLAYED)
    die(cluster, "actor-0", MISSING_FILE)
    tick(supervisor, clock)
    supervisor.start_evaluator()
    tick(supervisor, clock)
    assert (cluster.places("actor")["actor-0"], cluster.places("evaluator")["evaluator"]) == ("a", "b")


def test_all_nodes_are_used_when_all_are_avoided(start, clock):
    supervisor, cluster = start(cpu_node("home", 4))
    work(supervisor, cluster, "actor-1", PLAYED)
    die(cluster, "actor-0", MISSING_FILE)
    tick(supervisor, clock)
    assert cluster.places("actor")["actor-0"] == "home"


def test_the_first_worker_that_cannot_do_what_the_experiment_asks_for_ends_the_run(start, clock):
    supervisor, cluster = start(cpu_node("home", 4))
    die(cluster, "actor-0", MISSING_FILE)
    with pytest.raises(RunFailed, match=r"actor-0 .*env\.id = .*no such file"):
        tick(supervisor, clock)


def test_a_later_worker_that_cannot_do_it_refuses_its_node(start, clock, caplog):
    """An own game that a replacement node does not have."""
    supervisor, cluster = start(cpu_node("a", 3))
    work(supervisor, cluster, "actor-0", PLAYED)
    cluster.listed.append(cpu_node("new", 8))
    die(cluster, "actor-1")
    tick(supervisor, clock)
    assert cluster.places("actor")["actor-1"] == "new"
    die(cluster, "actor-1", MISSING_FILE)
    assert tick(supervisor, clock) == ["actor-1"]
    tick(supervisor, clock, DEFAULTS.first_pause_s)
    assert cluster.places("actor")["actor-1"] == "a"
    assert "actors avoid node new at host-new for 30 minutes" in caplog.text
    assert "actor-1 cannot work there: env.id = 'own_game.py:Game': there is no such file" in caplog.text


def test_a_node_that_rejoins_is_used_again(start, clock):
    supervisor, cluster = start(cpu_node("a", 3), cpu_node("b", 8))
    work(supervisor, cluster, "actor-0", PLAYED)
    die(cluster, "actor-0", MISSING_FILE)
    tick(supervisor, clock)
    assert cluster.places("actor")["actor-0"] == "a"
    cluster.listed[-1] = cpu_node("b-rejoined", 8)  # Ray gives it another id
    die(cluster, "actor-0")
    tick(supervisor, clock, DEFAULTS.first_pause_s)
    tick(supervisor, clock, DEFAULTS.first_pause_s)
    assert cluster.places("actor")["actor-0"] == "b-rejoined"


def test_a_run_in_which_no_actor_ever_plays_ends_with_the_last_error(start, clock):
    supervisor, cluster = start(cpu_node("a", 4), cpu_node("b", 4))
    with pytest.raises(RunFailed) as failed:
        fail_for(600.0, supervisor, cluster, clock, ["actor-0", "actor-1"])
    message = str(failed.value)
    assert "all actors failed 3 times in a row each without doing any work in between" in message
    assert "restarts.max_first_failures" in message
    assert str(failed.value.__cause__) in message
    assert processes(cluster, "actor-0") == processes(cluster, "actor-1") == 3


def test_actors_that_have_played_may_fail_more_often_before_the_run_ends(start, clock):
    supervisor, cluster = start(cpu_node("home", 4))
    work(supervisor, cluster, "actor-0", PLAYED)
    began = clock[0]
    with pytest.raises(RunFailed, match=r"actors failed 10 times .*restarts\.max_failures"):
        fail_for(DAY_S, supervisor, cluster, clock, ["actor-0", "actor-1"])
    assert clock[0] - began > 5 + 10 + 20 + 40 + 80 + 160 + 300 + 300  # the pauses between ten failures


def test_an_actor_that_always_fails_ends_no_run_in_which_others_play(start, clock):
    supervisor, cluster = start(cpu_node("home", 4), actors={"count": 3})
    fail_for(DAY_S, supervisor, cluster, clock, ["actor-0"])
    assert restarts_in_a_day(processes(cluster, "actor-0"))
    assert supervisor.failing.keys() == {"actor-0"}


def test_five_hundred_failures_of_actors_that_play_in_between_end_no_run(start, clock):
    supervisor, cluster = start(cpu_node("home", 8), actors={"count": 5})
    for turn in range(500):
        name = f"actor-{turn % 5}"
        work(supervisor, cluster, name, PLAYED)
        die(cluster, name)
        assert tick(supervisor, clock, 1200.0) == [name]
        assert len(cluster.alive("actor")) == 5
    assert supervisor.failing["actor-4"] == "once: actor-4 is gone: a bug"


def test_actors_that_fail_together_once_go_on_together(start, clock):
    """As when the storage of an own game is away for some seconds."""
    supervisor, cluster = start(cpu_node("home", 200), actors={"count": 150})
    for name in cluster.alive("actor"):
        die(cluster, name)
    assert len(tick(supervisor, clock)) == 150
    assert len(cluster.alive("actor")) == 150


@pytest.mark.parametrize("error", ["all snapshots are damaged", ConfigError("gnugo is not installed")])
def test_an_evaluator_that_always_fails_never_ends_training(start, clock, error):
    supervisor, cluster = start(cpu_node("home", 4))
    supervisor.start_evaluator()
    tick(supervisor, clock)
    fail_for(DAY_S, supervisor, cluster, clock, ["evaluator"], error)
    assert restarts_in_a_day(processes(cluster, "evaluator"))
    assert supervisor.failing.keys() == {"evaluator"}
    assert "times in a row: " in supervisor.failing["evaluator"]
    assert str(error) in supervisor.failing["evaluator"]


def test_an_evaluator_that_has_judged_again_is_not_failing(start, clock):
    supervisor, cluster = start(cpu_node("home", 4))
    supervisor.start_evaluator()
    tick(supervisor, clock)
    die(cluster, "evaluator", "no space left")
    tick(supervisor, clock)
    assert supervisor.failing == {"evaluator": "once: evaluator is gone: no space left"}
    tick(supervisor, clock)
    work(supervisor, cluster, "evaluator", {"evaluation/step": 40.0})
    tick(supervisor, clock)
    assert supervisor.failing == {}


def test_an_evaluator_without_its_engine_goes_to_another_node(start, clock):
    supervisor, cluster = start(cpu_node("a", 4), cpu_node("b", 8))
    supervisor.start_evaluator()
    tick(supervisor, clock)
    assert cluster.places("evaluator") == {"evaluator": "b"}
    die(cluster, "evaluator", ConfigError("player 'gnugo:1': the program gnugo is not installed"))
    tick(supervisor, clock)
    assert cluster.places("evaluator") == {"evaluator": "a"}


def test_reanalysers_end_the_run_when_all_of_them_fail_because_the_learner_needs_their_samples(start, clock):
    supervisor, cluster = start(cpu_node("home", 8), reanalyse={"share": 0.5, "count": 2, "cpus": 1.0})
    fail_for(3600.0, supervisor, cluster, clock, ["reanalyser-0"])
    with pytest.raises(RunFailed, match="reanalysers failed 3 times"):
        fail_for(3600.0, supervisor, cluster, clock, ["reanalyser-0", "reanalyser-1"])


def test_a_replay_shard_that_never_comes_back_ends_the_run(start, clock):
    supervisor, cluster = start(cpu_node("home", 8), replay={"shards": 2, "min_size": 8192})
    work(supervisor, cluster, "replay-0", {"replay/size": 0.0})
    tick(supervisor, clock)
    cluster.answers[ReplayProcess]["ready"] = RuntimeError("port 7 is taken")
    cluster.named("replay-1").die(WorkerDied("replay-1 is gone"))
    cluster.named("replay-1").last("drain").end(WorkerDied("replay-1 is gone"))
    with pytest.raises(RunFailed, match=r"replay-1 failed 10 times .*port 7 "):
        fail_for(DAY_S, supervisor, cluster, clock, [])


def test_actors_wait_for_a_lost_shard_before_they_restart(start, clock):
    """Their construction would wait for all shards."""
    supervisor, cluster = start(cpu_node("a", 8), actors={"count": 1})
    work(supervisor, cluster, "actor-0", PLAYED)
    cluster.listed.clear()
    cluster.named("replay-0").die(NodeLost("replay-0 is gone"))
    cluster.named("replay-0").last("drain").end(NodeLost("replay-0 is gone"))
    die(cluster, "actor-0", NodeLost("actor-0 is gone"))
    tick(supervisor, clock)
    cluster.answers[ActorProcess] = {"run": PENDING, "drain": []}
    cluster.listed.append(cpu_node("b", 8))
    order = [process.name for process in cluster.processes]
    tick(supervisor, clock)
    assert [process.name for process in cluster.processes][len(order) :] == ["replay-0"]
    tick(supervisor, clock)
    assert [process.name for process in cluster.processes][len(order) :] == ["replay-0", "actor-0"]
