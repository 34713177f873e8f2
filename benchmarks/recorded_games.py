"""Writes games of connect four from which a network can learn without self-play.

JAX_PLATFORMS=cpu uv run --group dev python benchmarks/recorded_games.py games.jsonl --games 50000

A game begins with 0 to 30 random plies, each length equally often; then both sides play the most probable move of
the network of `zoo:connect_four`, without search.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax

from podzero.envs import make_env
from podzero.evaluation.players import SearchPlayer, random_actions
from podzero.evaluation.resolve import resolve

GAME, PLAYER = "connect_four", "zoo:connect_four"
AT_ONCE = 1024
LONGEST_OPENING = 30


def main() -> None:
    """Writes a line for each game, as `podzero import` reads them."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("file", type=Path)
    parser.add_argument("--games", type=int, default=50_000)
    parser.add_argument("--seed", type=int, default=0)
    arguments = parser.parse_args()
    with arguments.file.open("w", encoding="utf-8") as file:
        for _, game in zip(range(arguments.games), recorded_games(arguments.seed), strict=False):
            file.write(json.dumps(game) + "\n")


def recorded_games(seed: int) -> Iterator[dict[str, Any]]:
    """Games without end, in the order in which they are over."""
    env, rng, key = make_env(GAME), np.random.default_rng(seed), jax.random.key(seed)
    player = resolve(PLAYER, env)
    assert isinstance(player, SearchPlayer)
    init, view = jax.jit(jax.vmap(env.init)), jax.jit(jax.vmap(env.view))

    @jax.jit
    def advance(states: Any, actions: jax.Array, key: jax.Array) -> tuple[Any, Any]:
        """The positions after the actions, with their views, and new games where one is over."""
        after = jax.vmap(env.step)(states, actions)
        seen, fresh = jax.vmap(env.view)(after), jax.vmap(env.init)(jax.random.split(key, AT_ONCE))
        return jax.vmap(optax.tree.where)(seen.done, fresh, after), seen

    states = init(jax.random.split(key, AT_ONCE))
    moves: list[list[int]] = [[] for _ in range(AT_ONCE)]
    openings = rng.integers(LONGEST_OPENING + 1, size=AT_ONCE)
    while True:
        key, draw, fresh = jax.random.split(key, 3)
        random = np.asarray(random_actions(draw, view(states).legal))
        best = np.asarray(player.evaluate(states)[0]).argmax(axis=1)
        actions = np.where([len(played) < plies for played, plies in zip(moves, openings, strict=True)], random, best)
        states, seen = advance(states, jnp.asarray(actions, jnp.int32), fresh)
        for played, action in zip(moves, actions.tolist(), strict=True):
            played.append(action)
        for row in np.flatnonzero(seen.done):
            played, moves[row] = moves[row], []
            # Otherwise the game ended within its opening, and another of this length takes its place.
            if len(played) > openings[row]:
                # The rules decide who won.
                yield {"moves": played, "opening_plies": int(openings[row])}
                openings[row] = rng.integers(LONGEST_OPENING + 1)


if __name__ == "__main__":
    main()
