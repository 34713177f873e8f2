"""Who waits for whom, for shares of time made by hand."""

import pytest

from podzero.runtime.monitoring.bottleneck import bottleneck


@pytest.mark.parametrize(
    ("actor", "learner", "words"),
    [
        ({"search": 0.9, "write": 0.05}, {"step": 0.5, "wait_replay": 0.5}, ("learner waits", "actors", "50%")),
        ({"search": 0.9, "write": 0.05}, {"step": 0.5, "wait_replay": 0.5}, ("90%", "search")),
        ({"search": 0.4, "write": 0.6}, {"step": 1.0}, ("actors wait", "learner", "60%")),
        ({"search": 0.9}, {"step": 0.7, "host_to_device": 0.3}, ("learner", "30%", "host to device")),
        ({"search": 0.9, "write": 0.1}, {"step": 0.9, "wait_replay": 0.1}, ("none",)),
    ],
)
def test_the_side_that_waits_longest_is_named(actor, learner, words):
    text = bottleneck("training", {"actor": actor, "learner": learner}, 5000, 2000)
    for word in words:
        assert word in text


@pytest.mark.parametrize(
    ("blocked", "starved", "words"),
    [
        ((0.9, 0.0), 0.6, ("learner waits", "reanalysers", "60%")),
        ((0.0, 0.9), 0.6, ("learner waits", "actors", "60%")),
        ((0.4, 0.5), 0.0, ("actors wait", "learner", "40%")),
    ],
)
def test_of_actors_and_reanalysers_the_slower_kind_is_named(blocked, starved, words):
    shares = {kind: {"write": write} for kind, write in zip(("actor", "reanalyser"), blocked, strict=True)}
    shares["learner"] = {"wait_replay": starved}
    text = bottleneck("training", shares, 5000, 2000)
    for word in words:
        assert word in text


@pytest.mark.parametrize(("busy", "named"), [(0.97, True), (0.5, False), (None, False)])
def test_servers_that_limit_the_actors_are_named(busy, named):
    shares = {"actor": {"search": 0.9}, "learner": {"wait_replay": 0.5}}
    text = bottleneck("training", shares, 5000, 2000, busy)
    assert ("inference servers' devices are busy 97%" in text) == named


def test_while_replay_fills_the_learner_waits_for_its_first_samples():
    waiting = bottleneck("collecting", {}, 500, 2000)
    assert "2,000" in waiting
    assert "25%" in waiting
    assert "compiling" in bottleneck("collecting", {}, 2000, 2000)


def test_without_shares_of_time_there_is_no_bottleneck():
    assert bottleneck("starting", {}, 0, 2000) == ""
    assert bottleneck("training", {}, 5000, 2000) == ""
