"""How much of a chip's evaluations self-play on it makes: the program of play beside the bare network."""

from __future__ import annotations

from typing import Any

from podzero.chips import Slice
from podzero.config import Experiment
from podzero.tools.compile.verdict import Verdict

DEPTH = {"gumbel": 8, "puct": 30}
"""The mean depth of new nodes at which the searches of `device` count, by `search.algorithm`: rounded up from those of
trained networks in Gumbel search (4 to 6 in connect four and Go), and that of an untrained one in chess with PUCT."""


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
