"""B gymnasium environments that step together, of which a failure ends only its own episode."""

from __future__ import annotations

import contextlib
import math
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, NamedTuple

import numpy as np

from podzero.config import GymnasiumConfig, environments
from podzero.core.errors import ConfigError, described
from podzero.core.types import EnvSpec
from podzero.envs.faults import MAX_FAILURES, DeadlineThread, EnvironmentFailed, Faults
from podzero.envs.gymnasium_envs import batches
from podzero.envs.gymnasium_envs.batches import ERROR, FAULTS, REBUILD
from podzero.envs.gymnasium_envs.interface import MASK, METRIC, Interface
from podzero.envs.gymnasium_envs.making import REMEDY, interface_of, spec_to
from podzero.envs.gymnasium_envs.spaces import HostArray

_CLOSE_TIMEOUT_S = 10.0


class VectorStep(NamedTuple):
    """The results of one action in each of B environments; the caller may keep and change the arrays.

    When an episode ends, its final observation is returned. The next step ignores the action and returns the first
    observation of a new episode, with reward zero: gymnasium's autoreset mode `NEXT_STEP`.
    """

    observation: HostArray
    """`[B, *observation_shape]` in the environment's dtype."""
    reward: HostArray
    """`[B]` float32."""
    terminated: HostArray
    """`[B]` bool, whether the episode reached a terminal state with this observation."""
    truncated: HostArray
    """`[B]` bool, whether the episode was cut off here, for example by a time limit. Never true with `terminated`."""
    started: HostArray
    """`[B]` bool, whether this observation is the first of a new episode; the action was ignored."""
    failed: HostArray
    """`[B]` bool, whether the running episode was lost and must be discarded; `started` is then true as well."""
    legal: HostArray
    """`[B, A]` bool, the legal actions: all, unless the environment has masks; all at the end of an episode."""


_Seen = tuple[HostArray, HostArray]
"""What B environments show: `observation` and `legal` as in `VectorStep`."""


