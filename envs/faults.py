"""Counts the failures of environments and gives up after too many in a row."""

from __future__ import annotations

import logging
import time

from podzero.config import EnvConfig, GameConfig
from podzero.errors import PodzeroError

log = logging.getLogger(__name__)

_LOG_EVERY_S = 1.0


class EnvironmentFailed(PodzeroError, RuntimeError):
    """An environment failed too often in a row; the message gives the number of failures and the last error."""


class Faults:
    """Counts the failures of one vector of environments, or of the games of one actor.

    Args:
      name: the environment's name, for messages.
      most_in_a_row: how many failures in a row are allowed.
    """

    def __init__(self, name: str, most_in_a_row: int) -> None:
        self._name = name
        self._most = most_in_a_row
        self._logged_at = -_LOG_EVERY_S
        self.total = 0
        """Lost episodes, including those whose reset failed."""
        self.in_a_row = 0
        """Failures since the last completed episode; simultaneous failures of several environments count once."""
        self.last: str | None = None
        """Message of the last failure."""

    def add(self, what: str, *, episodes: int = 1, rounds: int = 1) -> None:
        """Counts a failure and logs it, at most once a second.

        Args:
          what: message of the (last) failure.
          episodes: how many episodes were lost.
          rounds: how many failures followed one another.

        Raises:
          EnvironmentFailed: there were more failures in a row than allowed.
        """
        self.last = what
        self.in_a_row += rounds
        self.total += episodes
        if self.in_a_row > self._most:
            raise EnvironmentFailed(
                f"{self._name} failed {self.in_a_row} times without completing an episode in between; "
                f"env.max_failures allows {self._most}. The last failure: {what}"
            )
        if time.monotonic() >= self._logged_at + _LOG_EVERY_S:
            self._logged_at = time.monotonic()
            log.warning("%s failed (%d episodes lost so far): %s", self._name, self.total, what)

    def completed(self) -> None:
        """Records a completed episode: the count in a row starts again at zero."""
        self.in_a_row = 0


def faults_of(env: EnvConfig) -> Faults:
    """The failure counter of one process that plays `env`. Games in JAX are allowed no failure."""
    return Faults(env.title, 0 if isinstance(env, GameConfig) else env.max_failures)
