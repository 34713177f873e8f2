"""A search of one position that goes on where it stopped and keeps the tree below the moves played.

It uses mctx's trees: there a simulation costs the same however much room a tree has, while a dense tree computes the
scores of all its nodes each time.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import mctx
import numpy as np

from podzero.config import OwnAlgorithmConfig, SearchConfig
from podzero.core.types import Array, EnvState, Params, SearchResult
from podzero.search.algorithms import edges_at, evaluated, gumbel_values, inner_selection, result_of
from podzero.search.models import ILLEGAL, Model
from podzero.search.selection import LOW, considered_visits


class GrowingSearch(NamedTuple):
    """Pure functions of a tree of one game (B = 1) with room for a number of simulations."""

    begin: Callable[[Params, Array, EnvState], mctx.Tree]
    """`(params, key, roots [1, ...])` to a tree of the root alone."""
    grow: Callable[[Params, Array, mctx.Tree, Array], tuple[mctx.Tree, SearchResult]]
    """`(params, key, tree, simulations [] int32)` to the tree after as many more, for which it must have room, and its
    result, with nodes."""
    follow: Callable[[mctx.Tree, EnvState], tuple[mctx.Tree, jax.Array]]
    """`(tree, states [1, ...])` to the tree below that state, and whether it is in the tree (`[]` bool)."""


def make_growing_search(config: SearchConfig, model: Model) -> GrowingSearch | None:
    """Builds a search without exploration, whose trees have room for `config.simulations`.

    None for a search of one's own, in games of chance, and for models with values for each player.
    """
    if isinstance(config.algorithm, OwnAlgorithmConfig) or model.chance is not None or model.turn is not None:
        return None
    inner = inner_selection(config, model)
    simulate = partial(
        mctx.search,
        recurrent_fn=model.recurrent,
        root_action_selection_fn=(
            _halving_again(config, model) if config.algorithm == "gumbel" else partial(inner, depth=0)
        ),
        interior_action_selection_fn=inner,
        num_simulations=config.simulations,
    )

    def begin(params: Params, key: Array, roots: EnvState) -> mctx.Tree:
        root, legal = evaluated(model, params, key, roots)
        return simulate(
            params,
            key,
            root=root,
            invalid_actions=~legal,
            extra_data=_Begun(*[jnp.zeros(legal.shape, jnp.int32)] * 2),
            loop_fn=lambda low, high, body, start: start,
        )

    def grow(params: Params, key: Array, tree: mctx.Tree, simulations: Array) -> tuple[mctx.Tree, SearchResult]:
        done = tree.node_visits[0, mctx.Tree.ROOT_INDEX] - 1

        def go_on(low: int, high: int, body: Callable[[Any, Any], Any], start: tuple[Array, mctx.Tree]) -> Any:
            def simulated(number: int, carry: tuple[Array, mctx.Tree]) -> Any:
                return body(number, (carry[0], _halved(config, carry[1])))

            return jax.lax.fori_loop(done, done + simulations, simulated, (start[0], tree))

        root = jax.tree.map(lambda leaf: leaf[:, mctx.Tree.ROOT_INDEX], tree.embeddings)
        known = mctx.RootFnOutput(
            prior_logits=tree.children_prior_logits[:, mctx.Tree.ROOT_INDEX],
            value=tree.raw_values[:, mctx.Tree.ROOT_INDEX],
            embedding=root,
        )
        tree = simulate(params, key, root=known, loop_fn=go_on)
        return tree, result_of(config, model, tree, tree.extra_data.at_root)

    def follow(tree: mctx.Tree, states: EnvState) -> tuple[mctx.Tree, jax.Array]:
        found = jnp.where(_equal_to(tree, states), tree.node_visits[0], 0)
        return subtree(tree, jnp.argmax(found)), jnp.any(found > 0)

    return GrowingSearch(begin, grow, follow)


class _Begun(NamedTuple):
    """Visits `[1, A]` int32 of the root's actions at two beginnings: `extra_data` of a tree."""

    at_root: Array
    """When the node became the root."""
    halving: Array
    """When the latest sequential halving began."""


def _schedule(config: SearchConfig) -> int:
    """The simulations of one sequential halving: the fewest with which all its phases visit equally often."""
    most = config.max_considered_actions
    return most * max(1, math.ceil(math.log2(most)))


