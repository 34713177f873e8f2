"""A trained agent in int8 against itself in float32, with equal simulations.

JAX_PLATFORMS=cpu uv run --group dev python benchmarks/int8_match.py runs/connect_four_int8 --games 2000
"""

from __future__ import annotations

import argparse
import json
from functools import partial
from typing import Any

import jax
import numpy as np

from podzero.envs import make_env
from podzero.evaluation.arena import Arena
from podzero.evaluation.games import match_result
from podzero.evaluation.players import NetworkPlayers, SearchPlayer, make_decide
from podzero.files.workdir import Workdir
from podzero.inference import QuantizedNetwork, random_positions
from podzero.networks import make_inference
from podzero.networks.snapshots import load_snapshot
from podzero.search import rules_model

OPENING_PLIES = 6
"""Random plies of an opening: enough for more openings than games."""
THREADS = 2
CALIBRATION_MOVES = 4
"""The searches before the match whose positions calibrate int8."""


def match(workdir: Workdir, games: int) -> dict[str, Any]:
    """Plays each opening from both sides (an odd number of games is rounded up); returns the result of int8."""
    experiment = workdir.experiment()
    env, search = make_env(experiment.env), experiment.search
    snapshot = load_snapshot(workdir.snapshots, None)
    plain = NetworkPlayers(env, experiment.network, search).player("float32", snapshot.params)

    batch = (games + 1) // 2
    positions = random_positions(env, jax.random.key(1))
    network = QuantizedNetwork(env.spec, experiment.actors.cache_mib, THREADS, batch, positions)
    fold = jax.jit(make_inference(experiment.network, env.spec)[0])
    decide = make_decide(search, rules_model(env, network.evaluation(env)))
    quantized = partial(SearchPlayer, "int8", decide, deterministic=True)

    arena, token = Arena(env), network.load(fold(snapshot.params))
    openings = arena.openings(batch, OPENING_PLIES, jax.random.key(2)).states
    for seed in range(CALIBRATION_MOVES):
        jax.device_get(quantized(token).choose(jax.random.key(seed), openings))
    token = network.load(fold(snapshot.params))
    result = match_result(arena.pairs(quantized(token), plain, batch, jax.random.key(4), OPENING_PLIES))
    return {
        "step": snapshot.version,
        "simulations": search.simulations,
        **result._asdict(),
        "score": result.score,
        "interval": result.interval,
        "agreement": network.metrics(),
    }


def main() -> None:
    """Prints the result as JSON."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("workdir")
    parser.add_argument("--games", type=int, default=2000)
    arguments = parser.parse_args()
    print(json.dumps(match(Workdir(arguments.workdir), arguments.games), default=np.ndarray.tolist))


if __name__ == "__main__":
    main()
