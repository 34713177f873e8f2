"""Small games whose trees are compiled in a fraction of the time of a real game's."""

import jax
import jax.numpy as jnp
import numpy as np

from podzero.core.types import View
from podzero.envs.jax_game import OwnGame

TAKEN = 5
"""The most stones of a move of Nim."""


class Nim:
    """Two players take 1 to 5 stones in turn; who takes the last one wins. Action a takes a + 1 stones.

    A state is `[3]` int32: the stones, the plies, and whether the game was over before.
    """

    players = 2
    max_plies = 30

    def init(self, key):
        return jnp.array([30, 0, 0], jnp.int32)

    def step(self, state, action):
        after = jnp.stack([jnp.maximum(state[0] - action - 1, 0), state[1] + 1, state[2]])
        return jnp.where(state[0] == 0, state.at[2].set(1), after)

    def view(self, state):
        done = state[0] == 0
        # The other player took the last stone.
        lost = jnp.where(done & (state[2] == 0), -1.0, 0.0)
        reward = jnp.where(state[1] % 2 == 0, lost, -lost)
        return View(
            observation=state[:2].astype(jnp.float32),
            legal=(jnp.arange(TAKEN) < state[0]) | done,
            player=state[1] % 2,
            rewards=jnp.stack([reward, -reward]),
            done=done,
            truncated=jnp.array(False),
        )


def nim():
    """The `Env` of Nim."""
    return OwnGame(Nim(), "jax/Nim")


def heaps(*stones):
    """States of Nim with these heaps, in which the first player is to move."""
    return np.array([[count, 0, 0] for count in stones], np.int32)


def uniform(env):
    """An evaluation that knows nothing: equal logits, and the value 0 of each player."""

    def evaluate(params, key, states):
        rows = len(jax.tree.leaves(states)[0])
        return jnp.zeros((rows, env.spec.num_actions)), jnp.zeros((rows, *env.spec.value_shape))

    return evaluate


def rough(env, seed=0):
    """An evaluation that differs from position to position without a pattern."""
    size, actions = int(np.prod(env.spec.observation_shape)), env.spec.num_actions
    weights = np.random.default_rng(seed).normal(size=(size, actions + 1)).astype(np.float32)

    def evaluate(params, key, states):
        seen = jax.vmap(env.view)(states).observation.reshape(-1, size).astype(jnp.float32)
        found = jnp.sin(3.0 * seen @ weights + jnp.arange(actions + 1))
        return 2.0 * found[:, :-1], 0.7 * found[:, -1]

    return evaluate
