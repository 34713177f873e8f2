"""Moves/s of self-play that evaluates the network in int8, beside float32 and beside plain pgx and mctx."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from multiprocessing.connection import Connection
from typing import Any

import jax

from podzero.config import Experiment, GameConfig, ResNetConfig, parse
from podzero.errors import ConfigError
from podzero.inference import has_int8_instructions
from podzero.tools.bench.child_processes import answer, child_process
from podzero.tools.bench.moves import moves_per_version, self_play
from podzero.tools.bench.rounds import Side, calls_per_s, compare

ROUND_S = 5.0
"""The longest turn of a side."""
SIDES = {"int8": "int8", "float32": "local"}
"""The sides of the comparison, with their `actors.inference`."""


def bench_int8(experiment: Experiment, seconds: float) -> dict[str, Any]:
    """Measures what quantized evaluation gains: the self-play core (search, move, auto-reset) with each evaluation.

    A third side is the same self-play as pgx and mctx offer it, in a process of its own that waits while others play.

    Args:
      experiment: its game, network, search and `actors` are measured.
      seconds: how long to measure after compilation; one round in any case.

    Returns:
      what `compare` returns for `int8`, `float32` and `plain`, with `moves_per_version`.

    Raises:
      ConfigError: this CPU has no int8 instructions, the network cannot be quantized, or the experiment is not one that
        the plain program can play.
    """
    if not has_int8_instructions():
        raise ConfigError("this CPU has no int8 instructions (VNNI), so int8 would be float32: use another machine")
    settings = plain_settings(experiment)
    experiments = {side: with_inference(experiment, kind) for side, kind in SIDES.items()}
    games, simulations = experiment.actors.games, experiment.search.simulations
    with child_process(_serve_plain, settings) as plain:
        plain.receive()
        players = {side: self_play(each) for side, each in experiments.items()}
        sides: dict[str, Side] = {side: partial(_moves_per_s, move, games) for side, move in players.items()}
        sides["plain"] = lambda turn_s: float(plain.ask(turn_s))
        found = compare(
            sides, "moves_per_s", "moves/s, self-play in int8 over float32", seconds, longest_s=ROUND_S, rounds=3
        )
    return found | {
        "games": games,
        "simulations": simulations,
        "moves_per_version": moves_per_version(experiment),
        "platform": jax.devices()[0].platform,
    }


def _moves_per_s(move: Callable[[], None], games: int, seconds: float) -> float:
    return games * calls_per_s(move, seconds)


def plain_settings(experiment: Experiment) -> tuple[str, int, int, int, int]:
    """The arguments of `plain_mctx.self_play` for the sizes of an experiment.

    Raises:
      ConfigError: the experiment is not Gumbel AlphaZero with a ResNet in a game of pgx.
    """
    env, network, search = experiment.env, experiment.network, experiment.search
    if not (isinstance(env, GameConfig) and isinstance(network, ResNetConfig) and search.algorithm == "gumbel"):
        raise ConfigError(
            "this bench compares with plain pgx and mctx, which needs a game written in JAX, network.name=resnet and "
            "search.algorithm=gumbel"
        )
    return env.name, network.channels, network.blocks, experiment.actors.games, search.simulations


def _serve_plain(settings: tuple[str, int, int, int, int], parent: Connection) -> None:
    """In the child: sends None, then answers each number of seconds with moves/s."""
    from podzero.tools.bench.plain_mctx import self_play as plain_self_play  # imports pgx and Haiku

    measure = plain_self_play(*settings)
    parent.send(None)
    answer(parent, measure)


def with_inference(experiment: Experiment, kind: str) -> Experiment:
    """The experiment with `actors.inference` set to `kind`.

    Raises:
      ConfigError: its network cannot be quantized.
    """
    tree = experiment.model_dump()
    tree["actors"]["inference"] = kind
    return parse(tree, experiment.name)
