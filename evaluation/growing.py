"""The tree of a player in one game: it grows in steps, and the part below the moves played stays.

It is one of mctx's trees: there a simulation costs the same however much room there is; a dense tree scores all nodes.
"""

from __future__ import annotations

import dataclasses
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
from podzero.search.models import ILLEGAL, Model, limited
from podzero.search.selection import LOW, considered_visits


class GrowingSearch(NamedTuple):
    """Compiled functions of a tree of one game (B = 1) with room for a number of simulations. They consume the tree."""

    begin: Callable[[Params, Array, EnvState], mctx.Tree]
    """`(params, key, roots [1, ...])` to a tree of the root alone."""
    grow: Callable[[Params, Array, mctx.Tree, Array], tuple[mctx.Tree, SearchResult]]
    """`(params, key, tree, simulations [] int32)` to the tree after as many more, if it has room, and its result."""
    follow: Callable[[mctx.Tree, EnvState], tuple[mctx.Tree, jax.Array]]
    """`(tree, states [1, ...])` to the tree below that state, and whether it is in the tree (`[]` bool)."""


def make_growing_search(config: SearchConfig, model: Model) -> GrowingSearch | None:
    """Builds a search without exploration, whose trees have room for `config.simulations`; states are `LimitedState`.

    None for a search of one's own, in games of chance, and for models with values for each player.
    """
    if isinstance(config.algorithm, OwnAlgorithmConfig) or model.chance is not None or model.turn is not None:
        return None
    model = limited(model)
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
            # No simulation: the loop returns its start, a tree of the root alone.
            loop_fn=lambda low, high, body, start: start,
        )

    def grow(params: Params, key: Array, tree: mctx.Tree, simulations: Array) -> tuple[mctx.Tree, SearchResult]:
        done = tree.node_visits[0, mctx.Tree.ROOT_INDEX] - 1

        def go_on(low: int, high: int, body: Callable[[Any, Any], Any], start: tuple[Array, mctx.Tree]) -> Any:
            def simulated(number: int, carry: tuple[Array, mctx.Tree]) -> Any:
                # Begins the next sequential halving if the tree has finished one.
                key, tree = carry
                visits, begun = tree.children_visits[:, mctx.Tree.ROOT_INDEX], tree.extra_data
                finished = jnp.sum(visits - begun.halving, axis=1, keepdims=True) >= _schedule(config)
                begun = begun._replace(halving=jnp.where(finished, visits, begun.halving))
                return body(number, (key, tree.replace(extra_data=begun)))

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
        def is_there(held: jax.Array, leaf: jax.Array) -> jax.Array:
            return jnp.all((held[0] == leaf).reshape(held.shape[1], -1), axis=1)

        same = jnp.stack(jax.tree.leaves(jax.tree.map(is_there, tree.embeddings, states)))
        found = jnp.where(jnp.all(same, axis=0), tree.node_visits[0], 0)
        return subtree(tree, jnp.argmax(found)), jnp.any(found > 0)

    return GrowingSearch(jax.jit(begin), jax.jit(grow, donate_argnums=2), jax.jit(follow, donate_argnums=0))


class PlayerTree:
    """The tree of a player in one game. States are `LimitedState`."""

    def __init__(self, search: GrowingSearch, params: Params) -> None:
        self._search = search
        self._params = params
        self._tree: Any = None
        self.simulations = 0
        """The number of simulations in the tree."""

    def forget(self) -> None:
        """Drops the tree, so that the next root starts another."""
        self._tree = None

    def turn_to(self, key: Array, states: EnvState) -> None:
        """Makes a non-terminal state, with a batch axis of 1, the root; starts anew if the tree does not have it.

        States are compared, not moves, so no history of a game can lead to a wrong tree.
        """
        tree, found = (None, False) if self._tree is None else self._search.follow(self._tree, states)
        self._tree = tree if found else self._search.begin(self._params, key, states)
        self.simulations = int(self._tree.node_visits[0, 0]) - 1

    def grow(self, key: Array, simulations: int) -> SearchResult:
        """The result after more simulations, as that of `SearchPlayer.search`; the tree must have room for them."""
        self._tree, result = self._search.grow(self._params, key, self._tree, np.asarray(simulations, np.int32))
        self.simulations += simulations
        return result


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


_FIELDS = {
    *("node_visits", "raw_values", "node_values", "parents", "action_from_parent", "children_index"),
    *("children_prior_logits", "children_visits", "children_rewards", "children_discounts", "children_values"),
    *("embeddings", "root_invalid_actions", "extra_data"),
}
"""The fields of mctx's trees that `subtree` knows: it must renumber each of them that holds numbers of nodes."""


def subtree(tree: mctx.Tree, node: Array) -> mctx.Tree:
    """Makes `node` (`[]` int32) the root of a tree of one game, and frees the nodes that are not below it.

    The nodes keep their order, so a child still has a larger number than its parent.
    """
    assert {field.name for field in dataclasses.fields(mctx.Tree)} == _FIELDS, "another version of mctx"
    parents, numbers = tree.parents[0], jnp.arange(tree.parents.shape[1])
    # After k rounds `below` knows the 2**k nearest ancestors.
    below, above = numbers == node, jnp.maximum(parents, 0)
    for _ in range(len(parents).bit_length()):
        below, above = below | below[above], above[above]
    below &= tree.node_visits[0] > 0
    order = jnp.argsort(~below, stable=True)
    filled = numbers < jnp.sum(below)
    renumbered = jnp.where(below, jnp.cumsum(below) - 1, mctx.Tree.UNVISITED).astype(parents.dtype)

    def moved(rows: jax.Array, free: int = 0) -> jax.Array:
        """Rows `[1, N, ...]` in the new order, with `free` in those without a node."""
        mask = filled.reshape(-1, *[1] * (rows.ndim - 2))
        return jnp.where(mask, rows[:, order], jnp.asarray(free, rows.dtype))

    def target(nodes: jax.Array) -> jax.Array:
        return jnp.where(nodes < 0, nodes, renumbered[nodes])

    action = jnp.where(numbers == node, mctx.Tree.NO_PARENT, tree.action_from_parent)
    at_nodes = jax.tree.map(moved, tree.replace(embeddings=None, root_invalid_actions=None, extra_data=None))
    return at_nodes.replace(
        parents=moved(target(tree.parents), mctx.Tree.NO_PARENT),
        action_from_parent=moved(action, mctx.Tree.NO_PARENT),
        children_index=moved(target(tree.children_index), mctx.Tree.UNVISITED),
        embeddings=jax.tree.map(lambda leaf: leaf[:, order], tree.embeddings),
        root_invalid_actions=at_nodes.children_prior_logits[:, mctx.Tree.ROOT_INDEX] == ILLEGAL,
        extra_data=_Begun(*[tree.children_visits[:, node]] * 2),
    )
