"""Batched search trees in which the games are the minor dimension of every array.

The games fill a vector unit's lanes, however few actions there are. In mctx's trees the actions are the minor
dimension, and a TPU pads each row to a whole tile. Nodes are selected with masks instead of gathers, because
arithmetic on a whole tile is cheaper on a TPU. Shape letters: N nodes, K slots for actions at each node, B games.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import mctx
import numpy as np
from jax.experimental.layout import Layout, with_layout_constraint

from podzero.config import SearchConfig
from podzero.core.types import Array, EnvState, Params
from podzero.search.models import ILLEGAL, Model
from podzero.search.selection import Edges, Selection, outcome_scores, tree_range

UNVISITED = -1
"""The child of an action that has not been taken."""


class Slots(NamedTuple):
    """The actions stored at a node of each game."""

    logits: jax.Array
    """`[K, B]` float32, the prior's log-probabilities; `ILLEGAL` in slots without a legal action."""
    action: jax.Array | None
    """`[K, B]` int32, the action of each slot, in ascending order; None if slot k is action k."""
    dropped: jax.Array
    """`[B]` int32, the number of legal actions without a slot."""

    @property
    def legal(self) -> jax.Array:
        """`[K, B]` bool, the slots that hold a legal action."""
        return self.logits != ILLEGAL

    def of(self, values: jax.Array) -> jax.Array:
        """Selects the slots' entries `[K, B]` from values of all actions `[B, A]`."""
        return values.T if self.action is None else jnp.take_along_axis(values, self.action.T, axis=1).T


class Tree(NamedTuple):
    """B trees of up to N nodes; node 0 is the root, and simulation s adds node s."""

    logits: jax.Array
    """`[K, N, B]` float32, the prior's log-probabilities."""
    visits: jax.Array
    """`[K, N, B]`, in the smallest integer type that can number the nodes."""
    qvalues: jax.Array
    """`[K, N, B]` float32, zero for unvisited actions."""
    child: jax.Array
    """`[K, N, B]`, in the same integer type: the node that the action leads to, or `UNVISITED`."""
    action: jax.Array | None
    """`[K, N, B]` int32, or None if slot k is action k."""
    raw_value: jax.Array
    """`[N, B]` float32, the network's value."""
    value: jax.Array
    """`[N, B]` float32, the mean of the node's own and all later values."""
    samples: jax.Array
    """`[N, B]` int32, the number of those values: how often a simulation reached the node."""
    reward: jax.Array
    """`[N, B]` float32, the reward for the action that leads to the node; or `[P, N, B]`, that of each player."""
    discount: jax.Array
    """`[N, B]` float32, the factor on the node's value in its parent's value."""
    states: EnvState
    """`[..., N, B]` on every leaf."""
    dropped: jax.Array
    """`[B]` int32, the number of legal actions without a slot, summed over all nodes."""
    depth: jax.Array
    """`[]` int32, the steps of all descents; a descent takes as many as its deepest path in the batch."""
    chance: jax.Array | None = None
    """`[N, B]` bool, whether the node is an afterstate, whose edges are outcomes; None in a model without chance."""
    turn: jax.Array | None = None
    """`[P, N, B]` bool, the player to move, whose values and Q-values the node has; None in a model without `turn`."""


def edges_of(tree: Tree) -> Edges:
    """The edges of all nodes; axis 0 is the actions."""
    width = tree_range(tree.value, tree.samples > 0)
    return Edges(
        logits=tree.logits,
        prior=jnp.exp(tree.logits),
        visits=tree.visits,
        total_visits=tree.samples[None] - 1,
        qvalues=tree.qvalues,
        raw_value=tree.raw_value[None],
        value=tree.value[None],
        tree_range=jnp.broadcast_to(width, tree.value.shape)[None],
    )


def slots_of(logits: jax.Array, slots: int | None, preference: jax.Array | None = None) -> Slots:
    """Chooses the actions stored at one node of each of B games: K = `slots` of them, or all (None).

    If there are more legal ones, `preference` `[B, A]` ranks them; by default the logits, which are `ILLEGAL` for
    illegal actions.
    """
    batch, actions = logits.shape
    if slots is None or slots >= actions:
        return Slots(_normalized(logits).T, None, jnp.zeros(batch, jnp.int32))
    legal = logits != ILLEGAL
    ranked = jnp.where(legal, logits if preference is None else preference, ILLEGAL)
    action = jnp.sort(jax.lax.top_k(ranked, slots)[1], axis=1)
    dropped = jnp.maximum(jnp.sum(legal, axis=1, dtype=jnp.int32) - slots, 0)
    held = _normalized(jnp.take_along_axis(logits, action, axis=1))
    return Slots(held.T, action.T.astype(jnp.int32), dropped)


