"""Grows dense trees: one node for each simulation, in all games at once.

mctx walks along each game's path node by node, and gathers and scatters rows of the tree at each of its steps. Here

- the best action is computed for all nodes at once, before the descent;
- the descent only follows numbers of nodes, and adds up the rewards along its path;
- one masked operation updates the nodes and actions of the path;
- a tree has room for the nodes of the next simulations only, and is moved to a larger one after them.

What it computes is what mctx computes, up to rounding.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import mctx
from jax.experimental.layout import Layout, with_layout_constraint

from podzero.config import SearchConfig
from podzero.search.dense_tree import (
    UNVISITED,
    Slots,
    Tree,
    chosen,
    edges_of,
    first_tree,
    node_numbers,
    pick,
    slot_numbers,
    slots_of,
    with_node,
    with_room,
)
from podzero.search.models import Model
from podzero.search.selection import Selection
from podzero.types import Array, Params

DESCENT = "descent"
"""The name, in compiled programs, of the loop whose trip count depends on how deep the trees are."""
_STAGES = 4
"""How often a tree gets more room, about."""
_ROWS = 8
"""Rows of a tile of a TPU."""


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
        at_root = jnp.argmax(selection.root(jax.tree.map(lambda leaf: leaf[:, 0], edges), simulation), axis=0)
        choice = jnp.where(node_numbers(tree) == 0, at_root, jnp.argmax(selection.inner(edges), axis=0)).astype(
            jnp.int32
        )
        path = _descend(tree, choice)
        here = node_numbers(tree) == path.last
        action = pick(choice if tree.action is None else chosen(tree.action, choice), here)
        states = jax.tree.map(lambda leaf: jnp.moveaxis(pick(leaf, here), -1, 0), tree.states)
        output, children = model.recurrent(_as_given(params, simulation), expand_key, action, states)
        tree = with_node(tree, simulation + 1, slots_of(output.prior_logits, config.slots), output, children)
        return key, _update(tree, path, here, choice, output, simulation + 1)

    carry, done = (key, first_tree(root, slots, config.simulations)), 0
    for simulations in _stages(config.simulations):
        key, tree = carry
        carry = jax.lax.fori_loop(done, simulations, simulate, (key, with_room(tree, simulations + 1)))
        done = simulations
    return carry[1]


def _as_given(params: Params, counter: jax.Array) -> Params:
    """The parameters in the layout that they have outside of the loop; `counter` changes with each of its rounds.

    The compiler chooses the layout of what enters a loop by itself. That of kernels makes convolutions on a TPU take
    half as long again, and keeps two of them from being fused. What depends on the counter it cannot move out.
    """
    constrain: Any = with_layout_constraint
    barrier: Any = jax.lax.optimization_barrier
    fixed, _ = barrier((params, counter))
    fixed = jax.tree.map(lambda leaf: constrain(leaf, Layout(tuple(range(leaf.ndim)))), fixed)
    fixed, _ = barrier((fixed, counter))
    return fixed


def _stages(simulations: int) -> list[int]:
    """After which numbers of simulations a tree gets more room: its nodes then fill whole tiles."""
    stage = max(_ROWS, round((simulations + 1) / _STAGES / _ROWS) * _ROWS)
    ends = range(stage - 1, simulations - stage // 2, stage)
    return [*ends, simulations]


class _Path(NamedTuple):
    """The nodes between the root and the last one of each game."""

    last: jax.Array
    """`[B]` int32, the node where the path ends."""
    following: jax.Array
    """`[B]` int32, the child to which the next step leads, or `UNVISITED`."""
    passed: jax.Array
    """`[N, B]` bool, the nodes of the path without the last one."""
    reward: jax.Array
    """`[N, B]` float32, the discounted rewards of the steps from a passed node on; undefined in others."""
    discount: jax.Array
    """`[N, B]` float32, the product of the discounts of these steps."""
    depth: jax.Array
    """`[]` int32, steps taken."""


def _descend(tree: Tree, choice: jax.Array) -> _Path:
    """Follows the chosen actions `[N, B]` from the roots as far as the trees go."""
    target = chosen(tree.child, choice).astype(jnp.int32)
    blank = jnp.zeros_like(tree.value)
    start = _Path(
        last=jnp.zeros_like(target[0]),
        following=target[0],
        passed=jnp.zeros(target.shape, bool),
        reward=blank,
        discount=blank,
        depth=tree.depth,
    )

    def step(path: _Path) -> _Path:
        moves = path.following != UNVISITED
        there = node_numbers(tree) == path.following
        reward, discount = jnp.where(moves, pick(tree.reward, there), 0.0), pick(tree.discount, there)
        path = _followed(path, (node_numbers(tree) == path.last) & moves, reward, jnp.where(moves, discount, 1.0))
        following = jnp.where(moves, pick(target, there), UNVISITED)
        last = jnp.where(moves, path.following, path.last)
        return path._replace(last=last, following=following, depth=path.depth + 1)

    with jax.named_scope(DESCENT):
        return jax.lax.while_loop(lambda path: jnp.any(path.following != UNVISITED), step, start)


def _followed(path: _Path, here: jax.Array, reward: Array, discount: Array) -> _Path:
    """The path with one more step, from the node `here` `[N, B]`, and its reward and discount `[B]`."""
    return path._replace(
        passed=path.passed | here,
        reward=jnp.where(here, reward, path.reward + path.discount * reward),
        discount=jnp.where(here, discount, path.discount * discount),
    )


def _update(
    tree: Tree, path: _Path, here: jax.Array, choice: jax.Array, output: mctx.RecurrentFnOutput, node: Array
) -> Tree:
    """The trees with the value of the new node in all nodes and actions of the path; it is a child of `here`.

    A Q-value is the mean of the returns from its node on over its visits, as a node's value is over its samples.
    """
    path = _followed(path, here, output.reward, output.discount)
    returns = path.reward + path.discount * output.value
    taken = path.passed & (slot_numbers(tree.child) == choice)
    return tree._replace(
        visits=tree.visits + taken.astype(tree.visits.dtype),
        qvalues=jnp.where(taken, _mean_with(returns, tree.qvalues, tree.visits), tree.qvalues),
        child=jnp.where(taken & here, jnp.asarray(node, tree.child.dtype), tree.child),
        value=jnp.where(path.passed, _mean_with(returns, tree.value, tree.samples), tree.value),
        samples=tree.samples + path.passed,
        depth=path.depth,
    )


def _mean_with(number: jax.Array, mean: jax.Array, count: jax.Array) -> jax.Array:
    """The mean of `count` numbers and one more."""
    return (mean * count + number) / (count + 1)
