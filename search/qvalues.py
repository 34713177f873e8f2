"""Q-values of a node: completed, scaled for Gumbel's improved policy, and the value of the root after search."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import jax
import jax.numpy as jnp
import mctx

from podzero.config import SearchConfig
from podzero.types import Array

QTransform = Callable[[mctx.Tree, Array], jax.Array]
"""`(tree, node)` of one search to `[A]`."""


def completed(tree: mctx.Tree, node: Array) -> jax.Array:
    """The completed Q-values `[A]` of a node: an unvisited action has the mixed value of Danihelka et al. 2022,
    appendix D.
    """
    found: jax.Array = mctx.qtransform_completed_by_mix_value(
        tree, node, value_scale=1.0, maxvisit_init=1.0, rescale_values=False
    )
    return found / (1.0 + jnp.max(tree.children_visits[node]))


def gumbel_transform(config: SearchConfig, bounds: tuple[float, float] | None) -> QTransform:
    """What Gumbel's search adds to the logits of a node: `sigma` of Danihelka et al. 2022, equation 8, over scaled
    completed Q-values.

    Args:
      config: `q_scale`, `min_value_range`, `value_scale` and `maxvisit_init`; `bounds` only where they are known.
      bounds: least and greatest value of a position; None if they are not known.
    """
    scale = config.q_scale or ("tree" if bounds is None else "node")
    if scale == "node":
        return partial(
            mctx.qtransform_completed_by_mix_value, value_scale=config.value_scale, maxvisit_init=config.maxvisit_init
        )

    def transform(tree: mctx.Tree, node: Array) -> jax.Array:
        values = completed(tree, node)
        width = (
            bounds[1] - bounds[0] if scale == "bounds" and bounds is not None else _range(tree, config.min_value_range)
        )
        weight = config.value_scale * (config.maxvisit_init + jnp.max(tree.children_visits[node]))
        # Only differences matter. Beside large values float32 would round away the Gumbel noise that is added to them.
        return weight * (values - jnp.max(values)) / width

    return transform


def _range(tree: mctx.Tree, least: float) -> jax.Array:
    """The range of node values in a tree, at least `least`."""
    visited = tree.node_visits > 0
    lowest = jnp.min(jnp.where(visited, tree.node_values, jnp.inf))
    highest = jnp.max(jnp.where(visited, tree.node_values, -jnp.inf))
    return jnp.maximum(highest - lowest, least)


def puct_transform(bounds: tuple[float, float] | None) -> QTransform:
    """Q-values in [0, 1] for PUCT, with unvisited actions at 0.

    Without known bounds they are rescaled by the range at each node, as mctx does by default; in the paper
    (Schrittwieser et al. 2020, appendix B) the range is that of the whole tree.
    """
    if bounds is None:
        by_node: QTransform = mctx.qtransform_by_parent_and_siblings
        return by_node
    return partial(mctx.qtransform_by_min_max, min_value=bounds[0], max_value=bounds[1])


def root_value(config: SearchConfig, tree: mctx.Tree, policy: Array, action: Array) -> jax.Array:
    """The value of B roots after search, `[B]`, as `search.root_value` says.

    Args:
      config: `root_value`.
      tree: of B searches.
      policy: `[B, A]`, the policy target.
      action: `[B]`, the selected action.
    """
    match config.root_value:
        case "mean":
            return jnp.asarray(tree.summary().value)
        case "action":
            return jnp.take_along_axis(tree.summary().qvalues, action[:, None], axis=1)[:, 0]
        case "policy":
            values = jax.vmap(completed, in_axes=(0, None))(tree, mctx.Tree.ROOT_INDEX)
            return jnp.sum(policy * values, axis=1)
        case "network":
            return jnp.asarray(tree.raw_values[:, mctx.Tree.ROOT_INDEX])
