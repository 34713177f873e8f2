"""The structures that packages exchange, with shapes and dtypes.

Shape letters: B batch (games or samples), T time (moves of one game), A actions, D dimensions of a continuous action,
P players, but at least 2.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Literal, NamedTuple

import jax
import numpy as np


class SearchedNodes(NamedTuple):
    """The N = simulations + 1 nodes of each searched tree, in the order of the simulations; node 0 is the root.

    Search adds nodes after the end of a game too; in these nothing changes.
    """

    parent: jax.Array | np.ndarray[Any, Any]
    """`[B, N]` int32, -1 for the root."""
    action: jax.Array | np.ndarray[Any, Any]
    """`[B, N]` int32, the action that leads from the parent to the node."""
    visits: jax.Array | np.ndarray[Any, Any]
    """`[B, N]` int32."""
    value: jax.Array | np.ndarray[Any, Any]
    """`[B, N]` float32, the value of `action` for the player who chooses it: its reward plus the mean value of the
    node's visits. At the root, the mean value for the player to move."""
    prior: jax.Array | np.ndarray[Any, Any]
    """`[B, N]` float32, the network's probability of `action`."""


Array = jax.Array | np.ndarray[Any, Any]
"""A device or host array; each field documents its shape and dtype."""

Params = Any
"""A pytree of network parameters."""

EnvState = Any
"""The state of a game: a pytree that only its `Env` interprets."""


class EnvSpec(NamedTuple):
    """The properties of an environment that networks and replay tables depend on."""

    name: str
    observation_shape: tuple[int, ...]
    observation_dtype: str
    """NumPy name of the dtype of observations, for example `bool` or `float32`."""
    num_actions: int
    """Number of discrete actions; 0 for continuous actions."""
    players: int = 2
    action_bounds: tuple[tuple[float, ...], tuple[float, ...]] | None = None
    """Lowest and highest value of each dimension of a continuous action; None for discrete actions."""
    state_bytes: int = 0
    """Bytes of one packed state (`podzero.envs.pack_states`); 0 if states cannot be stored."""
    max_plies: int | None = None
    """Length of the longest possible game in plies; None if unlimited."""
    masked: bool = False
    """Whether a gymnasium environment tells which actions are legal (`info["action_mask"]`)."""
    values: int = 1
    """Number of values of a position. 1 is the value for the player to move, which is all that a game for one player or
    a zero-sum game for two needs. Other games have one for each player: first that of the player to move, then those of
    the players after it, in the order of their numbers."""
    squares: int = 0
    """S, the number of squares of which `View.ownership` tells the owners; 0 if it is None."""

    @property
    def action_shape(self) -> tuple[int, ...]:
        """The shape of one action: `()` if discrete, `(D,)` if continuous."""
        return () if self.action_bounds is None else (len(self.action_bounds[0]),)

    @property
    def value_shape(self) -> tuple[int, ...]:
        """The shape of a position's values: `()` for a single one, or `(values,)`."""
        return () if self.values == 1 else (self.values,)

    @property
    def outputs(self) -> int:
        """Numbers of an evaluation: a logit for each action, then the values."""
        return self.num_actions + self.values


class View(NamedTuple):
    """The visible part of a state, without a batch axis; `vmap` adds it."""

    observation: Array
    """`[*observation_shape]`, from the perspective of the player to move."""
    legal: Array
    """`[A]` bool, the legal actions of the player to move; all true once the game is over."""
    player: Array
    """`[]` int32, the player to move, counted from 0."""
    rewards: Array
    """`[P]` float32, each player's reward for the transition that led here; with one player, the second entry is zero.
    """
    done: Array
    """`[]` bool, whether the game is over."""
    truncated: Array
    """`[]` bool, whether a limit on its length ended the game, so that its outcome is unknown."""
    ownership: Array | None = None
    """`[2, S]` int8, who owns each square once the game is over, as each of two players sees the board: 1 that player,
    -1 the other, 0 nobody; arbitrary before. The squares are those of the player's observation, row by row, and action
    s plays on square s. None in most games."""


class Symmetry(NamedTuple):
    """A transformation of positions under which the game is invariant."""

    observation: Callable[[Array], Array]
    """Maps `[*observation_shape]` to the same shape; JAX can trace it."""
    actions: np.ndarray[Any, Any]
    """`[A]` int32: entry `a` of the transformed policy is entry `actions[a]` of the original."""


class Sample(NamedTuple):
    """One AlphaZero training position. Batches carry a leading axis on every field."""

    observation: Array
    """`[*observation_shape]` in the environment's dtype."""
    legal: Array
    """`[A]` bool."""
    policy_target: Array
    """`[A]` float32, sums to one over the legal actions."""
    value_target: Array
    """`[]` float32 in [-1, 1], for the player to move; or `EnvSpec.values` of them."""
    version: Array
    """`[]` int32, learner step of the parameters that searched this position; -1 in recorded games."""
    outcome: Array | None = None
    """`[]` int32 for the player to move: 0 lost, 1 drew, 2 won; -1 if a limit ended the game. This and the fields below
    are targets of auxiliary heads, and None without them."""
    moves_left: Array | None = None
    """`[]` int32, plies until the end, including the next one; -1 if unknown or if a limit ended the game."""
    reply: Array | None = None
    """`[]` int32, the opponent's action after the next ply; -1 if unknown or if there was none."""
    ownership: Array | None = None
    """`[S]` int8, whose each square was at the end: 0 the opponent's, 1 nobody's, 2 that of the player to move; -1 if
    unknown. None also in games that do not tell (`View.ownership`)."""
    state: Array | None = None
    """`[S]` uint8, the packed state, which replay may hold in place of `observation` and `legal`; None where it is not
    known, and in the train step."""


