"""A vector environment of gymnasium with a time limit on each call, which can be replaced when it hangs or dies."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np

from podzero.config import GymnasiumConfig
from podzero.deadline import DeadlineThread
from podzero.envs.gymnasium_envs import batches
from podzero.envs.gymnasium_envs.guard import REBUILD
from podzero.envs.gymnasium_envs.interface import Interface, interface_of
from podzero.envs.gymnasium_envs.spaces import Array

_CLOSE_TIMEOUT_S = 10.0
_Info = dict[str, Any]


class TimedBatch:
    """B environments of one config; every call raises `TimeoutError` beyond its limit in the `env` section.

    Observations are arrays `[B, *observation_shape]` that the caller may keep.
    """

    def __init__(self, config: GymnasiumConfig, count: int, seed: int) -> None:
        """Takes the arguments of `VectorEnv`; makes no environment yet."""
        self._config = config
        self._count = count
        self._seed = seed
        self._resets = 0
        self._thread = DeadlineThread(config.title)
        self._batch: batches.Batch | None = None
        self.interface: Interface
        """The environment's spaces, once `probe` has read them."""

    def probe(self) -> None:
        """Reads the environment's spaces and checks its first observation; see `interface_of`."""
        seed = self._next_seeds()[0]
        self.interface = self._call("build_timeout_s", partial(interface_of, self._config, seed))

    def build(self) -> None:
        """Makes the environments."""
        make = partial(batches.build, self._config, self._count, self.interface.observations, self.interface.actions)
        with batches.no_orphans():
            self._batch = self._call("build_timeout_s", make)

    def reset(self) -> tuple[Array, _Info]:
        """Starts an episode in each environment, with new seeds."""
        seeds = self._next_seeds()
        # A vector environment that is registered with the id takes one seed for all.
        seed: Any = seeds[0] if self._config.vectorization == "own" else seeds
        observation, info = self._call("step_timeout_s", partial(self._running().reset, seed=seed))
        return self._converted(observation), info

    def rebuild(self, which: Array) -> tuple[Array, _Info]:
        """Recreates some environments (`[B]` bool) and starts an episode in each of them."""
        options = {"reset_mask": which, REBUILD: True}
        observation, info = self._call("step_timeout_s", partial(self._running().reset, options=options))
        return self._converted(observation), info

    def step(self, actions: Array) -> tuple[Array, Array, Array, Array, _Info]:
        """Steps each environment; takes the actions that `Actions.decode` gives."""
        observation, *rest = self._call("step_timeout_s", partial(self._running().step, actions))
        return self._converted(observation), *rest

    def peek(self, candidates: Array, idle: Array) -> Array:
        """See `batches.peek`; may take as long as one step for each candidate."""
        peek = partial(batches.peek, self._running(), self.interface.actions, candidates, idle)
        return self._call("step_timeout_s", peek, times=candidates.shape[1])

    def render(self) -> list[Array]:
        """See `batches.render`."""
        render = partial(batches.render, self._running(), self._config.title)
        return self._call("step_timeout_s", render)

    def discard(self, error: Exception) -> None:
        """Ends the environments after `error`; kills their processes."""
        if self._batch is not None:
            batches.kill(self._batch)
        if isinstance(error, TimeoutError):
            self._batch = None  # the abandoned thread may still use it
        self._close_batch()

    def close(self) -> None:
        """Ends the environments, their processes and the thread that calls them; may be called twice."""
        self._close_batch()
        self._thread.stop()

    def _close_batch(self) -> None:
        batch, self._batch = self._batch, None
        if batch is not None:
            with contextlib.suppress(Exception):
                self._thread.call(lambda batch: batch.close(), batch, _CLOSE_TIMEOUT_S)
            batches.kill(batch)

    def _running(self) -> batches.Batch:
        if self._batch is None:
            raise RuntimeError("the environments were discarded after a failure")
        return self._batch

    def _converted(self, observations: Any) -> Array:
        """A copy of the observations; a `Guard` has already converted its own."""
        if self._config.vectorization == "own":
            return self.interface.observations.convert_all(observations, self._running().observation_space)
        return np.array(observations)

    def _call[Result](self, limit: str, function: Callable[[], Result], times: int = 1) -> Result:
        """`function()` within `times` the seconds of `env.LIMIT`."""
        try:
            return self._thread.call(lambda _: function(), None, times * getattr(self._config, limit))
        except TimeoutError as error:
            raise TimeoutError(f"{error} (env.{limit})") from None

    def _next_seeds(self) -> list[int]:
        """B seeds, which differ between environments, resets and seeds of this object."""
        states = np.random.SeedSequence((self._seed, self._resets)).generate_state(self._count)
        self._resets += 1
        return [int(state >> 1) for state in states]
