"""Recorded episodes: the windows that the learner of a MuZero run reads."""

import numpy as np
import pytest

from podzero.config import load
from podzero.core.errors import ConfigError
from podzero.core.types import EnvSpec
from podzero.envs import sample_packing
from podzero.replay import Episode, EpisodeLayout, RecordsWriter, make_reader, open_records
from podzero.replay.records import recorded_batches

SPEC = EnvSpec("gymnasium/CartPole-v1", (4,), "float32", 2, players=1)


def episode(steps, terminated, first=0):
    """An episode that counts: observation t is t, the action its parity, the reward 1, 2, 3, ..."""
    time = np.arange(steps + 1, dtype=np.float32) + first
    return Episode(
        observation=np.repeat(time[:, None], 4, axis=1),
        action=(time[:-1] % 2).astype(np.int32),
        reward=np.arange(1, steps + 1, dtype=np.float32),
        terminated=terminated,
    )


@pytest.fixture
def experiment_on(tmp_path):
    """CartPole with windows of 2 + 2 steps, on episodes."""

    def make(*episodes, discount=0.5, **settings):
        with RecordsWriter(tmp_path / "records", EpisodeLayout(SPEC, discount)) as writer:
            for one in episodes:
                writer.add(one)
            writer.finish({"games": len(episodes)})
        given = {"data.records": tmp_path / "records", "env.discount": 0.5, "replay.sampler": "uniform"} | settings
        sizes = ("muzero.unroll_steps=2", "muzero.td_steps=2", "learner.batch_size=16", "stop.minutes=1")
        return load("cartpole", (*sizes, *(f"{name}={value}" for name, value in given.items())))

    return make


def test_values_are_the_discounted_returns_until_the_end():
    rows = EpisodeLayout(SPEC, 0.5).pack(episode(3, True))
    np.testing.assert_allclose(rows["value"], [1 + 1 + 0.75, 2 + 1.5, 3, 0])
    np.testing.assert_array_equal(rows["left"], [3, 2, 1, 0])


def test_windows_follow_their_episode_and_end_with_it(experiment_on):
    # Two episodes: 6 steps that are truncated, then 2 that terminate.
    experiment = experiment_on(episode(6, False), episode(2, True, first=100))
    packing = sample_packing(experiment, SPEC)
    batch = next(recorded_batches(open_records(experiment, SPEC), packing, (4, 64), seed=1))
    samples = packing.unpack(batch.rows)
    assert samples.observation.shape[:2] == (4, 64)
    windows = {int(w[0]): i for i, w in enumerate(samples.observation.reshape(256, -1, 4)[:, 0])}
    assert sorted(windows) == [0, 1, 2, 3, 4, 5, 100, 101]
    flat = {name: np.asarray(field).reshape(256, *field.shape[2:]) for name, field in samples._asdict().items()}
    inside, late, last = windows[1], windows[5], windows[101]
    np.testing.assert_array_equal(flat["action"][inside], [1, 0])
    np.testing.assert_array_equal(flat["reward"][inside], [2, 3, 4, 5])
    assert (flat["length"][inside], flat["terminated"][inside]) == (4, False)
    np.testing.assert_array_equal(flat["policy"][inside], [[0, 1], [1, 0], [0, 1]])
    # After the end there are neither rewards nor values nor policies.
    np.testing.assert_array_equal(flat["reward"][late], [6, 0, 0, 0])
    np.testing.assert_array_equal(flat["policy"][late], [[0, 1], [0, 0], [0, 0]])
    assert (flat["length"][late], flat["terminated"][late]) == (1, False)
    np.testing.assert_array_equal(flat["value"][last], [2, 0, 0, 0, 0])
    assert (flat["length"][last], flat["terminated"][last]) == (1, True)
    assert set(flat["version"]) == {-1}


def test_the_learner_s_batches_are_recorded_windows(experiment_on):
    experiment = experiment_on(episode(9, True))
    reader = make_reader(list, SPEC, experiment)
    samples = sample_packing(experiment, SPEC).unpack(next(reader).rows)
    assert samples.action.shape == (experiment.learner.steps_per_dispatch, 16, 2)
    reader.close()
    with pytest.raises(StopIteration):
        next(reader)


def test_records_with_another_discount_are_refused(experiment_on):
    with pytest.raises(ConfigError, match=r"discount:0\.9.*discount:0\.5"):
        open_records(experiment_on(episode(3, True), discount=0.9), SPEC)


@pytest.mark.parametrize(
    ("changes", "message"),
    [({"action_bounds": ((-1.0,), (1.0,))}, "continuous actions"), ({"masked": True}, "action masks")],
)
def test_other_actions_are_refused(changes, message):
    with pytest.raises(ConfigError, match=message):
        EpisodeLayout(SPEC._replace(**changes), 1.0)
