"""The bound on how many publications behind an actor's parameters may be, with a source in memory."""

import threading

import pytest

from podzero.actors import ActorClients
from podzero.actors.clients import ActorLoop
from podzero.config import parse
from podzero.core import waiting
from podzero.core.types import Versioned


class SlowNetwork:
    """Each version takes `polls` polls to arrive, while as many newer ones are published."""

    def __init__(self, polls):
        self.polls, self.heard, self.returned, self.fetching = polls, 1, 1, None

    def wait(self, timeout_s):
        return Versioned(self.returned, None)

    def poll(self):
        self.heard += 1
        self.fetching = self.fetching or (self.heard, self.heard + self.polls)
        version, arrives = self.fetching
        if self.heard < arrives:
            return None
        self.returned, self.fetching = version, None
        return Versioned(version, None)

    @property
    def publications(self):
        return self.returned, self.heard


class Silent(SlowNetwork):
    """Nothing arrives."""

    def poll(self):
        self.heard += 1


@pytest.fixture(autouse=True)
def at_once(monkeypatch):
    monkeypatch.setattr(waiting, "_POLL_EVERY_S", 0.0)


def loop(source, max_lag, reports=None):
    tree = {"name": "test", "env": {"name": "tic_tac_toe"}, "actors": {"max_lag": max_lag}}
    clients = ActorClients(source, None, lambda name, metrics: reports.append(metrics))
    return ActorLoop(experiment=parse(tree, "test"), name="actor-0", clients=clients)


def rounds(actor, count):
    """How many publications behind the parameters of each of so many rounds are, by the source's count."""
    lags = []
    for newest in actor.newest_params():
        lags.append(actor.clients.source.heard - newest.version)
        if len(lags) == count:
            actor.stop()
    return lags


@pytest.mark.parametrize("max_lag", [4, 8, 100])
def test_no_round_begins_with_parameters_further_behind_than_the_bound(max_lag):
    lags = rounds(loop(SlowNetwork(polls=3), max_lag), 200)
    assert max(lags) <= max_lag


def test_an_actor_that_keeps_up_plays_as_often_as_without_a_bound():
    sources = [SlowNetwork(polls=3), SlowNetwork(polls=3)]
    bounded, free = (rounds(loop(source, max_lag), 50) for source, max_lag in zip(sources, (8, None), strict=True))
    assert bounded == free
    assert sources[0].heard == sources[1].heard


def test_without_a_bound_an_actor_never_waits_for_newer_parameters():
    assert rounds(loop(Silent(0), None), 50) == list(range(50))


def test_a_stop_ends_the_wait_for_newer_parameters(monkeypatch):
    monkeypatch.setattr(waiting, "_POLL_EVERY_S", 3600.0)
    actor, lags = loop(Silent(0), 2), []
    thread = threading.Thread(target=lambda: lags.extend(rounds(actor, 50)))
    thread.start()
    actor.stop()
    thread.join(60.0)
    assert not thread.is_alive()
    assert len(lags) <= 3


def test_the_wait_for_newer_parameters_is_a_stage_of_its_own_and_is_said(monkeypatch, caplog):
    monkeypatch.setattr(waiting, "FIRST_MESSAGE_S", 0.0)
    reports = []
    actor = loop(Silent(0), 2, reports)

    def poll():
        actor.clients.source.heard += 1
        if actor.clients.source.heard > 30:
            actor.stop()

    actor.clients.source.poll = poll
    rounds(actor, 50)
    actor.report({})
    assert reports[0]["time/wait_params"] > 0
    message = next(line for line in caplog.messages if "newer parameters" in line)
    assert "learner" in message
    assert "max_lag" in message