def _normalized(logits: jax.Array) -> jax.Array:
    """The log-softmax of logits `[B, K]` over the entries that are not `ILLEGAL`."""
    legal = logits != ILLEGAL
    return jnp.where(legal, jax.nn.log_softmax(logits, axis=1, where=legal), ILLEGAL)


def root_edges(tree: Tree, logits: jax.Array) -> Edges:
    """The edges `[B, A]` of the roots, given the logits of all actions. Actions without a slot count as unvisited."""
    action, actions = None if tree.action is None else tree.action[:, 0], logits.shape[1]

    def spread(held: jax.Array) -> jax.Array:
        # `[K, B]` to `[B, A]`: each slot's entry goes to the column of its action.
        if action is None:
            return held.T
        found = action[:, :, None] == jnp.arange(actions)
        return jnp.sum(jnp.where(found, held[:, :, None], 0), axis=0, dtype=held.dtype)

    root = Edges(*(field[:, 0] for field in edges_of(tree)))
    # Quantities of a node have size 1 along the actions axis, which becomes the last one.
    return Edges(*(field.T for field in root))._replace(
        logits=logits, prior=jax.nn.softmax(logits), visits=spread(root.visits), qvalues=spread(root.qvalues)
    )


def first_tree(model: Model, root: mctx.RootFnOutput, slots: Slots, simulations: int) -> Tree:
    """Trees of a single node, the root."""
    number = next(kind for kind in (jnp.int8, jnp.int16, jnp.int32) if simulations <= np.iinfo(kind).max)
    value = root.value.astype(jnp.float32)
    unvisited, zero = jnp.zeros_like(slots.logits), jnp.zeros_like(value)
    turn = None if model.turn is None else jnp.transpose(model.turn(root.embedding))
    node = Tree(
        logits=slots.logits,
        visits=unvisited.astype(number),
        qvalues=unvisited,
        child=jnp.full(unvisited.shape, UNVISITED, number),
        action=slots.action,
        raw_value=value,
        value=value,
        samples=jnp.ones(value.shape, jnp.int32),
        reward=zero if turn is None else jnp.zeros(turn.shape, jnp.float32),
        discount=zero,
        states=jax.tree.map(lambda leaf: jnp.moveaxis(leaf, 0, -1), root.embedding),
        dropped=slots.dropped,
        depth=jnp.zeros((), jnp.int32),
        chance=None if model.chance is None else jnp.asarray(model.chance(root.embedding)),
        turn=turn,
    )
    return _by_node(node, lambda leaf: leaf[..., None, :])


def with_room(tree: Tree, nodes: int) -> Tree:
    """Extends the trees to `nodes` nodes."""

    def widened(leaf: jax.Array, fill: int = 0) -> jax.Array:
        room = jnp.full((*leaf.shape[:-2], nodes - leaf.shape[-2], leaf.shape[-1]), fill, leaf.dtype)
        return jnp.concatenate([leaf, room], axis=-2)

    return _by_node(tree, widened)._replace(child=widened(tree.child, UNVISITED))


def _by_node(tree: Tree, change: Callable[[jax.Array], jax.Array]) -> Tree:
    """Applies `change` to every array that has a nodes axis."""
    changed: Tree = jax.tree.map(change, tree._replace(dropped=None, depth=None))  # type: ignore[arg-type]
    return changed._replace(dropped=tree.dropped, depth=tree.depth)


def with_node(
    tree: Tree, model: Model, node: Array, slots: Slots, output: mctx.RecurrentFnOutput, children: EnvState
) -> Tree:
    """Writes a new node, still without visits and without a parent, at index `node`."""

    def put(rows: jax.Array, row: Array | None) -> jax.Array:
        updated: jax.Array = jax.lax.dynamic_update_index_in_dim(rows, jnp.asarray(row, rows.dtype), node, axis=-2)
        return updated

    turn = None if model.turn is None else jnp.transpose(model.turn(children))
    value = output.value if turn is None else jnp.sum(jnp.where(turn, output.value.T, 0.0), axis=0)
    return tree._replace(
        logits=put(tree.logits, slots.logits),
        action=None if tree.action is None else put(tree.action, slots.action),
        raw_value=put(tree.raw_value, value),
        value=put(tree.value, value),
        samples=put(tree.samples, jnp.ones_like(tree.samples[0])),
        reward=put(tree.reward, output.reward.T),
        discount=put(tree.discount, output.discount),
        states=jax.tree.map(lambda rows, row: put(rows, jnp.moveaxis(row, 0, -1)), tree.states, children),
        dropped=tree.dropped + slots.dropped,
        chance=None if tree.chance is None or model.chance is None else put(tree.chance, model.chance(children)),
        turn=None if tree.turn is None else put(tree.turn, turn),
    )


