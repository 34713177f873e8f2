"""What a search expands. A model is two functions in mctx's terms; here: the rules of a game written in JAX."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp
import mctx
import numpy as np

from podzero.protocols import Env
from podzero.types import Array, EnvState, Params

Evaluate = Callable[[Params, Array, EnvState], tuple[jax.Array, jax.Array]]
"""Judges B states: `(params, key, states)` to logits `[B, A]` and values `[B]` for the player to move."""


class Model(NamedTuple):
    """The seam between a search and what it searches."""

    root: Callable[[Params, Array, EnvState], mctx.RootFnOutput]
    """Judges B root states: `(params, key, states)`."""
    recurrent: mctx.RecurrentFn
    """Plays one action in each of B nodes and judges where it leads."""
    legal: Callable[[EnvState], Array]
    """Legal actions of B states: `[B, A]` bool."""
    completed: Callable[[mctx.Tree, Array], Array]
    """Gumbel's transform of a node's Q-values, unvisited ones completed, into additions to its logits."""
    qtransform: Callable[[mctx.Tree, Array], Array]
    """Q-values of a node's actions as PUCT weighs them against the prior: `(tree, node)` of one game to `[A]` in
    [0, 1]."""


def bounded_values(tree: mctx.Tree, node_index: Array) -> jax.Array:
    """Q-values of a zero-sum game on the scale of the prior: from [-1, 1] to [0, 1]; unvisited ones count as lost.

    mctx's own transforms stretch each node's values to [0, 1], which turns tiny differences into certainty.
    """
    visited = tree.children_visits[node_index] > 0
    scaled: jax.Array = jnp.where(visited, 0.5 * (tree.qvalues(node_index) + 1.0), 0.0)
    return scaled


def network_evaluation(env: Env, apply: Callable[[Params, Array], tuple[jax.Array, jax.Array]]) -> Evaluate:
    """Judges states by a network that looks at their observations; it needs no key."""

    def evaluate(params: Params, key: Array, states: EnvState) -> tuple[jax.Array, jax.Array]:
        del key
        return apply(params, jax.vmap(env.view)(states).observation)

    return evaluate


def rules_model(env: Env, evaluate: Evaluate, discount: float = 1.0) -> Model:
    """The true rules as a model: nodes are states of `env`, leaves are judged by `evaluate`.

    Values are for the player to move. A child's value counts for its parent with the sign that says whether
    the same player moves again, times `discount` (what a reward one move later is worth), and with zero once the game
    is over: the reward says it all then.
    """
    view = jax.vmap(env.view)
    step = jax.vmap(env.step)

    def root(params: Params, key: Array, states: EnvState) -> mctx.RootFnOutput:
        logits, value = evaluate(params, key, states)
        return mctx.RootFnOutput(prior_logits=logits, value=value, embedding=states)

    def recurrent(
        params: Params, key: Array, action: Array, states: EnvState
    ) -> tuple[mctx.RecurrentFnOutput, EnvState]:
        mover = view(states).player
        children = step(states, action)
        seen = view(children)
        logits, value = evaluate(params, key, children)
        worth = jnp.where(seen.player == mover, discount, -discount)
        output = mctx.RecurrentFnOutput(
            reward=jnp.take_along_axis(seen.rewards, mover[:, None], axis=1)[:, 0],
            discount=jnp.where(seen.done, 0.0, worth),
            prior_logits=jnp.where(seen.legal, logits, np.finfo(np.float32).min),
            value=jnp.where(seen.done, 0.0, value),
        )
        return output, children

    def legal(states: EnvState) -> Array:
        return view(states).legal

    return Model(root, recurrent, legal, mctx.qtransform_completed_by_mix_value, bounded_values)