class Window(NamedTuple):
    """A MuZero training sample: K steps of one episode and up to n further rewards. Batches carry a leading axis.

    Position k is the k-th of the window. The first L = `length` steps belong to the episode, so positions 0 to L exist;
    if L < K + n, the episode ends at position L, and no action was taken there. Entries of steps and positions that do
    not exist are zero. P is the number of actions A, or of sampled candidates C.
    """

    observation: Array
    """`[O, *observation_shape]`: at position 0 (O = 1), at all unrolled positions (K + 1), or, in windows stored for
    reanalysis, at all positions (K + n + 1)."""
    action: Array
    """`[K]` int32; or `[K, D]` float32, continuous actions with their bounds scaled to [-1, 1]. Actions after the end
    are random: the state after the end absorbs all actions."""
    reward: Array
    """`[K + n]` float32, of each step."""
    value: Array
    """`[K + n + 1]` float32, the search value of each position; in reanalysed windows, positions after K have the value
    of the network. Zero at the end of a terminated episode."""
    policy: Array
    """`[K + 1, P]` float32, the search policy of each unrolled position that an action follows; sums to one there."""
    candidates: Array
    """`[K + 1, C, D]` float32, the continuous actions before squashing to which the policy assigns probabilities;
    `[K + 1, 0]` for discrete actions."""
    length: Array
    """`[]` int32, L."""
    terminated: Array
    """`[]` bool, whether the episode terminates at position L; False if it continues or a time limit truncates it."""
    version: Array
    """`[]` int32, learner step of the parameters that searched position 0."""


class StoredState(NamedTuple):
    """An AlphaZero position stored for reanalysis. Batches carry a leading axis on every field."""

    state: Array
    """`[S]` uint8, the packed state."""
    outcome: Array
    """`[]` float32, the discounted sum of later rewards of the player to move."""
    lambda_return: Array
    """`[]` float32, the lambda-return of the player to move, over the root values of the game as it was played."""
    truncated: Array
    """`[]` bool, whether a limit ended the game; the last root value then stands for its outcome."""
    version: Array
    """`[]` int32, learner step of the parameters that searched this position in self-play."""


class SoftTargets(NamedTuple):
    """What a teacher's network predicts for a batch (Hinton et al. 2015, https://arxiv.org/abs/1503.02531)."""

    policy: Array
    """`[B, A]` float32, sums to one over the legal actions."""
    value: Array
    """`[B]` float32 in [-1, 1], for the player to move; or `[B, EnvSpec.values]`."""
    weight: Array
    """`[]` float32, the weight of their loss."""


class Keys(NamedTuple):
    """The replay items of samples from a prioritized table; host arrays."""

    shard: np.ndarray[Any, Any]
    """`[..., B]` int32, the index of the reader's stream: first the shards of new samples, then those of reanalysed
    samples."""
    key: np.ndarray[Any, Any]
    """`[..., B]` uint64, the item's key in its table."""


class PackedBatch(NamedTuple):
    """A training batch as replay gives it; the train step unpacks it."""

    rows: Array
    """`[..., B, row_bytes]` uint8, packed samples (`podzero.envs.SamplePacking`)."""
    weight: Array | None = None
    """`[..., B]` float32, importance weights that correct for prioritized sampling; None from a uniform table. The
    train step divides them by the largest of the batch."""
    keys: Keys | None = None
    """The items whose priorities the learner updates after the step; None from a uniform table."""


class Batch(NamedTuple):
    """A training batch in the train step."""

    samples: Sample | Window
    """`[B, ...]` on every field."""
    weight: Array | None = None
    """`[B]` float32, importance weights relative to the largest; None from a uniform table."""
    soft_targets: SoftTargets | None = None
    """The teacher's predictions, which the train step adds; None without a teacher."""