def node_numbers(tree: Tree) -> jax.Array:
    """`[N, 1]`, the index of each node."""
    return jnp.arange(tree.value.shape[0])[:, None]


def slot_numbers(slots: jax.Array) -> jax.Array:
    """`[K, 1, 1]`, the index of each slot."""
    return jnp.arange(len(slots))[:, None, None]


def chosen(slots: jax.Array, choice: jax.Array) -> jax.Array:
    """Selects the chosen slot `[N, B]` of each node from `[K, N, B]`."""
    return jnp.sum(jnp.where(slot_numbers(slots) == choice, slots, 0), axis=0, dtype=slots.dtype)


def pick(rows: jax.Array, here: jax.Array) -> jax.Array:
    """The values `[..., B]` of the node of each game that the mask `here` `[N, B]` marks, from `rows` `[..., N, B]`."""
    if rows.dtype == bool:
        return jnp.any(rows & here, axis=-2)
    return jnp.sum(jnp.where(here, rows, jnp.zeros((), rows.dtype)), axis=-2, dtype=rows.dtype)


DESCENT = "descent"
"""The name, in compiled programs, of the descent loop, whose trip count depends on the depth of the trees."""
STAGES = 4
"""About how many times the arrays of a tree are enlarged."""
_ROWS = 8
"""The rows of a TPU tile."""


def grow(
    model: Model,
    selection: Selection,
    params: Params,
    key: Array,
    root: mctx.RootFnOutput,
    slots: Slots,
    config: SearchConfig,
) -> Tree:
    """Grows trees by `config.simulations` nodes each from B evaluated roots with the actions of `slots`."""
    assert slots.logits.shape[1:] == root.value.shape

    def simulate(simulation: jax.Array, carry: tuple[Array, Tree]) -> tuple[Array, Tree]:
        key, tree = carry
        key, _, expand_key = jax.random.split(key, 3)
        # Select an action in every node of every tree at once; the descent then only follows the choices.
        edges = edges_of(tree)
        at_root = jnp.argmax(selection.root(jax.tree.map(lambda leaf: leaf[:, 0], edges), simulation), axis=0)
        below = jnp.argmax(selection.inner(edges), axis=0)
        if tree.chance is not None:
            below = jnp.where(tree.chance, jnp.argmax(outcome_scores(edges), axis=0), below)
        choice = jnp.where(node_numbers(tree) == 0, at_root, below).astype(jnp.int32)
        # Expand: the path ends in the node `here`, whose chosen action leads to the new node.
        path = _descend(tree, choice)
        here = node_numbers(tree) == path.last
        action = pick(choice if tree.action is None else chosen(tree.action, choice), here)
        states = jax.tree.map(lambda leaf: jnp.moveaxis(pick(leaf, here), -1, 0), tree.states)
        output, children = model.recurrent(_as_given(params, simulation), expand_key, action, states)
        tree = with_node(tree, model, simulation + 1, slots_of(output.prior_logits, config.slots), output, children)
        return key, _update(tree, path, here, choice, output, simulation + 1)

    # A loop cannot change shapes, so each stage runs a loop of its own over larger arrays.
    carry, done = (key, first_tree(model, root, slots, config.simulations)), 0
    for simulations in _stages(config.simulations):
        key, tree = carry
        carry = jax.lax.fori_loop(done, simulations, simulate, (key, with_room(tree, simulations + 1)))
        done = simulations
    return carry[1]


def _as_given(params: Params, counter: jax.Array) -> Params:
    """Keeps the parameters in their original layout inside the loop on TPUs; `counter` is the loop's counter.

    Left alone, the TPU compiler picks a layout for loop inputs that makes convolutions take 1.5 times as long and keeps
    pairs of them from being fused. On GPUs the same barriers would copy the parameters in each simulation.
    """
    constrain: Any = with_layout_constraint
    barrier: Any = jax.lax.optimization_barrier

    def fixed(params: Params, counter: jax.Array) -> Params:
        # The compiler cannot move the constraint out of the loop, because it depends on the counter.
        held, _ = barrier((params, counter))
        held = jax.tree.map(lambda leaf: constrain(leaf, Layout(tuple(range(leaf.ndim)))), held)
        held, _ = barrier((held, counter))
        return held

    return jax.lax.platform_dependent(params, counter, tpu=fixed, default=lambda params, counter: params)


