"""The comparison of files with JAX."""

from pathlib import Path

import numpy as np
import pytest

from podzero.config import load
from podzero.envs import spec_of
from podzero.tools.export.agent import BATCH_SIZES, check_file, greatest_difference, observations_of, random_actions
from podzero.tools.export.functions import ExportError
from podzero.types import EnvSpec

ROWS = np.arange(64, dtype=np.float32)[:, None]


def test_differences_are_relative_to_the_greatest_value_if_it_exceeds_one():
    assert greatest_difference(np.array([1.0, 3.0]), np.array([1.0, -4.0])) == pytest.approx(7 / 4)
    assert greatest_difference(np.array([0.25, 0.5]), np.array([0.0, 0.5])) == pytest.approx(0.25)
    assert greatest_difference(np.array([np.nan, 0.5]), np.array([0.0, 0.5])) == np.inf
    assert greatest_difference(np.array([np.inf]), np.array([np.inf])) == np.inf


def test_a_file_is_called_with_every_batch_size_and_the_greatest_difference_is_returned():
    called = []

    def call(inputs):
        called.append(len(inputs["x"]))
        return {"y": 2 * inputs["x"] + (1e-3 if len(inputs["x"]) == 7 else 0)}

    found = check_file(Path("a"), call, {"x": ROWS}, {"y": 2 * ROWS})
    assert found == {"y": pytest.approx(1e-3 / 12, rel=1e-2)}
    assert called == list(BATCH_SIZES)


@pytest.mark.parametrize("found", [{}, {"y": ROWS[0]}, {"y": ROWS[:1].repeat(2, axis=1)}])
def test_missing_outputs_and_other_shapes_are_refused(found):
    with pytest.raises(ExportError, match="a: output y of a batch of 1 is missing or has another shape"):
        check_file(Path("a"), lambda inputs: found, {"x": ROWS}, {"y": ROWS})


@pytest.mark.parametrize("config", ["tic_tac_toe", "cartpole", "own_game"])
def test_observations_are_different_positions_of_the_environment(config):
    env = load(config).env
    spec = spec_of(env)
    found = observations_of(env, spec, 20)
    assert found.shape == (20, *spec.observation_shape)
    assert found.dtype == np.float32
    assert len(np.unique(found.reshape(20, -1), axis=0)) > 8


def test_actions_are_those_of_the_environment():
    discrete = random_actions(EnvSpec("a", (1,), "float32", 3, 1), 64, 0)
    assert discrete.dtype == np.int32
    assert set(discrete.tolist()) == {0, 1, 2}
    continuous = random_actions(EnvSpec("a", (1,), "float32", 0, 1, ((-2.0, 0.0), (2.0, 1.0))), 64, 0)
    assert (continuous.shape, continuous.dtype) == ((64, 2), np.float32)
    assert -1 <= continuous.min() < -0.5 < 0.5 < continuous.max() <= 1
