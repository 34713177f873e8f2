"""Counting what environments do wrong, and giving up when they do nothing else."""

from __future__ import annotations

import logging
import time

from podzero.config import EnvConfig, GameConfig
from podzero.errors import PodzeroError

log = logging.getLogger(__name__)

_LOG_EVERY_S = 1.0


class EnvironmentFailed(PodzeroError, RuntimeError):
    """An environment that fails again and again; the message says how often, and the last error."""


class Faults:
    """How often the environments of one vector, or the games of one actor, failed."""

    def __init__(self, name: str, most_in_a_row: int) -> None:
        self._name = name
        self._most = most_in_a_row
        self._logged_at = -_LOG_EVERY_S
        self.total = 0
        """Episodes lost, and ones that could not even begin."""
        self.in_a_row = 0
        """Rounds of faults since an episode was complete; what fails at the same time is one round."""
        self.last: str | None = None
        """What the last one was."""

    def add(self, what: str, *, episodes: int = 1, rounds: int = 1) -> None:
        """Counts the `episodes` that were lost, in `rounds` one after the other; logged once a second at most.

        Raises:
          EnvironmentFailed: there were more rounds in a row than allowed.
        """
        self.last = what
        self.in_a_row += rounds
        self.total += episodes
        if self.in_a_row > self._most:
            raise EnvironmentFailed(
                f"{self._name} failed {self.in_a_row} times, and no episode between was complete; "
                f"env.max_failures allows {self._most}. The last failure: {what}"
            )
        if time.monotonic() >= self._logged_at + _LOG_EVERY_S:
            self._logged_at = time.monotonic()
            log.warning("%s failed (%d episodes lost so far): %s", self._name, self.total, what)

    def completed(self) -> None:
        """An episode was complete."""
        self.in_a_row = 0


def faults_of(env: EnvConfig) -> Faults:
    """The count of one process that plays `env`; a game in JAX may never fail."""
    return Faults(env.title, 0 if isinstance(env, GameConfig) else env.max_failures)
