"""The compiler's figures of the experiments for TPU slices, stored in the package for `podzero launch`.

`podzero compile --table` writes the file from its results. An experiment is found again by the settings on which its
programs depend, so that another replay ratio, say, needs no other figures.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

from podzero.config import FOR_SLICES, Experiment, builtin_configs, load
from podzero.tools.compile.results import Job, Results

FILE = "slices.json"
"""The name of the file, beside this module."""


class KnownRates(NamedTuple):
    """What the compiler says of an experiment on its slice."""

    samples_per_s: float
    """On which the learner trains while it never waits and its chips do nothing else."""
    chip_moves_per_s: float
    """Moves/s of a chip that does nothing but play."""


def slice_jobs() -> list[Job]:
    """What is compiled for these experiments: each learner on its slice, and play on one of its chips."""
    return [job for name in builtin_configs() if name.startswith(FOR_SLICES) for job in _jobs(name)]


def _jobs(name: str) -> tuple[Job, Job]:
    experiment = load(name)
    assert experiment.cluster.slice is not None
    where = experiment.cluster.slice
    learner, device = (
        Job(name, where, program, (name, "--topology", where, "--program", program))
        for program in ("learner", "device")
    )
    return learner, device


def rates_of(learner: Mapping[str, Any], playing: Mapping[str, Any]) -> KnownRates:
    """The rates in two reports of `podzero compile --json`."""
    (program,) = learner["programs"]
    seconds = program["estimated_seconds"] + program["seconds"]["links"]
    return KnownRates(program["batch"] * program["trip_count"] / seconds, playing["moves_per_s"])


def figures(results: Results) -> dict[str, Any]:
    """The content of the file: of each experiment whose programs were compiled, its settings, compiler and rates."""
    found = {}
    for name in builtin_configs():
        if name.startswith(FOR_SLICES):
            learner, play = map(results.get, _jobs(name))
            if learner and play and learner.outcome == play.outcome == "compiled":
                rates = rates_of(learner.report, play.report)
                made = {"settings": settings_of(load(name)), "compiler": learner.compiler}
                found[name] = made | rates._asdict()
    return found


def known_rates(experiment: Experiment) -> KnownRates | None:
    """The stored rates of the programs of `experiment`, if it plays on the learner's chips and they were compiled."""
    if not experiment.actors.beside_learner:
        return None
    settings = settings_of(experiment)
    found = next((one for one in _file().values() if one["settings"] == settings), None)
    return None if found is None else KnownRates(found["samples_per_s"], found["chip_moves_per_s"])


def settings_of(experiment: Experiment) -> dict[str, Any]:
    """The settings on which the rates of an experiment depend, those with default values left out."""
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
    return sections | {"slice": experiment.cluster.slice}


@cache
def _file() -> dict[str, Any]:
    content: dict[str, Any] = json.loads((Path(__file__).parent / FILE).read_text())
    return content
