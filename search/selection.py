"""The scores by which simulations select actions, at the root and at inner nodes; the highest score wins.

The formulas are mctx's. `podzero.search.dense_tree` computes the scores of all nodes at once.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from podzero.config import SearchConfig
from podzero.core.types import Array

TINY = np.finfo(np.float32).tiny
"""The smallest normal float32; it replaces divisors that may be zero."""
MAXVISIT_INIT = 50.0
"""`c_visit` of Danihelka et al. 2022, equation 8, which is added to the visits of the most visited action."""
_EPSILON = 1e-8
"""Lower bound of a range by which PUCT divides, as in mctx."""


Bounds = tuple[float, float] | None
"""The smallest and largest value of a position; None if unknown."""


class Edges(NamedTuple):
    """Nodes and their actions. Quantities of a node have size 1 along the actions axis."""

    logits: jax.Array
    """The prior's logits; the smallest float for illegal actions."""
    prior: jax.Array
    """The softmax of the logits."""
    visits: jax.Array
    """Visits of each action, integers."""
    total_visits: jax.Array
    """Visits of all actions of the node."""
    qvalues: jax.Array
    """Q-values of the visited actions; undefined elsewhere."""
    raw_value: jax.Array
    """The network's value of the node."""
    value: jax.Array
    """The mean of the node's own value and all later ones."""
    tree_range: jax.Array
    """The range of the values of all nodes in the tree."""


Transform = Callable[[Edges, int], jax.Array]
"""`(edges, axis)` to a number for each action."""


def mixed_value(edges: Edges, axis: int) -> jax.Array:
    """The value of an unvisited action: Danihelka et al. 2022, appendix D, equation 33."""
    visited = edges.visits > 0
    prior = jnp.where(visited, jnp.maximum(edges.prior, TINY), 0.0)
    mass = jnp.sum(prior, axis=axis, keepdims=True)
    weighted = jnp.sum(jnp.where(visited, prior * edges.qvalues, 0.0), axis=axis, keepdims=True)
    mean = weighted / jnp.maximum(mass, TINY)
    return (edges.raw_value + edges.total_visits * mean) / (edges.total_visits + 1)


def gumbel_transform(config: SearchConfig, bounds: Bounds, min_range: float, some_actions: bool = False) -> Transform:
    """`sigma` of Danihelka et al. 2022, equation 8, over completed Q-values divided by their range; Gumbel search adds
    it to the logits.

    `min_range` is the lower bound of the range of a node or a tree. With `some_actions` the nodes hold only some of the
    actions; the others count as unvisited, like illegal ones.
    """
    scale = config.q_scale or ("tree" if bounds is None else "node")

    def transform(edges: Edges, axis: int) -> jax.Array:
        unvisited = mixed_value(edges, axis)
        values = jnp.where(edges.visits > 0, edges.qvalues, unvisited)
        highest = jnp.max(values, axis=axis, keepdims=True)
        lowest = jnp.min(values, axis=axis, keepdims=True)
        # Actions without a slot have the mixed value, which belongs to the range as well.
        if some_actions:
            highest, lowest = jnp.maximum(highest, unvisited), jnp.minimum(lowest, unvisited)
        visits = jnp.max(edges.visits, axis=axis, keepdims=True)
        weight = config.value_scale * (MAXVISIT_INIT + visits)
        if scale == "bounds" and bounds is not None:
            width = jnp.asarray(bounds[1] - bounds[0])
        else:
            width = jnp.maximum(highest - lowest if scale == "node" else edges.tree_range, min_range)
        # Only differences matter. Subtracting the largest value keeps float32 from rounding away the noise and logits
        # that are added to large values.
        return (values - highest) * (weight / width)

    return transform


def tree_range(values: Array, exists: Array) -> jax.Array:
    """The range of the values of the nodes that exist; axis 0, that of the nodes, stays with size 1.

    As in MuZero's pseudocode, each value is for the player to move in its node, so with two players the range covers
    the values of one player and the negated values of the other.
    """
    lowest = jnp.min(jnp.where(exists, values, jnp.inf), axis=0, keepdims=True)
    highest = jnp.max(jnp.where(exists, values, -jnp.inf), axis=0, keepdims=True)
    return highest - lowest


