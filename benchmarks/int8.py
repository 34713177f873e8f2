"""Moves/s of self-play that evaluates the network in int8, beside the same self-play in float32."""

from __future__ import annotations

from typing import Any

import jax

from podzero.benchmarks.moves import self_play
from podzero.benchmarks.rounds import calls_per_s, compare
from podzero.config import Experiment, parse
from podzero.errors import ConfigError
from podzero.inference import has_int8_instructions

ROUND_S = 5.0
"""The length of a round."""
SIDES = {"int8": "int8", "float32": "local"}
"""The sides of the comparison, with their `actors.inference`."""


def bench_int8(experiment: Experiment, seconds: float) -> dict[str, Any]:
    """Measures what quantized evaluation gains: the self-play core (search, move, auto-reset) with each evaluation.

    Args:
      experiment: its game, network, search and `actors` are measured.
      seconds: how long to measure after compilation; at least three rounds of each are measured.

    Returns:
      what `compare` returns for `int8` and `float32`.

    Raises:
      ConfigError: this CPU has no int8 instructions, or the network cannot be quantized.
    """
    if not has_int8_instructions():
        raise ConfigError("this CPU has no int8 instructions (VNNI), so int8 would be float32: use another machine")
    players = {side: self_play(with_inference(experiment, kind)) for side, kind in SIDES.items()}
    games = experiment.actors.games
    sides = {side: lambda move=move: calls_per_s(move, ROUND_S) * games for side, move in players.items()}
    found = compare(sides, "moves_per_s", "moves/s, self-play in int8 over float32", seconds, least=3)
    return found | {
        "games": games,
        "simulations": experiment.search.simulations,
        "platform": jax.devices()[0].platform,
    }


def with_inference(experiment: Experiment, kind: str) -> Experiment:
    """The experiment with `actors.inference` set to `kind`.

    Raises:
      ConfigError: its network cannot be quantized.
    """
    tree = experiment.model_dump()
    tree["actors"]["inference"] = kind
    return parse(tree, experiment.name)
