"""Search in games in which each player has a value: every player maximizes its own (max-n)."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from toy_games import heaps, nim, rough, uniform

from podzero.config import OwnAlgorithmConfig, SearchConfig
from podzero.core.errors import ConfigError
from podzero.core.types import Exploration, View
from podzero.envs.jax_game import OwnGame
from podzero.search import dense_tree, make_search, rules_model

ALGORITHMS = ("gumbel", "puct")


class Choices:
    """Three players choose 0 or 1 in turn; the table `[2, 2, 2, 3]` gives each player's reward at the end."""

    players = 3
    max_plies = 3

    def __init__(self, table):
        self.table = table

    def init(self, key):
        return jnp.zeros(5, jnp.int32)  # three choices, plies, whether the game was over before

    def step(self, state, action):
        over = state[3] >= 3
        played = state.at[jnp.minimum(state[3], 2)].set(action).at[3].add(1)
        return jnp.where(over, state.at[4].set(1), played)

    def view(self, state):
        done, first = state[3] >= 3, (state[3] == 3) & (state[4] == 0)
        return View(
            observation=state[:4].astype(jnp.float32),
            legal=jnp.ones(2, bool),
            player=jnp.minimum(state[3], 2),
            rewards=jnp.where(first, jnp.asarray(self.table)[state[0], state[1], state[2]], 0),
            done=done,
            truncated=jnp.array(False),
        )


# After 0, player 2 chooses its 0.9 in both cases, so that player 1 has -0.6 or 0.8 and chooses 1, which leaves 0.8 to
# player 0. After 1, player 0 has 0.3 in any case; it would choose that if the others only harmed it (-1 after 0).
TABLE = np.array(
    [
        [[[0.9, -1.0, -1.0], [0.2, -0.6, 0.9]], [[0.8, 0.8, 0.9], [-1.0, 0.9, -0.9]]],
        [[[0.3, 0.9, -0.9], [0.3, -0.9, 0.9]], [[0.3, -0.9, -0.9], [0.3, 0.9, 0.9]]],
    ],
    np.float32,
)


@pytest.fixture
def _one_stage(monkeypatch):
    """Trees have their whole size from the start, so that a search is compiled as one loop however long it is."""
    monkeypatch.setattr(dense_tree, "STAGES", 1)


@pytest.mark.usefixtures("_one_stage")
@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_each_player_maximizes_its_own_value(algorithm):
    env = OwnGame(Choices(TABLE), "jax/Choices")
    config = SearchConfig(algorithm=algorithm, simulations=400, root_value="action", max_considered_actions=2)
    search = jax.jit(make_search(config, rules_model(env, uniform(env))))
    start = env.init(jax.random.key(0))
    roots = [start, env.step(start, 0), env.step(env.step(start, 0), 1)]
    result = search(None, jax.random.key(1), jnp.stack(roots), Exploration.none(3))
    np.testing.assert_array_equal(result.action, [0, 1, 0])
    # Of players 0, 1 and 2, who move there.
    np.testing.assert_allclose(result.value, [0.8, 0.8, 0.9], atol=0.1)


class Both:
    """A zero-sum game for two in which each player has a value."""

    def __init__(self, env):
        self.init, self.step, self.view = env.init, env.step, env.view
        self.spec = env.spec._replace(values=2)


@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_a_zero_sum_game_for_two_is_searched_as_with_a_single_value(algorithm):
    """Searches also go on beyond the end of the game, after two or three moves."""
    config = SearchConfig(algorithm=algorithm, simulations=8, tree="dense")

    def searched(env):
        evaluate = rough(nim())

        def each(params, key, states):
            logits, value = evaluate(params, key, states)
            return logits, value if env.spec.values == 1 else jnp.stack([value, -value], axis=1)

        search = jax.jit(make_search(config, rules_model(env, each)))
        return search(None, jax.random.key(2), heaps(25, 8, 4, 2), Exploration.none(4))

    single, both = searched(nim()), searched(Both(nim()))
    np.testing.assert_array_equal(single.visits, both.visits)
    np.testing.assert_allclose(single.value, both.value, atol=1e-5)
    np.testing.assert_allclose(single.policy, both.policy, atol=1e-4)


def test_a_search_of_ones_own_is_refused():
    env = OwnGame(Choices(TABLE), "jax/Choices")
    config = SearchConfig(algorithm=OwnAlgorithmConfig(name="mine.py:search"))
    with pytest.raises(ConfigError, match=r"search\.algorithm"):
        make_search(config, rules_model(env, uniform(env)))
