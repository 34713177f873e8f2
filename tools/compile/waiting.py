"""How much of its time a learner waits for moves, from the compiler's stored figures or else an estimate.

Nothing is compiled here, so `podzero launch` can say it at once. `slices.json` has the figures of the experiments for
slices, each with the settings on which its programs depend: a change of other settings, such as the replay ratio, needs
no new figures. `benchmarks/compile_table.py` writes it.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, NamedTuple

from podzero.config import Experiment
from podzero.core.chips import Slice

FILE = Path(__file__).parent / "slices.json"
"""The stored figures, by experiment."""


class KnownRates(NamedTuple):
    """The compiler's figures for an experiment on its slice."""

    samples_per_s: float
    """The samples/s of the learner while it never waits and its chips do nothing else."""
    chip_moves_per_s: float
    """The moves/s of a chip that does nothing but play."""


def known_rates(experiment: Experiment) -> KnownRates | None:
    """The stored rates of `experiment`; None unless it plays on the learner's chips and its programs were compiled."""
    if not experiment.actors.beside_learner:
        return None
    settings = settings_of(experiment)
    stored = json.loads(FILE.read_text(encoding="utf-8")).values()
    found = next((one for one in stored if one["settings"] == settings), None)
    return None if found is None else KnownRates(found["samples_per_s"], found["chip_moves_per_s"])


def settings_of(experiment: Experiment) -> dict[str, Any]:
    """The settings on which the rates of an experiment depend, without those that have default values."""
    kept: dict[str, set[str]] = {
        "learner": {"batch_size", "microbatches", "mesh"},
        "search": {"algorithm", "simulations", "max_considered_actions", "slots"},
        "actors": {"inference", "games"},
        "int8": {"on_tpu"},
    }
    sections = {
        name: getattr(experiment, name).model_dump(mode="json", include=fields, exclude_defaults=True)
        for name, fields in kept.items()
    }
    for name in ("env", "network"):
        section = getattr(experiment, name)
        sections[name] = {"name": section.name} | section.model_dump(mode="json", exclude_defaults=True)
    cluster = experiment.cluster
    return sections | {"slice": cluster.slice} | ({"slices": cluster.slices} if cluster.slices > 1 else {})


TRAINING_SHARE = 0.2
"""The assumed share of a chip's peak that a learner reaches if nothing was compiled. In docs/compile.md it is below
0.05 for networks of 32 channels, 0.35 for 96 channels with 256 samples a chip, and 0.6 for 256 channels."""
PLAYING_SHARE = 0.3
"""The same share for evaluations on chips. In docs/compile.md it is 0.2 for 32 channels, 0.3 for 96, 0.6 for 256."""
CORE_FLOPS = {"local": 65e9, "int8": 370e9}
"""The operations/s at which a CPU core evaluates networks of 64 channels: in float32, and in int8 with AMX."""
TRAINING_COST = 3
"""The operations of training on a sample, in evaluations: the backward pass takes twice as many as the forward pass."""


class Rates(NamedTuple):
    """The moves/s that the learner needs and that its actors make."""

    asked: float
    """The moves/s at which the learner never waits."""
    made: float
    """The moves/s of all actors together while replay never blocks them."""
    in_turns: bool
    """Whether the learner's chips also play, in turns with training, so that they never wait."""
    source: str
    """Where the numbers come from, in words."""
    absolute: bool
    """Whether the numbers are moves/s. If not, both are multiples of the same unknown number: the estimate leaves out
    the size of the network, which cancels in their ratio."""

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
        """The moves/s that are both made and learned from."""
        return self.asked * self.training


def moves_asked(experiment: Experiment, samples_per_s: float) -> float:
    """The moves/s at which a learner never waits that trains on `samples_per_s` fresh samples/s."""
    # Each move is one sample, and each sample is learned from `samples_per_insert` times.
    return samples_per_s / experiment.replay.samples_per_insert


def rates(experiment: Experiment) -> Rates | None:
    """The rates of an experiment on its `cluster.slice`; None if they are unknown.

    They are unknown without a slice or self-play, for networks that learn a model, and for actors on accelerators other
    than TPUs.
    """
    where = experiment.cluster.tpu
    if where is None or experiment.learns_model or not experiment.has_self_play:
        return None
    if (known := known_rates(experiment)) is not None:
        return of_slice(experiment, known)
    if (players := _players(experiment, where)) is None:
        return None
    operations_per_s, how = players
    samples_per_s = TRAINING_SHARE * experiment.cluster.slices * where.chips * where.chip.flops / TRAINING_COST
    return Rates(
        moves_asked(experiment, samples_per_s * _fresh(experiment)),
        operations_per_s / (1 + experiment.search.simulations),
        experiment.uses_learner_devices,
        f"estimated: a chip trains at {TRAINING_SHARE:.0%} of its peak, {how}, rules and trees cost nothing",
        absolute=False,
    )


def of_slice(experiment: Experiment, known: KnownRates) -> Rates:
    """The rates of an experiment whose learner's chips also play, from the rates of its two programs."""
    where = experiment.cluster.tpu
    assert where is not None
    asked = moves_asked(experiment, known.samples_per_s * _fresh(experiment))
    source = "the TPU compiler's figures, which leave out what the hosts do"
    return Rates(asked, where.devices * known.chip_moves_per_s, True, source, absolute=True)


def _fresh(experiment: Experiment) -> float:
    """The share of a batch that actors have just played."""
    return experiment.batch_parts.fresh / experiment.learner.batch_size


def _players(experiment: Experiment, where: Slice) -> tuple[float, str] | None:
    """The operations/s of what evaluates for actors, and how they are estimated; None on accelerators but TPUs."""
    actors = experiment.actors
    place = experiment.server if actors.inference == "server" else actors
    if place.resources and "TPU" not in place.resources:
        return None
    learners = experiment.cluster.slices * where.chips
    chips = learners if experiment.uses_learner_devices else place.count * place.resources.get("TPU", 0.0)
    if chips:
        return PLAYING_SHARE * chips * where.chip.flops, f"{chips:g} chips evaluate at {PLAYING_SHARE:.0%} of theirs"
    cores = place.count * place.cpus
    speed = CORE_FLOPS["int8" if actors.inference == "int8" else "local"]
    return cores * speed, f"{cores:g} CPU cores evaluate at {speed / 1e9:g} GFLOP/s each"
