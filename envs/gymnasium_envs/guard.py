"""What stands around each single environment: it turns all that may go wrong in it into the end of one episode."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from typing import Any

import gymnasium
import numpy as np

from podzero.deadline import Abandoned
from podzero.envs.gymnasium_envs.spaces import Actions, Observations

FAULTS = "podzero_faults"
"""Key of `info`: how often the environment failed in this step, int. Absent where it did not."""
ERROR = "podzero_error"
"""Key of `info`: what the last of these failures was."""
REBUILD = "podzero_rebuild"
"""Key of the `options` of `reset`: whether to make the environment anew first."""

_Info = dict[str, Any]
_NOT_A_FAULT = (KeyboardInterrupt, GeneratorExit, Abandoned)
"""What may be raised within an environment without being its doing. All else is, even `sys.exit()`."""


class Guard(gymnasium.Env[Any, Any]):
    """One environment, made by a factory, and made again whenever it raises.

    What it gives has the shape and dtype of `Observations`, and no `info` but `FAULTS` and `ERROR`. A step that
    failed returns the first observation of a new episode, with reward zero.
    """

    def __init__(
        self,
        make: Callable[[], gymnasium.Env[Any, Any]],
        observations: Observations,
        actions: Actions,
        patience: int,
    ) -> None:
        """Makes the environment; `patience` is how often it is made anew within one step before this gives up.

        Should making it fail, which may happen in another process only, the first `reset` says so.
        """
        self._make = make
        self._observations = observations
        self._patience = patience
        self._seed: int | None = None
        self._rebuilt = 0
        self.inner: gymnasium.Env[Any, Any] | None = None
        """The environment as it is now."""
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
        """A new episode; of a new environment if `options` say `REBUILD`."""
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
        """One step, or the first observation of a new episode if it failed."""
        assert self.inner is not None, "reset comes first"
        try:
            observation, reward, terminated, truncated, _ = self.inner.step(action)
            return self._observations.convert(observation), float(reward), bool(terminated), bool(truncated), {}
        except _NOT_A_FAULT:
            raise
        except BaseException as error:
            first, info = self._rebuild(error)
            return first, 0.0, False, False, info

    def close(self) -> None:
        """Closes the environment, whatever state it is in."""
        if self.inner is not None:
            with contextlib.suppress(Exception):
                self.inner.close()

    def _rebuild(self, error: BaseException | None) -> tuple[Any, _Info]:
        """The first observation of a new environment, and how often something failed until there was one.

        Zeros where there is none after all the patience: the count of failures then tells the caller.
        """
        faults = 0 if error is None else 1
        while faults < self._patience:
            self.close()
            try:
                self.inner = self._make()
                observation, _ = self.inner.reset(seed=self._next_seed())
                first = self._observations.convert(observation)
                return first, _told(faults, error)
            except _NOT_A_FAULT:
                raise
            except BaseException as again:
                faults, error = faults + 1, again
        return np.zeros(self._observations.shape, self._observations.dtype), _told(faults, error)

    def _next_seed(self) -> int | None:
        """As random as the first one and determined by it, so that a run can be repeated, faults and all."""
        self._rebuilt += 1
        if self._seed is None:
            return None
        return int(np.random.SeedSequence((self._seed, self._rebuilt)).generate_state(1)[0] >> 1)


def _told(faults: int, error: BaseException | None) -> _Info:
    return {FAULTS: faults, ERROR: f"{type(error).__name__}: {error}"} if faults else {}
