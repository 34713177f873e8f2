"""The words the rooms share: every structure that crosses a door of the house, with shapes and dtypes.

Shape letters: B batch (games or samples), T time (moves of one game), A actions, N simulations.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import numpy as np

Array = jax.Array | np.ndarray[Any, Any]
"""A device or host array; each field says its shape and dtype."""

Params = Any
"""A pytree of network parameters."""

EnvState = Any
"""The state of a game: a pytree that only its `Env` can read."""


class EnvSpec(NamedTuple):
    """What a network and a replay table must know of an environment."""

    name: str
    observation_shape: tuple[int, ...]
    observation_dtype: str
    """NumPy name of the dtype in which observations are made and stored, as `bool` or `float32`."""
    num_actions: int


class View(NamedTuple):
    """What anybody may see of a state. Without a batch axis; `vmap` adds it."""

    observation: Array
    """`[*observation_shape]` the board from the side of the player to move."""
    legal: Array
    """`[A]` bool, the actions open to the player to move; all true once the game is over."""
    player: Array
    """`[]` int32, the player to move: 0 or 1, fixed to a seat for the whole game."""
    rewards: Array
    """`[2]` float32, what each seat received on the transition that led here; zero-sum."""
    done: Array
    """`[]` bool, whether the game is over."""


class Symmetry(NamedTuple):
    """A change of coordinates under which the game looks the same."""

    observation: Callable[[Array], Array]
    """Maps `[*observation_shape]` to the same shape; traceable by JAX."""
    actions: np.ndarray[Any, Any]
    """`[A]` int32: entry `a` of a policy in the new coordinates is entry `actions[a]` of the old one."""


class Sample(NamedTuple):
    """One AlphaZero training position. Batches carry a leading axis on every field."""

    observation: Array
    """`[*observation_shape]` in the environment's dtype."""
    legal: Array
    """`[A]` bool."""
    policy_target: Array
    """`[A]` float32, sums to one over the legal actions."""
    value_target: Array
    """`[]` float32 in [-1, 1], for the player to move."""
    version: Array
    """`[]` int32, learner step of the parameters that searched this position."""


class Network(NamedTuple):
    """Two pure functions, whoever wrote them: Flax or Haiku."""

    init: Callable[[Array], Params]
    """Takes a PRNG key, returns float32 parameters."""
    apply: Callable[[Params, Array], tuple[jax.Array, jax.Array]]
    """Takes `(params, observation [B, *observation_shape])`, returns float32 policy logits `[B, A]`
    (illegal actions not yet masked) and values `[B]` in [-1, 1] for the player to move."""


class SearchResult(NamedTuple):
    """What a search says of a batch of roots."""

    action: Array
    """`[B]` int32, the move to play."""
    policy: Array
    """`[B, A]` float32, the improved policy: the training target, zero on illegal actions."""
    value: Array
    """`[B]` float32, the root value after search, for the player to move."""
    visits: Array
    """`[B, A]` int32, visit counts of the root's actions."""


class Move(NamedTuple):
    """One searched move of B parallel games, as the self-play core hands it to the host."""

    observation: Array
    """`[B, *observation_shape]` before the move."""
    legal: Array
    """`[B, A]` bool before the move."""
    policy: Array
    """`[B, A]` float32, the search policy."""
    value: Array
    """`[B]` float32, the root value for the player who moved."""
    action: Array
    """`[B]` int32, the move played."""
    player: Array
    """`[B]` int32, the seat that moved."""
    rewards: Array
    """`[B, 2]` float32, each seat's reward for the move."""
    done: Array
    """`[B]` bool, whether the move ended the game."""


class Versioned(NamedTuple):
    """Parameters with the learner step that made them."""

    version: int
    params: Params
