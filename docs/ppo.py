"""Proximal policy optimization in one file (Schulman et al. 2017, https://arxiv.org/abs/1707.06347): learning without
search, on podzero's games and networks in JAX.

    uv run python docs/ppo.py connect_four --minutes 10
    uv run podzero evaluate runs/ppo-connect_four --positions 1000 --simulations 32
    uv run python docs/ppo.py gymnax_breakout_device --reward-scale 0.1

Three steps repeat: play T moves in B games, compute advantages, take several passes of gradient steps over these moves.
In games for two, half of the games are against earlier versions of the agent. `podzero evaluate`, `tournament`,
`init_from` and `teacher` read what it saves. Where the experiment learns a model, a perceptron takes its place, and
nothing is saved: these commands would search the model.
"""

from __future__ import annotations

import argparse
import time
from collections import deque
from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax

from podzero.config import Experiment, MLPConfig, load
from podzero.core.protocols import Env
from podzero.core.types import Array, EnvState, Network, Params
from podzero.envs import make_env
from podzero.files.workdir import Workdir
from podzero.learner.losses import ILLEGAL_LOGIT
from podzero.networks import make_network
from podzero.networks.snapshots import save_snapshot

MOVES = 64
"""T, the moves in each game between two updates."""
PASSES, PARTS = 4, 8
"""Passes over the moves of an update, and the parts into which each pass divides them, one gradient step each."""
RATE = 1e-3
"""Learning rate at the beginning; it falls linearly to zero."""
CLIP = 0.2
"""How far from one the ratio of an action's new to its old probability may move and still be rewarded."""
TRACE = 0.95
"""Lambda of the generalized advantage estimates."""
VALUE_WEIGHT, ENTROPY_WEIGHT = 0.5, 0.01
"""Weights of the value's loss and of the policy's entropy, relative to the clipped objective."""
EARLIER = 12
"""Versions of the agent that serve as opponents."""
AGAINST_EARLIER = 0.5
"""The share of games for two against one of them; in the others the agent plays both sides."""
KEEP_EVERY = 20
"""Updates between two versions that are kept as opponents."""


class Games(NamedTuple):
    """B running games."""

    states: EnvState
    plies: Array
    """`[B]` int32, the moves played in each."""
    opening: Array
    """`[B]` int32, the number of moves at the beginning that are random, so that all kinds of positions occur."""
    opposed: Array
    """`[B]` int32, the player whose moves an earlier version chooses; -1 in the second half of the games."""


class Moves(NamedTuple):
    """T moves in each of B games, `[T, B, ...]`."""

    observation: Array
    legal: Array
    action: Array
    log_probability: Array
    """Of the action, by the parameters that chose it."""
    value: Array
    """For the player to move."""
    reward: Array
    """For the player who moved."""
    keeps: Array
    """What the next position counts for the player who moved: the discount, negative if the other player moves next; 0
    if the game is over."""
    truncated: Array
    """bool, whether a limit on its length ended the game, so that its outcome is unknown."""
    learned: Array
    """bool, whether the agent chose the action, in its present version."""


def make_play(
    experiment: Experiment, env: Env, network: Network
) -> tuple[Callable[[Array], Games], Callable[..., tuple[Games, Moves, jax.Array]]]:
    """The functions that start B games, and play T moves in each: `play(params, earlier, key, games)`.

    `play` returns the games, the moves, and the values of the positions after them.
    """
    config, spec, discount = experiment.actors, env.spec, experiment.env.discount
    view, step = jax.vmap(env.view), jax.vmap(env.step)
    against = int(config.games * AGAINST_EARLIER) if spec.players == 2 else 0

    def start(key: Array) -> Games:
        init_key, opens_key, length_key, side_key = jax.random.split(key, 4)
        states = jax.vmap(env.init)(jax.random.split(init_key, config.games))
        opens = jax.random.bernoulli(opens_key, config.opening_fraction, (config.games,))
        length = jax.random.randint(length_key, (config.games,), 0, config.opening_plies + 1)
        side = jax.random.randint(side_key, (config.games,), 0, 2)
        opposed = jnp.where(jnp.arange(config.games) < against, side, -1)
        return Games(states, jnp.zeros(config.games, jnp.int32), jnp.where(opens, length, 0), opposed)

    def move(params: Params, earlier: Params, games: Games, key: Array) -> tuple[Games, Moves]:
        action_key, start_key = jax.random.split(key)
        before = view(games.states)
        logits, value = network.apply(params, before.observation)
        opponent, opening, chosen = games.opposed == before.player, games.plies < games.opening, logits
        if against:
            of_earlier, _ = network.apply(earlier, before.observation[:against])
            chosen = jnp.where(opponent[:, None], logits.at[:against].set(of_earlier), logits)
        masked = jnp.where(before.legal, jnp.where(opening[:, None], 0.0, chosen), ILLEGAL_LOGIT)
        action = jax.random.categorical(action_key, masked).astype(jnp.int32)
        states = step(games.states, action)
        after = view(states)
        same = jnp.where(after.player == before.player, 1.0, -1.0)
        played = games._replace(states=states, plies=games.plies + 1)
        moves = Moves(
            observation=before.observation,
            legal=before.legal,
            action=action,
            log_probability=log_probabilities(logits, before.legal, action),
            value=value,
            reward=jnp.take_along_axis(after.rewards, before.player[:, None], axis=1)[:, 0],
            keeps=jnp.where(after.done, 0.0, discount * same),
            truncated=after.truncated,
            learned=~opponent & ~opening,
        )
        return jax.vmap(optax.tree.where)(after.done, start(start_key), played), moves

    def play(params: Params, earlier: Params, key: Array, games: Games) -> tuple[Games, Moves, jax.Array]:
        games, moves = repeated(partial(one_move, params, earlier), games, jax.random.split(key, MOVES))
        return games, moves, values(params, games.states)

    one_move = jax.jit(move)
    values = jax.jit(lambda params, states: network.apply(params, view(states).observation)[1])
    return jax.jit(start), play


