"""The results of `podzero compile`: the programs of one slice, or the learner on several slices."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from rich.console import Console

from podzero.chips import Slice, find_slice
from podzero.config import Experiment
from podzero.tools.compile.programs import NAMES, devices_of, programs_of
from podzero.tools.compile.scaling import report, with_batch_per_chip
from podzero.tools.compile.show import show, show_scaling
from podzero.tools.compile.verdict import Verdict, judge


@dataclass(frozen=True)
class OneSlice:
    """The verdicts on the programs of an experiment for one slice."""

    name: str
    where: Slice
    verdicts: list[Verdict]
    experiment: Experiment

    @cached_property
    def playing(self) -> dict[str, Any]:
        """The rates of self-play on the chip, if both its program and the bare evaluation are there and fit."""
        found = {verdict.program.name: verdict for verdict in self.verdicts if verdict.fits}
        if not {"device", "evaluation"} <= found.keys():
            return {}
        from podzero.tools.compile.playing import playing

        return playing(found["device"], found["evaluation"])

    @cached_property
    def feeding(self) -> dict[str, Any]:
        """What the learner asks for, if all programs are there and fit."""
        found = {verdict.program.name: verdict for verdict in self.verdicts if verdict.fits}
        if not {"learner", "server"} <= found.keys() or not self.playing:
            return {}
        from podzero.tools.compile.feeding import feeding, moves_per_core_s

        rates = self.playing, moves_per_core_s(self.experiment)
        return {"feeding": feeding(self.experiment, found["learner"], found["server"], *rates)}

    @property
    def fits(self) -> bool:
        """Whether all programs fit into the memory of a chip."""
        return all(verdict.fits for verdict in self.verdicts)

    def to_dict(self) -> dict[str, Any]:
        """The output of `--json`."""
        where = self.where
        return {
            "config": self.name, "topology": where.topology, "chips": where.chips, "hosts": where.hosts,
            "programs": [verdict.to_dict() for verdict in self.verdicts],
        } | self.playing | self.feeding  # fmt: skip

    def show(self, console: Console) -> None:
        """Prints the results as text."""
        show(console, self.where, self.verdicts, self.playing, self.feeding.get("feeding"))


@dataclass(frozen=True)
class SeveralSlices:
    """How the time of the learner's step changes from slice to slice at a fixed batch per chip."""

    name: str
    report: dict[str, Any]
    fits: bool = True
    """Always true: `judge_scaling` raises an error where the learner does not fit."""

    def to_dict(self) -> dict[str, Any]:
        """The output of `--json`."""
        return {"config": self.name} | self.report

    def show(self, console: Console) -> None:
        """Prints the results as text."""
        show_scaling(console, self.name, self.report)


def judge_programs(experiment: Experiment, where: str, program: str | None, depth: float | None = None) -> OneSlice:
    """Compiles one program, or all if `program` is None, for the slice named `where`; `device` beside `evaluation`.

    Args:
      experiment: the experiment.
      where: name of the slice.
      program: of `NAMES`.
      depth: of the searches in `device`; by default that of `playing.DEPTH`.

    Raises:
      ConfigError: the slice is unknown, libtpu is missing, or the experiment cannot run on the slice.
    """
    found = find_slice(where)
    names = NAMES if program is None else ("evaluation", "device") if program == "device" else (program,)
    devices = devices_of(found)
    from podzero.tools.compile.playing import of_one_chip

    experiment = of_one_chip(experiment, found)
    programs = programs_of(experiment, devices, names, depth)
    return OneSlice(experiment.name, found, [judge(program, found) for program in programs], experiment)


def judge_scaling(experiment: Experiment, names: Sequence[str], per_chip: int | None) -> SeveralSlices:
    """Compiles the learner for several slices, with a batch proportional to the number of chips.

    Args:
      experiment: the experiment.
      names: of the slices; each is compared with the first.
      per_chip: samples per step and chip; None means those of the experiment's batch on the first slice.

    Raises:
      ConfigError: a slice is unknown, libtpu is missing, or the learner cannot run or does not fit on a slice.
    """
    slices = [find_slice(name) for name in names]
    each = per_chip or max(1, experiment.learner.batch_size // slices[0].devices)
    verdicts = []
    for where in slices:
        (learner,) = programs_of(with_batch_per_chip(experiment, each, where), devices_of(where), ("learner",))
        verdicts.append(judge(learner, where))
    return SeveralSlices(experiment.name, report(verdicts, each))
