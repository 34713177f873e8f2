"""Network evaluations/s of `podzero analyze`, beside the bare forward pass at the same batch size."""

from __future__ import annotations

import json
import logging
import time
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from podzero.config import Experiment
from podzero.envs import make_env
from podzero.evaluation.arena import Arena
from podzero.evaluation.evaluate import BATCH, Analyst
from podzero.evaluation.players import NetworkPlayers, RandomPlayer
from podzero.networks import make_inference, make_network
from podzero.protocols import Env
from podzero.tools.bench.rounds import Side, calls_per_s, compare

log = logging.getLogger(__name__)

POSITIONS = 1000
"""Positions in one call."""
ROUND_S = 1.0
"""The longest turn of the forward pass."""


def bench_analyze(experiment: Experiment, seconds: float) -> dict[str, Any]:
    """Measures what replaying the moves, the search tree, and JSON cost beside the network.

    Args:
      experiment: its game, network and search are measured; the network is untrained.
      seconds: how long to measure after compilation; one call of `analyze` in any case.

    Returns:
      what `compare` returns for `analyze` and `bare`; the number of positions in a call, and positions/s.
    """
    env = make_env(experiment.env)
    params = make_network(experiment.network, env.spec).init(jax.random.key(experiment.seed))
    players = NetworkPlayers(env, experiment.network, experiment.search, experiment.env.discount)
    analyst, lines = Analyst(env, players.player("untrained", params)), _lines(env)
    evaluations = POSITIONS * (experiment.search.simulations + 1)

    def analyze(_seconds: float) -> float:
        began = time.perf_counter()
        answers = [json.dumps(answer) for answer in analyst.answers(lines)]
        assert len(answers) == POSITIONS, len(answers)
        return evaluations / (time.perf_counter() - began)

    fold, network = make_inference(experiment.network, env.spec)
    folded, apply = jax.jit(fold)(params), jax.jit(network.apply)
    observation = jnp.zeros((BATCH, *env.spec.observation_shape), env.spec.observation_dtype)

    def forward() -> object:
        return jax.tree.map(lambda x: x.block_until_ready(), apply(folded, observation))

    log.info("compiling: %d positions with %d simulations", POSITIONS, experiment.search.simulations)
    for few in (lines[:1], lines[:BATCH]):  # a batch of one is a program of its own
        list(analyst.answers(few))
    forward()
    sides: dict[str, Side] = {"analyze": analyze, "bare": lambda turn_s: BATCH * calls_per_s(forward, turn_s)}
    found = compare(
        sides, "evaluations_per_s", "evaluations/s, analyze over bare forward pass", seconds,
        longest_s=ROUND_S, rounds=3,
    )  # fmt: skip
    return found | {
        "positions": POSITIONS,
        "positions_per_s": POSITIONS * found["analyze_evaluations_per_s"] / evaluations,
        "batch": BATCH,
        "simulations": experiment.search.simulations,
        "platform": jax.devices()[0].platform,
    }


def _lines(env: Env) -> list[str]:
    """Positions of games between random players, as `analyze` reads them."""
    player, random = RandomPlayer(env), np.random.default_rng(0)
    played = Arena(env).pairs(player, player, POSITIONS // 2, jax.random.key(0), 0)
    games = [game.moves for pair in played for game in pair]
    assert len(games) == POSITIONS, len(games)
    lengths = [random.integers(len(moves)) for moves in games]
    return [json.dumps({"id": i, "moves": games[i][: lengths[i]]}) for i in range(POSITIONS)]