class VectorEnv:
    """B environments of one config.

    If one environment raises an exception, or returns an observation outside its space or a reward that is not finite,
    its episode is lost and it is recreated; the others continue. If one hangs or its process dies, or if they are one
    object (`vectorization: own`), all running episodes are lost and all environments are recreated.

    Each environment's `GuardedEnv` checks shape, dtype and the range of integers. Floats are checked after each step,
    for all environments at once; `Observations.valid` says which values are accepted.
    """

    def __init__(self, config: GymnasiumConfig, count: int, seed: int, max_failures: int = MAX_FAILURES) -> None:
        """Makes B = `count` environments, after checking the first observation of one.

        `seed` (not negative) determines all episodes, if the environments are deterministic given their seeds. After
        more than `max_failures` in a row without a completed episode, `EnvironmentFailed` is raised.

        Raises:
          ConfigError: the environment cannot be made, its spaces are not supported, or its first observation is not in
            its observation space.
        """
        self.count = count
        """B."""
        self._config, self._seed, self._resets = config, seed, 0
        self._ended = np.ones(count, bool)
        self._measured: dict[str, list[float]] = {name: [] for name in config.metrics}
        self._closed = False
        self._faults = Faults(config.title, max_failures)
        self._thread = DeadlineThread(config.title)
        self._batch: batches.GymnasiumVector | None = None
        try:
            probe = partial(interface_of, config, self._next_seeds()[0])
            interface: Interface = self._thread.call(probe, environments.BUILD_TIMEOUT_S)
            self._interface = interface._replace(metrics=config.metrics)
            self._build()
        except Exception as error:
            self.close()
            if isinstance(error, ConfigError):
                raise
            raise ConfigError(f"{config.title} cannot be made: {described(error)}") from error
        self.spec: EnvSpec = spec_to(self._interface)
        """Shapes and dtypes."""

    @property
    def failures(self) -> int:
        """Number of episodes lost so far, including those whose reset failed."""
        return self._faults.total

    def reset(self) -> VectorStep:
        """Starts a new episode in each environment and drops the running ones."""
        self._refuse_if_closed()
        self._ended = np.ones(self.count, bool)
        try:
            seen = self._first()
        except EnvironmentFailed:
            raise
        except Exception as error:
            seen = self._replace_all(error)
        return self._all_started(seen, failed=np.zeros(self.count, bool))

    def step(self, actions: Any) -> VectorStep:
        """Takes one action in each environment.

        Actions are `[B]` int32, or `[B, D]` float32, which are clipped to [-1, 1] and scaled to the bounds.

        Raises:
          EnvironmentFailed: the environments failed too often in a row.
          ValueError: there is not one action for each environment.
        """
        self._refuse_if_closed()
        decoded = self._interface.actions.decode(actions)
        if len(decoded) != self.count:
            raise ValueError(f"{len(decoded)} actions for {self.count} environments")
        # Where an episode has ended, this step ignores the action and starts a new one.
        started = self._ended
        try:
            step = partial(self._running().step, decoded)
            observation, reward, terminated, truncated, info = self._in_time(step)
            reward = np.array(reward, np.float32)
            (shown, legal), failed = self._checked(observation, reward, info)
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
        for name, measured in self._measured.items():
            if METRIC + name in info:
                measured.extend(info[METRIC + name][self._ended].tolist())
        started, failed = started | failed, failed & ~started
        return VectorStep(shown, reward, terminated, truncated, started, failed, legal)

    def measured(self) -> dict[str, float]:
        """The mean of each of `env.metrics` over the episodes that have ended since the last call, as far as known."""
        known = {name: list(filter(math.isfinite, values)) for name, values in self._measured.items()}
        self._measured = {name: [] for name in self._config.metrics}
        return {name: float(np.mean(values)) for name, values in known.items() if values}

    def render(self) -> list[HostArray]:
        """What the environments look like now: B frames `[H, W, 3]` uint8. See `rendering_of` for the config."""
        self._refuse_if_closed()
        look = partial(batches.render, self._running(), self._config.title)
        try:
            return self._in_time(look)
        except TimeoutError as error:
            self._discard(error)
            raise EnvironmentFailed(f"{self.spec.name}: rendering: {error}") from None

    def close(self) -> None:
        """Ends the environments and their processes; may be called twice."""
        self._close_batch()
        self._thread.stop()
        self._closed = True

    def _in_time[Result](self, function: Callable[[], Result]) -> Result:
        """Calls `function` within the time limit of a step; beyond it raises `TimeoutError`."""
        return self._thread.call(function, self._config.step_timeout_s, "env.step_timeout_s")

    def _build(self) -> None:
        make = partial(batches.build, self._config, self.count, self._interface, self._faults.most_in_a_row + 1)
        with batches.no_orphans():
            self._batch = self._thread.call(make, environments.BUILD_TIMEOUT_S)

    def _running(self) -> batches.GymnasiumVector:
        if self._batch is None:
            raise RuntimeError("the environments were discarded after a failure")
        return self._batch

    def _next_seeds(self) -> list[int]:
        """B seeds, which differ between environments, resets and seeds of this object."""
        seeds = batches.seeds_of(self._seed, self._resets, self.count)
        self._resets += 1
        return seeds

    def _discard(self, error: Exception) -> None:
        """Ends the environments after `error`; kills their processes."""
        if self._batch is not None:
            batches.kill(self._batch)
        if isinstance(error, TimeoutError):
            self._batch = None  # the abandoned thread may still use it
        self._close_batch()

    def _close_batch(self) -> None:
        batch, self._batch = self._batch, None
        if batch is not None:
            with contextlib.suppress(Exception):
                self._thread.call(batch.close, _CLOSE_TIMEOUT_S)
            batches.kill(batch)

    def _checked(self, shown: HostArray, reward: HostArray, info: Mapping[str, Any]) -> tuple[_Seen, HostArray]:
        """Recreates environments with invalid results.

        Returns:
          seen: valid observations, and the actions that are legal there.
          failed: `[B]` bool, the environments that failed in this step.
        """
        # The batch may reuse its array.
        observation, legal, failed = np.array(shown), self._legal(info), self._reported(info)
        invalid = ~(self._interface.observations.valid(observation) & np.isfinite(reward))
        failed |= invalid
        while invalid.any():
            i = int(np.argmax(invalid))
            wrong = self._interface.observations.invalid_value(observation[i])
            what = f"its observation contains {wrong}" if wrong else f"its reward is {reward[i]}"
            if self._config.vectorization == "own":
                raise RuntimeError(what)
            self._faults.add(what, episodes=int(invalid.sum()))
            recreate = partial(self._running().reset, options={"reset_mask": invalid, REBUILD: True})
            shown, info = self._in_time(recreate)
            observation = np.array(shown)
            self._reported(info)
            legal[invalid] = self._legal(info)[invalid]
            invalid = ~self._interface.observations.valid(observation)
        return (observation, legal), failed

    def _legal(self, info: Mapping[str, Any]) -> HostArray:
        """The legal actions `[B, A]` bool that the environments report."""
        legal: HostArray = np.array(info.get(MASK, np.ones((self.count, self.spec.num_actions), bool)))
        return legal

    def _reported(self, info: Mapping[str, Any]) -> HostArray:
        """Counts the failures that guards report in `info`; returns which environments (`[B]` bool) failed."""
        if FAULTS not in info:
            return np.zeros(self.count, bool)
        faults: HostArray = np.asarray(info[FAULTS])
        self._faults.add(next(filter(None, info[ERROR])), episodes=int(faults.sum()), rounds=int(faults.max()))
        failed: HostArray = faults > 0
        return failed

    def _replace_all(self, error: Exception) -> _Seen:
        """Replaces all environments after `error`; returns the first observations of the new ones."""
        lost = int((~self._ended).sum())
        while True:
            self._discard(error)
            self._faults.add(described(error), episodes=lost)
            try:
                self._build()
                return self._first()
            except EnvironmentFailed:
                raise
            except Exception as again:
                error, lost = again, 1

    def _all_started(self, seen: _Seen, failed: HostArray) -> VectorStep:
        self._ended = np.zeros(self.count, bool)
        reward, started = np.zeros(self.count, np.float32), np.ones(self.count, bool)
        ended = np.zeros((2, self.count), bool)
        observation, legal = seen
        return VectorStep(observation, reward, ended[0], ended[1], started, failed, legal)

    def _first(self) -> _Seen:
        """Starts an episode in each environment, with new seeds; returns their first observations."""
        seeds = self._next_seeds()
        # A vector environment that is registered with the id takes one seed for all.
        seed: Any = seeds[0] if self._config.vectorization == "own" else seeds
        observation, info = self._in_time(partial(self._running().reset, seed=seed))
        return self._checked(observation, np.zeros(self.count, np.float32), info)[0]

    def _refuse_if_closed(self) -> None:
        if self._closed:
            raise RuntimeError(f"the environments of {self.spec.name} are closed")


