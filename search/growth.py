"""Grows dense trees: one node for each simulation, in all games at once.

mctx walks along each game's path node by node, and gathers and scatters rows of the tree at each of its steps. Here

- the best action is computed for all nodes at once, before the descent;
- the descent only follows numbers of nodes, and adds up the rewards along its path;
- one masked operation updates the nodes and actions of the path.

What it computes is what mctx computes, up to rounding.
"""

from __future__ import annotations

from typing import NamedTuple

import jax
import jax.numpy as jnp
import mctx

from podzero.config import SearchConfig
from podzero.search.dense_tree import (
    UNVISITED,
    Slots,
    Tree,
    chosen,
    edges_of,
    first_tree,
    pick,
    rows,
    slot_numbers,
    slots_of,
    with_node,
)
from podzero.search.models import Model
from podzero.search.selection import Selection
from podzero.types import Array, Params


def grow(
    model: Model,
    selection: Selection,
    params: Params,
    key: Array,
    root: mctx.RootFnOutput,
    slots: Slots,
    config: SearchConfig,
) -> Tree:
    """Grows B trees.

    Args:
      model: what is searched.
      selection: of the actions.
      params: of the model.
      key: PRNG key, of which each simulation takes a part.
      root: B evaluated roots.
      slots: their actions.
      config: `simulations`, which is how many nodes each tree grows by, and `slots`.
    """

    def simulate(simulation: jax.Array, carry: tuple[Array, Tree]) -> tuple[Array, Tree]:
        key, tree = carry
        key, _, expand_key = jax.random.split(key, 3)
        edges = edges_of(tree)
        at_root = jnp.argmax(selection.root(jax.tree.map(lambda leaf: leaf[0], edges), simulation), axis=0)
        choice = jnp.where(rows(tree) == 0, at_root, jnp.argmax(selection.inner(edges), axis=1)).astype(jnp.int32)
        path = _descend(tree, choice)
        here = rows(tree) == path.last
        slot = pick(choice, here)
        action = slot if tree.action is None else pick(chosen(tree.action, choice), here)
        states = jax.tree.map(lambda leaf: jnp.moveaxis(pick(leaf, here), -1, 0), tree.states)
        output, children = model.recurrent(params, expand_key, action, states)
        tree = with_node(tree, simulation + 1, slots_of(output.prior_logits, config.slots), output, children)
        return key, _update(tree, path, here, choice, output, simulation + 1)

    start = first_tree(root, slots, config.simulations + 1)
    grown: tuple[Array, Tree] = jax.lax.fori_loop(0, config.simulations, simulate, (key, start))
    return grown[1]


class _Path(NamedTuple):
    """The nodes between the root and the last one of each game. What concerns a node's child on the path is
    undefined in nodes off the path.
    """

    last: jax.Array
    """`[B]` int32, the node where the path ends."""
    following: jax.Array
    """`[B]` int32, the child to which the next step leads, or `UNVISITED`."""
    passed: jax.Array
    """`[N, B]` bool, the nodes of the path without the last one."""
    reward: jax.Array
    """`[N, B]` float32, of the step to the node's child on the path."""
    discount: jax.Array
    """`[N, B]` float32, of that step."""
    child_value: jax.Array
    """`[N, B]` float32, the child's value."""
    child_samples: jax.Array
    """`[N, B]` int32, the child's."""
    later_reward: jax.Array
    """`[N, B]` float32, the discounted rewards of the steps from that child on."""
    later_discount: jax.Array
    """`[N, B]` float32, the product of the discounts of the steps from that child on."""
    depth: jax.Array
    """`[]` int32, steps taken."""


def _descend(tree: Tree, choice: jax.Array) -> _Path:
    """Follows the chosen actions `[N, B]` from the roots as far as the trees go."""
    target = chosen(tree.child, choice)
    blank = jnp.zeros_like(tree.value)
    start = _Path(
        last=jnp.zeros_like(target[0]),
        following=target[0],
        passed=jnp.zeros(target.shape, bool),
        reward=blank,
        discount=blank,
        child_value=blank,
        child_samples=jnp.zeros_like(tree.samples),
        later_reward=blank,
        later_discount=blank,
        depth=tree.depth,
    )

    def step(path: _Path) -> _Path:
        moves = path.following != UNVISITED
        there = rows(tree) == path.following
        reward, discount, value, samples = (
            pick(leaf, there) for leaf in (tree.reward, tree.discount, tree.value, tree.samples)
        )
        here = (rows(tree) == path.last) & moves
        path = _followed(path, here, jnp.where(moves, reward, 0.0), jnp.where(moves, discount, 1.0), value, samples)
        following = jnp.where(moves, pick(target, there), UNVISITED)
        last = jnp.where(moves, path.following, path.last)
        return path._replace(last=last, following=following, depth=path.depth + 1)

    return jax.lax.while_loop(lambda path: jnp.any(path.following != UNVISITED), step, start)


def _followed(path: _Path, here: jax.Array, reward: Array, discount: Array, value: Array, samples: Array) -> _Path:
    """The path with one more step, from the node `here` `[N, B]`; the other arguments `[B]` are of that step."""
    return path._replace(
        passed=path.passed | here,
        reward=jnp.where(here, reward, path.reward),
        discount=jnp.where(here, discount, path.discount),
        child_value=jnp.where(here, value, path.child_value),
        child_samples=jnp.where(here, samples, path.child_samples),
        later_reward=jnp.where(here, 0.0, path.later_reward + path.later_discount * reward),
        later_discount=jnp.where(here, 1.0, path.later_discount * discount),
    )


def _update(
    tree: Tree, path: _Path, here: jax.Array, choice: jax.Array, output: mctx.RecurrentFnOutput, node: Array
) -> Tree:
    """The trees with the value of the new node in all nodes and actions of the path; it is a child of `here`."""
    nothing = jnp.zeros_like(output.value)
    path = _followed(path, here, output.reward, output.discount, nothing, nothing.astype(jnp.int32))
    child_return = path.later_reward + path.later_discount * output.value
    child_value = (path.child_value * path.child_samples + child_return) / (path.child_samples + 1)
    own_return = path.reward + path.discount * child_return
    taken = path.passed[:, None] & (slot_numbers(tree.child) == choice[:, None])
    qvalue = (path.reward + path.discount * child_value)[:, None]
    return tree._replace(
        visits=tree.visits + taken,
        qvalues=jnp.where(taken, qvalue, tree.qvalues),
        child=jnp.where(taken & here[:, None], node, tree.child),
        value=jnp.where(path.passed, (tree.value * tree.samples + own_return) / (tree.samples + 1), tree.value),
        samples=tree.samples + path.passed,
        depth=path.depth,
    )
