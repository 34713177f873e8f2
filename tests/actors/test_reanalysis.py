"""The reanalyser's loop, and the states that self-play stores for it, with in-memory clients."""

from __future__ import annotations

import jax
import numpy as np
import pytest
from failing_callback import fail_in_callback

from podzero.actors import ActorClients, ReanalysisActor, SelfPlayActor, SelfPlayCore
from podzero.actors.reanalysis import Reanalysed
from podzero.config import SimulatorConfig, parse
from podzero.envs import EnvironmentFailed, make_env, unpack_states
from podzero.replay import priorities_of
from podzero.types import Sample, StoredState, Versioned

from .test_core import first_legal


class Source:
    """Version 3 at once, version 7 from the second poll."""

    def __init__(self):
        self.polls = 0

    def wait(self, timeout_s):
        return Versioned(3, 0.5)

    def poll(self):
        self.polls += 1
        return Versioned(7, 0.75) if self.polls == 2 else None


class Writer:
    """Calls `enough` after `writes` writes."""

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
"""Version of the stored positions whose game raises an error."""


def samples_of(version, count):
    one = np.ones((count, 1), np.float32)
    return Sample(one, one > 0, one, one[:, 0], np.full(count, version, np.int32))


def states_of(version):
    state, returns, truncated = np.zeros((4, 2), np.uint8), np.zeros(4, np.float32), np.zeros(4, bool)
    return StoredState(state, returns, returns, truncated, np.full(4, version, np.int32))


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
    """Runs a reanalyser over `states` for at most `writes` writes; returns its searches, its writer and its reports."""

    def run(states, writes=0, experiment=experiment):
        searches, reports, writer = [], [], Writer([], "reanalysed", writes)

        def reanalyse(params, version, index, states):
            searches.append((params, version, index))
            if states.version[0] == BROKEN:
                fail_in_callback("the game raised KeyError: 'seven'")
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
        return searches, writer, reports

    return run


def test_each_batch_is_searched_once_with_the_newest_parameters(reanalyse):
    searches, writer, _ = reanalyse(iter([states_of(1)] * 4))
    old, new = ("prepared", 0.5), ("prepared", 0.75)
    assert searches == [(old, 3, 1), (old, 3, 2), (new, 7, 3), (new, 7, 4)]
    assert [each.version.tolist() for each in writer.written] == [[3] * 4, [3] * 4, [7] * 4, [7] * 4]
    np.testing.assert_array_equal(writer.priorities[0], priorities_of(np.full(4, 0.25)))


def test_reports_count_samples_and_measure_their_age(reanalyse):
    _, _, reports = reanalyse(iter([states_of(1), states_of(2), states_of(2)]))
    name, metrics = reports[-1]
    assert name == "reanalyser-0"
    assert sum(metrics["count/reanalysed"] for _, metrics in reports) == 12
    assert metrics["reanalysis/age"] == 7 - 2
    assert metrics["reanalysis/version"] == 7
    assert {"time/wait_states", "time/search", "time/write", "time/params"} <= metrics.keys()


def test_batches_whose_game_fails_are_skipped(reanalyse, experiment):
    game = SimulatorConfig(name="simulator", id="game:Game", max_failures=2)
    hosted = experiment.model_copy(update={"env": game})
    states = [states_of(1), states_of(BROKEN), states_of(BROKEN), states_of(2), states_of(BROKEN)]
    searches, writer, _ = reanalyse(iter(states), experiment=hosted)
    assert (len(searches), len(writer.written)) == (5, 2)
    with pytest.raises(EnvironmentFailed, match=r"failed 3 times.*KeyError: 'seven'"):
        reanalyse(iter([states_of(BROKEN)] * 3), experiment=hosted)


def test_stop_ends_the_loop(reanalyse):
    def endless():
        while True:
            yield states_of(1)

    _, writer, _ = reanalyse(endless(), writes=3)
    assert len(writer.written) == 3


def test_self_play_writes_the_states_of_its_samples_before_the_samples(experiment):
    """Row i of the states is the position of row i of the samples."""
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
    for stored, samples in zip(states.written, writer.written, strict=True):
        view = jax.vmap(env.view)(unpack_states(stored.state, like))
        np.testing.assert_array_equal(view.observation, samples.observation)
        np.testing.assert_array_equal(view.legal, samples.legal)
        np.testing.assert_array_equal(stored.version, samples.version)
        np.testing.assert_array_equal(stored.outcome, samples.value_target)