def _halving_again(config: SearchConfig, model: Model) -> mctx.RootActionSelectionFn:
    """Sequential halving, repeated (Sagers et al. 2024, https://arxiv.org/abs/2411.07171).

    Sequential halving plans for a number of simulations, which is unknown here. Repeated, it can end at any time, and
    begins each time with what the tree knows.
    """
    transform = gumbel_values(config, model)
    visits_of = np.asarray(
        [considered_visits(count, _schedule(config)) for count in range(config.max_considered_actions + 1)], np.int32
    )

    def select(key: Array, tree: mctx.Tree, node: Array) -> jax.Array:
        edges, new = edges_at(tree, node), tree.children_visits[node] - tree.extra_data.halving
        legal = edges.logits != ILLEGAL
        considered = jnp.minimum(jnp.sum(legal), config.max_considered_actions)
        candidate = legal & (new == jnp.asarray(visits_of)[considered, jnp.sum(new)])
        scores = jnp.maximum(np.float32(LOW), edges.logits + transform(edges, -1))
        return jnp.argmax(jnp.where(candidate, scores, -jnp.inf)).astype(jnp.int32)

    return select


def _halved(config: SearchConfig, tree: mctx.Tree) -> mctx.Tree:
    """Begins the next sequential halving if the tree has finished one."""
    visits, begun = tree.children_visits[:, mctx.Tree.ROOT_INDEX], tree.extra_data
    finished = jnp.sum(visits - begun.halving, axis=1, keepdims=True) >= _schedule(config)
    return tree.replace(extra_data=begun._replace(halving=jnp.where(finished, visits, begun.halving)))


def _equal_to(tree: mctx.Tree, states: EnvState) -> jax.Array:
    """Whether each node `[N]` has the state `[1, ...]`."""
    nodes = tree.node_visits.shape[1]
    leaves = zip(jax.tree.leaves(tree.embeddings), jax.tree.leaves(states), strict=True)
    return jnp.all(jnp.stack([jnp.all((held[0] == leaf).reshape(nodes, -1), axis=1) for held, leaf in leaves]), axis=0)


def subtree(tree: mctx.Tree, node: Array) -> mctx.Tree:
    """Makes `node` (`[]` int32) the root of a tree of one game, and frees the nodes that are not below it.

    The nodes keep their order, so a child still has a larger number than its parent.
    """
    parents, children = tree.parents[0], tree.children_index[0]
    numbers = jnp.arange(len(parents))
    # After k rounds `below` knows the 2**k nearest ancestors.
    below, above = numbers == node, jnp.maximum(parents, 0)
    for _ in range(len(parents).bit_length()):
        below, above = below | below[above], above[above]
    below &= tree.node_visits[0] > 0
    order = jnp.argsort(~below, stable=True)
    kept = numbers < jnp.sum(below)
    renumbered = jnp.where(below, jnp.cumsum(below) - 1, mctx.Tree.UNVISITED).astype(parents.dtype)

    def moved(rows: jax.Array, free: int = 0) -> jax.Array:
        """Rows `[N, ...]` in the new order, `[1, N, ...]`, with `free` in those without a node."""
        mask = kept.reshape(-1, *[1] * (rows.ndim - 1))
        return jnp.where(mask, rows[order], jnp.asarray(free, rows.dtype))[None]

    def target(nodes: jax.Array) -> jax.Array:
        return jnp.where(nodes < 0, nodes, renumbered[nodes])

    logits = moved(tree.children_prior_logits[0])
    return tree.replace(
        node_visits=moved(tree.node_visits[0]),
        raw_values=moved(tree.raw_values[0]),
        node_values=moved(tree.node_values[0]),
        parents=moved(target(parents), mctx.Tree.NO_PARENT),
        action_from_parent=moved(
            jnp.where(numbers == node, mctx.Tree.NO_PARENT, tree.action_from_parent[0]), mctx.Tree.NO_PARENT
        ),
        children_index=moved(target(children), mctx.Tree.UNVISITED),
        children_prior_logits=logits,
        children_values=moved(tree.children_values[0]),
        children_visits=moved(tree.children_visits[0]),
        children_rewards=moved(tree.children_rewards[0]),
        children_discounts=moved(tree.children_discounts[0]),
        embeddings=jax.tree.map(lambda leaf: leaf[:, order], tree.embeddings),
        root_invalid_actions=logits[:, mctx.Tree.ROOT_INDEX] == ILLEGAL,
        extra_data=_Begun(*[tree.children_visits[:, node]] * 2),
    )
