"""Breakout of MinAtar as gymnax has it, with MinAtar's sticky actions, which gymnax leaves out (Machado et al. 2018,
https://arxiv.org/abs/1709.06009): without them there are two episodes for each policy, and it learns these by heart.
"""

from typing import Any

import jax
import jax.numpy as jnp

from podzero.envs.jax_libraries import GymnaxEnv

STICKY = 0.1
"""The probability that the previous action is repeated, whatever the agent chose."""


class StickyBreakout:
    """A `podzero.envs.JaxSimulator`; its state is that of the game and the previous action."""

    players, max_plies = 1, 1000

    def __init__(self) -> None:
        self._game = GymnaxEnv("Breakout-MinAtar", {}, reward_scale=1.0, learned=True)

    def init(self, key: Any) -> Any:
        """Starts an episode."""
        return self._game.init(key), jnp.int32(0)

    def step(self, state: Any, action: Any, key: Any) -> Any:
        """Takes the action or, by chance, the previous one again."""
        game, previous = state
        repeats = (jax.random.uniform(key) < STICKY) | self._game.view(game).done
        taken = jnp.where(repeats, previous, jnp.asarray(action, jnp.int32))
        return self._game.step(game, taken), taken

    def view(self, state: Any) -> Any:
        """The screen."""
        return self._game.view(state[0])
