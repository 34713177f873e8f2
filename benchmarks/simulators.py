"""Simulations/s of self-play over a simulator on the host, beside the same game in JAX."""

from __future__ import annotations

import time
from collections.abc import Callable
from statistics import median
from typing import Any

import jax

from podzero.benchmarks.rates import calls_per_s
from podzero.config import EnvConfig, Experiment, GameConfig, SimulatorConfig
from podzero.driver.build import actor_parts
from podzero.envs import make_env
from podzero.errors import ConfigError
from podzero.networks import make_network
from podzero.types import Params

TWINS = ("connect_four", "tic_tac_toe", "othello")
"""Games that are the same in pgx and in OpenSpiel."""
ROUND_S = 10.0
"""How long one of the two plays before the other has its turn."""


def bench_simulators(experiment: Experiment, seconds: float) -> dict[str, Any]:
    """Measures what it costs that a game lives on the host.

    The self-play core (search, move, auto-reset: one program a move) plays the game in JAX and, by turns with it, the
    same game through OpenSpiel's states.

    Args:
      experiment: its game, network, search and `actors` are measured.
      seconds: how long to measure after compilation; at least three rounds of each are run.

    Returns:
      `ratio` (host over JAX, of the medians over rounds), both rates in simulations/s, and the rates of all rounds.

    Raises:
      ConfigError: the game is not in both.
    """
    game = experiment.env
    if not isinstance(game, GameConfig) or game.name not in TWINS:
        raise ConfigError(f"env.name = '{game.name}': the games in JAX and in OpenSpiel alike are {', '.join(TWINS)}")
    envs: dict[str, EnvConfig] = {"jax": game, "host": SimulatorConfig(name="open_spiel", id=game.name)}
    players = {kind: _player(experiment.model_copy(update={"env": env})) for kind, env in envs.items()}
    for move in players.values():
        move()  # compiles
    rates: dict[str, list[float]] = {kind: [] for kind in players}
    until = time.perf_counter() + seconds
    while len(rates["host"]) < 3 or time.perf_counter() < until:
        for kind, move in players.items():
            rates[kind].append(calls_per_s(move, ROUND_S) * experiment.actors.games * experiment.search.simulations)
    return {
        "ratio": median(rates["host"]) / median(rates["jax"]),
        "host_simulations_per_s": median(rates["host"]),
        "jax_simulations_per_s": median(rates["jax"]),
        "games": experiment.actors.games,
        "simulations": experiment.search.simulations,
        "platform": jax.devices()[0].platform,
        "host_rounds": rates["host"],
        "jax_rounds": rates["jax"],
    }


def _player(experiment: Experiment) -> Callable[[], None]:
    """Plays one move of all games each time that it is called."""
    core, fold = actor_parts(experiment)
    params: Params = fold(make_network(experiment.network, make_env(experiment.env).spec).init(jax.random.key(0)))
    play = jax.jit(core.move, donate_argnums=1)
    state = jax.jit(core.init)(jax.random.key(experiment.seed))

    def move() -> None:
        nonlocal state
        state, moves = play(params, state)
        jax.device_get(moves)

    return move
