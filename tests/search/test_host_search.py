"""Search over games on the host, through callbacks, gives the same results as over games in JAX, with any cache."""

import jax
import jax.numpy as jnp
import numpy as np
from explorations import full
from toy_games import TAKEN, nim, rough

from podzero.config import SearchConfig, SimulatorConfig
from podzero.core.types import Exploration
from podzero.envs import make_env
from podzero.envs.host import HostEnv
from podzero.search import make_search, rules_model

GAMES = ([4, 4, 4], [4, 4, 4, 4, 1], [4, 4, 4, 4, 4], [4, 4, 4, 4, 3], [0], [4, 4, 4, 4, 4, 2])
"""Moves of Nim, which leave heaps of 15, 8, 5, 6, 29 and 2 stones."""


class NimOnHost:
    """Nim in plain Python."""

    num_actions, players = TAKEN, 2
    steps = 0
    """Moves of all games of this process."""

    def reset(self, seed):
        self.heap, self.plies = 30, 0

    def step(self, action):
        NimOnHost.steps += 1
        self.heap, self.plies = self.heap - action - 1, self.plies + 1

    def legal_actions(self):
        return range(min(TAKEN, self.heap))

    def observation(self):
        return np.array([self.heap, self.plies], np.float32)

    def player(self):
        return self.plies % 2

    def rewards(self):
        won = (1.0 if self.plies % 2 else -1.0) if self.heap == 0 else 0.0
        return won, -won

    def done(self):
        return self.heap == 0

    def clone(self):
        twin = NimOnHost()
        twin.heap, twin.plies = self.heap, self.plies
        return twin


def hosted(cache_size=1000, max_plies=30):
    return HostEnv(NimOnHost(), "nim", max_plies=max_plies, cache_size=cache_size)


def searched(env):
    """The search of the positions of GAMES."""
    states, step = [], jax.jit(env.step)
    for game in GAMES:
        state = env.init(jax.random.key(0))
        for action in game:
            state = step(state, jnp.int32(action))
        states.append(state)
    roots = jax.tree.map(lambda *leaves: jnp.stack(leaves), *states)
    search = jax.jit(make_search(SearchConfig(simulations=24), rules_model(env, rough(env))))
    return jax.device_get(search(None, jax.random.key(2), roots, full(len(GAMES))))


def test_search_over_the_host_game_equals_search_over_the_jax_game_whatever_the_size_of_the_cache():
    """A small cache forgets positions, whose moves are then played again."""
    in_jax = searched(nim())
    NimOnHost.steps = 0
    large = searched(hosted())
    with_large_cache, NimOnHost.steps = NimOnHost.steps, 0
    small = searched(hosted(cache_size=4))
    assert NimOnHost.steps > 3 * with_large_cache
    jax.tree.map(np.testing.assert_array_equal, large, small)
    np.testing.assert_array_equal(in_jax.action, large.action)
    np.testing.assert_array_equal(in_jax.visits, large.visits)
    np.testing.assert_allclose(in_jax.policy, large.policy, atol=1e-5)
    np.testing.assert_allclose(in_jax.value, large.value, atol=1e-5)


def test_the_last_position_of_a_truncated_game_is_evaluated_and_that_of_a_decided_one_is_not():
    """With one simulation the chosen action's value is that of the next position for the opponent: here 0.5."""

    def optimist(params, key, states):
        return jnp.zeros((1, TAKEN)), jnp.full(1, 0.5)

    def result_of(env, simulations, *moves):
        search = jax.jit(
            make_search(SearchConfig(simulations=simulations, root_value="action"), rules_model(env, optimist))
        )
        roots = jax.vmap(env.init)(jax.random.split(jax.random.key(0), 1))
        for action in moves:
            roots = jax.vmap(env.step)(roots, jnp.array([action]))
        return search(None, jax.random.key(0), roots, Exploration.none(1))

    assert float(result_of(hosted(max_plies=1), 1).value[0]) == -0.5
    won = result_of(hosted(), 5, 4, 4, 4, 4, 4, 1)
    assert (int(won.action[0]), float(won.value[0])) == (2, 1.0)


def test_single_player_search_avoids_a_negative_reward():
    """Cliff walking: stepping off the cliff costs a hundred times as much as another step."""
    env = make_env(SimulatorConfig(name="open_spiel", id="cliff_walking", reward_scale=0.005, discount=0.9))

    def uniform(params, key, states):
        return jnp.zeros((1, 4)), jnp.zeros(1)

    search = jax.jit(make_search(SearchConfig(simulations=24), rules_model(env, uniform, 0.9)))
    roots = jax.vmap(env.init)(jax.random.split(jax.random.key(0), 1))
    result = search(None, jax.random.key(0), roots, Exploration.none(1))
    assert int(result.action[0]) != 0
    assert float(result.policy[0, 0]) < 0.2
