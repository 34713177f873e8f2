"""The hosts of a learner: what is said of them when one fails, and the order in which they end."""

from __future__ import annotations

from pathlib import Path

import pytest
from fake_cluster import PENDING, FakeRole

from podzero.cluster.remote import ClusterError, MachineLost, RoleDied
from podzero.driver import learner_group as team_module
from podzero.driver.learner_group import LearnerTeam, RunFailed
from podzero.driver.worker import Post


@pytest.fixture(autouse=True)
def soon(monkeypatch):
    monkeypatch.setattr(team_module, "BLAME_TIMEOUT_S", 0.2)
    monkeypatch.setattr(team_module, "_LOOK_S", 0.01)


@pytest.fixture
def make_team():
    """A team at work, its processes by rank, and what was asked of them in order."""

    def make(hosts, **answers):
        diary = []
        names = ["learner", *(f"learner-{rank}" for rank in range(1, hosts))]
        roles = [FakeRole(name, f"node-{name}", diary, **({"run": PENDING, "drain": []} | answers)) for name in names]
        team = LearnerTeam([Post(role) for role in roles])
        team.begin()
        diary.clear()
        return team, roles, diary

    return make


def test_a_team_works_until_host_0_has_ended(make_team):
    team, (first, second), _ = make_team(2)
    assert team.working
    second.call("run").end(None)
    assert team.working
    first.call("run").end(None)
    assert not team.working


def test_a_team_that_has_not_begun_is_not_at_work():
    assert not LearnerTeam([Post(FakeRole("learner"))]).working


@pytest.mark.parametrize("rank", [0, 1])
def test_a_program_failure_of_any_host_ends_the_run_with_its_words(make_team, rank):
    team, roles, _ = make_team(2)
    roles[rank].call("run").end(FloatingPointError("the loss is NaN"))
    name = roles[rank].name
    with pytest.raises(RunFailed, match=f"^the {name} failed: the loss is NaN$"):
        assert team.working


def test_a_failure_of_all_hosts_is_told_once_and_the_others_go_to_the_log(make_team, caplog):
    team, roles, _ = make_team(3)
    for role in roles:
        role.call("run").end(FloatingPointError(f"NaN at {role.name}"))
    with pytest.raises(RunFailed, match=r"^the learner failed: NaN at learner$"):
        assert team.working
    assert [record.getMessage() for record in caplog.records] == [
        "learner-1 failed as well: NaN at learner-1",
        "learner-2 failed as well: NaN at learner-2",
    ]


def test_a_lost_machine_is_found_behind_the_complaint_of_another_host(make_team):
    team, roles, _ = make_team(3)
    roles[0].call("run").end(RuntimeError("host 0 has waited 60 s for the batches of host(s) 2"))
    roles[2].call("run").end(MachineLost("learner-2 is gone: its node died"))
    with pytest.raises(MachineLost, match=r"^learner-2 is gone: its node died$"):
        assert team.working


def test_a_machine_that_is_given_up_only_after_another_host_failed_is_waited_for(make_team, monkeypatch):
    monkeypatch.setattr(team_module, "BLAME_TIMEOUT_S", 60.0)
    team, roles, _ = make_team(2)
    roles[0].call("run").end(RuntimeError("Gloo: connection reset by peer"))
    looks = []

    def look(_):
        looks.append(1)
        if len(looks) == 3:
            roles[1].call("run").end(MachineLost("learner-1 is gone"))

    monkeypatch.setattr(team_module.time, "sleep", look)
    with pytest.raises(MachineLost, match="learner-1 is gone"):
        assert team.working


def test_a_lost_machine_itself_is_told_at_once(make_team):
    team, roles, _ = make_team(2)
    roles[1].call("run").end(MachineLost("learner-1 is gone"))
    with pytest.raises(MachineLost, match="learner-1 is gone"):
        assert team.working


def test_a_lost_machine_is_found_behind_processes_that_died_of_it(make_team):
    """jax ends the processes of the hosts that are left when it notices that one is missing."""
    team, roles, _ = make_team(3)
    roles[0].call("run").end(RoleDied("learner is gone: SIGABRT"))
    roles[1].call("run").end(RoleDied("learner-1 is gone: SIGABRT"))
    roles[2].call("run").end(MachineLost("learner-2 is gone: its node died"))
    with pytest.raises(MachineLost, match="learner-2"):
        assert team.working


def test_a_dead_process_is_named_rather_than_the_complaint_of_a_survivor(make_team):
    team, roles, _ = make_team(2)
    roles[0].call("run").end(RuntimeError("Gloo: connection reset by peer"))
    roles[1].call("run").end(RoleDied("learner-1 is gone: out of memory"))
    with pytest.raises(RunFailed, match=r"^learner-1 is gone: out of memory$"):
        assert team.working


def test_when_several_processes_died_all_are_named(make_team):
    team, roles, _ = make_team(2)
    roles[0].call("run").end(RoleDied("learner is gone: out of memory"))
    roles[1].call("run").end(RoleDied("learner-1 is gone: SIGABRT"))
    with pytest.raises(RunFailed, match=r"^learner is gone: out of memory; learner-1 is gone: SIGABRT$"):
        assert team.working


def test_a_checkpoint_is_asked_of_all_before_any_is_waited_for(make_team):
    team, roles, diary = make_team(3, checkpoint=40)
    assert team.checkpoint(Path("saves/40")) == 40
    assert diary == ["learner checkpoint", "learner-1 checkpoint", "learner-2 checkpoint"]
    assert all(role.call("checkpoint").args == (Path("saves/40"),) for role in roles)


@pytest.mark.parametrize("failure", [RoleDied("learner-1 is gone"), OSError("disk full"), PENDING])
def test_a_checkpoint_that_one_host_does_not_write_fails(make_team, failure):
    team, roles, _ = make_team(2, checkpoint=40)
    roles[1].answers["checkpoint"] = failure
    with pytest.raises(ClusterError if failure is PENDING else type(failure)):
        team.checkpoint(Path("saves/40"))


def test_only_host_0_is_told_to_stop_and_all_are_waited_for_and_heard(make_team):
    team, roles, diary = make_team(2)
    for role in roles:
        role.call("run").end(None)
        role.answers["drain"] = [f"{role.name} has ended"]
    assert team.stop() == ["learner has ended", "learner-1 has ended"]
    assert diary == ["learner stop", "learner drain", "learner-1 drain"]


def test_a_host_that_does_not_end_is_an_error(make_team):
    team, roles, _ = make_team(2)
    roles[0].call("run").end(None)
    with pytest.raises(ClusterError, match="waited 120 s for 'run'"):
        team.stop()


def test_a_host_that_fails_while_it_ends_is_told_as_what_the_driver_can_handle(make_team):
    team, roles, _ = make_team(2)
    roles[0].call("run").end(None)
    roles[1].call("run").end(ValueError("no space left"))
    with pytest.raises(ClusterError, match="the learner-1 failed while it ended: no space left"):
        team.stop()


def test_host_0_is_killed_last(make_team):
    team, _, diary = make_team(3)
    team.kill()
    assert diary == ["learner-2 killed", "learner-1 killed", "learner killed"]
