"""The section `data`: recorded games and episodes that the learner trains on."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

from pydantic import Field

from podzero.config.section import Section

if TYPE_CHECKING:
    from podzero.config.experiment import Experiment


class DataConfig(Section):
    """Recorded games or episodes that the learner trains on, beside self-play or instead of it."""

    records: str | None = None
    """A folder that `podzero import` has written, by default none. A relative path begins at the folder of the
    experiment, or else at the current one."""
    share: Annotated[float, Field(gt=0.0, le=1.0)] = 1.0
    """Fraction of recorded samples in every batch. Each learner host rounds it to whole samples, at least one recorded
    and one other. At 1 there is no self-play: the run has neither actors nor replay."""
    smoothing: Annotated[float, Field(ge=0.0, lt=1.0)] = 0.0
    """Weight of the uniform distribution over all legal actions in the policy targets of recorded samples; the rest is
    that of the action that was taken."""


def check_data(experiment: Experiment) -> None:
    """Checks that the experiment can train on recorded games. The batch must be divisible among the learner hosts.

    Raises:
      ValueError: it cannot; the message names what to change.
    """
    data, reanalyse, hosts = experiment.data, experiment.reanalyse, experiment.cluster.learner_hosts
    if data.records is None:
        if data != DataConfig():
            raise ValueError("section data is only for recorded games; set data.records to their folder")
        return
    if not experiment.has_self_play:
        if experiment.stop.games is not None:
            raise ValueError("stop.games: no games are played at data.share 1; set stop.steps or stop.minutes")
        if reanalyse.share:
            raise ValueError("reanalyse.share: no states are stored at data.share 1; set reanalyse.share=0")
        return
    if experiment.replay.sampler == "prioritized":
        raise ValueError("replay.sampler: recorded samples have no priorities; set replay.sampler=uniform")
    if data.share + reanalyse.share >= 1:
        raise ValueError(
            f"data.share {data.share:g} and reanalyse.share {reanalyse.share:g} leave no room for fresh samples; "
            "their sum must be below 1"
        )
    least = hosts * (3 if reanalyse.share else 2)
    if experiment.learner.batch_size < least:
        raise ValueError(
            f"learner.batch_size {experiment.learner.batch_size} is too small for data.share {data.share:g}: each of "
            f"{hosts} hosts needs a sample of every kind in every batch; set learner.batch_size={least} or more"
        )
