"""The acting loop with in-memory environments and clients."""

import jax.numpy as jnp
import numpy as np
import pytest

from podzero.actors import ActorClients
from podzero.actors.environments import EnvironmentActor
from podzero.config import parse
from podzero.core.types import EnvSpec, Versioned
from podzero.envs import VectorStep
from podzero.replay.reader import priorities_of
from podzero.search import ModelSearchResult

SPEC = EnvSpec("counting", (1,), "float32", 3, players=1)
ENVIRONMENTS = 2


class Counting:
    """Episodes of three steps: an observation is the index of the step, a reward is the action.

    Stops the actor after `steps`.
    """

    count = ENVIRONMENTS
    spec = SPEC

    def __init__(self, steps):
        self.actions, self.failures, self.closed, self.began = [], 0, False, False
        self._steps, self.stop = steps, None

    def reset(self):
        self.began, self._at = True, np.zeros(ENVIRONMENTS, int)
        return self._step(0, started=True)

    def step(self, actions):
        self.actions.append(actions)
        if len(self.actions) == self._steps:
            self.stop()
        over = self._at[0] == 3
        self._at = np.zeros(ENVIRONMENTS, int) if over else self._at + 1
        return self._step(0 if over else np.asarray(actions), started=over)

    def measured(self):
        return {"success": 0.5}

    def close(self):
        self.closed = True

    def _step(self, reward, started):
        every = np.ones(ENVIRONMENTS, bool)
        return VectorStep(
            observation=self._at[:, None].astype(np.float32),
            reward=np.broadcast_to(np.float32(reward), ENVIRONMENTS),
            terminated=every & (self._at[0] == 3),
            truncated=~every,
            started=every & started,
            failed=~every,
            legal=np.tile(np.arange(3) != 2, (ENVIRONMENTS, 1)),
        )


class Source:
    """Version 0 at once, version 1 from the fifth poll."""

    def __init__(self, environments):
        self.polls, self.began_early, self._environments = 0, None, environments

    def wait(self, timeout_s):
        self.began_early = self._environments.began
        return Versioned(0, 0.0)

    def poll(self):
        self.polls += 1
        return Versioned(1, 1.0) if self.polls == 5 else None


class Writer:
    """Stops the actor after `enough` windows."""

    def __init__(self, enough):
        self.written, self.errors, self._enough, self.stop = [], [], enough, None

    def write(self, windows, priorities=None, stopping=None):
        self.written.append(windows)
        self.errors.append(priorities)
        if sum(len(each.length) for each in self.written) >= self._enough:
            self.stop()


def search(params, key, observation, exploration, legal):
    """Takes the last legal action, 1; the value is the version of the parameters, the policy depends on temperature."""
    batch = observation.shape[0]
    policy = jnp.where(exploration.temperature[:, None] > 0, jnp.array([0.25, 0.5, 0.25]), jnp.array([0.0, 1.0, 0.0]))
    return ModelSearchResult(
        action=jnp.sum(legal, axis=1, dtype=jnp.int32) - 1,
        policy=policy,
        value=jnp.full(batch, params),
        candidates=jnp.zeros((batch, 0)),
    )


def run_actor(states=None, report_every_s=60.0, steps=None, **sections):
    """Runs an actor for `steps` or until it writes 12 windows; returns its writer, its reports and the environments."""
    experiment = parse(
        {
            "name": "t",
            "env": {"name": "gymnasium", "id": "CartPole-v1", "discount": 1.0},
            "network": {"name": "muzero_mlp"},
            "actors": {"games": ENVIRONMENTS, "temperature_plies": 2},
            "muzero": {"unroll_steps": 1, "td_steps": 2},
            **sections,
        },
        "test",
    )
    environments, reports, writer = Counting(steps), [], Writer(12)
    source = Source(environments)
    actor = EnvironmentActor(
        experiment=experiment,
        name="actor-0",
        seed=0,
        spec=SPEC,
        make_environments=lambda: environments,
        search=search,
        clients=ActorClients(source, writer, lambda name, metrics: reports.append(metrics), states, report_every_s),
    )
    writer.stop = environments.stop = actor.stop
    actor.run()
    assert source.began_early is False  # an episode may go on in real time while nobody can act
    return writer, reports, environments


@pytest.fixture
def run():
    return run_actor()


def test_windows_for_reanalysis_are_written_with_all_observations():
    states = Writer(enough=1000)
    writer, _, _ = run_actor(states, reanalyse={"share": 0.5})
    assert len(states.written) == len(writer.written)
    for stored, samples in zip(states.written, writer.written, strict=True):
        assert stored.observation.shape[1:] == (1 + 2 + 1, 1)
        assert samples.observation.shape[1:] == (1, 1)
        np.testing.assert_array_equal(stored.observation[:, 0], samples.observation[:, 0])
        np.testing.assert_array_equal(stored.value, samples.value)


def test_windows_are_written_as_episodes_end():
    writer, _, _ = run_actor(report_every_s=0.0)
    first = writer.written[0]  # K + n = 3: the last position completes all windows of its episode
    np.testing.assert_array_equal(first.observation[:, 0, 0], [0, 0, 1, 1, 2, 2])
    np.testing.assert_array_equal(first.length, [3, 3, 2, 2, 1, 1])
    np.testing.assert_array_equal(first.reward[:2], [[1, 1, 1]] * 2)
    assert all(each.terminated.all() for each in writer.written)


def test_windows_are_written_by_the_dozen_unless_a_report_or_the_end_is_due(run):
    assert [len(each.length) for each in run[0].written] == [48]
    with_reports, _, _ = run_actor(report_every_s=0.0)
    assert [len(each.length) for each in with_reports.written] == [6, 6]
    stopped, _, _ = run_actor(steps=8)  # two episodes
    assert [len(each.length) for each in stopped.written] == [12]


def test_windows_have_the_version_that_searched_them(run):
    writer, _, _ = run
    versions = np.concatenate([each.version for each in writer.written])
    assert set(versions.tolist()) == {0, 1}
    assert (np.diff(versions) >= 0).sum() >= len(versions) - 3
    for each in writer.written:
        np.testing.assert_array_equal(each.value[:, 0], each.version)


def test_priorities_follow_the_value_errors(run):
    writer, _, _ = run
    np.testing.assert_allclose(writer.errors[0][:6], priorities_of(np.array([2.0, 2.0, 2.0, 2.0, 1.0, 1.0])))


def test_the_choice_is_greedy_after_the_temperature_plies(run):
    writer, _, _ = run
    np.testing.assert_allclose(writer.written[0].policy[0], [[0.25, 0.5, 0.25]] * 2)
    last = next(each for each in writer.written if 1 in each.length)
    row = int(np.flatnonzero(last.length == 1)[0])
    np.testing.assert_allclose(last.policy[row, 0], [0.0, 1.0, 0.0])


def test_metrics_count_moves_samples_and_returns(run):
    writer, reports, environments = run
    total = {name: sum(report.get(name, 0.0) for report in reports) for name in ("count/moves", "count/samples")}
    ignored = sum(1 for index in range(len(environments.actions)) if index % 4 == 3)
    assert total["count/moves"] == ENVIRONMENTS * (len(environments.actions) - ignored)
    assert total["count/samples"] == sum(len(each.length) for each in writer.written)
    assert reports[-1]["acting/mean_return"] == 3.0
    assert reports[-1]["acting/info_success"] == 0.5
    assert reports[-1]["acting/steps_per_episode"] == 3.0
    assert environments.closed
