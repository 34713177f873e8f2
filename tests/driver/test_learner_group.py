"""The hosts of a learner: what is said of them when one fails, and the order in which they end."""

from __future__ import annotations

from pathlib import Path

import pytest
from fake_cluster import PENDING, FakeRemoteActor

from podzero.cluster.remote import ClusterError, NodeLost, WorkerDied
from podzero.driver import learner_group as learner_group_module
from podzero.driver.learner_group import LearnerGroup, RunFailed
from podzero.driver.worker import Worker


@pytest.fixture(autouse=True)
def soon(monkeypatch):
    monkeypatch.setattr(learner_group_module, "BLAME_TIMEOUT_S", 0.2)
    monkeypatch.setattr(learner_group_module, "_LOOK_S", 0.01)


@pytest.fixture
def make_group():
    """A team at work, its processes by rank, and what was asked of them in order."""

    def make(hosts, **answers):
        diary = []
        names = ["learner", *(f"learner-{rank}" for rank in range(1, hosts))]
        actors = [
            FakeRemoteActor(name, f"node-{name}", diary, **({"run": PENDING, "drain": []} | answers)) for name in names
        ]
        learner = LearnerGroup([Worker(actor) for actor in actors])
        learner.begin()
        diary.clear()
        return learner, actors, diary

    return make


def test_a_team_works_until_host_0_has_ended(make_group):
    learner, (first, second), _ = make_group(2)
    assert learner.working
    second.call("run").end(None)
    assert learner.working
    first.call("run").end(None)
    assert not learner.working


def test_a_team_that_has_not_begun_is_not_at_work():
    assert not LearnerGroup([Worker(FakeRemoteActor("learner"))]).working


@pytest.mark.parametrize("rank", [0, 1])
def test_a_program_failure_of_any_host_ends_the_run_with_its_words(make_group, rank):
    learner, actors, _ = make_group(2)
    actors[rank].call("run").end(FloatingPointError("the loss is NaN"))
    name = actors[rank].name
    with pytest.raises(RunFailed, match=f"^the {name} failed: the loss is NaN$"):
        assert learner.working


def test_a_failure_of_all_hosts_is_told_once_and_the_others_go_to_the_log(make_group, caplog):
    learner, actors, _ = make_group(3)
    for actor in actors:
        actor.call("run").end(FloatingPointError(f"NaN at {actor.name}"))
    with pytest.raises(RunFailed, match=r"^the learner failed: NaN at learner$"):
        assert learner.working
    assert [record.getMessage() for record in caplog.records] == [
        "learner-1 failed as well: NaN at learner-1",
        "learner-2 failed as well: NaN at learner-2",
    ]


def test_a_lost_machine_is_found_behind_the_complaint_of_another_host(make_group):
    learner, actors, _ = make_group(3)
    actors[0].call("run").end(RuntimeError("host 0 has waited 60 s for the batches of host(s) 2"))
    actors[2].call("run").end(NodeLost("learner-2 is gone: its node died"))
    with pytest.raises(NodeLost, match=r"^learner-2 is gone: its node died$"):
        assert learner.working


def test_a_machine_that_is_given_up_only_after_another_host_failed_is_waited_for(make_group, monkeypatch):
    monkeypatch.setattr(learner_group_module, "BLAME_TIMEOUT_S", 60.0)
    learner, actors, _ = make_group(2)
    actors[0].call("run").end(RuntimeError("Gloo: connection reset by peer"))
    looks = []

    def look(_):
        looks.append(1)
        if len(looks) == 3:
            actors[1].call("run").end(NodeLost("learner-1 is gone"))

    monkeypatch.setattr(learner_group_module.time, "sleep", look)
    with pytest.raises(NodeLost, match="learner-1 is gone"):
        assert learner.working


def test_a_lost_machine_itself_is_told_at_once(make_group):
    learner, actors, _ = make_group(2)
    actors[1].call("run").end(NodeLost("learner-1 is gone"))
    with pytest.raises(NodeLost, match="learner-1 is gone"):
        assert learner.working


def test_a_lost_machine_is_found_behind_processes_that_died_of_it(make_group):
    """jax ends the processes of the hosts that are left when it notices that one is missing."""
    learner, actors, _ = make_group(3)
    actors[0].call("run").end(WorkerDied("learner is gone: SIGABRT"))
    actors[1].call("run").end(WorkerDied("learner-1 is gone: SIGABRT"))
    actors[2].call("run").end(NodeLost("learner-2 is gone: its node died"))
    with pytest.raises(NodeLost, match="learner-2"):
        assert learner.working


def test_a_dead_process_is_named_rather_than_the_complaint_of_a_survivor(make_group):
    learner, actors, _ = make_group(2)
    actors[0].call("run").end(RuntimeError("Gloo: connection reset by peer"))
    actors[1].call("run").end(WorkerDied("learner-1 is gone: out of memory"))
    with pytest.raises(RunFailed, match=r"^learner-1 is gone: out of memory$"):
        assert learner.working


def test_when_several_processes_died_all_are_named(make_group):
    learner, actors, _ = make_group(2)
    actors[0].call("run").end(WorkerDied("learner is gone: out of memory"))
    actors[1].call("run").end(WorkerDied("learner-1 is gone: SIGABRT"))
    with pytest.raises(RunFailed, match=r"^learner is gone: out of memory; learner-1 is gone: SIGABRT$"):
        assert learner.working


def test_a_checkpoint_is_asked_of_all_before_any_is_waited_for(make_group):
    learner, actors, diary = make_group(3, checkpoint=40)
    assert learner.checkpoint(Path("saves/40")) == 40
    assert diary == ["learner checkpoint", "learner-1 checkpoint", "learner-2 checkpoint"]
    assert all(actor.call("checkpoint").args == (Path("saves/40"),) for actor in actors)


@pytest.mark.parametrize("failure", [WorkerDied("learner-1 is gone"), OSError("disk full"), PENDING])
def test_a_checkpoint_that_one_host_does_not_write_fails(make_group, failure):
    learner, actors, _ = make_group(2, checkpoint=40)
    actors[1].answers["checkpoint"] = failure
    with pytest.raises(ClusterError if failure is PENDING else type(failure)):
        learner.checkpoint(Path("saves/40"))


def test_only_host_0_is_told_to_stop_and_all_are_waited_for_and_heard(make_group):
    learner, actors, diary = make_group(2)
    for actor in actors:
        actor.call("run").end(None)
        actor.answers["drain"] = [f"{actor.name} has ended"]
    assert learner.stop() == ["learner has ended", "learner-1 has ended"]
    assert diary == ["learner stop", "learner drain", "learner-1 drain"]


def test_a_host_that_does_not_end_is_an_error(make_group):
    learner, actors, _ = make_group(2)
    actors[0].call("run").end(None)
    with pytest.raises(ClusterError, match="waited 120 s for 'run'"):
        learner.stop()


def test_a_host_that_fails_while_it_ends_is_told_as_what_the_driver_can_handle(make_group):
    learner, actors, _ = make_group(2)
    actors[0].call("run").end(None)
    actors[1].call("run").end(ValueError("no space left"))
    with pytest.raises(ClusterError, match="the learner-1 failed while it ended: no space left"):
        learner.stop()


def test_host_0_is_killed_last(make_group):
    learner, _, diary = make_group(3)
    learner.kill()
    assert diary == ["learner-2 killed", "learner-1 killed", "learner killed"]