def repeated[Carry](step: Callable[[Carry, Any], tuple[Carry, Any]], carry: Carry, rows: Array) -> tuple[Carry, Any]:
    """`jax.lax.scan` over a compiled step. XLA on a CPU computes convolutions in a loop without its fast routines, so
    that the loop there is Python's.
    """
    if jax.default_backend() != "cpu":
        return jax.lax.scan(step, carry, rows)
    found = []
    for row in rows:
        carry, one = step(carry, row)
        found.append(one)
    return carry, jax.tree.map(lambda *each: jnp.stack(each), *found)


def log_probabilities(logits: jax.Array, legal: Array, action: Array) -> jax.Array:
    """The logarithm `[B]` of the probability of actions among the legal ones."""
    every = jax.nn.log_softmax(jnp.where(legal, logits, ILLEGAL_LOGIT))
    return jnp.take_along_axis(every, jnp.asarray(action)[:, None], axis=1)[:, 0]


def advantages(moves: Moves, last: Array) -> jax.Array:
    """How much better each action was than the value, `[T, B]` (Schulman et al. 2016,
    https://arxiv.org/abs/1506.02438); `last` are the values `[B]` of the positions after all moves.

    `A_t = d_t + lambda * k_t * A_(t+1)` with `d_t = r_t + k_t * v_(t+1) - v_t`, where k is `Moves.keeps`: what is good
    for the player who moves next is bad for the one who moved, unless they are the same. The value of a position stands
    for what would follow a limit on the game's length, so that d is zero there.
    """
    value = jnp.asarray(moves.value)
    following = moves.keeps * jnp.concatenate([value[1:], jnp.asarray(last)[None]])
    errors = jnp.where(moves.truncated, 0.0, moves.reward + following - value)

    def back(later: jax.Array, now: tuple[Array, Array]) -> tuple[jax.Array, jax.Array]:
        error, keeps = now
        advantage = error + TRACE * keeps * later
        return advantage, advantage

    return jax.lax.scan(back, jnp.zeros_like(errors[0]), (errors, moves.keeps), reverse=True)[1]


def ppo_loss(network: Network, params: Params, moves: Moves, advantage: Array, target: Array) -> jax.Array:
    """The clipped objective, the value's squared error and the entropy, over `[N]` moves; lower is better.

    The policy learns from the moves that the agent chose, the value from all.
    """
    logits, value = network.apply(params, moves.observation)
    count = jnp.maximum(jnp.sum(moves.learned), 1)

    def mean(each: Array) -> jax.Array:
        """The mean over the moves that the agent chose."""
        return jnp.sum(each, where=moves.learned) / count

    centred = advantage - mean(advantage)
    scaled = centred / (jnp.sqrt(mean(centred**2)) + 1e-8)
    ratio = jnp.exp(log_probabilities(logits, moves.legal, moves.action) - moves.log_probability)
    gain = jnp.minimum(ratio * scaled, jnp.clip(ratio, 1 - CLIP, 1 + CLIP) * scaled)
    every = jax.nn.log_softmax(jnp.where(moves.legal, logits, ILLEGAL_LOGIT))
    entropy = -jnp.sum(jnp.where(moves.legal, jnp.exp(every) * every, 0.0), axis=1)
    return -mean(gain + ENTROPY_WEIGHT * entropy) + VALUE_WEIGHT * jnp.mean((value - target) ** 2)


