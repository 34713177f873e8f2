"""B gymnasium environments that step together, whatever happens to one of them."""

from __future__ import annotations

import contextlib
from functools import partial
from typing import Any, NamedTuple

import numpy as np

from podzero.config import GymnasiumConfig
from podzero.deadline import DeadlineThread
from podzero.envs.faults import EnvironmentFailed, Faults
from podzero.envs.gymnasium_envs import batches
from podzero.envs.gymnasium_envs.guard import ERROR, FAULTS, REBUILD
from podzero.envs.gymnasium_envs.interface import Interface, interface_of
from podzero.envs.gymnasium_envs.spaces import Array
from podzero.errors import ConfigError
from podzero.types import EnvSpec

_CLOSE_TIMEOUT_S = 10.0


class Step(NamedTuple):
    """What came of one action in each of B environments. The arrays are the caller's to keep.

    An episode that ends shows its final observation. The step after that ignores the action and brings the first
    observation of the next episode, with reward zero: gymnasium's autoreset mode `NEXT_STEP`.
    """

    observation: Array
    """`[B, *observation_shape]` in the environment's dtype."""
    reward: Array
    """`[B]` float32."""
    terminated: Array
    """`[B]` bool, whether the episode truly ended with this observation."""
    truncated: Array
    """`[B]` bool, whether it was cut off here, as by a time limit, and would have gone on. Never both."""
    started: Array
    """`[B]` bool, whether this observation begins a new episode; the action was ignored."""
    failed: Array
    """`[B]` bool, whether the running episode was lost and is to be discarded; such a step has `started` set too."""


