"""The self-play loop with host games that fail and with in-memory clients, and its metrics."""

import time

import numpy as np
import pytest

from podzero.actors import ActorClients
from podzero.actors.clients import Played, SelfPlayMetrics
from podzero.actors.core import SelfPlayCore
from podzero.actors.selfplay import SelfPlayActor
from podzero.config import load, parse
from podzero.core.types import Resignations
from podzero.envs import EnvironmentFailed, faults
from podzero.envs.host import HostEnv

from .test_core import first_legal
from .test_reanalysis import Source, Writer

GAMES = 4


class Fragile:
    """A game of three moves; every `every`-th step of all games calls `fault`."""

    num_actions, players = 2, 2
    steps = 0

    def __init__(self, every, fault):
        self.every, self.fault, self.moves = every, fault, 0

    def reset(self, seed):
        self.moves = 0

    def step(self, action):
        self.moves += 1
        Fragile.steps += 1
        if Fragile.steps % self.every == 0:
            self.fault()

    def legal_actions(self):
        return [0, 1]

    def observation(self):
        return np.array([self.moves], np.float32)

    def player(self):
        return self.moves % 2

    def rewards(self):
        return (1.0, -1.0) if self.done() else (0.0, 0.0)

    def done(self):
        return self.moves == 3

    def clone(self):
        twin = Fragile(self.every, self.fault)
        twin.moves = self.moves
        return twin


def fail():
    raise OSError("the game broke")


def play(every, fault, writes, timeout_s=60.0):
    """Runs an actor for `writes` writes; returns its samples and its metrics."""
    experiment = parse(
        {
            "name": "test",
            "env": {"name": "simulator", "id": "test:Fragile"},
            "actors": {"games": GAMES},
            "replay": {"samples_per_item": 1},
        },
        "test",
    )
    env = HostEnv(Fragile(every, fault), "fragile", max_plies=8, step_timeout_s=timeout_s)
    diary, metrics, writer = [], [], None
    writer = Writer(diary, "samples", writes=writes)
    actor = SelfPlayActor(
        experiment=experiment,
        name="actor-0",
        seed=0,
        core=SelfPlayCore(env, first_legal(env), experiment.actors),
        clients=ActorClients(Source(), writer, lambda name, reported: metrics.append(reported)),
    )
    writer.enough = actor.stop
    actor.run()
    return writer.written, metrics


@pytest.fixture(autouse=True)
def _from_the_start():
    Fragile.steps = 0


def test_a_game_that_raises_loses_the_running_games_of_its_actor_only():
    written, metrics = play(every=30, fault=fail, writes=5)
    assert sum(reported["count/failed_episodes"] for reported in metrics) >= GAMES
    lengths = [len(samples.value_target) for samples in written]
    assert sum(lengths) % 3 == 0  # whole games only
    assert sum(reported["count/samples"] for reported in metrics) >= sum(lengths)


def test_a_game_that_hangs_is_abandoned():
    _, metrics = play(every=30, fault=lambda: time.sleep(20), writes=3, timeout_s=1.0)
    assert sum(reported["count/failed_episodes"] for reported in metrics) >= GAMES


def test_games_that_always_fail_end_the_actor(monkeypatch):
    monkeypatch.setattr(faults, "MAX_FAILURES", 3)
    with pytest.raises(EnvironmentFailed, match=r"failed 4 times.* 3 .*OSError"):
        play(every=3, fault=fail, writes=10**6)


MOVE = Played(samples=10, games=2, dropped=None, depth=None, abs_root_value=np.array([0.25, 0.75]))


def metrics_of_four_games():
    return SelfPlayMetrics(load("tic_tac_toe", ["actors.games=4", "search.simulations=8"]))


def test_counts_are_of_all_games_and_start_anew_after_a_report():
    metrics = metrics_of_four_games()
    for _ in range(2):
        metrics.add(MOVE, version=3, plies=14)
    report = metrics.flush()
    assert (report["count/moves"], report["count/evaluations"]) == (8.0, 72.0)
    assert (report["count/samples"], report["count/games"]) == (20.0, 4.0)
    assert (report["selfplay/plies_per_game"], report["selfplay/abs_root_value"]) == (7.0, 0.5)
    assert "count/dropped_actions" not in report
    assert metrics.flush()["count/moves"] == 0.0


def test_the_share_of_false_resignations_is_that_of_the_games_played_on():
    metrics = metrics_of_four_games()
    for resigned, played_on, false in ((1, 0, 0), (0, 2, 1), (1, 2, 0)):
        metrics.add(MOVE._replace(resignations=Resignations(resigned, played_on, false)), version=3)
    report = metrics.flush()
    assert (report["selfplay/resignations"], report["selfplay/false_resignations"]) == (2 / 6, 1 / 4)
    metrics.add(MOVE._replace(resignations=Resignations(1, 0, 0)), version=3)
    assert "selfplay/false_resignations" not in metrics.flush()


def test_actions_without_a_slot_are_counted_and_logged_once(caplog):
    metrics = metrics_of_four_games()
    metrics.add(MOVE._replace(dropped=np.int32(0)), version=3)
    assert caplog.text == ""
    for _ in range(2):
        metrics.add(MOVE._replace(dropped=np.int32(3)), version=3)
    assert metrics.flush()["count/dropped_actions"] == 6.0
    assert caplog.text.count("search.slots is too small") == 1
