"""The checks that learner, actors and reanalysers never wait for one another for ever."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from podzero.config.experiment import Experiment


def check_replay(experiment: Experiment) -> None:
    """Checks that replay can hold what learning starts from, and that its tolerance admits every insert and read.

    Raises:
      ValueError: it cannot; the message names settings that would do.
    """
    replay, tolerance, least = experiment.replay, experiment.replay_tolerance, experiment.least_tolerance
    advice = _enough(experiment)
    if replay.min_size > replay.capacity:
        raise ValueError(
            f"replay.min_size {replay.min_size} is larger than replay.capacity {replay.capacity}: "
            f"learning would never start; {advice}"
        )
    if tolerance < least:
        raise ValueError(
            f"replay.tolerance {tolerance:g} would deadlock: with samples_per_insert {replay.samples_per_insert:g}, "
            f"batch {experiment.learner.batch_size}, {replay.shards} shards and {replay.samples_per_item} samples per "
            f"item it must be at least {least:g}; {advice}"
        )
    if tolerance > replay.samples_per_insert * replay.min_size:
        raise ValueError(
            f"replay.min_size {replay.min_size} is too small: samples_per_insert * min_size "
            f"({replay.samples_per_insert * replay.min_size:g}) must be at least the tolerance {tolerance:g}; {advice}"
        )


def check_reanalyse(experiment: Experiment) -> None:
    """Checks that every host gets fresh and reanalysed samples, and that learning can start from the latter.

    The batch must be divisible among the learner hosts.

    Raises:
      ValueError: it is not so; the message names a setting that would do.
    """
    reanalyse, items, hosts = experiment.reanalyse, experiment.replay.samples_per_item, experiment.cluster.learner_hosts
    if not reanalyse.share:
        return
    if experiment.learner.batch_size < 2 * hosts:
        raise ValueError(
            f"learner.batch_size {experiment.learner.batch_size} is too small for reanalyse.share {reanalyse.share:g}: "
            f"each of {hosts} hosts needs a fresh and a reanalysed sample in every batch; "
            f"set learner.batch_size={2 * hosts} or more"
        )
    if reanalyse.games % items:
        raise ValueError(
            f"reanalyse.games {reanalyse.games} must be a multiple of replay.samples_per_item ({items}); "
            f"set reanalyse.games={(reanalyse.games // items + 1) * items}"
        )
    least = experiment.reanalysed_min_size
    if reanalyse.capacity < least:
        raise ValueError(
            f"reanalyse.capacity {reanalyse.capacity} is too small: learning starts from {least} reanalysed samples "
            f"(replay.tolerance / replay.samples_per_insert); set reanalyse.capacity={least} or more"
        )


def _enough(experiment: Experiment) -> str:
    """The smallest settings of replay, not below the present ones, with which nothing waits for ever."""
    replay = experiment.replay
    tolerance = max(experiment.replay_tolerance, math.ceil(experiment.least_tolerance))
    min_size = max(replay.min_size, math.ceil(tolerance / replay.samples_per_insert))
    capacity = max(replay.capacity, min_size)
    wanted = {"min_size": min_size, "capacity": capacity}
    if tolerance > experiment.replay_tolerance:
        wanted["tolerance"] = math.ceil(tolerance)
    raised = [f"replay.{name}={value}" for name, value in wanted.items() if value != getattr(replay, name)]
    return f"set {' '.join(raised)}"
