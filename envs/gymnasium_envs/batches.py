"""Builds and kills gymnasium's vector environments; `GuardedEnv` contains the failures of one environment."""

from __future__ import annotations

import contextlib
import multiprocessing
import sys
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any, cast

import cloudpickle  # type: ignore[import-untyped]
import gymnasium
import numpy as np
from gymnasium.vector import AsyncVectorEnv, AutoresetMode, SyncVectorEnv

from podzero.config import GymnasiumConfig
from podzero.core.importing import restore_path, without_current_folder
from podzero.envs.faults import Abandoned
from podzero.envs.gymnasium_envs.interface import Interface
from podzero.envs.gymnasium_envs.making import make_one, make_own, picture, rendered
from podzero.envs.gymnasium_envs.spaces import HostArray

FAULTS = "podzero_faults"
"""Key of `info`: how often the environment failed in this step, int. Absent if it did not fail."""
ERROR = "podzero_error"
"""Key of `info`: message of the last of these failures."""
REBUILD = "podzero_rebuild"
"""Key of `reset`'s `options`: whether to recreate the environment first."""

_Info = dict[str, Any]
_NOT_A_FAULT = (KeyboardInterrupt, GeneratorExit, Abandoned)
"""Raised into an environment from outside. Every other exception is a fault of the environment, even `SystemExit`."""


class GuardedEnv(gymnasium.Env[Any, Any]):
    """One environment, which is recreated whenever it raises an exception.

    Observations are converted; `info` contains only `FAULTS`, `ERROR` and, if the environment has masks, `MASK` (`[A]`
    bool). A step that fails returns the first observation of a new episode, with reward zero.
    """

    def __init__(self, make: Callable[[], gymnasium.Env[Any, Any]], interface: Interface, max_faults: int) -> None:
        """Makes the environment; if that raises an exception, the first `reset` reports it.

        After `max_faults` failures in one step or reset the environment is not recreated again.
        """
        self._make = make
        self._interface = interface
        self._max_faults = max_faults
        self._seed: int | None = None
        self._rebuilt = 0
        self.inner: gymnasium.Env[Any, Any] | None = None
        """The current environment; None if it could not be made."""
        self._error: BaseException | None = None
        self.observation_space = interface.observations.box
        self.action_space = interface.actions.source
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
            return self._started(self.inner, seed)
        except _NOT_A_FAULT:
            raise
        except BaseException as error:
            return self._rebuild(error)

    def step(self, action: Any) -> tuple[Any, float, bool, bool, _Info]:
        """Steps the environment; if that fails, returns the first observation of a new episode."""
        assert self.inner is not None, "reset must be called first"
        try:
            seen = self._interface.after_step(self.inner, self.inner.step(action))
            return seen.observation, float(seen.reward), bool(seen.terminated), bool(seen.truncated), seen.info
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

    def _started(self, env: gymnasium.Env[Any, Any], seed: int | None) -> tuple[HostArray, _Info]:
        return self._interface.after_reset(env, env.reset(seed=seed))

    def _rebuild(self, error: BaseException | None) -> tuple[Any, _Info]:
        """Recreates the environment until its reset succeeds.

        Returns the first observation, and the failures so far in `info`. After `max_faults` failures the observation is
        zeros, which the caller recognizes by the number of failures.
        """
        faults = 0 if error is None else 1
        while faults < self._max_faults:
            self.close()
            try:
                self.inner, self._rebuilt = self._make(), self._rebuilt + 1
                # Derived from the first seed, so that runs with faults are reproducible.
                seed = None if self._seed is None else seeds_of(self._seed, self._rebuilt, 1)[0]
                observation, info = self._started(self.inner, seed)
                return observation, _failure_info(faults, error) | info
            except _NOT_A_FAULT:
                raise
            except BaseException as again:
                faults, error = faults + 1, again
        observations = self._interface.observations
        return np.zeros(observations.shape, observations.dtype), _failure_info(faults, error)


