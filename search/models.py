"""The interface of a searched model, and the model that follows the rules of a game."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import mctx
import numpy as np
import optax

from podzero.core.protocols import Env
from podzero.core.types import Array, EnvState, Params, View
from podzero.envs import DrawnState, GameOfChance
from podzero.search.selection import Bounds

ILLEGAL = np.finfo(np.float32).min
"""The logit of an illegal action. It is finite because all actions are illegal once a game is over."""

Expanded = tuple[mctx.RecurrentFnOutput, EnvState]
"""What `Model.recurrent` returns: the evaluation of B new nodes, and their states."""
_BOUNDS = (-1.0, 1.0)
"""The smallest and largest value of a position in games."""

Evaluate = Callable[[Params, Array, EnvState], tuple[jax.Array, jax.Array]]
"""Evaluates B states: `(params, key, states)` to logits `[B, A]` and values `[B]` for the player to move, or
`[B, EnvSpec.values]`."""


class Model(NamedTuple):
    """The model of a game or environment, as a search uses it."""

    root: Callable[[Params, Array, EnvState], mctx.RootFnOutput]
    """Evaluates B root states: `(params, key, states)`. Values are for the player to move."""
    recurrent: mctx.RecurrentFn
    """Takes one action in each of B nodes and evaluates the resulting nodes. Rewards are for the player who acts,
    values for the player to move, and discounts negative where these are opponents; see also `turn`."""
    legal: Callable[[EnvState], Array]
    """Legal actions of B states: `[B, A]` bool."""
    bounds: Bounds
    players: int = 2
    """Number of players. The values of a single one may fill any small part of `bounds`."""
    actions: int | None = None
    """Number of actions where nodes have more edges than that, for outcomes of chance; None if they have not."""
    chance: Callable[[EnvState], Array] | None = None
    """Whether B nodes are afterstates, `[B]` bool, whose edges are outcomes with their probabilities as prior; None in
    a model without chance."""
    turn: Callable[[EnvState], Array] | None = None
    """Which player is to move in B nodes, `[B, P]` bool, where rewards and values of `recurrent` are those of each
    player, `[B, P]`, and discounts have no sign; None in other models."""


class LimitedState(NamedTuple):
    """A state as root of a search that leaves out some of its actions; nodes below it leave out none."""

    state: EnvState
    forbidden: Array
    """`[A]` bool, the actions left out."""


def limited(model: Model) -> Model:
    """A model without chance whose nodes are `LimitedState`."""

    def root(params: Params, key: Array, roots: LimitedState) -> mctx.RootFnOutput:
        return model.root(params, key, roots.state).replace(embedding=roots)

    def recurrent(params: Params, key: Array, action: Array, nodes: LimitedState) -> Expanded:
        output, children = model.recurrent(params, key, action, nodes.state)
        return output, LimitedState(children, jnp.zeros_like(nodes.forbidden))

    def legal(nodes: LimitedState) -> Array:
        return model.legal(nodes.state) & ~nodes.forbidden

    turn = model.turn
    return model._replace(
        root=root, recurrent=recurrent, legal=legal, turn=None if turn is None else lambda nodes: turn(nodes.state)
    )


def network_evaluation(env: Env, apply: Callable[[Params, Array], tuple[jax.Array, jax.Array]]) -> Evaluate:
    """Evaluates states with a network that reads their observations; the key is not used."""

    def evaluate(params: Params, key: Array, states: EnvState) -> tuple[jax.Array, jax.Array]:
        del key
        return apply(params, jax.vmap(env.view)(states).observation)

    return evaluate


def rules_model(env: Env, evaluate: Evaluate, discount: float = 1.0) -> Model:
    """The rules as a model: nodes are states of `env`, evaluated by `evaluate`.

    In games in which each player has a value of its own, so have nodes (max-n, Luckhardt and Irani 1986).
    """
    if isinstance(env, GameOfChance):
        return _model_of_chance(env, evaluate, discount)
    view, step = jax.vmap(env.view), jax.vmap(env.step)
    players, of_each = env.spec.players, env.spec.values > 1

    def root(params: Params, key: Array, states: EnvState) -> mctx.RootFnOutput:
        logits, value = evaluate(params, key, states)
        return mctx.RootFnOutput(prior_logits=logits, value=value[:, 0] if of_each else value, embedding=states)

    def recurrent(params: Params, key: Array, action: Array, states: EnvState) -> Expanded:
        before = view(states)
        children = step(states, action)
        seen = view(children)
        logits, value = evaluate(params, key, children)
        if of_each:
            assert value.shape == (action.shape[0], players)
            # Evaluations begin with the player to move, nodes with the first player.
            value = jnp.take_along_axis(value, (jnp.arange(players) - seen.player[:, None]) % players, axis=1)
            signed_discount: Array | float = discount
        else:
            # The discount is negative where the opponent moves next.
            signed_discount = jnp.where(seen.player == before.player, discount, -discount)
        # Search may continue below the end of a game, where nothing changes and values are not discounted.
        signed_discount = jnp.where(before.done, 1.0, signed_discount)
        decided = _decided(seen)
        output = mctx.RecurrentFnOutput(
            reward=jnp.asarray(seen.rewards) if of_each else _reward_of(before.player, seen),
            discount=jnp.where(decided, 0.0, signed_discount),
            prior_logits=jnp.where(seen.legal, logits, ILLEGAL),
            value=jnp.where(decided[:, None] if of_each else decided, 0.0, value),
        )
        return output, children

    def turn(states: EnvState) -> Array:
        return view(states).player[:, None] == jnp.arange(players)

    def legal(states: EnvState) -> Array:
        return view(states).legal

    return Model(root, recurrent, legal, _BOUNDS, players, turn=turn if of_each else None)


def _decided(seen: View) -> Array:
    """Whether games have ended with an outcome, and are worth their reward alone; truncated ones are evaluated."""
    return seen.done & ~seen.truncated


def _reward_of(player: Array, seen: View) -> jax.Array:
    """The reward of `player` `[B]`."""
    return jnp.take_along_axis(jnp.asarray(seen.rewards), player[:, None], axis=1)[:, 0]


_TIE_BREAK = 1e-3
"""Scale of the noise on the log-probabilities of outcomes, so that equally likely ones are not tried in their order."""


def _model_of_chance(env: GameOfChance, evaluate: Evaluate, discount: float) -> Model:
    """The rules of a game of chance: nodes are states or afterstates (Antonoglou et al. 2022).

    The edges of an afterstate are its outcomes. A network evaluates only positions in which a player moves, so a new
    afterstate has the value of one outcome, drawn by its probability.
    """
    actions, outcomes = env.spec.num_actions, env.outcomes
    view, chance, resolve = jax.vmap(env.view), jax.vmap(env.chance), jax.vmap(env.resolve)

    def edges(of_some: Array, fill: Any) -> jax.Array:
        """Numbers of actions or outcomes as those of all edges, `[B, max(A, C)]`."""
        missing = max(actions, outcomes) - of_some.shape[1]
        return jnp.pad(jnp.asarray(of_some), ((0, 0), (0, missing)), constant_values=fill)

    def root(params: Params, key: Array, states: DrawnState) -> mctx.RootFnOutput:
        redraw_key, evaluate_key = jax.random.split(key)
        # The search, rollouts included, must not see what will be drawn in the game.
        redrawn = jax.vmap(env.redrawn)(states, jax.random.split(redraw_key, states.key.shape[0]))
        logits, value = evaluate(params, evaluate_key, redrawn)
        return mctx.RootFnOutput(prior_logits=edges(logits, ILLEGAL), value=value, embedding=redrawn)

    def recurrent(params: Params, key: Array, edge: Array, states: DrawnState) -> Expanded:
        outcome_key, tie_key, evaluate_key = jax.random.split(key, 3)
        before, drawn = view(states), waiting(states)
        decided_on = jax.vmap(env.afterstate)(states, jnp.minimum(edge, actions - 1))
        children = jax.vmap(optax.tree.where)(drawn, resolve(states, jnp.minimum(edge, outcomes - 1)), decided_on)
        probabilities = chance(children)
        waits, log_probabilities = jnp.any(probabilities > 0, axis=1), jnp.log(probabilities)
        # The position that is evaluated: the child, or after an outcome of it.
        outcome = jax.random.categorical(outcome_key, log_probabilities).astype(jnp.int32)
        positions = jax.vmap(optax.tree.where)(waits, resolve(children, outcome), children)
        logits, value = evaluate(params, evaluate_key, positions)
        seen, child = view(positions), view(children)
        value = jnp.where(_decided(seen), 0.0, value)
        after_outcome = _reward_of(child.player, seen) + jnp.where(seen.player == child.player, value, -value)
        ties = _TIE_BREAK * jax.random.uniform(tie_key, probabilities.shape)
        of_outcomes = jnp.where(probabilities > 0, log_probabilities + ties, ILLEGAL)
        # Only a player's action is discounted, and what it earns comes with the outcome.
        factor = jnp.where(drawn, 1.0, discount)
        signed_discount = jnp.where(before.done, 1.0, jnp.where(child.player == before.player, factor, -factor))
        output = mctx.RecurrentFnOutput(
            reward=jnp.where(waits, 0.0, _reward_of(before.player, child)),
            discount=jnp.where(_decided(child) & ~waits, 0.0, signed_discount),
            prior_logits=jnp.where(
                waits[:, None],
                edges(of_outcomes, ILLEGAL),
                edges(jnp.where(seen.legal, logits, ILLEGAL), ILLEGAL),
            ),
            value=jnp.where(waits, after_outcome, value),
        )
        return output, children

    def legal(states: DrawnState) -> Array:
        return edges(view(states).legal, False)

    def waiting(states: DrawnState) -> Array:
        return jnp.any(chance(states) > 0, axis=1)

    return Model(root, recurrent, legal, _BOUNDS, env.spec.players, actions, waiting)
