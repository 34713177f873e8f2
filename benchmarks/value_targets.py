"""How near the value targets of self-play are to the game's value, by a perfect solver."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple

import jax
import numpy as np

from podzero.actors.assembly import lambda_returns
from podzero.config import Experiment
from podzero.driver.build import local_parts
from podzero.evaluation.solvers import game_values, make_solver
from podzero.types import Move, Params

LAMBDAS = (1.0, 0.9, 0.7, 0.4, 0.0)
"""1 is the outcome of the game, 0 the root value of the next position."""
MOVES = 80
"""Moves of all games that are played."""

Array = np.ndarray[Any, Any]


class Played(NamedTuple):
    """N positions of finished games."""

    observations: Array
    """`[N, ...]`."""
    plies: Array
    """`[N]`, moves played before each."""
    targets: dict[float, Array]
    """`[N]` the lambda-return of each, by lambda."""


def target_errors(
    experiment: Experiment, params: Params, bands: dict[str, tuple[int, int]], positions: int
) -> dict[str, Any]:
    """Correlation and squared error of each target with the game's value, by band of plies.

    Args:
      experiment: whose actors play; `params` are those that were published.
      params: of the network.
      bands: first and last ply of each, by name.
      positions: solved in each band.
    """
    played = play(experiment, params)
    solver, random = make_solver(experiment.env.name), np.random.default_rng(0)
    found: dict[str, Any] = {}
    for name, (first, last) in bands.items():
        inside = random.permutation(np.flatnonzero((played.plies >= first) & (played.plies <= last)))[:positions]
        values = game_values(np.nanmax(solver.scores(played.observations[inside]), axis=1))
        found[name] = {
            str(weight): {
                "correlation": float(np.corrcoef(target[inside], values)[0, 1]),
                "squared_error": float(np.mean((target[inside] - values) ** 2)),
            }
            for weight, target in played.targets.items()
        }
    return found


def play(experiment: Experiment, params: Params) -> Played:
    """Plays as an actor of the experiment does, and keeps the games that end."""
    parts = local_parts(experiment)
    folded, move = parts.fold(params), jax.jit(parts.core.move, donate_argnums=1)
    state = jax.jit(parts.core.init)(jax.random.key(experiment.seed))
    moves: list[Move] = []
    plies: list[Array] = []
    for _ in range(MOVES):
        plies.append(np.asarray(state.plies))
        state, played = move(folded, state)
        moves.append(jax.device_get(played))
    games = list(_games(moves))
    return Played(
        np.concatenate([np.stack([moves[t].observation[slot] for t in span]) for slot, span in games]),
        np.concatenate([[plies[t][slot] for t in span] for slot, span in games]),
        {weight: np.concatenate([_returns(moves, slot, span, weight) for slot, span in games]) for weight in LAMBDAS},
    )


def _games(moves: list[Move]) -> Iterator[tuple[int, range]]:
    """The slot and the moves of each finished game."""
    started = [0] * len(moves[0].done)
    for t, move in enumerate(moves):
        for slot in np.flatnonzero(move.done):
            yield int(slot), range(started[slot], t + 1)
            started[slot] = t + 1


def _returns(moves: list[Move], slot: int, span: range, td_lambda: float) -> Array:
    def column(name: str) -> Array:
        return np.stack([getattr(moves[t], name)[slot] for t in span])

    return lambda_returns(column("rewards"), column("player"), column("value"), td_lambda)
