"""How much self-play explores as games and episodes go on."""

import numpy as np
import pytest

from podzero.actors.core import explore
from podzero.config import ActorsConfig, parse


def test_an_episode_of_any_length_is_explored_to_its_end():
    """Atari's have 27,000 steps. With the defaults of an experiment that learns a model."""
    tree = {"name": "t", "env": {"name": "gymnasium", "id": "CartPole-v1"}, "network": {"name": "muzero_mlp"}}
    found = explore(parse(tree, "test").actors, np.array([0, 1000, 27_000]))
    np.testing.assert_array_equal(found.temperature, [1.0, 1.0, 1.0])
    np.testing.assert_array_equal(found.noise, [1.0, 1.0, 1.0])


@pytest.mark.parametrize(("age", "expected"), [(0, 0.75), (19, 0.75), (20, 0.0), (21, 0.0)])
def test_the_choice_is_greedy_after_the_temperature_plies(age, expected):
    config = ActorsConfig(temperature=0.75, temperature_plies=20)
    assert explore(config, np.array([age])).temperature == expected
