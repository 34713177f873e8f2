"""How much of its time a learner waits for moves: by the compiler's figures where they are stored, or an estimate.

Nothing is compiled here, so that `podzero launch` can tell it at once.
"""

from __future__ import annotations

from typing import NamedTuple

from podzero.chips import Slice
from podzero.config import Experiment
from podzero.tools.compile.slices import KnownRates, known_rates

TRAINING_SHARE = 0.2
"""Share of a chip's peak that a learner is taken to reach where nothing was compiled. By docs/compile.md it is below
0.05 for networks of 32 channels, 0.35 for 96 with 256 samples a chip, and 0.6 for 256 channels."""
PLAYING_SHARE = 0.3
"""The same of evaluations on chips: 0.2 for 32 channels, 0.3 for 96, and 0.6 for 256."""
CORE_FLOPS = {"local": 65e9, "int8": 370e9}
"""Operations/s at which a CPU core evaluates networks of 64 channels in float32, and in int8 with AMX instructions."""
TRAINING_COST = 3
"""Evaluations whose operations are as many as those of training on a sample: the backward pass is two of them."""


class Rates(NamedTuple):
    """Moves/s that the learner asks for and that its actors make; multiples of an unknown number if not `absolute`."""

    asked: float
    """Moves/s from which the learner never waits."""
    made: float
    """Moves/s of all actors together, while replay never blocks them."""
    in_turns: bool
    """Whether the learner's chips play, in turns with training, so that they have work while the learner waits."""
    source: str
    """Where the numbers come from, in words."""
    absolute: bool
    """Whether they are moves/s. The estimate leaves out the size of the network, which cancels in their ratio."""

    @property
    def training(self) -> float:
        """The share of the chips' time in which they train."""
        if self.in_turns:
            return self.made / (self.asked + self.made)
        return min(1.0, self.made / self.asked)

    @property
    def waiting(self) -> float:
        """The share of its time that the learner waits for moves while its chips have nothing to do."""
        return 0.0 if self.in_turns else 1.0 - self.training

    @property
    def moves_per_s(self) -> float:
        """The moves/s that are made and learned from."""
        return self.asked * self.training


def moves_asked(experiment: Experiment, samples_per_s: float) -> float:
    """Moves/s from which a learner of `samples_per_s` never waits: each sample is learned from
    `replay.samples_per_insert` times, and each move is a sample.

    Args:
      experiment: of the learner.
      samples_per_s: fresh samples on which it trains while it never waits.
    """
    return samples_per_s / experiment.replay.samples_per_insert


def evaluations_per_move(experiment: Experiment) -> int:
    """Evaluations of the network for a move, the root's included."""
    return 1 + experiment.search.simulations


def rates(experiment: Experiment) -> Rates | None:
    """The rates of an experiment on its `cluster.slice`; None where nothing is known.

    That is the case without a slice, for networks that learn a model, and for actors on other accelerators than TPUs.
    """
    where = experiment.cluster.tpu
    if where is None or experiment.learns_model:
        return None
    if (known := known_rates(experiment)) is not None:
        return of_slice(experiment, known)
    if (players := _players(experiment, where)) is None:
        return None
    operations_per_s, how = players
    samples_per_s = TRAINING_SHARE * where.chips * where.chip.flops / TRAINING_COST
    return Rates(
        moves_asked(experiment, samples_per_s * _fresh(experiment)),
        operations_per_s / evaluations_per_move(experiment),
        experiment.uses_learner_devices,
        f"estimated: a chip trains at {TRAINING_SHARE:.0%} of its peak, {how}, rules and trees cost nothing",
        absolute=False,
    )


def of_slice(experiment: Experiment, known: KnownRates) -> Rates:
    """The rates of an experiment whose learner's chips play, from those of its two programs."""
    where = experiment.cluster.tpu
    assert where is not None
    asked = moves_asked(experiment, known.samples_per_s * _fresh(experiment))
    source = "the TPU compiler's figures, which leave out what the hosts do"
    return Rates(asked, where.devices * known.chip_moves_per_s, True, source, absolute=True)


def _fresh(experiment: Experiment) -> float:
    """The share of a batch that is not reanalysed."""
    fresh, reanalysed = experiment.batch_parts
    return fresh / (fresh + reanalysed)


def _players(experiment: Experiment, where: Slice) -> tuple[float, str] | None:
    """Operations/s of all that evaluates the network for actors, and how that is estimated, in words; None on
    accelerators that are no TPUs, whose speed is not known here.
    """
    actors, server = experiment.actors, experiment.server
    resources, count = (
        (server.resources, server.count) if actors.inference == "server" else (actors.resources, actors.count)
    )
    if resources and "TPU" not in resources:
        return None
    chips = where.chips if experiment.uses_learner_devices else count * resources.get("TPU", 0.0)
    if chips:
        return PLAYING_SHARE * chips * where.chip.flops, f"{chips:g} chips evaluate at {PLAYING_SHARE:.0%} of theirs"
    served = actors.inference == "server"
    cores = server.count * server.cpus if served else actors.count * actors.cpus
    speed = CORE_FLOPS["int8" if actors.inference == "int8" else "local"]
    return cores * speed, f"{cores:g} CPU cores evaluate at {speed / 1e9:g} GFLOP/s each"
