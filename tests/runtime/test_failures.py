"""When workers restart, which nodes they avoid, and when they have failed too often: alone, and in a run in memory."""

from __future__ import annotations

from copy import copy

import pytest
from fake_cluster import PENDING, cpu_node
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from podzero.core.errors import ConfigError
from podzero.runtime import failures
from podzero.runtime.cluster.remote import NodeLost, WorkerDied
from podzero.runtime.failures import LIMITS, Failures, RestartLimits, pause_after
from podzero.runtime.kinds import ActorProcess, ReplayProcess
from podzero.runtime.monitoring.monitor import kind_of
from podzero.runtime.monitoring.reports import MetricsReport
from podzero.runtime.workers import RunFailed

CONFIG = RestartLimits(
    window_minutes=10.0, first_pause_s=5.0, longest_pause_s=60.0, node_failures=3, node_pause_minutes=20.0,
    max_failures=4, max_first_failures=2,
)  # fmt: skip
DAY_S = 86_400.0


@pytest.fixture
def budget(monkeypatch, clock):
    """The failures of workers, of which few are too many."""
    monkeypatch.setattr(failures, "LIMITS", CONFIG)
    return Failures((), str)


def pauses(budget, clock, worker, *times):
    """The pauses after failures of a worker at these times."""
    found = []
    for clock[0] in times:
        found.append(budget.record_failure(worker))
    return found


def avoided(budget, clock, *times, at_fault=False):
    """Whether each failure of an actor on node a at these times made the actors avoid it."""
    found = []
    for clock[0] in times:
        found.append(budget.record_failure_on("a", "actor", at_fault))
    return found


def test_pauses_double_up_to_the_longest_one(budget, clock):
    assert pauses(budget, clock, "actor-0", *range(8)) == [0.0, 5.0, 10.0, 20.0, 40.0, 60.0, 60.0, 60.0]


def test_a_worker_may_start_once_its_pause_is_over(budget, clock):
    assert budget.may_start("actor-0")
    pauses(budget, clock, "actor-0", 100.0)
    assert budget.may_start("actor-0")
    pauses(budget, clock, "actor-0", 110.0)
    assert budget.may_start("actor-1")
    clock[0] = 114.9
    assert not budget.may_start("actor-0")
    clock[0] = 115.0
    assert budget.may_start("actor-0")


def test_failures_that_lie_outside_the_window_do_not_lengthen_the_pause(budget, clock):
    pauses(budget, clock, "actor-0", 0.0, 1.0, 2.0)
    budget.record_work("actor-0")
    assert pauses(budget, clock, "actor-0", 599.0) == [20.0]
    budget.record_work("actor-0")
    assert pauses(budget, clock, "actor-0", 602.0) == [5.0]  # the one at 599 s is left


def test_failures_in_a_row_lengthen_the_pause_however_far_apart_they_are(budget, clock):
    assert pauses(budget, clock, "evaluator", *(DAY_S * day for day in range(5))) == [0.0, 5.0, 10.0, 20.0, 40.0]


def test_one_failure_a_day_is_never_too_many_for_a_worker_that_works_in_between(budget, clock):
    for day in range(1000):
        budget.record_work("actor-0")
        assert pauses(budget, clock, "actor-0", DAY_S * day) == [0.0]
        assert avoided(budget, clock, DAY_S * day) == [False]
        assert not budget.exhausted("actor-0")


def test_fewer_failures_are_too_many_before_a_kind_has_worked(budget):
    budget.record_failure("actor-0")
    assert not budget.exhausted("actor-0")
    budget.record_failure("actor-0")
    assert budget.exhausted("actor-0")
    budget.record_work("actor-1")  # which shows that actors can work
    assert not budget.exhausted("actor-0")
    budget.record_failure("actor-0")
    assert not budget.exhausted("actor-0")
    budget.record_failure("actor-0")
    assert budget.exhausted("actor-0")


def test_work_ends_the_failures_in_a_row(budget):
    for _ in range(4):
        budget.record_failure("actor-0")
    assert budget.exhausted("actor-0")
    budget.record_work("actor-0")
    assert not budget.exhausted("actor-0")


