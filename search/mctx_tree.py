"""What a tree of mctx knows, as `Edges`."""

from __future__ import annotations

import mctx

from podzero.search.qvalues import Edges, Transform, tree_range
from podzero.types import Array


def qtransform(transform: Transform) -> mctx.QTransform:
    """A transform of Q-values as mctx calls it: `(tree of one search, node)` to `[A]`."""

    def call(tree: mctx.Tree, node: Array) -> Array:
        return transform(_edges(tree, node), -1)

    return call


def _edges(tree: mctx.Tree, node: Array) -> Edges:
    """The edges `[A]` of one node of one search."""
    return Edges(
        logits=tree.children_prior_logits[node],
        visits=tree.children_visits[node],
        qvalues=tree.qvalues(node),
        raw_value=tree.raw_values[node][None],
        value=tree.node_values[node][None],
        tree_range=tree_range(tree.node_values, tree.node_visits > 0, axis=0),
    )


def edges_of_roots(tree: mctx.Tree) -> Edges:
    """The edges `[B, A]` of the roots of B searches."""
    root = mctx.Tree.ROOT_INDEX
    return Edges(
        logits=tree.children_prior_logits[:, root],
        visits=tree.children_visits[:, root],
        qvalues=tree.summary().qvalues,
        raw_value=tree.raw_values[:, root, None],
        value=tree.node_values[:, root, None],
        tree_range=tree_range(tree.node_values, tree.node_visits > 0, axis=1),
    )
