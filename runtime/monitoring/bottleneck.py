"""Names the stage that limits a run, from the shares of time of its workers."""

from __future__ import annotations

from collections.abc import Collection, Mapping

from podzero.runtime.monitoring.status import Phase

WAIT_SHARE = 0.15
"""Share of wall time from which a wait is a bottleneck."""
SERVERS_BUSY = 0.8
"""Share of time with a batch on the devices of inference servers from which these limit the actors."""


def bottleneck(
    phase: Phase,
    shares: Mapping[str, Mapping[str, float]],
    replay_size: float,
    min_size: int,
    server_busy: float | None = None,
) -> str:
    """Says who waits for whom; empty while that is unknown.

    Args:
      phase: of the run.
      shares: share of wall time by kind of worker and stage.
      replay_size: samples in replay.
      min_size: samples in replay from which the learner trains.
      server_busy: share of time in which the devices of inference servers had a batch; None without servers.
    """
    if phase == "collecting":
        if replay_size < min_size:
            return f"the learner waits for the first {min_size:,} samples ({replay_size / min_size:.0%} there)"
        return "the learner prepares its first step (compiling)"
    if phase != "training":
        return ""
    writers = {"actors": shares.get("actor", {})}
    if "reanalyser" in shares:
        writers["reanalysers"] = shares["reanalyser"]
    return _training_bottleneck(writers, shares.get("learner", {}), server_busy or 0.0)


def _training_bottleneck(
    writers: Mapping[str, Mapping[str, float]], learner: Mapping[str, float], server_busy: float
) -> str:
    """The bottleneck while the learner trains: replay makes one side wait, or the learner is busy between steps.

    The learner needs samples of actors and reanalysers. The kind that replay blocks less is the slower one.
    """
    kind, writer = min(writers.items(), key=lambda item: item[1].get("write", 0.0))
    starved, blocked = learner.get("wait_replay", 0.0), writer.get("write", 0.0)
    if starved >= max(WAIT_SHARE, blocked):
        stage, share = _largest(writer, without=("write",))
        why = f"; they spend {share:.0%} of their time on {stage}" if stage else ""
        limited = kind == "actors" and server_busy >= SERVERS_BUSY
        servers = f"; the inference servers' devices are busy {server_busy:.0%} of the time" if limited else ""
        return f"the learner waits for the {kind} ({starved:.0%} of its time{why}){servers}"
    if blocked >= WAIT_SHARE:
        return f"the {kind} wait for the learner ({blocked:.0%} of their time)"
    stage, share = _largest(learner, without=("step", "wait_replay"))
    if share >= WAIT_SHARE:
        return f"the learner spends {share:.0%} of its time on {stage.replace('_', ' ')}"
    return "none: actors and learner keep each other busy" if writer and learner else ""


def _largest(stages: Mapping[str, float], without: Collection[str]) -> tuple[str, float]:
    """The stage with the largest share, and its share; `""` and 0 if there is none."""
    candidates = [(share, stage) for stage, share in stages.items() if stage not in without]
    share, stage = max(candidates, default=(0.0, ""))
    return stage, share