def test_a_kind_avoids_a_node_on_which_its_workers_keep_failing_for_a_bounded_time(budget, clock):
    assert avoided(budget, clock, 0.0, 60.0, 120.0) == [False, False, True]
    assert budget.avoids("actor", "a")
    assert not budget.avoids("actor", "b")
    assert not budget.avoids("evaluator", "a")
    clock[0] = 120.0 + 1199.0
    assert budget.avoids("actor", "a")
    clock[0] = 120.0 + 1200.0
    assert not budget.avoids("actor", "a")


def test_failures_on_a_node_count_within_the_window_only(budget, clock):
    assert not any(avoided(budget, clock, *(301.0 * index for index in range(20))))  # 2 within any 600 s


def test_a_node_at_fault_is_avoided_at_once(budget, clock):
    assert avoided(budget, clock, 0.0, at_fault=True) == [True]
    assert budget.avoids("actor", "a")


def test_a_node_is_avoided_anew_only_after_as_many_failures_as_at_first(budget, clock):
    avoided(budget, clock, 0.0, at_fault=True)
    assert avoided(budget, clock, 1200.0, 1201.0, 1202.0) == [False, False, True]


EVENTS = st.lists(
    st.tuples(
        st.floats(0.0, 900.0), st.sampled_from(["actor-0", "actor-1", "evaluator"]), st.booleans(), st.booleans(),
    ),
    max_size=200,
)  # fmt: skip
"""Seconds since the event before, worker, whether the worker failed, and whether its node was at fault."""


@given(EVENTS)
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_pauses_and_avoided_nodes_are_bounded_in_any_history(budget, clock, events):
    counted = Failures((), str)
    for after_s, worker, fails, at_fault in events:
        clock[0] += after_s
        if not fails:
            counted.record_work(worker)
            continue
        now = clock[0]
        assert 0.0 <= counted.record_failure(worker) <= CONFIG.longest_pause_s
        counted.record_failure_on("a", kind_of(worker), at_fault)
        clock[0] = now + CONFIG.longest_pause_s
        assert counted.may_start(worker)
        clock[0] = now + 60 * CONFIG.node_pause_minutes
        assert not counted.avoids(kind_of(worker), "a")
        clock[0] = now


@given(st.integers(2, 2000), st.floats(0.0, 1e6), st.floats(0.0, 1e6))
def test_pauses_never_shrink_while_failures_follow_each_other(count, first_s, longer_s):
    with pytest.MonkeyPatch.context() as patch:
        limits = RestartLimits(first_pause_s=first_s, longest_pause_s=first_s + longer_s)
        patch.setattr(failures, "LIMITS", limits)
        assert pause_after(count - 1) <= pause_after(count) <= limits.longest_pause_s


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
    hear(supervisor)
    process = cluster.named(name)
    process.last("drain").end([MetricsReport(0.0, name, metrics)])
    process.answers["drain"] = []
    hear(supervisor)


def hear(supervisor):
    """Listens until what processes have said has arrived by way of their agents."""
    for _ in range(3):
        list(supervisor.listen())


def die(cluster, name, error="a bug"):
    """The process of a worker ends."""
    # A new one each time: each `raise` of the same one would make its traceback longer.
    failure = copy(error) if isinstance(error, Exception) else WorkerDied(f"{name} is gone: {error}")
    cluster.named(name).last("run").end(failure)


def fail_for(seconds, supervisor, cluster, clock, names, error="a bug"):
    """The workers of these names die whenever they live, for so long; other actors play."""
    for other in {*cluster.alive("actor")} - {*names}:
        cluster.named(other).answers["drain"] = [MetricsReport(0.0, other, PLAYED)]
    until = clock[0] + seconds
    while clock[0] < until:
        for name in names:
            if name in cluster.alive(name):
                die(cluster, name, error)
        tick(supervisor, clock, 25.0)


