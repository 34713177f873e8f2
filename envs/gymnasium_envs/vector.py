"""B gymnasium environments that step together; the failure of one does not end the episodes of the others."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np

from podzero.config import GymnasiumConfig
from podzero.envs.faults import EnvironmentFailed, faults_of
from podzero.envs.gymnasium_envs.guard import ERROR, FAULTS
from podzero.envs.gymnasium_envs.spaces import Array
from podzero.envs.gymnasium_envs.timed import TimedBatch
from podzero.errors import ConfigError
from podzero.types import EnvSpec


class Step(NamedTuple):
    """The results of one action in each of B environments; the caller may keep and change the arrays.

    When an episode ends, its final observation is returned. The next step ignores the action and returns the first
    observation of a new episode, with reward zero: gymnasium's autoreset mode `NEXT_STEP`.
    """

    observation: Array
    """`[B, *observation_shape]` in the environment's dtype."""
    reward: Array
    """`[B]` float32."""
    terminated: Array
    """`[B]` bool, whether the episode reached a terminal state with this observation."""
    truncated: Array
    """`[B]` bool, whether the episode was cut off here, for example by a time limit. Never true with `terminated`."""
    started: Array
    """`[B]` bool, whether this observation is the first of a new episode; the action was ignored."""
    failed: Array
    """`[B]` bool, whether the running episode was lost and must be discarded; `started` is then true as well."""


