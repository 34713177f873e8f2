"""Trains with plain pgx and mctx, like pgx's example of AlphaZero. A perfect solver judges the agent.

JAX_PLATFORMS=cpu uv run --group dev python benchmarks/plain_learning.py --minutes 20 --hardware "2 cores of ..."

Self-play and learning take turns in one process: 64 moves of all games, then one pass over their positions. The size of
the network, games, simulations and batch are those of podzero's `connect_four`, whose positions and search judge it.
The curve is written to `benchmarks/results/plain_learning.json`; `plots.py` draws it. Judging does not count as time.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Iterator
from datetime import date
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pgx

from podzero.benchmarks.plain_mctx import make_play, network
from podzero.config import SearchConfig
from podzero.core.types import Array
from podzero.envs import make_env
from podzero.evaluation.players import SearchPlayer, make_decide
from podzero.evaluation.solvers import Judge, judged_positions
from podzero.search import network_evaluation, rules_model

GAME = "connect_four"
CHANNELS, BLOCKS, GAMES, SIMULATIONS = 32, 3, 128, 32
MOVES = 64
"""The moves of all games between two turns of the learner."""
BATCH = 512
LEARNING_RATE = 0.001
POSITIONS = 300
RESULT = Path(__file__).parent / "results" / "plain_learning.json"


class Samples(NamedTuple):
    """Training samples, `[N, ...]`."""

    observation: Array
    policy: Array
    value: Array
    """The outcome of the game for the player to move."""
    known: Array
    """Whether the game ended within the turn, so that its outcome is known."""


class PlainLearner:
    """Self-play and learning in turns."""

    def __init__(self) -> None:
        env = pgx.make(GAME)
        self.network = network(env.num_actions, CHANNELS, BLOCKS)
        self._optimizer = optax.adam(LEARNING_RATE)
        self._states = jax.vmap(env.init)(jax.random.split(jax.random.key(0), GAMES))
        self.params = self.network.init(jax.random.key(1), self._states.observation)
        self._opt_state = self._optimizer.init(self.params)
        self._play = jax.jit(make_play(env, self.network.apply, SIMULATIONS), donate_argnums=1)
        self._step = jax.jit(self._update)
        self._key = jax.random.key(2)
        self.steps = self.moves = 0

    def turn(self) -> None:
        """Plays `MOVES` moves in all games, then learns from each position once."""
        played = []
        for _ in range(MOVES):
            self._states, data = self._play(self.params, self._states, self._next_key())
            played.append(jax.device_get(data))
        self.moves += MOVES * GAMES
        samples = samples_of(*map(np.stack, zip(*played, strict=True)))
        order = np.array(jax.random.permutation(self._next_key(), len(samples.known)))
        for rows in order.reshape(-1, BATCH):
            batch = Samples(*(field[rows] for field in samples))
            self.params, self._opt_state = self._step(self.params, self._opt_state, batch)
            self.steps += 1
        jax.device_get(self.params)  # waits

    def _next_key(self) -> jax.Array:
        keys = jax.random.split(self._key)
        self._key = keys[0]
        return keys[1]

    def _update(self, params: Any, opt_state: Any, batch: Samples) -> tuple[Any, Any]:
        gradients = jax.grad(partial(loss, self.network.apply))(params, batch)
        updates, opt_state = self._optimizer.update(gradients, opt_state, params)
        return optax.apply_updates(params, updates), opt_state


def samples_of(
    observation: np.ndarray[Any, Any],
    policy: np.ndarray[Any, Any],
    reward: np.ndarray[Any, Any],
    done: np.ndarray[Any, Any],
) -> Samples:
    """The samples of T moves in B games, `[T, B, ...]` each, as `[T * B, ...]`."""
    value, known = np.zeros(reward.shape, np.float32), np.zeros(reward.shape, bool)
    for t in reversed(range(len(reward))):
        later = (-value[t + 1], known[t + 1]) if t + 1 < len(reward) else (0.0, False)
        value[t], known[t] = np.where(done[t], reward[t], later[0]), done[t] | later[1]
    return Samples(*(field.reshape(-1, *field.shape[2:]) for field in (observation, policy, value, known)))


def loss(apply: Any, params: Any, batch: Samples) -> jax.Array:
    """Cross-entropy of the policy, and squared error of the values where the outcome is known."""
    logits, value = apply(params, batch.observation)
    policy_loss = jnp.mean(optax.softmax_cross_entropy(logits, batch.policy))
    return policy_loss + jnp.mean(batch.known * optax.l2_loss(value, batch.value))


def curve(minutes: float, every_minutes: float) -> Iterator[dict[str, Any]]:
    """Trains an agent, and judges it now and then as podzero judges its agents; judging is no training time."""
    env, learner = make_env(GAME), PlainLearner()
    judge = Judge(env, judged_positions(env, POSITIONS, seed=0))
    decide = make_decide(
        SearchConfig(simulations=SIMULATIONS), rules_model(env, network_evaluation(env, learner.network.apply))
    )
    trained_s, next_s = 0.0, 0.0
    while True:
        ended = trained_s >= 60 * minutes
        if ended or trained_s >= next_s:
            result = judge(SearchPlayer("plain", decide, learner.params, deterministic=True), jax.random.key(0))
            yield {
                "minutes": trained_s / 60,
                "keeps_value": result.keeps_value,
                "interval": result.interval,
                "steps": learner.steps,
                "moves": learner.moves,
            }
            next_s += 60 * every_minutes
        if ended:
            return
        start = time.perf_counter()
        learner.turn()
        trained_s += time.perf_counter() - start


def main() -> None:
    """Trains once and writes the curve."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--minutes", type=float, default=20.0)
    parser.add_argument("--every", type=float, default=2.0, help="minutes between judgements")
    parser.add_argument("--hardware", default="not recorded", help="where it runs, for the result")
    arguments = parser.parse_args()
    points = []
    for point in curve(arguments.minutes, arguments.every):
        print(json.dumps(point), flush=True)
        points.append(point)
    options = f"--minutes {arguments.minutes:g} --every {arguments.every:g}"
    found = {
        "command": f"JAX_PLATFORMS=cpu uv run --group dev python benchmarks/plain_learning.py {options}",
        "hardware": arguments.hardware,
        "date": date.today().isoformat(),
        "minutes": arguments.minutes,
        "steps": points[-1]["steps"],
        "result": {"positions": POSITIONS, **{name: points[-1][name] for name in ("keeps_value", "interval")}},
        "curve": points,
    }
    RESULT.write_text(json.dumps(found, indent=2) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
