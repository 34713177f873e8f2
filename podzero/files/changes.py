"""Differences between two experiments, which of them a resumed run may have, and the record of such changes."""

from __future__ import annotations

import json
import time
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, NamedTuple

from podzero.config import Experiment, flatten
from podzero.config.training import OptimizerConfig

NEUTRAL: dict[str, Any] = {
    **dict.fromkeys(("stop", "evaluation", "checkpoint", "metrics", "cluster", "int8", "server"), True),
    "actors": {"count", "min_count", "cpus", "inference", "resources", "moves_per_dispatch"},
    "search": {"tree"},
    "network": {"remat"},
    "learner": {"mesh", "microbatches", "calibrate", "cpu_convolutions"},
    "replay": {"cpus", "memory_gib", "timeout_s"},
}
"""The settings that do not change what is learned, in the form of pydantic's `exclude`."""

CHANGEABLE: dict[str, Any] = NEUTRAL | {
    "learner": {
        **dict.fromkeys(NEUTRAL["learner"], True),
        "optimizer": {name for name in OptimizerConfig.model_fields if name != "name"},
    },
}
"""The settings that may change when a run is resumed: the neutral ones, and those of the optimizer except its name,
because the checkpoint holds the state of that optimizer."""


class Change(NamedTuple):
    """A setting that differs."""

    setting: str
    """The setting's dotted name."""
    old: Any
    new: Any

    def __str__(self) -> str:
        return f"{self.setting}: holds {self.old}, given {self.new}"


class RecordedChange(NamedTuple):
    """A change of a setting when a run was resumed."""

    t: float
    """Unix time, in seconds."""
    step: int
    """The learner step from which the run was resumed."""
    change: Change


def differences(held: Experiment, given: Experiment, exclude: Any = None, absent: Any = None) -> list[Change]:
    """The settings that differ between a working directory's experiment and a given one, sorted by name.

    Args:
      held: the experiment of the working directory.
      given: the other one.
      exclude: settings to leave out, in the form of pydantic's `exclude`.
      absent: the value of a setting that an experiment lacks, such as a field of another network.
    """
    changes = [Change(key, *values) for key, values in side_by_side((held, given), exclude, absent).items()]
    # Runs from before the digest of a file was recorded hold None.
    return [change for change in changes if not (change.setting.endswith(".sha256") and change.old is None)]


def side_by_side(experiments: Sequence[Experiment], exclude: Any = None, absent: Any = None) -> dict[str, list[Any]]:
    """The settings in which experiments differ, sorted by name, with the value of each experiment.

    Args:
      experiments: at least one.
      exclude: as in `differences`.
      absent: as in `differences`.
    """
    trees = [flatten(experiment.model_dump(mode="json", exclude=exclude)) for experiment in experiments]
    rows = {key: [tree.get(key, absent) for tree in trees] for key in sorted({key for tree in trees for key in tree})}
    return {key: values for key, values in rows.items() if any(value != values[0] for value in values)}


def record_lines(changes: Iterable[Change], step: int) -> str:
    """The lines of `changes.jsonl` for settings changed now, at a learner step."""
    now = round(time.time(), 3)
    return "".join(json.dumps({"t": now, "step": step, **change._asdict()}) + "\n" for change in changes)


def recorded_changes(text: str) -> Iterator[RecordedChange]:
    """The changes in the text of a `changes.jsonl`; skips damaged lines."""
    for line in text.splitlines():
        try:
            tree = json.loads(line)
            yield RecordedChange(tree["t"], tree["step"], Change(tree["setting"], tree["old"], tree["new"]))
        # Only the report reads this record: a line that was edited or damaged must not end anything.
        except (ValueError, KeyError, TypeError):
            continue