def seeds_of(number: int, draw: int, count: int) -> list[int]:
    """`count` seeds, which differ between numbers and between draws with the same number."""
    # Some environments, such as Atari's, take only seeds of 31 bits.
    return [int(state >> 1) for state in np.random.SeedSequence((number, draw)).generate_state(count)]


def _failure_info(faults: int, error: BaseException | None) -> _Info:
    return {FAULTS: faults, ERROR: f"{type(error).__name__}: {error}"} if faults else {}


GymnasiumVector = gymnasium.vector.VectorEnv[Any, Any, Any]


class CheckedVector(gymnasium.vector.VectorWrapper[Any, Any, Any, Any, Any]):
    """A registered vector environment that returns what a vector of `GuardedEnv` does, and raises its failures."""

    def __init__(self, env: GymnasiumVector, interface: Interface) -> None:
        super().__init__(env)
        self._interface = interface

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[HostArray, _Info]:
        """Starts new episodes."""
        return self._interface.after_reset(self.env, self.env.reset(seed=seed, options=options))

    def step(self, actions: Any) -> tuple[HostArray, HostArray, HostArray, HostArray, _Info]:
        """Takes one action in each environment."""
        return self._interface.after_step(self.env, self.env.step(actions))


def build(config: GymnasiumConfig, count: int, interface: Interface, max_faults: int) -> GymnasiumVector:
    """Builds a vector of `count` environments in the autoreset mode `NEXT_STEP`.

    Each environment is wrapped in a `GuardedEnv`, except with `vectorization: own`, which has no single environments.
    """
    if config.vectorization == "own":
        return CheckedVector(make_own(config, count), interface)
    make = partial(make_one, config)
    guarded: Callable[[], GuardedEnv] = partial(GuardedEnv, make, interface, max_faults)
    mode = AutoresetMode.NEXT_STEP
    if config.vectorization == "sync":
        return SyncVectorEnv([guarded] * count, copy=False, autoreset_mode=mode)
    with _by_value(), without_current_folder():
        # A fork of this process would inherit locks that threads of JAX and Ray hold and never release in the child.
        # The fork server imports gymnasium once for all environments.
        multiprocessing.set_forkserver_preload(["__main__", "gymnasium"])
        made = [partial(_in_child, guarded)] * count
        return AsyncVectorEnv(made, copy=False, context="forkserver", autoreset_mode=mode)


def _in_child(make: Callable[[], GuardedEnv]) -> GuardedEnv:
    restore_path()
    return make()


@contextlib.contextmanager
def no_orphans() -> Iterator[None]:
    """If the body raises, kills the child processes that were started since it began, by any thread."""
    before = set(multiprocessing.active_children())
    try:
        yield
    except BaseException:
        for process in set(multiprocessing.active_children()) - before:
            process.kill()
            process.join(timeout=1.0)
        raise


def kill(batch: GymnasiumVector) -> None:
    """Kills the processes of `batch`, if it has any."""
    vector = batch.unwrapped
    if isinstance(vector, AsyncVectorEnv):
        for process in vector.processes:
            process.kill()
        for process in vector.processes:
            process.join()
        # Otherwise gymnasium closes it once more when the object is deleted.
        vector.closed = True


def render(batch: GymnasiumVector, title: str) -> list[HostArray]:
    """The frames of the environments of a `sync` or `own` batch: B arrays `[H, W, 3]` uint8."""
    if isinstance(batch, SyncVectorEnv):
        frames = [rendered(env.inner, title) for env in cast(Any, batch).envs]
    else:
        frames = list(rendered(batch, title) or ())
    return [picture(frame, title) for frame in frames]


@contextlib.contextmanager
def _by_value() -> Iterator[None]:
    """Pickles the code of `GuardedEnv` by value."""
    # Subprocesses that imported it would also import JAX and pgx.
    modules = [sys.modules[name] for name in (__name__.rpartition(".")[0], Abandoned.__module__)]
    for module in modules:
        cloudpickle.register_pickle_by_value(module)
    try:
        yield
    finally:
        for module in modules:
            cloudpickle.unregister_pickle_by_value(module)
