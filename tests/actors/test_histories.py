"""Targets of games side by side in one history: those that the host computes of each game."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from podzero.actors import assembly
from podzero.actors.histories import Plies, copies, ends, in_game, targets_of
from podzero.config import ActorsConfig

ROWS, GAMES, ACTIONS = 24, 16, 5


def random_history(seed):
    """Games of different lengths, some cut off by a limit, some resigned; who moves is random."""
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
        resigned=done & ~truncated & (random.random(shape) < 0.3),
        surprise=random.uniform(0, 1, shape).astype(np.float32),
        recorded=random.random(shape) < 0.7,
        plays_on=random.random(shape) < 0.5,
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
    ("td_lambda", "outcome_weight", "weight", "discount"),
    [(1.0, 0.0, 0.0, 1.0), (0.7, 0.0, 0.25, 1.0), (0.9, 0.0, 0.0, 0.95), (0.7, 0.3, 0.25, 0.95)],
)
def test_targets_are_those_of_the_host(td_lambda, outcome_weight, weight, discount):
    plies = random_history(seed=1)
    config = ActorsConfig(td_lambda=td_lambda, outcome_weight=outcome_weight, root_value_weight=weight)
    found = jax.device_get(jax.jit(lambda plies: targets_of(plies, config, discount))(plies))
    for rows, column in games_of(plies.done):
        player, values = plies.player[rows, column], plies.value[rows, column]
        last, rewards = rows.stop - 1, plies.rewards[rows, :, column].copy()
        truncated, resigned = plies.truncated[last, column], plies.resigned[last, column]
        if truncated:
            rewards[-1] = np.where(np.arange(2) == player[-1], values[-1], -values[-1])
        returns = assembly.lambda_returns(rewards, player, values, td_lambda, discount)
        outcomes = assembly.outcomes(rewards, player, discount)
        expected = assembly.value_targets(outcomes, returns, values, config)
        np.testing.assert_allclose(found.value[rows, column], expected, atol=1e-6)
        np.testing.assert_allclose(found.outcome[rows, column], outcomes, atol=1e-6)
        np.testing.assert_allclose(found.lambda_return[rows, column], returns, atol=1e-6)
        assert np.all(found.truncated[rows, column] == truncated)
        auxiliary = assembly.auxiliary_targets(rewards, player, plies.action[rows, column], truncated, resigned)
        np.testing.assert_array_equal(found.moves_left[rows, column], auxiliary["moves_left"])
        np.testing.assert_array_equal(found.reply[rows, column], auxiliary["reply"])


def test_positions_know_where_their_game_ends_and_what_its_values_sum_to():
    """Two games in the first column; the one in the second goes on."""
    done = jnp.array([[False, False], [True, False], [False, False], [True, False]])
    values = jnp.array([[1.0, 9.0], [2.0, 9.0], [3.0, 9.0], [4.0, 9.0]])
    np.testing.assert_array_equal(ends(done), [[1, 4], [1, 4], [3, 4], [3, 4]])
    np.testing.assert_array_equal(in_game(jnp.add, values, done)[:, 0], [3, 3, 7, 7])


def test_positions_are_written_as_often_as_the_search_surprised():
    """With weight 1/2 and surprises 0, 1, 3 and 4 beside a mean of 2: 0.5, 0.75, 1.25 and 1.5 times on average."""
    surprise = np.array([0.0, 1.0, 3.0, 4.0, 5.0], np.float32)
    games = 4000
    plies = random_history(0)._replace(
        surprise=jnp.tile(surprise[:, None], (1, games)),
        recorded=jnp.tile(jnp.array([True, True, True, True, False])[:, None], (1, games)),
        done=jnp.tile(jnp.array([False, False, False, False, True])[:, None], (1, games)),
    )
    number = np.asarray(copies(plies, 0.5, jax.random.key(0)))
    np.testing.assert_allclose(number.mean(axis=1), [0.5, 0.75, 1.25, 1.5, 0.0], atol=0.03)
    assert set(np.unique(number[2])) == {1, 2}
    np.testing.assert_array_equal(copies(plies, 0.0, jax.random.key(0))[:, 0], [1, 1, 1, 1, 0])