class VectorEnv:
    """B environments of one config.

    What goes wrong costs no more than it must. Where one environment raises, gives an observation that is not in its
    space or a reward that is not finite, its episode is lost and it is made anew; the others never notice. Where one
    hangs or its process dies, or where they are one (`vectorization: own`), all running episodes are lost and all
    environments are made anew.

    Shape, dtype and the range of whatever is counted are checked in each environment (`Guard`), finiteness and bounds
    for all at once after each step; see `Observations.fits` for what is let pass.
    """

    def __init__(self, config: GymnasiumConfig, count: int, seed: int) -> None:
        """Makes the environments, after a look at the first observation of one.

        Args:
          config: which environment, and how it is vectorized.
          count: B.
          seed: determines all episodes, as far as the environments let it; not negative.

        Raises:
          ConfigError: the environment cannot be made, has spaces that podzero does not know, or its first
            observation is not in its own space.
        """
        self._config = config
        self._count = count
        self._seed = seed
        self._resets = 0
        self._ended = np.ones(count, bool)
        self._closed = False
        self._batch: batches.Batch | None = None
        name = f"gymnasium/{config.id}"
        self._faults = Faults(name, config.max_failures)
        self._thread = DeadlineThread(name)
        try:
            probe = partial(interface_of, config)
            interface: Interface = self._call(probe, self._seeds()[0], "build_timeout_s")
            self.spec: EnvSpec = interface.spec
            """Shapes and dtypes."""
            self._observations, self._actions = interface.observations, interface.actions
            self._batch = self._build()
        except Exception as error:
            self.close()
            if isinstance(error, ConfigError):
                raise
            raise ConfigError(f"{name} cannot be made: {_words(error)}") from error

    @property
    def count(self) -> int:
        """B."""
        return self._count

    @property
    def failures(self) -> int:
        """Episodes lost so far, and ones that could not even begin."""
        return self._faults.total

    @property
    def last_failure(self) -> str | None:
        """What the last failure was."""
        return self._faults.last

    def reset(self) -> Step:
        """Begins a new episode everywhere; those that were running are forgotten.

        Raises:
          EnvironmentFailed: the environments fail again and again.
        """
        self._refuse_if_closed()
        self._ended = np.ones(self._count, bool)
        try:
            observation = self._first()
        except EnvironmentFailed:
            raise
        except Exception as error:
            observation = self._start_over(error)
        return self._all_started(observation, failed=np.zeros(self._count, bool))

    def step(self, actions: Any) -> Step:
        """One action in each environment.

        Args:
          actions: `[B]` int32, or `[B, D]` float32 in [-1, 1], which becomes the range between the bounds; what is
            further out is clipped.

        Raises:
          EnvironmentFailed: the environments fail again and again.
          ValueError: there is not one action for each environment.
        """
        self._refuse_if_closed()
        decoded = self._actions.decode(actions)
        if len(decoded) != self._count:
            raise ValueError(f"{len(decoded)} actions for {self._count} environments")
        started = self._ended
        try:
            seen, reward, terminated, truncated, infos = self._call(self._running().step, decoded)
            reward = np.array(reward, np.float32)
            observation, failed = self._checked(seen, reward, infos)
        except EnvironmentFailed:
            raise
        except Exception as error:
            return self._all_started(self._start_over(error), failed=~started)
        terminated = np.array(terminated, bool)
        truncated = truncated & ~terminated
        if failed is None:
            failed = np.zeros(self._count, bool)
        else:
            reward[failed], terminated[failed], truncated[failed] = 0.0, False, False
            started, failed = started | failed, failed & ~started
        self._ended = terminated | truncated
        if self._faults.in_a_row and self._ended.any():
            self._faults.completed()
        return Step(observation, reward, terminated, truncated, started.copy(), failed)

    def peek(self, actions: Any) -> Array:
        """The rewards `[B, C]` float32 that each of C actions would earn next, tried in copies of the environments.

        Zero where an episode has just ended. A copy shares the state of the environment's random numbers, so it meets
        the same chances. What fails in a copy counts as minus infinity.

        Args:
          actions: `[B, C]` int32 or `[B, C, D]` float32, as for `step`.

        Raises:
          ConfigError: the environments cannot be copied: `vectorization` is not `sync`, or copying one raises or
            makes a new environment instead.
          EnvironmentFailed: it took longer than C steps may.
        """
        self._refuse_if_closed()
        if self._config.vectorization != "sync":
            raise ConfigError(f"env.vectorization: looking one step ahead in {self.spec.name} needs 'sync'")
        candidates = np.asarray(actions)
        peek = partial(batches.peek, self._running(), self._actions, idle=self._ended)
        try:
            return self._thread.call(peek, candidates, self._config.step_timeout_s * candidates.shape[1])
        except TimeoutError as error:
            self._give_up(error)
            raise EnvironmentFailed(f"{self.spec.name}: looking one step ahead: {error} (env.step_timeout_s)") from None

    def close(self) -> None:
        """Ends the environments and their processes. Closing twice is harmless."""
        self._close_batch()
        if not self._closed:
            self._thread.stop()
        self._closed = True

    def _checked(self, seen: Any, reward: Array, infos: dict[str, Any]) -> tuple[Array, Array | None]:
        """Observations `[B, ...]` that are all in their space, and which environments failed (`[B]` bool), if any."""
        observation = self._converted(seen)
        failed = self._guarded(infos)
        fits = self._observations.fits(observation)
        if fits is None and np.isfinite(reward).all():
            return observation, failed
        broken = ~np.isfinite(reward) if fits is None else ~np.isfinite(reward) | ~fits
        observation = self._restart(broken, observation, reward)
        return observation, broken if failed is None else broken | failed

    def _converted(self, seen: Any) -> Array:
        """Observations `[B, ...]` in memory of their own; guards have converted theirs."""
        if self._config.vectorization == "own":
            return self._observations.convert_all(seen, self._running().observation_space)
        return np.array(seen)

    def _guarded(self, infos: dict[str, Any]) -> Array | None:
        """Which environments (`[B]` bool) failed by the word of their guards, if any."""
        if FAULTS not in infos:
            return None
        faults: Array = np.asarray(infos[FAULTS])
        self._faults.add(next(filter(None, infos[ERROR])), episodes=int(faults.sum()), rounds=int(faults.max()))
        failed: Array = faults > 0
        return failed

    def _restart(self, broken: Array, observation: Array, reward: Array) -> Array:
        """The observations after the `broken` environments (`[B]` bool) were made anew, all in their space."""
        batch = self._running()
        while broken.any():
            i = int(np.argmax(broken))
            wrong = self._observations.misfit(observation[i])
            what = f"its observation holds {wrong}" if wrong else f"its reward is {reward[i]}"
            if self._config.vectorization == "own":
                raise RuntimeError(what)
            self._faults.add(what, episodes=int(broken.sum()))
            options = {"reset_mask": broken, REBUILD: True}
            seen, infos = self._call(lambda options: batch.reset(options=options), options)
            self._guarded(infos)
            observation = self._converted(seen)
            fits = self._observations.fits(observation)
            broken = np.zeros_like(broken) if fits is None else ~fits
        return observation

    def _start_over(self, error: Exception) -> Array:
        """First observations of new environments, after `error` put an end to the old ones."""
        running = int((~self._ended).sum())
        self._give_up(error)
        self._faults.add(_words(error), episodes=running)
        while True:
            try:
                self._batch = self._build()
                return self._first()
            except EnvironmentFailed:
                raise
            except Exception as again:
                self._give_up(again)
                self._faults.add(_words(again))

    def _all_started(self, observation: Array, failed: Array) -> Step:
        self._ended = np.zeros(self._count, bool)
        reward = np.zeros(self._count, np.float32)
        ended = np.zeros((2, self._count), bool)
        return Step(observation, reward, ended[0], ended[1], np.ones(self._count, bool), failed)

    def _first(self) -> Array:
        """First observations of new episodes everywhere."""
        batch, seeds = self._running(), self._seeds()
        # An environment's own vector takes one seed for all.
        seed: Any = seeds[0] if self._config.vectorization == "own" else seeds
        seen, infos = self._call(lambda seed: batch.reset(seed=seed), seed)
        return self._checked(seen, np.zeros(self._count, np.float32), infos)[0]

    def _build(self) -> batches.Batch:
        build = partial(batches.build, self._config, self._count, self._observations)
        with batches.no_orphans():
            batch: batches.Batch = self._call(build, self._actions, "build_timeout_s")
        return batch

    def _give_up(self, error: Exception) -> None:
        """Ends the environments after `error`; processes are not asked."""
        if self._batch is not None:
            batches.kill(self._batch)
        if isinstance(error, TimeoutError):
            self._batch = None  # the thread that was left behind may be at it still
        self._close_batch()

    def _close_batch(self) -> None:
        batch, self._batch = self._batch, None
        if batch is not None:
            with contextlib.suppress(Exception):
                self._thread.call(lambda batch: batch.close(), batch, _CLOSE_TIMEOUT_S)
            batches.kill(batch)

    def _running(self) -> batches.Batch:
        if self._batch is None:
            raise RuntimeError("its environments were given up")
        return self._batch

    def _refuse_if_closed(self) -> None:
        if self._closed:
            raise RuntimeError(f"the environments of {self.spec.name} are closed")

    def _call(self, function: Any, argument: Any, limit: str = "step_timeout_s") -> Any:
        """`function(argument)` within the seconds of `env.LIMIT`."""
        try:
            return self._thread.call(function, argument, getattr(self._config, limit))
        except TimeoutError as error:
            raise TimeoutError(f"{error} (env.{limit})") from None

    def _seeds(self) -> list[int]:
        """B seeds for the next reset: other ones for each environment, seed of this object and reset."""
        states = np.random.SeedSequence((self._seed, self._resets)).generate_state(self._count)
        self._resets += 1
        return [int(state >> 1) for state in states]


def _words(error: Exception) -> str:
    return f"{type(error).__name__}: {error}"
