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
    """Actions to choose among; 0 where they are continuous."""
    players: int = 2
    action_bounds: tuple[tuple[float, ...], tuple[float, ...]] | None = None
    """Lowest and highest value of each dimension of a continuous action; None where actions are counted."""
    state_bytes: int = 0
    """Bytes of one packed state (`podzero.envs.pack_states`); 0 where the environment can only be acted in."""

    @property
    def action_shape(self) -> tuple[int, ...]:
        """Of one action: `()` for the number of one, `(D,)` for a continuous one."""
        return () if self.action_bounds is None else (len(self.action_bounds[0]),)


class View(NamedTuple):
    """What anybody may see of a state. Without a batch axis; `vmap` adds it."""

    observation: Array
    """`[*observation_shape]` the board from the side of the player to move."""
    legal: Array
    """`[A]` bool, the actions open to the player to move; all true once the game is over."""
    player: Array
    """`[]` int32, the player to move: 0 or 1, fixed to a seat for the whole game."""
    rewards: Array
    """`[2]` float32, what each seat received on the transition that led here; zero-sum where two play, and zero
    for seat 1 where one does."""
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


class Window(NamedTuple):
    """What MuZero learns from: K steps of one episode, followed by up to n more rewards. Batches carry a leading axis.

    Position k is the k-th from the beginning of the window; L = `length` steps of it lie within the episode, so
    positions up to L exist: a position L < K + n is the last one, which no action follows. What belongs to steps and
    positions that do not exist is zero. P is what a node's policy is about: the A actions, or C drawn candidates.
    """

    observation: Array
    """`[O, *observation_shape]` at position 0 (O = 1), at all that are learned from (K + 1), or, in windows that are
    kept to be searched again, at all (K + n + 1)."""
    action: Array
    """`[K]` int32; or `[K, D]` float32 in [-1, 1], continuous actions on the scale of their bounds. Those beyond the
    end are drawn at random: whatever is done there, nothing follows."""
    reward: Array
    """`[K + n]` float32, received for each step."""
    value: Array
    """`[K + n + 1]` float32, the search's value of each position, in windows that were searched again the network's of
    positions beyond K; zero where the episode is truly over."""
    policy: Array
    """`[K + 1, P]` float32, the search's policy at each position that is learned from; sums to one where it exists."""
    candidates: Array
    """`[K + 1, P, D]` float32, the continuous actions that the policy is about, before squashing; `[K + 1, 0]` where
    actions are counted."""
    length: Array
    """`[]` int32, L."""
    terminated: Array
    """`[]` bool, whether position L is truly the end, and not a time limit."""
    version: Array
    """`[]` int32, learner step of the parameters that searched position 0."""


class StoredState(NamedTuple):
    """What a later search of an AlphaZero position needs. Batches carry a leading axis on every field."""

    state: Array
    """`[S]` uint8, the packed state, from which the position is searched as if it were played."""
    outcome: Array
    """`[]` float32, the discounted rewards that the player to move received from there on."""
    version: Array
    """`[]` int32, learner step of the parameters that searched this position when it was played."""


class Keys(NamedTuple):
    """Where samples of a prioritized table came from. On the host only."""

    shard: np.ndarray[Any, Any]
    """`[..., B]` int32, which of the reader's streams: shards of fresh samples come first, then those of refreshed
    ones."""
    key: np.ndarray[Any, Any]
    """`[..., B]` uint64, the item's key in its table."""


class Batch(NamedTuple):
    """Samples as the learner takes them."""

    samples: Sample | Window
    """`[..., B, ...]` on every field."""
    weight: Array | None = None
    """`[..., B]` float32, importance weights that undo the bias of a prioritized table; None from a uniform one."""
    keys: Keys | None = None
    """Whose priorities to set once the samples have been learned from; None from a uniform table."""


class ModelNetwork(NamedTuple):
    """MuZero's three networks and what their loss needs: pure functions of one parameter tree.

    Latent states are `[B, ...]` arrays; value and reward come as logits over the bins of a categorical distribution.
    """

    init: Callable[[Array], Params]
    """Takes a PRNG key, returns float32 parameters."""
    represent: Callable[[Params, Array], jax.Array]
    """`(params, observation [B, *observation_shape])` to a latent state."""
    predict: Callable[[Params, jax.Array], tuple[jax.Array, jax.Array]]
    """`(params, latent)` to policy and value logits `[B, bins]`. The policy is logits `[B, A]`, or for continuous
    actions mean and log standard deviation of a Gaussian before squashing, `[B, 2, D]`."""
    dynamics: Callable[[Params, jax.Array, Array], tuple[jax.Array, jax.Array]]
    """`(params, latent, action [B] int32 or [B, D] float32 in [-1, 1])` to the next latent and reward logits
    `[B, bins]`."""
    project: Callable[[Params, jax.Array, bool], jax.Array]
    """`(params, latent, predicted)` to the projection `[B, projection]` in which latents are compared; a `predicted`
    one passes the predictor as well (SimSiam)."""
    encode: Callable[[Array], jax.Array]
    """Values or rewards `[...]` to the distributions over bins `[..., bins]` that stand for them."""
    decode: Callable[[Array], jax.Array]
    """Logits over bins `[..., bins]` to the values or rewards `[...]` that they stand for."""
    observe: Callable[[Params, Array], Params]
    """`(params, observations [N, *observation_shape])` to the parameters with updated running statistics."""


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
    state: Array | None = None
    """`[B, S]` uint8, the packed states before the move, where they are kept to be searched again."""


class Versioned(NamedTuple):
    """Parameters with the learner step that made them."""

    version: int
    params: Params
