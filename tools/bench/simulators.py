"""Simulations/s of self-play with a simulator on the host, beside the same game in JAX."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import jax

from podzero.config import EnvConfig, Experiment, GameConfig, SimulatorConfig
from podzero.errors import ConfigError
from podzero.tools.bench.moves import self_play
from podzero.tools.bench.rounds import Side, calls_per_s, compare

GAMES = ("connect_four", "tic_tac_toe", "othello")
"""Games that are the same in pgx and in OpenSpiel."""
ROUND_S = 10.0
"""The longest turn of a side."""


def bench_simulators(experiment: Experiment, seconds: float) -> dict[str, Any]:
    """Measures the cost of a game that runs on the host.

    The self-play core (search, move, auto-reset: one program a move) plays the game in JAX, in turn with the same game
    through OpenSpiel's states.

    Args:
      experiment: its game, network, search and `actors` are measured.
      seconds: how long to measure after compilation; one round in any case.

    Returns:
      what `compare` returns for `host` and `jax`.

    Raises:
      ConfigError: the game is not one of `GAMES`.
    """
    game = experiment.env
    if not isinstance(game, GameConfig) or game.name not in GAMES:
        raise ConfigError(
            f"env.name = '{game.name}': this bench compares games that are both in JAX and in OpenSpiel: "
            f"{', '.join(GAMES)}"
        )
    envs: dict[str, EnvConfig] = {"host": SimulatorConfig(name="open_spiel", id=game.name), "jax": game}
    players = {kind: self_play(experiment.model_copy(update={"env": env})) for kind, env in envs.items()}
    simulations = experiment.actors.games * experiment.search.simulations
    sides: dict[str, Side] = {kind: partial(_simulations_per_s, move, simulations) for kind, move in players.items()}
    found = compare(
        sides, "simulations_per_s", "simulations/s, game in OpenSpiel over game in JAX", seconds,
        longest_s=ROUND_S, rounds=3,
    )  # fmt: skip
    return found | {
        "games": experiment.actors.games,
        "simulations": experiment.search.simulations,
        "platform": jax.devices()[0].platform,
    }


def _simulations_per_s(move: Callable[[], None], simulations: int, seconds: float) -> float:
    return simulations * calls_per_s(move, seconds)
