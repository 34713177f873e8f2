"""What a tree of mctx knows, as `Edges`."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import mctx

from podzero.search.qvalues import Edges, Transform, tree_range
from podzero.searched_nodes import SearchedNodes
from podzero.types import Array


def qtransform(transform: Transform) -> mctx.QTransform:
    """A transform of Q-values as mctx calls it: `(tree of one search, node)` to `[A]`."""

    def call(tree: mctx.Tree, node: Array) -> Array:
        return transform(_edges(tree, node), -1)

    return call


def _edges(tree: mctx.Tree, node: Array) -> Edges:
    """The edges `[A]` of one node of one search."""
    visits = tree.children_visits[node]
    return Edges(
        logits=tree.children_prior_logits[node],
        prior=jax.nn.softmax(tree.children_prior_logits[node]),
        visits=visits,
        total_visits=jnp.sum(visits)[None],
        qvalues=tree.qvalues(node),
        raw_value=tree.raw_values[node][None],
        value=tree.node_values[node][None],
        tree_range=tree_range(tree.node_values, tree.node_visits > 0, axis=0),
    )


def edges_of_roots(tree: mctx.Tree) -> Edges:
    """The edges `[B, A]` of the roots of B searches."""
    root = mctx.Tree.ROOT_INDEX
    visits = tree.children_visits[:, root]
    return Edges(
        logits=tree.children_prior_logits[:, root],
        prior=jax.nn.softmax(tree.children_prior_logits[:, root]),
        visits=visits,
        total_visits=jnp.sum(visits, axis=1, keepdims=True),
        qvalues=tree.summary().qvalues,
        raw_value=tree.raw_values[:, root, None],
        value=tree.node_values[:, root, None],
        tree_range=tree_range(tree.node_values, tree.node_visits > 0, axis=1),
    )


def nodes_of(tree: mctx.Tree) -> SearchedNodes:
    """The nodes of B trees."""
    prior = jax.nn.softmax(tree.children_prior_logits)
    row, above = jnp.arange(tree.parents.shape[0])[:, None], jnp.maximum(tree.parents, 0)
    action = jnp.maximum(tree.action_from_parent, 0)
    edge = row, above, action
    led_to = tree.children_rewards[edge] + tree.children_discounts[edge] * tree.node_values
    return SearchedNodes(
        parent=tree.parents,
        action=tree.action_from_parent,
        visits=tree.node_visits,
        value=jnp.where(tree.parents < 0, tree.node_values, led_to),
        prior=prior[edge],
    )
