"""Moves/s of self-play in dense search trees, beside mctx's, on this machine."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import jax

from podzero.config import Experiment, parse
from podzero.tools.bench.moves import self_play
from podzero.tools.bench.rounds import Side, calls_per_s, compare

ROUND_S = 5.0
"""The longest turn of a side."""


def bench_tree(experiment: Experiment, seconds: float) -> dict[str, Any]:
    """Measures the self-play core (search, move, auto-reset) with each kind of tree.

    Args:
      experiment: its game, network, search and `actors` are measured.
      seconds: how long to measure after compilation; one round in any case.

    Returns:
      what `compare` returns for `dense` and `mctx`.
    """
    games = experiment.actors.games
    sides: dict[str, Side] = {
        tree: partial(_moves_per_s, self_play(_with_tree(experiment, tree)), games) for tree in ("dense", "mctx")
    }
    found = compare(
        sides, "moves_per_s", "moves/s, dense trees over those of mctx", seconds, longest_s=ROUND_S, rounds=3
    )
    simulations, platform = experiment.search.simulations, jax.devices()[0].platform
    return found | {"games": games, "simulations": simulations, "platform": platform}


def _moves_per_s(move: Callable[[], None], games: int, seconds: float) -> float:
    return games * calls_per_s(move, seconds)


def _with_tree(experiment: Experiment, tree: str) -> Experiment:
    settings = experiment.model_dump()
    settings["search"] |= {"tree": tree} | ({"slots": None} if tree == "mctx" else {})
    return parse(settings, experiment.name)
