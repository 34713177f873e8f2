"""The interface of a searched model, and the model that follows the rules of a game."""

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
"""The logit of an illegal action. It is finite because all actions are illegal once a game is over."""

MIN_VALUE_RANGE, MIN_OUTCOME_RANGE = 0.01, 0.2
"""Defaults of `search.min_value_range`: the general one, and the one for outcomes between -1 and 1.

0.2 is the median range of Q-values of connect four's agent in positions where all moves are equally good
(`benchmarks/inner_nodes.py`). With the default `value_scale` the weight per unit of value is then at most
0.1 / 0.2, which equals the paper's `c_scale` = 1 over Q-values in [0, 1] (Danihelka et al. 2022).
"""

Evaluate = Callable[[Params, Array, EnvState], tuple[jax.Array, jax.Array]]
"""Evaluates B states: `(params, key, states)` to logits `[B, A]` and values `[B]` for the player to move."""


class Model(NamedTuple):
    """The model of a game or environment, as a search uses it."""

    root: Callable[[Params, Array, EnvState], mctx.RootFnOutput]
    """Evaluates B root states: `(params, key, states)`."""
    recurrent: mctx.RecurrentFn
    """Takes one action in each of B nodes and evaluates the resulting nodes."""
    legal: Callable[[EnvState], Array]
    """Legal actions of B states: `[B, A]` bool."""
    bounds: tuple[float, float] | None
    """Smallest and largest value of a position; None if unknown."""
    min_value_range: float = MIN_VALUE_RANGE
    """The default of `search.min_value_range`."""


def network_evaluation(env: Env, apply: Callable[[Params, Array], tuple[jax.Array, jax.Array]]) -> Evaluate:
    """Evaluates states with a network that reads their observations; the key is not used."""

    def evaluate(params: Params, key: Array, states: EnvState) -> tuple[jax.Array, jax.Array]:
        del key
        return apply(params, jax.vmap(env.view)(states).observation)

    return evaluate


def rules_model(env: Env, evaluate: Evaluate, discount: float = 1.0) -> Model:
    """The rules as a model: nodes are states of `env`, evaluated by `evaluate`. Values are for the player to move."""
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
        # The discount is negative where the opponent moves next. Search may continue below the end of a game, where
        # nothing changes and values are not discounted.
        signed_discount = jnp.where(seen.player == mover, discount, -discount)
        signed_discount = jnp.where(before.done, 1.0, signed_discount)
        # A decided game is worth its reward alone. A truncated one has no outcome: its last position is evaluated.
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
