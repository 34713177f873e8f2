"""The loop that searches again, and the loops that leave it something to search, with everything around in memory."""

from __future__ import annotations

import jax
import numpy as np
import pytest

from podzero.actors import ActorClients, ReanalysisActor, SelfPlayActor, SelfPlayCore
from podzero.actors.reanalyse_targets import Reanalysed
from podzero.config import SimulatorConfig, parse
from podzero.envs import EnvironmentFailed, make_env, unpack_states
from podzero.replay import priorities_of
from podzero.types import Sample, StoredState, Versioned

from .test_core import first_legal


class Source:
    """Version 3 at once; version 7 from the second look on."""

    def __init__(self):
        self.looks = 0

    def wait(self, timeout_s):
        return Versioned(3, 0.5)

    def poll(self):
        self.looks += 1
        return Versioned(7, 0.75) if self.looks == 2 else None


class Writer:
    """Calls `enough` after some writes."""

    def __init__(self, diary, name, writes=0, enough=None):
        self.written, self.priorities = [], []
        self._diary, self._name, self._writes, self.enough = diary, name, writes, enough

    def write(self, samples, priorities=None):
        self._diary.append(self._name)
        self.written.append(samples)
        self.priorities.append(priorities)
        if len(self.written) == self._writes:
            self.enough()


BROKEN = 5
"""Version of the positions in which the game fails."""


def samples_of(version, count):
    one = np.ones((count, 1), np.float32)
    return Sample(one, one > 0, one, one[:, 0], np.full(count, version, np.int32))


def past_of(version):
    return StoredState(np.zeros((4, 2), np.uint8), np.zeros(4, np.float32), np.full(4, version, np.int32))


@pytest.fixture
def experiment():
    tree = {
        "name": "t",
        "env": {"name": "tic_tac_toe"},
        "actors": {"games": 4},
        "replay": {"samples_per_item": 2},
        "reanalyse": {"share": 0.5, "games": 4},
    }
    return parse(tree, "test")


@pytest.fixture
def reanalyse(experiment):
    """Runs a reanalyser over `past`, for `writes` writes at most; what it asked for, wrote and reported."""

    def run(states, writes=0, experiment=experiment):
        asked, reports, writer = [], [], Writer([], "reanalysed", writes)

        def reanalyse(params, version, turn, states):
            asked.append((params, version, turn))
            if states.version[0] == BROKEN:
                raise jax.errors.JaxRuntimeError("INTERNAL: SimulatorError: the game raised KeyError: 'seven'")
            return Reanalysed(samples_of(version, len(states.version)), np.full(len(states.version), 0.25, np.float32))

        actor = ReanalysisActor(
            experiment=experiment,
            name="reanalyser-0",
            reanalyse=reanalyse,
            prepare=lambda params: ("prepared", params),
            source=Source(),
            states=states,
            writer=writer,
            report=lambda name, metrics: reports.append((name, metrics)),
        )
        writer.enough = actor.stop
        actor.run()
        return asked, writer, reports

    return run


def test_each_batch_is_searched_once_with_the_newest_parameters(reanalyse):
    asked, writer, _ = reanalyse(iter([past_of(1)] * 4))
    old, new = ("prepared", 0.5), ("prepared", 0.75)
    assert asked == [(old, 3, 1), (old, 3, 2), (new, 7, 3), (new, 7, 4)]
    assert [each.version.tolist() for each in writer.written] == [[3] * 4, [3] * 4, [7] * 4, [7] * 4]
    np.testing.assert_array_equal(writer.priorities[0], priorities_of(np.full(4, 0.25)))


def test_it_reports_how_much_and_how_old(reanalyse):
    _, _, reports = reanalyse(iter([past_of(1), past_of(2), past_of(2)]))
    name, metrics = reports[-1]
    assert name == "reanalyser-0"
    assert sum(metrics["count/reanalysed"] for _, metrics in reports) == 12
    assert metrics["reanalysis/age"] == 7 - 2
    assert metrics["reanalysis/version"] == 7
    assert {"time/wait_past", "time/search", "time/write", "time/params"} <= metrics.keys()


def test_positions_in_which_a_game_fails_are_passed_over(reanalyse, experiment):
    game = SimulatorConfig(name="simulator", id="game:Game", max_failures=2)
    hosted = experiment.model_copy(update={"env": game})
    states = [past_of(1), past_of(BROKEN), past_of(BROKEN), past_of(2), past_of(BROKEN)]
    asked, writer, _ = reanalyse(iter(states), experiment=hosted)
    assert (len(asked), len(writer.written)) == (5, 2)
    with pytest.raises(EnvironmentFailed, match=r"failed 3 times.*The last failure: the game raised KeyError: 'seven'"):
        reanalyse(iter([past_of(BROKEN)] * 3), experiment=hosted)


def test_it_ends_when_told_to(reanalyse):
    def endless():
        while True:
            yield past_of(1)

    _, writer, _ = reanalyse(endless(), writes=3)
    assert len(writer.written) == 3


def test_self_play_leaves_its_positions_with_their_states(experiment):
    """Each row of the past is the position of the sample at the same place, before it is learned from."""
    env, diary = make_env("tic_tac_toe"), []
    states, writer = Writer(diary, "states"), Writer(diary, "samples", writes=2)
    actor = SelfPlayActor(
        experiment=experiment,
        name="actor-0",
        seed=0,
        core=SelfPlayCore(env, first_legal(env), experiment.actors, keep_states=True),
        fold=lambda params: params,
        clients=ActorClients(Source(), writer, lambda name, metrics: None, states),
    )
    writer.enough = actor.stop
    actor.run()
    assert diary == ["states", "samples"] * (len(diary) // 2)
    like = jax.eval_shape(env.init, jax.random.key(0))
    assert sum(len(samples.version) for samples in writer.written) >= 28
    for kept, samples in zip(states.written, writer.written, strict=True):
        view = jax.vmap(env.view)(unpack_states(kept.state, like))
        np.testing.assert_array_equal(view.observation, samples.observation)
        np.testing.assert_array_equal(view.legal, samples.legal)
        np.testing.assert_array_equal(kept.version, samples.version)
        np.testing.assert_array_equal(kept.outcome, samples.value_target)