def make_update(
    network: Network, optimizer: optax.GradientTransformation
) -> Callable[..., tuple[Params, Any, jax.Array]]:
    """The function that learns from what `play` returned: `update(params, opt_state, key, moves, last)`.

    It returns the mean loss after parameters and state.
    """

    @jax.jit
    def learn(batch: Any, carry: tuple[Params, Any], rows: Array) -> tuple[tuple[Params, Any], jax.Array]:
        params, opt_state = carry
        part = jax.tree.map(lambda leaf: leaf[rows], batch)
        loss, gradients = jax.value_and_grad(lambda params: ppo_loss(network, params, *part))(params)
        updates, opt_state = optimizer.update(gradients, opt_state, params)
        return (optax.apply_updates(params, updates), opt_state), loss

    def update(params: Params, opt_state: Any, key: Array, moves: Moves, last: Array) -> tuple[Params, Any, jax.Array]:
        advantage = jax.jit(advantages)(moves, last)
        batch = jax.tree.map(jnp.concatenate, (moves, advantage, advantage + moves.value))
        size = batch[1].shape[0] // PARTS * PARTS

        orders = [jax.random.permutation(each, batch[1].shape[0])[:size] for each in jax.random.split(key, PASSES)]
        rows = jnp.concatenate(orders).reshape(PASSES * PARTS, -1)
        (params, opt_state), losses = repeated(partial(learn, batch), (params, opt_state), rows)
        return params, opt_state, jnp.mean(losses)

    return update


def run(
    experiment: Experiment, workdir: Workdir, minutes: float, updates: float = np.inf, reward_scale: float = 1.0
) -> int:
    """Plays and learns for so many minutes, or updates if they are made earlier, and saves the parameters.

    `reward_scale` multiplies rewards, so that their discounted sums lie in [-1, 1] as the network's values do.

    Returns:
      The number of moves played.
    """
    env, random = make_env(experiment.env), np.random.default_rng(experiment.seed)
    network = make_network(MLPConfig(name="mlp") if experiment.learns_model else experiment.network, env.spec)
    size, alone = experiment.actors.games, env.spec.players == 1
    returns, newest = np.zeros(size), deque[float](maxlen=100)
    optimizer = optax.chain(optax.clip_by_global_norm(0.5), optax.inject_hyperparams(optax.adam)(RATE))
    start, play = make_play(experiment, env, network)
    update = make_update(network, optimizer)
    key = jax.random.key(experiment.seed)
    params, games = jax.jit(network.init)(key), start(key)
    opt_state, earlier = jax.jit(optimizer.init)(params), [params]
    done, told, began = 0, 0.0, time.monotonic()
    workdir.open(experiment)
    while (share := max((time.monotonic() - began) / (60 * minutes), done / updates)) < 1:
        key, play_key, update_key = jax.random.split(key, 3)
        opponent = earlier[random.integers(len(earlier))]
        games, moves, last = play(params, opponent, play_key, games)
        for reward, keeps in zip(*jax.device_get((moves.reward, moves.keeps)), strict=True):
            returns += reward
            newest.extend(returns[keeps == 0])
            returns[keeps == 0] = 0
        moves = moves._replace(reward=moves.reward * reward_scale)
        opt_state[1].hyperparams["learning_rate"] = jnp.asarray(RATE * (1 - share))
        params, opt_state, loss = update(params, opt_state, update_key, moves, last)
        done += 1
        if done % KEEP_EVERY == 0:
            earlier = [*earlier, params][-EARLIER:]
        if time.monotonic() - told > 10:
            told = time.monotonic()
            reached = f"  mean return {np.mean(newest):.2f}" if alone and newest else ""
            print(f"{done * MOVES * size:,} moves  loss {float(loss):.3f}{reached}", flush=True)
    if not experiment.learns_model:
        save_snapshot(workdir.snapshots, done * PASSES * PARTS, params, experiment)
    return done * MOVES * size


def main() -> None:
    """Trains the experiment of the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("config", help="an experiment with a game in JAX, as connect_four or othello")
    parser.add_argument("settings", nargs="*", help="settings that override those of the experiment")
    parser.add_argument("--minutes", type=float, default=10.0)
    parser.add_argument("--reward-scale", type=float, default=1.0)
    options = parser.parse_args()
    workdir = Workdir(f"runs/ppo-{options.config}")
    moves = run(load(options.config, options.settings), workdir, options.minutes, reward_scale=options.reward_scale)
    print(f"{moves:,} moves; what was saved is in {workdir.root}")


if __name__ == "__main__":
    main()
