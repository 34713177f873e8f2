"""Which action a simulation takes, at the root and at inner nodes: scores, of which the highest is taken.

As mctx selects them; the tree of `podzero.search.dense_tree` computes the scores of all nodes at once.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from podzero.config import SearchConfig
from podzero.search.qvalues import MAXVISIT_INIT, TINY, Edges, Transform

PB_C_BASE = 19652.0
"""Constant `c2` of PUCT's exploration term (Schrittwieser et al. 2020, appendix B)."""
_LOW = -1e9
"""The least score of an action that sequential halving considers."""
_SAFE = 80.0
"""What a transform may add to or take from the logarithms of a prior, whose exponentials then need not be shifted by
their maximum: exp(-80) is a normal float32, and exp(80) times the number of actions is finite."""


class Selection(NamedTuple):
    """Scores of actions."""

    root: Callable[[Edges, jax.Array], jax.Array]
    """`(edges [K, B], simulation [])` to `[K, B]`."""
    inner: Callable[[Edges], jax.Array]
    """`(edges [K, N, B])` to `[K, N, B]`."""


def gumbel_selection(config: SearchConfig, transform: Transform, noise: jax.Array, legal: jax.Array) -> Selection:
    """Sequential halving at the root, and below it the action that brings the visits nearest to the improved policy
    (Danihelka et al. 2022, sections 3 and 5).

    Args:
      config: `simulations` and `max_considered_actions`.
      transform: of Q-values.
      noise: `[K, B]`, the Gumbel noise of the root's actions.
      legal: `[K, B]` bool, of the root's actions.
    """
    schedule = np.asarray(
        [considered_visits(count, config.simulations) for count in range(config.max_considered_actions + 1)], np.int32
    )
    considered = jnp.minimum(jnp.sum(legal, axis=0), config.max_considered_actions)
    mine = jnp.arange(len(schedule))[:, None] == considered
    largest_weight = config.value_scale * (MAXVISIT_INIT + config.simulations)

    def root(edges: Edges, simulation: jax.Array) -> jax.Array:
        now = jax.lax.dynamic_index_in_dim(jnp.asarray(schedule), simulation, axis=1, keepdims=True)
        visits = jnp.sum(jnp.where(mine, now, 0), axis=0)
        scores = jnp.maximum(_LOW, noise + edges.logits + transform(edges, 0))
        return jnp.where(legal & (edges.visits == visits), scores, -jnp.inf)

    def inner(edges: Edges) -> jax.Array:
        improved = edges.logits + transform(edges, 0)
        if largest_weight > _SAFE:
            improved -= jnp.max(improved, axis=0, keepdims=True)
        weights = jnp.exp(improved)
        mass = jnp.maximum(jnp.sum(weights, axis=0, keepdims=True), TINY)
        return weights * (1 / mass) - edges.visits * (1 / (1 + edges.total_visits))

    return Selection(root, inner)


def puct_selection(config: SearchConfig, transform: Transform, noise: jax.Array, legal: jax.Array) -> Selection:
    """The PUCT rule (Schrittwieser et al. 2020, appendix B).

    Args:
      config: `pb_c_init`.
      transform: of Q-values.
      noise: `[K, B]`, which decides between equal scores.
      legal: `[K, B]` bool, of the root's actions.
    """

    def scores(edges: Edges) -> jax.Array:
        count = 1 + edges.total_visits
        weight = config.pb_c_init + jnp.log((count + PB_C_BASE + 1.0) / PB_C_BASE)
        explore = jnp.sqrt(count) * weight * edges.prior / (edges.visits + 1)
        return transform(edges, 0) + explore

    return Selection(
        root=lambda edges, simulation: jnp.where(legal, scores(edges) + noise, -jnp.inf),
        inner=lambda edges: scores(edges) + noise[:, None],
    )


def considered_visits(actions: int, simulations: int) -> list[int]:
    """For each simulation, the visits of those actions among which sequential halving chooses (Karnin et al. 2013).

    All considered actions are visited equally often, then the better half of them, and so on; the last two share the
    visits that are left.
    """
    if actions <= 1:
        return list(range(simulations))
    phases, left, visits = math.ceil(math.log2(actions)), actions, 0
    found: list[int] = []
    while len(found) < simulations:
        rounds = max(1, simulations // (phases * left))
        found += [visits + done for done in range(rounds) for _ in range(left)]
        visits += rounds
        left = max(2, left // 2)
    return found[:simulations]
