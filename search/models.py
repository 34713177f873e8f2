"""The interface of a searched model, and the model that applies the true rules of a game."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp
import mctx
import numpy as np

from podzero.protocols import Env
from podzero.types import Array, EnvState, Params

ILLEGAL = np.finfo(np.float32).min
"""The logit of an illegal action. Finite, because where a game is over all actions are illegal."""

MIN_VALUE_RANGE, MIN_OUTCOME_RANGE = 0.01, 0.2
"""The default of `search.min_value_range`: in general, and where values are expected outcomes between -1 and 1.

0.2 is the median range of the Q-values of connect four's agent where all moves are equally good
(`benchmarks/inner_nodes.py`). With the default `value_scale` a difference then weighs no more than in the paper's board
games: 0.1 / 0.2 per unit of values is `c_scale` = 1 over Q-values in [0, 1] (Danihelka et al. 2022).
"""

Evaluate = Callable[[Params, Array, EnvState], tuple[jax.Array, jax.Array]]
"""Evaluates B states: `(params, key, states)` to logits `[B, A]` and values `[B]` for the player to move."""


class Model(NamedTuple):
    """What a search needs to know of the model that it searches."""

    root: Callable[[Params, Array, EnvState], mctx.RootFnOutput]
    """Evaluates B root states: `(params, key, states)`."""
    recurrent: mctx.RecurrentFn
    """Takes one action in each of B nodes and evaluates the resulting nodes."""
    legal: Callable[[EnvState], Array]
    """Legal actions of B states: `[B, A]` bool."""
    bounds: tuple[float, float] | None
    """Least and greatest value of a position; None if they are not known."""
    min_value_range: float = MIN_VALUE_RANGE
    """What `search.min_value_range` is by default."""


def network_evaluation(env: Env, apply: Callable[[Params, Array], tuple[jax.Array, jax.Array]]) -> Evaluate:
    """Evaluates states by a network that reads their observations; it needs no key."""

    def evaluate(params: Params, key: Array, states: EnvState) -> tuple[jax.Array, jax.Array]:
        del key
        return apply(params, jax.vmap(env.view)(states).observation)

    return evaluate


def rules_model(env: Env, evaluate: Evaluate, discount: float = 1.0) -> Model:
    """The true rules as a model: nodes are states of `env`, and `evaluate` evaluates them.

    Values are for the player to move. So the discount from parent to child is `discount` where the same player moves
    again and `-discount` where the opponent does. It is zero where the game is over: then the reward is the outcome. A
    game that a limit truncates has no outcome; its last position is evaluated like any other. Below it, where search
    may go on though nothing changes, values are not discounted.
    """
    view = jax.vmap(env.view)
    step = jax.vmap(env.step)

    def root(params: Params, key: Array, states: EnvState) -> mctx.RootFnOutput:
        logits, value = evaluate(params, key, states)
        return mctx.RootFnOutput(prior_logits=logits, value=value, embedding=states)

    def recurrent(
        params: Params, key: Array, action: Array, states: EnvState
    ) -> tuple[mctx.RecurrentFnOutput, EnvState]:
        before = view(states)
        mover = before.player
        children = step(states, action)
        seen = view(children)
        logits, value = evaluate(params, key, children)
        signed_discount = jnp.where(seen.player == mover, discount, -discount)
        signed_discount = jnp.where(before.done, 1.0, signed_discount)
        decided = seen.done & ~seen.truncated
        output = mctx.RecurrentFnOutput(
            reward=jnp.take_along_axis(seen.rewards, mover[:, None], axis=1)[:, 0],
            discount=jnp.where(decided, 0.0, signed_discount),
            prior_logits=jnp.where(seen.legal, logits, ILLEGAL),
            value=jnp.where(decided, 0.0, value),
        )
        return output, children

    def legal(states: EnvState) -> Array:
        return view(states).legal

    least = MIN_OUTCOME_RANGE if env.spec.players == 2 else MIN_VALUE_RANGE
    return Model(root, recurrent, legal, bounds=(-1.0, 1.0), min_value_range=least)
