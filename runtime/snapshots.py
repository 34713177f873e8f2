"""Which snapshots of a run are kept, so that a long run does not fill the disk."""

from __future__ import annotations

import math
import shutil
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any

from podzero.workdir import keep_as, step_folder, step_folders

PER_DOUBLING = 4
"""Rated snapshots that are kept for each doubling of the step."""


def delete_old_snapshots(folder: Path, newest: int, ladder: Mapping[str, Any]) -> None:
    """Deletes the snapshots that `kept_snapshots` leaves out.

    Args:
      folder: `Workdir.snapshots`.
      newest: how many of the newest are kept.
      ladder: the rating ladder of the run.
    """
    steps = step_folders(folder)
    for step in set(steps) - kept_snapshots(steps, newest, rated_steps(ladder)):
        shutil.rmtree(step_folder(folder, step), ignore_errors=True)


def set_aside_later(folder: Path, step: int) -> None:
    """Renames the snapshots of steps after `step`, which a resumption makes again, to `lost-STEP`.

    Otherwise the evaluator would take them for the newest, and the next ones for old. Nothing deletes them.
    """
    for later in step_folders(folder):
        if later > step:
            keep_as(step_folder(folder, later), "lost")


def kept_snapshots(steps: Collection[int], newest: int, rated: Collection[int]) -> set[int]:
    """The steps whose snapshots are kept.

    These are the newest ones, and the rated ones that the evaluator may choose as opponents: the last one, and for
    every doubling of the step the first in each of `PER_DOUBLING` equal intervals of its logarithm. The evaluator
    chooses the one nearest to half of the present step.

    Args:
      steps: all snapshots.
      newest: how many of the newest are kept.
      rated: steps with a rating.
    """
    candidates = sorted(set(rated) & set(steps))
    first = {int(PER_DOUBLING * math.log2(max(step, 1))): step for step in reversed(candidates)}
    return {*sorted(steps)[-newest:], *candidates[-1:], *first.values()}


def rated_steps(ladder: Mapping[str, Any]) -> set[int]:
    """The steps of the snapshots in a rating ladder, where they are called `@STEP`."""
    names = {row[player] for row in ladder.get("results", ()) for player in ("first", "second")}
    return {int(name[1:]) for name in names if name.startswith("@") and name[1:].isdigit()}
