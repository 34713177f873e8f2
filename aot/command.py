"""What `podzero compile` finds: the programs of one slice, or the learner on several."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from rich.console import Console

from podzero.aot.programs import NAMES, devices_of, programs_of
from podzero.aot.scaling import report, with_batch_per_chip
from podzero.aot.show import show, show_scaling
from podzero.aot.verdict import Verdict, judge
from podzero.chips import Slice, find_slice
from podzero.config import Experiment


@dataclass(frozen=True)
class OneSlice:
    """Verdicts on the programs of an experiment."""

    name: str
    where: Slice
    verdicts: list[Verdict]

    @property
    def fits(self) -> bool:
        """Whether all of them do."""
        return all(verdict.fits for verdict in self.verdicts)

    def to_dict(self) -> dict[str, Any]:
        """For `--json`."""
        where = self.where
        return {
            "config": self.name, "topology": where.topology, "chips": where.chips, "hosts": where.hosts,
            "programs": [verdict.to_dict() for verdict in self.verdicts],
        }  # fmt: skip

    def show(self, console: Console) -> None:
        """For people."""
        show(console, self.where, self.verdicts)


@dataclass(frozen=True)
class SeveralSlices:
    """What becomes of the learner's step from slice to slice at a fixed batch per chip."""

    name: str
    report: dict[str, Any]
    fits: bool = True
    """Where it does not, there is nothing to compare, and no such object."""

    def to_dict(self) -> dict[str, Any]:
        """For `--json`."""
        return {"config": self.name} | self.report

    def show(self, console: Console) -> None:
        """For people."""
        show_scaling(console, self.name, self.report)


def judge_programs(experiment: Experiment, where: str, program: str | None) -> OneSlice:
    """Compiles one program, or all, for the slice called `where`.

    Raises:
      ConfigError: no such slice, no compiler, or the experiment cannot run there.
    """
    found = find_slice(where)
    names = NAMES if program is None else (program,)
    programs = programs_of(experiment, devices_of(found), names)
    return OneSlice(experiment.name, found, [judge(program, found) for program in programs])


def judge_scaling(experiment: Experiment, names: Sequence[str], per_chip: int | None) -> SeveralSlices:
    """Compiles the learner for each of the slices called `names`, the batch growing with the chips.

    Args:
      experiment: whose learner.
      names: of slices; the others are held against the first.
      per_chip: samples of each step on each chip; if None, what the experiment's batch gives on the first slice.

    Raises:
      ConfigError: no such slice, no compiler, or the learner cannot run, or does not fit, on one of them.
    """
    slices = [find_slice(name) for name in names]
    each = per_chip or max(1, experiment.learner.batch_size // slices[0].chips)
    verdicts = []
    for where in slices:
        (learner,) = programs_of(with_batch_per_chip(experiment, each, where), devices_of(where), ("learner",))
        verdicts.append(judge(learner, where))
    return SeveralSlices(experiment.name, report(verdicts, each))