def restarts_in_a_day(starts):
    """Whether a worker that failed all day was started with the longest pause between most of its attempts."""
    longest_s = LIMITS.longest_pause_s
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
    assert tick(supervisor, clock, LIMITS.first_pause_s - 0.1) == []
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
    assert line.startswith("actors avoid node b at host-b for 30 minutes, ")
    assert "no space left on device" in line
    clock[0] += 60 * LIMITS.node_pause_minutes
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
    with pytest.raises(RunFailed, match=r"actor-0 .*env\.id = .*no such file") as raised:
        tick(supervisor, clock)
    assert raised.value.exit_code == 2


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
    tick(supervisor, clock, LIMITS.first_pause_s)
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
    tick(supervisor, clock, LIMITS.first_pause_s)
    tick(supervisor, clock, LIMITS.first_pause_s)
    assert cluster.places("actor")["actor-0"] == "b-rejoined"


def test_a_run_in_which_no_actor_ever_plays_ends_with_the_last_error(start, clock):
    supervisor, cluster = start(cpu_node("a", 4), cpu_node("b", 4))
    with pytest.raises(RunFailed) as failed:
        fail_for(600.0, supervisor, cluster, clock, ["actor-0", "actor-1"])
    message = str(failed.value)
    assert "all actors failed 3 times in a row each without doing any work in between" in message
    assert failed.value.exit_code == 4
    assert str(failed.value.__cause__) in message
    assert processes(cluster, "actor-0") == processes(cluster, "actor-1") == 3


def test_actors_that_have_played_may_fail_more_often_before_the_run_ends(start, clock):
    supervisor, cluster = start(cpu_node("home", 4))
    work(supervisor, cluster, "actor-0", PLAYED)
    began = clock[0]
    with pytest.raises(RunFailed, match="actors failed 10 times "):
        fail_for(DAY_S, supervisor, cluster, clock, ["actor-0", "actor-1"])
    assert clock[0] - began > 5 + 10 + 20 + 40 + 80 + 160 + 300 + 300  # the pauses between ten failures


def test_an_actor_that_always_fails_ends_no_run_in_which_others_play(start, clock):
    supervisor, cluster = start(cpu_node("home", 4), actors={"count": 3})
    fail_for(DAY_S, supervisor, cluster, clock, ["actor-0"])
    assert restarts_in_a_day(processes(cluster, "actor-0"))
    assert supervisor.failures.failing.keys() == {"actor-0"}


def test_five_hundred_failures_of_actors_that_play_in_between_end_no_run(start, clock):
    supervisor, cluster = start(cpu_node("home", 8), actors={"count": 5})
    for turn in range(500):
        name = f"actor-{turn % 5}"
        work(supervisor, cluster, name, PLAYED)
        die(cluster, name)
        assert tick(supervisor, clock, 1200.0) == [name]
        assert len(cluster.alive("actor")) == 5
    assert supervisor.failures.failing["actor-4"] == "once: actor-4 is gone: a bug"


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
    assert supervisor.failures.failing.keys() == {"evaluator"}
    assert "times in a row: " in supervisor.failures.failing["evaluator"]
    assert str(error) in supervisor.failures.failing["evaluator"]


def test_an_evaluator_that_has_judged_again_is_not_failing(start, clock):
    supervisor, cluster = start(cpu_node("home", 4))
    supervisor.start_evaluator()
    tick(supervisor, clock)
    die(cluster, "evaluator", "no space left")
    tick(supervisor, clock)
    assert supervisor.failures.failing == {"evaluator": "once: evaluator is gone: no space left"}
    tick(supervisor, clock)
    work(supervisor, cluster, "evaluator", {"evaluation/step": 40.0})
    tick(supervisor, clock)
    assert supervisor.failures.failing == {}


def test_an_evaluator_without_its_engine_goes_to_another_node(start, clock):
    supervisor, cluster = start(cpu_node("a", 4), cpu_node("b", 8))
    supervisor.start_evaluator()
    tick(supervisor, clock)
    assert cluster.places("evaluator") == {"evaluator": "b"}
    die(cluster, "evaluator", ConfigError("player 'gnugo:1': the program gnugo is not installed"))
    tick(supervisor, clock)
    assert cluster.places("evaluator") == {"evaluator": "a"}


def test_reanalysers_end_the_run_when_all_of_them_fail_because_the_learner_needs_their_samples(start, clock):
    supervisor, cluster = start(cpu_node("home", 8), reanalyse={"share": 0.5, "count": 2})
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
