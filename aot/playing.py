"""How much of a chip's evaluations self-play on it makes: the program of play beside the bare network."""

from __future__ import annotations

from typing import Any

import jax
import numpy as np

from podzero.aot.verdict import Verdict
from podzero.chips import Slice
from podzero.config import Experiment, ResNetConfig
from podzero.driver.build import local_parts
from podzero.envs import spec_of
from podzero.networks import make_network

_MOVES = 4
"""Moves over which the depth is measured."""
_GAMES = 256
"""Games in which it is, at most."""
_SMALL = {"channels": 16, "blocks": 1}
"""Of the tower with which it is measured; the depth does not depend on the size of an untrained one."""


def mean_depth(experiment: Experiment) -> float:
    """The mean depth of new nodes in the deepest game of a batch: `SearchResult.depth` of an untrained network.

    Measured by playing a few moves on this machine's CPU.

    Args:
      experiment: of a game in JAX, with dense trees.
    """
    games = min(experiment.actors.games, _GAMES)
    network = experiment.network
    if isinstance(network, ResNetConfig):
        network = network.model_copy(update=_SMALL)
    actors = experiment.actors.model_copy(update={"games": games, "opening_fraction": 0.0})
    core, fold, _ = local_parts(experiment.model_copy(update={"network": network, "actors": actors}))
    params = fold(make_network(network, spec_of(experiment.env)).init(jax.random.key(0)))
    state, move = jax.jit(core.init)(jax.random.key(0)), jax.jit(core.move)
    depths = []
    for _ in range(_MOVES):
        state, played = move(params, state)
        depths.append(played.depth)
    return float(np.mean(jax.device_get(depths)))


def of_one_chip(experiment: Experiment, where: Slice) -> Experiment:
    """The experiment as one chip plays it: the chips of a process share `actors.games` with `inference=device`.

    Args:
      experiment: the experiment.
      where: the slice on whose hosts it plays if it names no resources for actors.
    """
    actors = experiment.actors
    if actors.inference != "device":
        return experiment
    chips = int(sum(actors.resources.values())) or where.chips_of_host
    games = max(1, actors.games // chips)
    return experiment.model_copy(update={"actors": actors.model_copy(update={"games": games})})


def playing(play: Verdict, evaluation: Verdict) -> dict[str, Any]:
    """The rates of the program of play, and their share of what the bare network reaches at the same batch.

    Args:
      play: the program `device`, which fits.
      evaluation: the program `evaluation`.
    """
    assert play.cost is not None
    program, seconds = play.program, play.estimated_seconds()
    moves = program.batch * program.trip_count
    evaluations = moves * (program.simulations + 1)
    bare = evaluation.program.batch / evaluation.estimated_seconds()
    return {
        "ratio": evaluations / seconds / bare,
        "moves_per_s": moves / seconds,
        "evaluations_per_s": evaluations / seconds,
        "bare_evaluations_per_s": bare,
        "bytes_per_simulation": play.cost.traffic[0] / (moves * program.simulations),
        "depth": program.depth,
    }