class ModelNetwork(NamedTuple):
    """MuZero's networks and the functions that its loss needs: pure functions of one parameter tree.

    Latent states are `[B, ...]` arrays. Values and rewards are logits over the bins of a categorical distribution.
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
    """`(params, latent, predicted)` to the projection `[B, projection]` for the consistency loss; latents predicted by
    the model also pass the predictor (SimSiam)."""
    encode: Callable[[Array], jax.Array]
    """Values or rewards `[...]` to distributions over bins `[..., bins]`."""
    decode: Callable[[Array], jax.Array]
    """Logits over bins `[..., bins]` to values or rewards `[...]`."""
    observe: Callable[[Params, Array], Params]
    """`(params, observations [N, *observation_shape])` to the parameters with updated running statistics."""


class Prediction(NamedTuple):
    """What a network predicts about the rest of B games, float32; None where it has no such head."""

    outcome: jax.Array | None = None
    """`[B, 3]` logits: lost, drew, won."""
    moves_left: jax.Array | None = None
    """`[B]` plies, at least zero."""
    reply: jax.Array | None = None
    """`[B, A]` logits."""
    ownership: jax.Array | None = None
    """`[B, S, 3]` logits: whose each square will be, as in `Sample`."""
    distribution: jax.Array | None = None
    """`[B, bins]` logits of the value's distribution (`podzero.networks.layers.encode_value`)."""


ValuesFrom = Literal["outcome", "distribution"] | None
"""The field of `Prediction` that values are the mean of; None: a network predicts them directly."""


class Network(NamedTuple):
    """A policy and value network as pure functions, built with Flax or Haiku."""

    init: Callable[[Array], Params]
    """Takes a PRNG key, returns float32 parameters."""
    apply: Callable[[Params, Array], tuple[jax.Array, jax.Array]]
    """Takes `(params, observation [B, *observation_shape])`, returns float32 policy logits `[B, A]`
    (illegal actions not yet masked) and values `[B]` in [-1, 1] for the player to move, or `[B, EnvSpec.values]`."""
    apply_all: Callable[[Params, Array], tuple[jax.Array, jax.Array, Prediction]] | None = None
    """Like `apply`, and returns the predictions of further heads too; None if the network has none."""
    values_from: ValuesFrom = None
    """The prediction whose loss counts as one of values, since they are its mean."""
    metrics: Callable[[Params, Array], dict[str, jax.Array]] | None = None
    """Takes the same as `apply`, returns further metrics by name, float32 scalars; None if the network has none."""


class Exploration(NamedTuple):
    """How much B searches explore, and how their actions are chosen."""

    noise: Array
    """`[B]` float32, the noise at the root: 1 for all of the algorithm's noise, 0 for none."""
    temperature: Array
    """`[B]` float32, the randomness of the choice after search: 0 chooses the best action."""

    @classmethod
    def none(cls, batch: int) -> Exploration:
        """That of B searches without noise, which choose the best action."""
        return cls(np.zeros(batch, np.float32), np.zeros(batch, np.float32))


class SearchResult(NamedTuple):
    """The result of searching a batch of roots."""

    action: Array
    """`[B]` int32, the selected action."""
    policy: Array
    """`[B, A]` float32, the improved policy: the training target, zero on illegal actions."""
    value: Array
    """`[B]` float32, the root value after search, for the player to move."""
    visits: Array
    """`[B, A]` int32, visit counts of the root's actions."""
    dropped: Array | None = None
    """`[B]` int32, the number of legal actions that a tree's nodes left out; None without `search.slots`."""
    depth: Array | None = None
    """`[]` float32, mean number of steps from the root to the new node, in the batch's deepest game; None with mctx's
    trees."""
    nodes: SearchedNodes | None = None
    """The trees' nodes, if the search was built with `keep_nodes`."""
    qvalues: Array | None = None
    """`[B, A]` float32, the values of the root's visited actions, for the player to move; undefined elsewhere."""


class Resignations(NamedTuple):
    """Where B games end by a move, `[B]` bool; or their numbers, `[]` int32."""

    resigned: Array
    """Games that the player to move resigned."""
    played_on: Array
    """Games, played to their end, that a player would have resigned if that had been allowed."""
    false: Array
    """Those of `played_on` which that player did not lose."""


class Move(NamedTuple):
    """One searched move of B parallel games, as the self-play core returns it."""

    observation: Array
    """`[B, *observation_shape]` before the move."""
    legal: Array
    """`[B, A]` bool before the move."""
    policy: Array
    """`[B, A]` float32, the search policy."""
    value: Array
    """`[B]` float32, the root value for the player who moved."""
    action: Array
    """`[B]` int32."""
    player: Array
    """`[B]` int32, the player that moved."""
    rewards: Array
    """`[B, P]` float32, each player's reward for the move; -1 and 1 where a player resigned."""
    done: Array
    """`[B]` bool, whether the move ended the game."""
    truncated: Array
    """`[B]` bool, whether a limit on its length, or the player's resignation, ended the game with this move."""
    state: Array | None = None
    """`[B, S]` uint8, the packed states before the move, if they are stored for reanalysis."""
    dropped: Array | None = None
    """`[B]` int32, the number of legal actions that the search left out; None without `search.slots`."""
    depth: Array | None = None
    """`[]` float32, as in `SearchResult`."""
    own: Array | None = None
    """`[B]` bool, whether the search chose the action; otherwise an opponent did. None without opponents."""
    ownership: Array | None = None
    """`[B, 2, S]` int8, `View.ownership` after the move; None if no head predicts it."""
    resignations: Resignations | None = None
    """Those of this move; None if nobody may resign."""


class Versioned(NamedTuple):
    """Parameters with the learner step that produced them."""

    version: int
    params: Params
