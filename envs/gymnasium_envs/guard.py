"""Wraps one environment: any failure in it ends only its current episode."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from typing import Any

import gymnasium
import numpy as np

from podzero.deadline import Abandoned
from podzero.envs.gymnasium_envs.spaces import Actions, Observations

FAULTS = "podzero_faults"
"""Key of `info`: how often the environment failed in this step, int. Absent if it did not fail."""
ERROR = "podzero_error"
"""Key of `info`: message of the last of these failures."""
REBUILD = "podzero_rebuild"
"""Key of the `options` of `reset`: whether to recreate the environment before the reset."""

_Info = dict[str, Any]
_NOT_A_FAULT = (KeyboardInterrupt, GeneratorExit, Abandoned)
"""Raised into an environment from outside. Every other exception is a fault of the environment, even `SystemExit`."""


class Guard(gymnasium.Env[Any, Any]):
    """One environment, which is recreated whenever it raises an exception.

    Observations have the shape and dtype of `Observations`; `info` contains only `FAULTS` and `ERROR`. A step that
    fails returns the first observation of a new episode, with reward zero.
    """

    def __init__(
        self,
        make: Callable[[], gymnasium.Env[Any, Any]],
        observations: Observations,
        actions: Actions,
        max_faults: int,
    ) -> None:
        """Makes the environment; if that raises an exception, the first `reset` reports it.

        Args:
          make: makes the environment.
          observations: converts its observations.
          actions: give its action space.
          max_faults: after so many failures in one step or reset, the environment is not recreated again.
        """
        self._make = make
        self._observations = observations
        self._max_faults = max_faults
        self._seed: int | None = None
        self._rebuilt = 0
        self.inner: gymnasium.Env[Any, Any] | None = None
        """The current environment; None if it could not be made."""
        self._error: BaseException | None = None
        self.observation_space = observations.box
        self.action_space = actions.source
        try:
            self.inner = make()
            self.metadata = self.inner.metadata
        except _NOT_A_FAULT:
            raise
        except BaseException as error:
            self._error = error

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, _Info]:
        """Starts a new episode, in a new environment if `options` has `REBUILD`."""
        if seed is not None:
            self._seed, self._rebuilt = seed, 0
        if self.inner is None or (options and options.get(REBUILD)):
            error, self._error = self._error, None
            return self._rebuild(error)
        try:
            observation, _ = self.inner.reset(seed=seed)
            return self._observations.convert(observation), {}
        except _NOT_A_FAULT:
            raise
        except BaseException as error:
            return self._rebuild(error)

    def step(self, action: Any) -> tuple[Any, float, bool, bool, _Info]:
        """Steps the environment; if that fails, returns the first observation of a new episode."""
        assert self.inner is not None, "reset must be called first"
        try:
            observation, reward, terminated, truncated, _ = self.inner.step(action)
            return self._observations.convert(observation), float(reward), bool(terminated), bool(truncated), {}
        except _NOT_A_FAULT:
            raise
        except BaseException as error:
            first, info = self._rebuild(error)
            return first, 0.0, False, False, info

    def close(self) -> None:
        """Closes the environment and ignores its exceptions."""
        if self.inner is not None:
            with contextlib.suppress(Exception):
                self.inner.close()

    def _rebuild(self, error: BaseException | None) -> tuple[Any, _Info]:
        """Recreates the environment until its reset succeeds.

        Returns the first observation, and the failures so far in `info`. After `max_faults` failures the observation is
        zeros, which the caller recognizes by the number of failures.
        """
        faults = 0 if error is None else 1
        while faults < self._max_faults:
            self.close()
            try:
                self.inner = self._make()
                observation, _ = self.inner.reset(seed=self._next_seed())
                return self._observations.convert(observation), _failure_info(faults, error)
            except _NOT_A_FAULT:
                raise
            except BaseException as again:
                faults, error = faults + 1, again
        return np.zeros(self._observations.shape, self._observations.dtype), _failure_info(faults, error)

    def _next_seed(self) -> int | None:
        """A seed derived from the first one, so that runs with faults are reproducible."""
        self._rebuilt += 1
        if self._seed is None:
            return None
        return int(np.random.SeedSequence((self._seed, self._rebuilt)).generate_state(1)[0] >> 1)


def _failure_info(faults: int, error: BaseException | None) -> _Info:
    return {FAULTS: faults, ERROR: f"{type(error).__name__}: {error}"} if faults else {}