def _stages(simulations: int) -> list[int]:
    """The numbers of simulations at which the trees are enlarged, so that their nodes fill whole tiles."""
    stage = max(_ROWS, round((simulations + 1) / STAGES / _ROWS) * _ROWS)
    ends = range(stage - 1, simulations - stage // 2, stage)
    return [*ends, simulations]


class _Path(NamedTuple):
    """The path of one simulation from the root, in each game."""

    last: jax.Array
    """`[B]` int32, the node where the path ends."""
    following: jax.Array
    """`[B]` int32, the child that the next step leads to, or `UNVISITED`."""
    passed: jax.Array
    """`[N, B]` bool, the nodes of the path except the last one."""
    reward: jax.Array
    """`[N, B]` float32, the discounted rewards from each passed node to the end of the path; undefined elsewhere."""
    discount: jax.Array
    """`[N, B]` float32, the product of the discounts along the same steps."""
    depth: jax.Array
    """`[]` int32, `Tree.depth` plus the steps so far."""


def _descend(tree: Tree, choice: jax.Array) -> _Path:
    """Follows the chosen actions `[N, B]` from the roots to the ends of the trees."""
    target = chosen(tree.child, choice).astype(jnp.int32)
    none, blank = jnp.zeros(target.shape, bool), jnp.zeros_like(tree.value)
    start = _Path(jnp.zeros_like(target[0]), target[0], passed=none, reward=blank, discount=blank, depth=tree.depth)

    def step(path: _Path) -> _Path:
        moves = path.following != UNVISITED
        there = node_numbers(tree) == path.following
        reward, discount = jnp.where(moves, pick(tree.reward, there), 0.0), pick(tree.discount, there)
        here = (node_numbers(tree) == path.last) & moves
        path = _followed(path, here, _of_movers(tree, reward), jnp.where(moves, discount, 1.0))
        following = jnp.where(moves, pick(target, there), UNVISITED)
        last = jnp.where(moves, path.following, path.last)
        return path._replace(last=last, following=following, depth=path.depth + 1)

    with jax.named_scope(DESCENT):
        return jax.lax.while_loop(lambda path: jnp.any(path.following != UNVISITED), step, start)


def _of_movers(tree: Tree, each: jax.Array) -> jax.Array:
    """Rewards or values `[P, B]` as those of the movers in each node, `[N, B]`; without `turn` the same `[B]`."""
    return each if tree.turn is None else jnp.sum(jnp.where(tree.turn, each[:, None], 0.0), axis=0)


def _followed(path: _Path, here: jax.Array, reward: Array, discount: Array) -> _Path:
    """Extends the path by a step from the node `here` `[N, B]`, with reward `[B]` or `[N, B]`, and discount `[B]`."""
    return path._replace(
        passed=path.passed | here,
        reward=jnp.where(here, reward, path.reward + path.discount * reward),
        discount=jnp.where(here, discount, path.discount * discount),
    )


def _update(
    tree: Tree, path: _Path, here: jax.Array, choice: jax.Array, output: mctx.RecurrentFnOutput, node: Array
) -> Tree:
    """Backs up the value of the new node, a child of `here`, along the path."""
    path = _followed(path, here, _of_movers(tree, output.reward.T), output.discount)
    returns = path.reward + path.discount * _of_movers(tree, output.value.T)
    taken = path.passed & (slot_numbers(tree.child) == choice)
    # A Q-value averages the returns over the action's visits, a node's value over the node's samples.
    return tree._replace(
        visits=tree.visits + taken.astype(tree.visits.dtype),
        qvalues=jnp.where(taken, _mean_with(returns, tree.qvalues, tree.visits), tree.qvalues),
        child=jnp.where(taken & here, jnp.asarray(node, tree.child.dtype), tree.child),
        value=jnp.where(path.passed, _mean_with(returns, tree.value, tree.samples), tree.value),
        samples=tree.samples + path.passed,
        depth=path.depth,
    )


def _mean_with(number: jax.Array, mean: jax.Array, count: jax.Array) -> jax.Array:
    return (mean * count + number) / (count + 1)
