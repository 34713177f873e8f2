"""What to do after a run has failed."""

from __future__ import annotations

import shlex

from podzero.config import Experiment
from podzero.errors import PodzeroError
from podzero.runtime.checkpoints import checkpoints
from podzero.runtime.learner_group import RunFailed
from podzero.workdir import Workdir, unused

SMALLER = 3.0
"""By how much the learning rate is divided in the advice after a divergence."""


class LastCheckpointFailed(PodzeroError, RuntimeError):
    """A run has ended, and its last checkpoint could not be written: the steps since the newest one are lost."""

    exit_code = 3


def last_checkpoint_failed(reason: str, failure: Exception, workdir: Workdir) -> LastCheckpointFailed:
    """The error of a run that has ended for `reason`, and whose last checkpoint met `failure`, with what to do."""
    return LastCheckpointFailed(
        f"the run has ended ({reason}), but its last checkpoint could not be written: {failure}. What came after the "
        f"newest one is lost.\n{_again(workdir)}\nOn a cluster, add the --address of this run. Log: {workdir.log_file}"
    )


def with_advice(failure: RunFailed, experiment: Experiment, workdir: Workdir) -> RunFailed:
    """The failure of a run with the command that goes on from it.

    Args:
      failure: what ended the run.
      experiment: of the run.
      workdir: of the run.
    """
    from podzero.learner import TrainingDiverged  # slow, and needed after a failure only

    cause: BaseException | None = failure
    while cause is not None and not isinstance(cause, TrainingDiverged):
        cause = cause.__cause__
    advice = _again(workdir) if cause is None else _smaller_rate(cause.step, experiment, workdir)
    return RunFailed(f"{failure}\n{advice}\nOn a cluster, add the --address of this run. Log: {workdir.log_file}")


def _again(workdir: Workdir) -> str:
    newest = next((found.step for found in checkpoints(workdir) if found.fault is None), None)
    start = "from the start, as there is no checkpoint" if newest is None else f"from the checkpoint of step {newest:,}"
    return f"Go on {start}: podzero train {shlex.quote(str(workdir.root))}"


def _smaller_rate(step: int, experiment: Experiment, workdir: Workdir) -> str:
    """The command that goes on from before `step`, the first without finite gradients, with a smaller learning rate."""
    rate = f"learner.optimizer.learning_rate={experiment.learner.optimizer.learning_rate / SMALLER:.2g}"
    good = next((found.step for found in checkpoints(workdir) if found.fault is None and found.step <= step), None)
    if good is not None:
        where = shlex.quote(f"{workdir.root}@{good}")
        return f"Go on from the checkpoint of step {good:,} with a smaller learning rate: podzero train {where} {rate}"
    file, other = (shlex.quote(str(path)) for path in (workdir.experiment_file, unused(workdir.root)))
    return (
        "No checkpoint is from before that. Begin again with a smaller learning rate: podzero train "
        f"{file} {rate} --workdir {other}"
    )
