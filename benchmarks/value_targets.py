"""How near the value targets of self-play are to the game's value, by a perfect solver."""

from __future__ import annotations

from typing import Any

import jax
import numpy as np

from podzero.actors.assembly import GameAssembler
from podzero.config import Experiment
from podzero.evaluation.solvers import game_values, make_solver
from podzero.runtime.build import local_parts
from podzero.types import Params, Sample

LAMBDAS = (1.0, 0.9, 0.7, 0.4, 0.0)
"""1 is the outcome of the game, 0 the root value of the next position."""
MOVES = 80
"""Moves of all games that are played."""


def target_errors(
    experiment: Experiment, params: Params, bands: dict[str, tuple[int, int]], positions: int
) -> dict[str, Any]:
    """Correlation and squared error of each target with the game's value, by band of plies.

    Of the solved games, connect four and tic-tac-toe as JAX plays them; their observations are planes of stones.

    Args:
      experiment: whose actors play; `params` are those that were published.
      params: of the network.
      bands: first and last ply of each, by name.
      positions: solved in each band.
    """
    played = play(experiment, params)
    observations = np.asarray(played[1.0].observation)
    plies = observations.reshape(len(observations), -1).sum(axis=1)  # one stone a ply
    solver, random = make_solver(experiment.env.name), np.random.default_rng(0)
    found: dict[str, Any] = {}
    for name, (first, last) in bands.items():
        inside = random.permutation(np.flatnonzero((plies >= first) & (plies <= last)))[:positions]
        values = game_values(np.nanmax(solver.scores(observations[inside]), axis=1))
        found[name] = {
            str(weight): {
                "correlation": float(np.corrcoef(samples.value_target[inside], values)[0, 1]),
                "squared_error": float(np.mean((samples.value_target[inside] - values) ** 2)),
            }
            for weight, samples in played.items()
        }
    return found


def play(experiment: Experiment, params: Params) -> dict[float, Sample]:
    """Plays as an actor of the experiment does; the positions of the games that end, by the lambda of their targets."""
    parts = local_parts(experiment)
    folded, move = parts.fold(params), jax.jit(parts.core.move, donate_argnums=1)
    state = jax.jit(parts.core.init)(jax.random.key(experiment.seed))
    every = {"root_value_weight": 0.0}
    configs = {weight: experiment.actors.model_copy(update=every | {"td_lambda": weight}) for weight in LAMBDAS}
    assemblers = {weight: GameAssembler(config, experiment.env.discount) for weight, config in configs.items()}
    games: dict[float, list[Sample]] = {weight: [] for weight in LAMBDAS}
    for _ in range(MOVES):
        state, played = move(folded, state)
        played = jax.device_get(played)
        for weight, assembler in assemblers.items():
            games[weight] += [game.samples for game in assembler.add(played, version=0)]
    return {weight: jax.tree.map(lambda *leaves: np.concatenate(leaves), *each) for weight, each in games.items()}
