"""Targets of games side by side in one history: those that the host computes of each game."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from podzero.actors import assembly
from podzero.actors.rollouts import Plies, ends, in_game, targets_of
from podzero.config import ActorsConfig

ROWS, GAMES, ACTIONS = 24, 16, 5


def random_history(seed):
    """Games of different lengths, some cut off by a limit; who moves is random."""
    random = np.random.default_rng(seed)
    shape = (ROWS, GAMES)
    done = random.random(shape) < 0.2
    truncated = done & (random.random(shape) < 0.3)
    outcome = random.integers(-1, 2, shape).astype(np.float32) * (done & ~truncated)
    return Plies(
        state=None,
        policy=np.zeros((ROWS, ACTIONS, GAMES), np.float32),
        value=random.uniform(-1, 1, shape).astype(np.float32),
        action=random.integers(0, ACTIONS, shape).astype(np.int32),
        player=random.integers(0, 2, shape).astype(np.int32),
        rewards=np.stack([outcome, -outcome], axis=1),
        done=done,
        truncated=truncated,
        version=np.zeros(shape, np.int32),
    )


def games_of(done):
    """The rows of all finished games, with their columns."""
    for column in range(done.shape[1]):
        start = 0
        for end in np.flatnonzero(done[:, column]):
            yield slice(start, end + 1), column
            start = end + 1


@pytest.mark.parametrize(
    ("td_lambda", "weight", "discount"), [(1.0, 0.0, 1.0), (0.7, 0.25, 1.0), (0.9, 0.0, 0.95), (0.7, 0.25, 0.95)]
)
def test_targets_are_those_of_the_host(td_lambda, weight, discount):
    plies = random_history(seed=1)
    config = ActorsConfig(td_lambda=td_lambda, root_value_weight=weight)
    found = jax.device_get(jax.jit(lambda plies: targets_of(plies, config, discount))(plies))
    for rows, column in games_of(plies.done):
        player, values = plies.player[rows, column], plies.value[rows, column]
        last, rewards = rows.stop - 1, plies.rewards[rows, :, column].copy()
        truncated = plies.truncated[last, column]
        if truncated:
            rewards[-1] = np.where(np.arange(2) == player[-1], values[-1], -values[-1])
        returns = assembly.lambda_returns(rewards, player, values, td_lambda, discount)
        outcomes = assembly.outcomes(rewards, player, discount)
        expected = assembly.value_targets(returns, values, weight)
        np.testing.assert_allclose(found.value[rows, column], expected, atol=1e-6)
        np.testing.assert_allclose(found.outcome[rows, column], outcomes, atol=1e-6)
        np.testing.assert_allclose(found.lambda_return[rows, column], returns, atol=1e-6)
        assert np.all(found.truncated[rows, column] == truncated)
        auxiliary = assembly.auxiliary_targets(rewards, player, plies.action[rows, column], truncated)
        np.testing.assert_array_equal(found.moves_left[rows, column], auxiliary["moves_left"])
        np.testing.assert_array_equal(found.reply[rows, column], auxiliary["reply"])


def test_positions_know_where_their_game_ends_and_what_its_values_sum_to():
    """Two games in the first column; the one in the second goes on."""
    done = jnp.array([[False, False], [True, False], [False, False], [True, False]])
    values = jnp.array([[1.0, 9.0], [2.0, 9.0], [3.0, 9.0], [4.0, 9.0]])
    np.testing.assert_array_equal(ends(done), [[1, 4], [1, 4], [3, 4], [3, 4]])
    np.testing.assert_array_equal(in_game(jnp.add, values, done)[:, 0], [3, 3, 7, 7])
