"""pgx games as `Env`s (Koyamada et al. 2023, https://arxiv.org/abs/2303.17503)."""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from functools import cached_property
from typing import Any, cast

import jax
import jax.numpy as jnp

from podzero.core.types import Array, EnvSpec, EnvState, Symmetry, View
from podzero.envs.packing import packed_bytes
from podzero.envs.symmetries import symmetries_of

_MAX_PLIES = {"tic_tac_toe": 9, "animal_shogi": 256, "shogi": 512}
"""The number of plies after which pgx ends a game."""


class PgxGame:
    """One game of pgx, whose states hold no observation."""

    def __init__(self, name: str) -> None:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # pgx warns about every game that has a newer version
            import pgx  # here: it takes half a second, and most games do without it

            self._game: Any = pgx.make(cast(Any, name))
        self._name = name

    @cached_property
    def spec(self) -> EnvSpec:
        """Shapes and dtypes of observations, and the number of actions."""
        state = jax.eval_shape(self._game.init, jax.random.key(0))
        return EnvSpec(
            name=self._name,
            observation_shape=tuple(state.observation.shape),
            observation_dtype=str(state.observation.dtype),
            num_actions=int(self._game.num_actions),
            state_bytes=packed_bytes(jax.eval_shape(_without_observation, state)),
            max_plies=_MAX_PLIES.get(self._name),
        )

    @cached_property
    def symmetries(self) -> Sequence[Symmetry]:
        """The symmetries without the identity; empty if the game has none."""
        return symmetries_of(self._name)

    def init(self, key: Array) -> EnvState:
        """Starts a game; the key decides which player begins."""
        return _without_observation(self._game.init(key))

    def step(self, state: EnvState, action: Array) -> EnvState:
        """Plays a legal `action`; a state that is over stays the same, with zero rewards."""
        # pgx requires a key, but these games are deterministic.
        return _without_observation(self._game.step(state, action, jax.random.key(0)))

    def view(self, state: EnvState) -> View:
        """The view of `state`, from the perspective of the player to move."""
        return View(
            observation=self._game.observe(state),
            legal=state.legal_action_mask,
            player=state.current_player,
            rewards=state.rewards,
            done=state.terminated | state.truncated,
            truncated=state.truncated & ~state.terminated,
        )


def _without_observation(state: Any) -> Any:
    # A search tree stores many states but needs the observation of each only once, so `view` computes it.
    return state.replace(observation=jnp.zeros((0,), state.observation.dtype))
