"""Decides which failures of the learner, and of attempts to start, are tried again, how soon, and how often."""

from __future__ import annotations

import logging
import re
import threading
from collections.abc import Callable
from typing import NamedTuple

from podzero.config import RestartsConfig
from podzero.errors import ClusterError, ConfigError
from podzero.runtime.cluster.remote import NodeLost, WorkerDied
from podzero.runtime.failure_budget import FailureBudget
from podzero.runtime.learner_group import LearnerFailed, RunFailed
from podzero.runtime.nodes import NodesAbsent
from podzero.workdir import WorkdirError

log = logging.getLogger(__name__)

FIRST_PAUSE_S = 10.0
"""Pause after the first failed attempt to start; it doubles with each further one."""
LONGEST_PAUSE_S = 160.0
MAX_FAILURES = 8
"""Attempts to start again that may fail for reasons other than lost or missing nodes, for which a run waits however
long."""
MAX_FIRST_FAILURES = 2
"""Attempts that may fail before the workers of a run have started for the first time."""


class RestartPolicy:
    """What to do after each failed attempt to start the workers again."""

    def __init__(self) -> None:
        self._pause_s = FIRST_PAUSE_S
        self._failures = 0

    def pause_s(self, error: Exception) -> float:
        """Seconds until the next attempt after one that failed with `error`.

        Raises:
          RunFailed: too many attempts failed, and not because nodes were lost or had not joined.
          Exception: `error` itself if every attempt would fail with it.
        """
        if isinstance(error, RunFailed) or _is_user_error(error):
            raise error
        if not isinstance(error, (NodesAbsent, NodeLost)):
            self._failures += 1
        if self._failures > MAX_FAILURES:
            raise RunFailed(f"{self._failures} attempts to start again failed; last error: {error}") from error
        pause_s, self._pause_s = self._pause_s, min(2 * self._pause_s, LONGEST_PAUSE_S)
        return pause_s


def first_start[Started](start: Callable[[], Started], stopping: threading.Event) -> Started:
    """Starts the workers of a run for the first time; tries again after an error that may pass by itself.

    Args:
      start: starts the workers; leaves none running when it fails.
      stopping: set when the run shall end.

    Returns:
      what `start` returned.

    Raises:
      Exception: the error of `start` if it does not pass: another kind of error, the same one again, or one too many.
    """
    errors: list[str] = []
    while True:
        try:
            return start()
        except Exception as error:
            known, errors = errors, [*errors, _signature(error)]
            if not _may_pass(error) or errors[-1] in known or len(errors) > MAX_FIRST_FAILURES or stopping.is_set():
                raise
            pause_s = FIRST_PAUSE_S * 2 ** len(known)
            log.warning("the workers could not start; next attempt in %g s", pause_s, exc_info=error)
            stopping.wait(pause_s)


class _Failure(NamedTuple):
    """A failure of the learner."""

    time_s: float
    began_at: int
    """The step of the checkpoint from which it had started."""
    step: int
    signature: str


class LearnerFailures:
    """The failures of a run's learner. Pure: the clock is an argument.

    Args:
      config: the section `restarts`.
    """

    def __init__(self, config: RestartsConfig) -> None:
        self._config = config
        self._pauses = FailureBudget(config)
        self._counted: list[_Failure] = []

    def pause_s(self, failure: LearnerFailed, began_at: int, step: int, now: float) -> float:
        """Seconds until all workers start again from the newest checkpoint after a failure of the learner.

        Args:
          failure: of the learner; its cause is what a host raised.
          began_at: the step from which the learner had started.
          step: the last one that it reported.
          now: present time in seconds.

        Raises:
          RunFailed: it would fail again: the experiment is at fault, or it has failed at this step with this error
            before; or it has failed too often.
        """
        cause = failure.__cause__
        if isinstance(cause, Exception) and _ends_training(cause):
            raise RunFailed(str(failure)) from cause
        window_s = 60 * self._config.window_minutes
        # Without a newer checkpoint in between, nothing is gained, however long each attempt lasts.
        self._counted = [old for old in self._counted if old.began_at == began_at or now - old.time_s < window_s]
        if not any(old.began_at == began_at for old in self._counted):
            self._pauses.note_work("learner")
        new = _Failure(now, began_at, step, _signature(failure))
        again = any((old.step, old.signature) == (step, new.signature) for old in self._counted)
        self._counted.append(new)
        if again:
            raise RunFailed(f"the learner failed twice at step {step:,} with the same error: {failure}") from cause
        if len(self._counted) > self._config.learner_failures:
            raise RunFailed(
                f"the learner failed {len(self._counted)} times within {self._config.window_minutes:g} minutes "
                f"(restarts.window_minutes) or without a new checkpoint, at most {self._config.learner_failures} are "
                f"allowed (restarts.learner_failures); last error: {failure}"
            ) from cause
        return self._pauses.note_failure("learner", None, now).pause_s


def _signature(error: Exception) -> str:
    """What tells an error from others: not the numbers in it, which may be ids, addresses or times."""
    return re.sub(r"\b[0-9a-f]*\d[0-9a-f]*\b", "#", f"{type(error).__name__}: {error}")


def _may_pass(error: Exception) -> bool:
    """Whether an attempt to start failed by something that may have passed at the next one."""
    from podzero.learner import HostLost
    from podzero.replay import PortTaken

    return isinstance(error, (WorkerDied, ClusterError, HostLost, PortTaken)) and not isinstance(error, NodesAbsent)


def _ends_training(error: Exception) -> bool:
    """Whether a learner would fail with the error again."""
    from podzero.learner import TrainingDiverged
    from podzero.replay import ReplayTimeout

    return _is_user_error(error) or isinstance(error, (TrainingDiverged, ReplayTimeout))


def _is_user_error(error: Exception) -> bool:
    """Whether only the user can mend the error."""
    from podzero.learner import CheckpointMismatch

    return isinstance(error, (ConfigError, WorkdirError, CheckpointMismatch))
