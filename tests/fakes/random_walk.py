"""A simulator in JAX whose steps depend on chance, as a user writes one."""

from pathlib import Path
from typing import NamedTuple

import jax
import jax.numpy as jnp

from podzero.core.types import View

ACTIONS = 5
SECTION = {"name": f"{Path(__file__)}:RandomWalk", "model": "learned"}
"""The section `env` that names it."""


class Walk(NamedTuple):
    step: jax.Array
    total: jax.Array
    reward: jax.Array
    ended: jax.Array
    """0 while it goes on, 1 terminated, 2 truncated."""


class RandomWalk:
    """Each step ends the episode by chance, in a terminal state or by a limit; the reward is the action and a draw."""

    def __init__(self, players=1):
        self.players = players

    def init(self, key):
        return Walk(jnp.int32(0), jnp.float32(0), jnp.float32(0), jnp.int32(0))

    def step(self, state, action, key):
        draw = jax.random.uniform(key)
        ended = jnp.where(draw < 0.15, 1, jnp.where(draw < 0.25, 2, 0)).astype(jnp.int32)
        after = Walk(state.step + 1, state.total + action + draw, action + draw, ended)
        over = state._replace(reward=jnp.float32(0))
        return jax.tree.map(lambda one, two: jnp.where(state.ended > 0, one, two), over, after)

    def view(self, state):
        return View(
            observation=jnp.stack([state.step.astype(jnp.float32), state.total]),
            legal=jnp.ones(ACTIONS, bool),
            player=jnp.int32(0),
            rewards=jnp.stack([state.reward, jnp.float32(0)]),
            done=state.ended > 0,
            truncated=state.ended == 2,
        )