def puct_transform(config: SearchConfig, bounds: Bounds) -> Transform:
    """Q-values scaled to [0, 1] for PUCT; unvisited actions get the value of `first_play_urgency`.

    Without `bounds` they are divided by the range of the whole tree (Schrittwieser et al. 2020, appendix B), or that of
    the node where its rewards make it larger, and the node's smallest becomes 0.
    """

    def transform(edges: Edges, axis: int) -> jax.Array:
        visited = edges.visits > 0
        lowest, highest = _range_of_node(edges, axis) if bounds is None else bounds
        width = highest - lowest
        if bounds is None:
            width = jnp.maximum(jnp.maximum(width, edges.tree_range), _EPSILON)
        # Illegal actions have no exploration term, so with the parent's value they could outscore legal ones.
        parent = jnp.where(edges.prior > 0, (edges.value - lowest) / width, 0.0)
        unvisited = jnp.zeros_like(edges.qvalues) if config.first_play_urgency == "loss" else parent
        return jnp.where(visited, (edges.qvalues - lowest) / width, unvisited)

    return transform


def _range_of_node(edges: Edges, axis: int) -> tuple[jax.Array, jax.Array]:
    """The smallest and largest of a node's value and the Q-values of its visited actions."""
    known = jnp.where(edges.visits > 0, edges.qvalues, edges.value)
    lowest = jnp.minimum(edges.value, jnp.min(known, axis=axis, keepdims=True))
    highest = jnp.maximum(edges.value, jnp.max(known, axis=axis, keepdims=True))
    return lowest, highest


def root_value(config: SearchConfig, root: Edges, policy: Array, action: Array) -> jax.Array:
    """The value `[B]` of the roots after search, by `search.root_value`.

    Takes the edges of the roots, actions last, the policy target `[B, A]`, and the selected action `[B]`.
    """
    match config.root_value or ("policy" if config.algorithm == "gumbel" else "mean"):
        case "mean":
            return root.value[:, 0]
        case "action":
            return jnp.take_along_axis(root.qvalues, action[:, None], axis=1)[:, 0]
        case "policy":
            qvalues = jnp.where(root.visits > 0, root.qvalues, mixed_value(root, axis=-1))
            return jnp.sum(policy * qvalues, axis=1)
        case "network":
            return root.raw_value[:, 0]


def outcome_scores(edges: Edges) -> jax.Array:
    """Scores of an afterstate's outcomes, by which their visits follow the probabilities (Antonoglou et al. 2022)."""
    return edges.prior / (edges.visits + 1)


PB_C_BASE = 19652.0
"""Constant `c2` of PUCT's exploration term (Schrittwieser et al. 2020, appendix B)."""
LOW = -1e9
"""The lowest score of an action that sequential halving considers."""
_SAFE = 80.0
"""If a transform adds at most this much to log-priors, their exponentials need no shift by the maximum: exp(-80) is a
normal float32, and exp(80) times the number of actions is finite."""


class Selection(NamedTuple):
    """Functions that score actions."""

    root: Callable[[Edges, jax.Array], jax.Array]
    """`(edges [K, B], simulation [])` to `[K, B]`."""
    inner: Callable[[Edges], jax.Array]
    """`(edges [K, N, B])` to `[K, N, B]`."""


def gumbel_selection(config: SearchConfig, transform: Transform, noise: jax.Array, legal: jax.Array) -> Selection:
    """Sequential halving at the root; below it, the action that brings the visits closest to the improved policy
    (Danihelka et al. 2022, sections 3 and 5). The root's actions have Gumbel noise, `[K, B]`.
    """
    counts = range(config.max_considered_actions + 1)
    schedule = np.asarray([considered_visits(count, config.simulations) for count in counts], np.int32)
    considered = jnp.minimum(jnp.sum(legal, axis=0), config.max_considered_actions)
    mine = jnp.arange(len(schedule))[:, None] == considered
    largest_weight = config.value_scale * (MAXVISIT_INIT + config.simulations)

    def root(edges: Edges, simulation: jax.Array) -> jax.Array:
        now = jax.lax.dynamic_index_in_dim(jnp.asarray(schedule), simulation, axis=1, keepdims=True)
        visits = jnp.sum(jnp.where(mine, now, 0), axis=0)
        scores = jnp.maximum(LOW, noise + edges.logits + transform(edges, 0))
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
    """The PUCT rule (Schrittwieser et al. 2020, appendix B); noise `[K, B]` breaks ties between equal scores."""

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
    """The visits that an action must have to be considered, for each simulation (Karnin et al. 2013).

    Sequential halving visits all considered actions equally often, then the better half, and so on; the last two share
    the remaining visits.
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