def check_steps(config: GymnasiumConfig, episodes: int, most_steps: int, max_failures: int = 0) -> EnvSpec:
    """Plays random episodes of at most `most_steps` in an environment, and returns its shapes and dtypes.

    Raises:
      ConfigError: it cannot be made, or it raised an exception, hung, or returned what gymnasium does not expect; the
        message says what, and in which step.
    """
    vector = VectorEnv(config, 1, seed=0, max_failures=max_failures)
    choose = np.random.default_rng(0)
    taken: list[Any] = []
    with contextlib.closing(vector):
        try:
            for _ in range(episodes):
                taken.clear()
                seen = vector.reset()
                while len(taken) < most_steps and not (seen.terminated | seen.truncated).any():
                    taken.append(_random_action(vector.spec, seen.legal[0], choose))
                    seen = vector.step(np.array(taken[-1:]))
        except EnvironmentFailed as failed:
            after = f"action {taken[-1]}, the last of {len(taken)} random ones" if taken else "a reset"
            raise ConfigError(f"{config.title}: after {after}: {failed.last}. {REMEDY}") from failed
    return vector.spec


def _random_action(spec: EnvSpec, legal: HostArray, choose: np.random.Generator) -> Any:
    if spec.num_actions:
        return np.int32(choose.choice(np.flatnonzero(legal)))
    return choose.uniform(-1.0, 1.0, spec.action_shape).astype(np.float32)
