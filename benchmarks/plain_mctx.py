"""Self-play with pgx and mctx as their examples write it, for comparison: one jitted program, without podzero.

Run it as `python benchmarks/plain_mctx.py --game connect_four --channels 64 --blocks 5`. It needs jax, dm-haiku, pgx
and mctx, and prints moves/s as JSON. The network has the size of podzero's `resnet`, with plain convolutions.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Callable
from typing import Any

import haiku as hk
import jax
import jax.numpy as jnp
import mctx
import numpy as np
import pgx
from pgx.experimental import auto_reset


def network(num_actions: int, channels: int, blocks: int) -> hk.Transformed:
    """A residual tower with policy and value heads: observations `[B, H, W, P]` to logits `[B, A]`, values `[B]`."""

    def head(x: jax.Array, planes: int, *widths: int) -> jax.Array:
        x = jax.nn.relu(hk.Conv2D(planes, 1)(x)).reshape(x.shape[0], -1)
        out: jax.Array = hk.nets.MLP(widths)(x)
        return out

    def forward(observation: jax.Array) -> tuple[jax.Array, jax.Array]:
        x = hk.Conv2D(channels, 3)(observation.astype(jnp.float32))
        for _ in range(blocks):
            y = hk.Conv2D(channels, 3)(jax.nn.relu(x))
            x = x + hk.Conv2D(channels, 3)(jax.nn.relu(y))
        x = jax.nn.relu(x)
        return head(x, 16, num_actions), jnp.tanh(head(x, 8, 64, 1)[:, 0])

    return hk.without_apply_rng(hk.transform(forward))


def make_play(env: Any, apply: Callable[..., tuple[jax.Array, jax.Array]], simulations: int) -> Callable[..., Any]:
    """A function that plays one move in B games: `(params, states, key)` to the next states and the training data.

    The data are observations `[B, H, W, P]`, improved policies `[B, A]`, the movers' rewards `[B]` and ends `[B]`.
    """
    step = jax.vmap(env.step)

    def recurrent(params: Any, key: jax.Array, action: jax.Array, states: Any) -> tuple[mctx.RecurrentFnOutput, Any]:
        del key
        mover = states.current_player
        states = step(states, action)
        logits, value = apply(params, states.observation)
        output = mctx.RecurrentFnOutput(
            reward=states.rewards[jnp.arange(mover.shape[0]), mover],
            # The next value is that of the opponent.
            discount=jnp.where(states.terminated, 0.0, -1.0),
            prior_logits=jnp.where(states.legal_action_mask, logits, np.finfo(np.float32).min),
            value=jnp.where(states.terminated, 0.0, value),
        )
        return output, states

    def play(params: Any, states: Any, key: jax.Array) -> tuple[Any, Any]:
        search_key, reset_key = jax.random.split(key)
        logits, value = apply(params, states.observation)
        found = mctx.gumbel_muzero_policy(
            params,
            search_key,
            mctx.RootFnOutput(prior_logits=logits, value=value, embedding=states),
            recurrent,
            num_simulations=simulations,
            invalid_actions=~states.legal_action_mask,
            qtransform=mctx.qtransform_completed_by_mix_value,
        )
        keys = jax.random.split(reset_key, value.shape[0])
        after = jax.vmap(auto_reset(env.step, env.init))(states, found.action, keys)
        reward = after.rewards[jnp.arange(value.shape[0]), states.current_player]
        # auto_reset marks a new game as terminated if the one before was, and pgx plays no moves in such a state.
        running = after.replace(terminated=jnp.zeros_like(after.terminated))
        return running, (states.observation, found.action_weights, reward, after.terminated)

    return play


def self_play(game: str, channels: int, blocks: int, games: int, simulations: int) -> Callable[[float], float]:
    """A function that plays for some seconds and returns moves/s; it is compiled already."""
    env = pgx.make(game)
    net = network(env.num_actions, channels, blocks)
    states = jax.vmap(env.init)(jax.random.split(jax.random.key(0), games))
    params = net.init(jax.random.key(1), states.observation)
    play = jax.jit(make_play(env, net.apply, simulations), donate_argnums=1)
    number = 0

    def measure(seconds: float) -> float:
        nonlocal states, number
        start, first = time.perf_counter(), number
        while number == first or time.perf_counter() - start < seconds:
            states, data = play(params, states, jax.random.key(number))
            jax.device_get(data)
            number += 1
        return games * (number - first) / (time.perf_counter() - start)

    measure(0.0)
    return measure


def main() -> None:
    """Measures once and prints the result."""
    parser = argparse.ArgumentParser(description="moves/s of self-play with pgx and mctx")
    parser.add_argument("--game", default="connect_four")
    for name, value in {"channels": 64, "blocks": 5, "games": 128, "simulations": 32}.items():
        parser.add_argument(f"--{name}", type=int, default=value)
    parser.add_argument("--seconds", type=float, default=20.0)
    args = parser.parse_args()
    measure = self_play(args.game, args.channels, args.blocks, args.games, args.simulations)
    print(json.dumps({"moves_per_s": measure(args.seconds)}))


if __name__ == "__main__":
    main()
