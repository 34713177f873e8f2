"""Decides which errors of a restart are tried again, how soon, and how often."""

from __future__ import annotations

from podzero.cluster.remote import NodeLost
from podzero.driver.learner_group import RunFailed
from podzero.driver.nodes import NodesAbsent
from podzero.errors import ConfigError
from podzero.workdir import WorkdirError

FIRST_PAUSE_S = 10.0
"""Pause after the first failed attempt; it doubles with each further one."""
LONGEST_PAUSE_S = 160.0
MAX_FAILURES = 8
"""Attempts that may fail for reasons other than lost or missing nodes, for which a run waits however long."""


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
            raise RunFailed(
                f"after a node was lost, {self._failures} attempts to start again failed; last error: {error}"
            ) from error
        pause_s, self._pause_s = self._pause_s, min(2 * self._pause_s, LONGEST_PAUSE_S)
        return pause_s


def _is_user_error(error: Exception) -> bool:
    """Whether only the user can mend the error."""
    from podzero.learner import CheckpointMismatch

    return isinstance(error, (ConfigError, WorkdirError, CheckpointMismatch))
