"""Builds, kills and copies gymnasium's vector environments."""

from __future__ import annotations

import contextlib
import multiprocessing
import sys
from collections.abc import Callable, Iterator
from copy import deepcopy
from functools import partial
from typing import Any, cast

import cloudpickle  # type: ignore[import-untyped]
import gymnasium
import numpy as np
from gymnasium.utils import EzPickle
from gymnasium.vector import AsyncVectorEnv, AutoresetMode, SyncVectorEnv

from podzero.config import GymnasiumConfig
from podzero.envs.gymnasium_envs.guard import Guard
from podzero.envs.gymnasium_envs.making import Factory, make_own
from podzero.envs.gymnasium_envs.rendering import picture, rendered
from podzero.envs.gymnasium_envs.spaces import Actions, Array, Observations
from podzero.errors import ConfigError

Batch = gymnasium.vector.VectorEnv[Any, Any, Any]


def build(config: GymnasiumConfig, count: int, observations: Observations, actions: Actions) -> Batch:
    """Builds a vector of `count` environments in the autoreset mode `NEXT_STEP`.

    Each environment is wrapped in a `Guard`, except with `vectorization: own`, which has no single environments.
    """
    if config.vectorization == "own":
        return make_own(config, count)
    guarded: Callable[[], Guard] = partial(Guard, Factory(config), observations, actions, config.max_failures + 1)
    mode = AutoresetMode.NEXT_STEP
    if config.vectorization == "sync":
        return SyncVectorEnv([guarded] * count, copy=False, autoreset_mode=mode)
    with _by_value():
        # A fork of this process would inherit locks that threads of JAX and Ray hold and never release in the child.
        multiprocessing.set_forkserver_preload(["__main__", "gymnasium"])
        return AsyncVectorEnv([guarded] * count, copy=False, context="forkserver", autoreset_mode=mode)


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


def kill(batch: Batch) -> None:
    """Kills the processes of `batch`, if it has any."""
    if isinstance(batch, AsyncVectorEnv):
        for process in batch.processes:
            process.kill()
        for process in batch.processes:
            process.join()
        batch.closed = True


def peek(batch: Batch, actions: Actions, candidates: Array, idle: Array) -> Array:
    """The rewards `[B, C]` float32 of candidate actions, each stepped in a copy of its environment in a `sync` batch.

    Args:
      batch: the environments.
      actions: decodes the candidates.
      candidates: `[B, C]` int32 or `[B, C, D]` float32.
      idle: `[B]` bool, the environments to leave out; their rewards are zero.

    Raises:
      ConfigError: the environments cannot be copied.
    """
    rewards = np.zeros(candidates.shape[:2], np.float32)
    envs: Any = cast(Any, batch).envs
    for i in np.flatnonzero(~idle):
        inner: gymnasium.Env[Any, Any] = envs[i].inner
        for j, action in enumerate(actions.decode(candidates[i])):
            rewards[i, j] = _reward(_copy(inner), action)
    return rewards


def render(batch: Batch, title: str) -> list[Array]:
    """The frames of the environments of a `sync` or `own` batch: B arrays `[H, W, 3]` uint8.

    Raises:
      ConfigError: they do not render, or not as pixels.
    """
    if isinstance(batch, SyncVectorEnv):
        frames = [rendered(env.inner, title) for env in cast(Any, batch).envs]
    else:
        frames = list(rendered(batch, title) or ())
    return [picture(frame, title) for frame in frames]


def _copy(env: gymnasium.Env[Any, Any]) -> gymnasium.Env[Any, Any]:
    if isinstance(env.unwrapped, EzPickle):
        raise ConfigError(f"{env} cannot be copied: copying it (gymnasium.utils.EzPickle) makes a new environment")
    # What it draws with cannot be copied, and is shared: copies are not rendered.
    drawing = [part for part in vars(env.unwrapped).values() if type(part).__module__.startswith("pygame")]
    try:
        return deepcopy(env, {id(part): part for part in drawing})
    except Exception as error:
        raise ConfigError(f"{env} cannot be copied: {type(error).__name__}: {error}") from error


def _reward(env: gymnasium.Env[Any, Any], action: Any) -> float:
    try:
        reward = float(env.step(action)[1])
    except Exception:
        return -np.inf
    return reward if np.isfinite(reward) else -np.inf


@contextlib.contextmanager
def _by_value() -> Iterator[None]:
    """Pickles this package by value. Subprocesses that imported it would also import JAX and pgx."""
    package = sys.modules[__name__.rpartition(".")[0]]
    cloudpickle.register_pickle_by_value(package)
    try:
        yield
    finally:
        cloudpickle.unregister_pickle_by_value(package)