class VectorEnv:
    """B environments of one config.

    If one environment raises an exception, or returns an observation outside its space or a reward that is not finite,
    its episode is lost and it is recreated; the other environments continue. If an environment hangs or its process
    dies, or if the environments are one object (`vectorization: own`), all running episodes are lost and all
    environments are recreated.

    Each environment's `Guard` checks shape, dtype and the range of integers. Floats are checked after each step, for
    all environments at once; `Observations.valid` says which values are accepted.
    """

    def __init__(self, config: GymnasiumConfig, count: int, seed: int) -> None:
        """Makes the environments, after checking the first observation of one.

        Args:
          config: the environment, and how it is vectorized.
          count: B.
          seed: non-negative; determines all episodes, if the environments are deterministic given their seeds.

        Raises:
          ConfigError: the environment cannot be made, its spaces are not supported, or its first observation is not in
            its observation space.
        """
        self._config = config
        self._count = count
        self._ended = np.ones(count, bool)
        self._closed = False
        self._faults = faults_of(config)
        self._batch = TimedBatch(config, count, seed)
        try:
            self._batch.probe()
            self._batch.build()
        except Exception as error:
            self.close()
            if isinstance(error, ConfigError):
                raise
            raise ConfigError(f"{config.title} cannot be made: {_described(error)}") from error
        self.spec: EnvSpec = self._batch.interface.spec
        """Shapes and dtypes."""

    @property
    def count(self) -> int:
        """B."""
        return self._count

    @property
    def failures(self) -> int:
        """Number of episodes lost so far, including those whose reset failed."""
        return self._faults.total

    @property
    def last_failure(self) -> str | None:
        """Message of the last failure."""
        return self._faults.last

    def reset(self) -> Step:
        """Starts a new episode in each environment and drops the running ones.

        Raises:
          EnvironmentFailed: the environments failed too often in a row.
        """
        self._refuse_if_closed()
        self._ended = np.ones(self._count, bool)
        try:
            observation = self._first()
        except EnvironmentFailed:
            raise
        except Exception as error:
            observation = self._replace_all(error)
        return self._all_started(observation, failed=np.zeros(self._count, bool))

    def step(self, actions: Any) -> Step:
        """Takes one action in each environment.

        Args:
          actions: `[B]` int32, or `[B, D]` float32 in [-1, 1], which are scaled to the range between the bounds; values
            outside [-1, 1] are clipped.

        Raises:
          EnvironmentFailed: the environments failed too often in a row.
          ValueError: there is not one action for each environment.
        """
        self._refuse_if_closed()
        decoded = self._batch.interface.actions.decode(actions)
        if len(decoded) != self._count:
            raise ValueError(f"{len(decoded)} actions for {self._count} environments")
        started = self._ended
        try:
            observation, reward, terminated, truncated, info = self._batch.step(decoded)
            reward = np.array(reward, np.float32)
            observation, failed = self._checked(observation, reward, info)
        except EnvironmentFailed:
            raise
        except Exception as error:
            return self._all_started(self._replace_all(error), failed=~started)
        reward[failed] = 0.0
        terminated = np.asarray(terminated, bool) & ~failed
        truncated = np.asarray(truncated, bool) & ~terminated & ~failed
        self._ended = terminated | truncated
        if self._faults.in_a_row and self._ended.any():
            self._faults.completed()
        return Step(observation, reward, terminated, truncated, started | failed, failed & ~started)

    def peek(self, actions: Any) -> Array:
        """The rewards `[B, C]` float32 that each of C actions would get next, found by stepping copies.

        They are zero where an episode has just ended. A copy has the same state of its random generator as the
        original. A copy that fails counts as minus infinity.

        Args:
          actions: `[B, C]` int32 or `[B, C, D]` float32, as for `step`.

        Raises:
          ConfigError: the environments cannot be copied: `vectorization` is not `sync`, or copying raises an exception
            or makes a new environment.
          EnvironmentFailed: the time limit of C steps was exceeded.
        """
        self._refuse_if_closed()
        if self._config.vectorization != "sync":
            raise ConfigError(f"env.vectorization: looking one step ahead in {self.spec.name} needs 'sync'")
        try:
            return self._batch.peek(np.asarray(actions), self._ended)
        except TimeoutError as error:
            self._batch.discard(error)
            raise EnvironmentFailed(f"{self.spec.name}: looking one step ahead: {error}") from None

    def render(self) -> list[Array]:
        """What the environments look like now: B frames `[H, W, 3]` uint8. See `rendering_of` for the config.

        Raises:
          ConfigError: the environments do not render.
          EnvironmentFailed: the time limit of a step was exceeded.
        """
        self._refuse_if_closed()
        try:
            return self._batch.render()
        except TimeoutError as error:
            self._batch.discard(error)
            raise EnvironmentFailed(f"{self.spec.name}: rendering: {error}") from None

    def close(self) -> None:
        """Ends the environments and their processes; may be called twice."""
        self._batch.close()
        self._closed = True

    def _checked(self, observation: Array, reward: Array, info: Mapping[str, Any]) -> tuple[Array, Array]:
        """Recreates environments with invalid results.

        Returns:
          observation: `[B, *observation_shape]`, all valid.
          failed: `[B]` bool, the environments that failed in this step.
        """
        failed = self._reported(info)
        invalid = ~(self._batch.interface.observations.valid(observation) & np.isfinite(reward))
        failed |= invalid
        while invalid.any():
            i = int(np.argmax(invalid))
            wrong = self._batch.interface.observations.invalid_value(observation[i])
            what = f"its observation contains {wrong}" if wrong else f"its reward is {reward[i]}"
            if self._config.vectorization == "own":
                raise RuntimeError(what)
            self._faults.add(what, episodes=int(invalid.sum()))
            observation, info = self._batch.rebuild(invalid)
            self._reported(info)
            invalid = ~self._batch.interface.observations.valid(observation)
        return observation, failed

    def _reported(self, info: Mapping[str, Any]) -> Array:
        """Counts the failures that guards report in `info`; returns which environments (`[B]` bool) failed."""
        if FAULTS not in info:
            return np.zeros(self._count, bool)
        faults: Array = np.asarray(info[FAULTS])
        self._faults.add(next(filter(None, info[ERROR])), episodes=int(faults.sum()), rounds=int(faults.max()))
        failed: Array = faults > 0
        return failed

    def _replace_all(self, error: Exception) -> Array:
        """Replaces all environments after `error`; returns the first observations of the new ones."""
        lost = int((~self._ended).sum())
        while True:
            self._batch.discard(error)
            self._faults.add(_described(error), episodes=lost)
            try:
                self._batch.build()
                return self._first()
            except EnvironmentFailed:
                raise
            except Exception as again:
                error, lost = again, 1

    def _all_started(self, observation: Array, failed: Array) -> Step:
        self._ended = np.zeros(self._count, bool)
        reward = np.zeros(self._count, np.float32)
        ended = np.zeros((2, self._count), bool)
        return Step(observation, reward, ended[0], ended[1], np.ones(self._count, bool), failed)

    def _first(self) -> Array:
        """Starts an episode in each environment; returns the first observations."""
        observation, info = self._batch.reset()
        return self._checked(observation, np.zeros(self._count, np.float32), info)[0]

    def _refuse_if_closed(self) -> None:
        if self._closed:
            raise RuntimeError(f"the environments of {self.spec.name} are closed")


def _described(error: Exception) -> str:
    return f"{type(error).__name__}: {error}"
