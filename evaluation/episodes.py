"""Evaluation by episodes: the returns of a policy in a gymnasium environment, and of simple baseline policies."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import numpy as np

from podzero.envs import Step, VectorEnv
from podzero.errors import ConfigError, nearest
from podzero.evaluation.arena import Interrupted
from podzero.intervals import student
from podzero.types import Array, EnvSpec

Choose = Callable[[Array, Array], Array]
"""A policy: `(key, observations [B, *observation_shape])` to actions `[B]` int32 or `[B, D]` float32 in
[-1, 1]. `key` is consumed."""

Decide = Callable[[Array, Array], tuple[Array, Array]]
"""A policy that values what it sees: as `Choose`, to actions and `[B]` float32, the discounted returns it expects."""

BASELINES = ("random", "greedy")
"""The names that `baseline` accepts."""
GRID = 9
"""Values tried in each dimension of a continuous action."""
MAX_STEPS = 27_000
"""Steps after which an episode is cut off: the usual 108,000 frames of Atari games at four frames per step."""
MAX_TRIED = 81
"""Most actions tried per step. With more than two dimensions, random actions replace the grid."""


class EpisodesResult(NamedTuple):
    """The episodes of one evaluation."""

    returns: np.ndarray[Any, Any]
    """`[N]` float64, the undiscounted sum of rewards of each episode."""
    lengths: np.ndarray[Any, Any]
    """`[N]` int64, the steps of each."""
    failures: int
    """Episodes that failed and were repeated."""

    @property
    def episodes(self) -> int:
        """N."""
        return len(self.returns)

    @property
    def mean_return(self) -> float:
        """The estimate of the expected return."""
        return float(self.returns.mean())

    @property
    def std_return(self) -> float:
        """The sample's standard deviation, 0 for a single episode."""
        return float(self.returns.std(ddof=1)) if self.episodes > 1 else 0.0

    @property
    def mean_length(self) -> float:
        """Steps of an episode."""
        return float(self.lengths.mean())

    @property
    def interval(self) -> tuple[float, float]:
        """95% interval of the expected return, by Student's t (`podzero.intervals`)."""
        return student(self.mean_return, self.std_return, self.episodes)


def play_episodes(
    vector_env: VectorEnv,
    choose: Choose,
    episodes: int,
    key: Array,
    keep_going: Callable[[], bool] = lambda: True,
    max_steps: int = MAX_STEPS,
    watch: Callable[[Step], None] = lambda step: None,
) -> EpisodesResult:
    """Plays `episodes` whole episodes, after a reset.

    The number of episodes of each environment is fixed beforehand (equal up to one); counting whichever episodes end
    first would favour short ones. A failed episode is repeated. An episode longer than `max_steps` is cut off there,
    and its remaining steps count as the next episode.

    Args:
      vector_env: is reset first; episodes are still running in it afterwards.
      choose: the policy. It is also called for environments that have played all their episodes; these are ignored.
      episodes: number of episodes.
      key: PRNG key, consumed.
      keep_going: called before every step; the evaluation stops when it returns False.
      max_steps: longest length of an episode.
      watch: called with the results of every step.

    Raises:
      ValueError: `episodes` is not positive.
      Interrupted: `keep_going` returned False.
      EnvironmentFailed: too many environments failed in a row.
    """
    if episodes <= 0:
        raise ValueError(f"episodes must be positive, got {episodes}")
    count = vector_env.count
    left = episodes // count + (np.arange(count) < episodes % count)
    returns, lengths = np.zeros(count), np.zeros(count, np.int64)
    played: list[tuple[float, int]] = []
    failures = 0
    observation = vector_env.reset().observation
    while left.any():
        if not keep_going():
            raise Interrupted
        key, choose_key = jax.random.split(key)
        step = vector_env.step(choose(choose_key, observation))
        watch(step)
        observation = step.observation
        failures += int((step.failed & (left > 0)).sum())
        returns = np.where(step.started, 0.0, returns + step.reward)
        lengths = np.where(step.started, 0, lengths + 1)
        counted = (step.terminated | step.truncated | (lengths >= max_steps)) & (left > 0)
        played += zip(returns[counted].tolist(), lengths[counted].tolist(), strict=True)
        left = left - counted
        returns, lengths = np.where(counted, 0.0, returns), np.where(counted, 0, lengths)
    return EpisodesResult(np.array([one[0] for one in played]), np.array([one[1] for one in played]), failures)


def baseline(name: str, vector_env: VectorEnv) -> Choose:
    """The baseline policy `name` for `vector_env`.

    Raises:
      ConfigError: unknown name; the message suggests the nearest one.
    """
    if name == "random":
        return random_policy(vector_env.spec)
    if name == "greedy":
        return greedy_policy(vector_env)
    raise ConfigError(f"unknown baseline '{name}'{nearest(name, BASELINES)}; known: {', '.join(BASELINES)}")


def random_policy(spec: EnvSpec) -> Choose:
    """Uniformly random actions."""

    def choose(key: Array, observation: Array) -> Array:
        return _random_actions(_generator(key), spec, (len(observation),))

    return choose


def greedy_policy(vector_env: VectorEnv) -> Choose:
    """The action with the highest reward in the next step, found by trying actions in copies of the environments.

    It tries all discrete actions; of continuous ones it tries a grid, or random actions if the grid is too large. Ties
    are broken at random. The observations must be the newest of `vector_env`. The policy raises `ConfigError` if the
    environments cannot be copied; see `VectorEnv.peek`.
    """
    spec = vector_env.spec

    def choose(key: Array, observation: Array) -> Array:
        generator = _generator(key)
        tried = _tried(generator, spec, len(observation))
        rewards = vector_env.peek(tried)
        best = rewards == rewards.max(axis=1, keepdims=True)
        chosen = np.where(best, generator.random(best.shape), -1.0).argmax(axis=1)
        taken: np.ndarray[Any, Any] = tried[np.arange(len(tried)), chosen]
        return taken

    return choose


def _tried(generator: np.random.Generator, spec: EnvSpec, count: int) -> np.ndarray[Any, Any]:
    """Actions to try in each of `count` environments, `[count, C]` or `[count, C, D]`."""
    if spec.action_bounds is None:
        return np.tile(np.arange(spec.num_actions, dtype=np.int32), (count, 1))
    (dimensions,) = spec.action_shape
    if GRID**dimensions > MAX_TRIED:
        return _random_actions(generator, spec, (count, MAX_TRIED))
    grid = np.array([*itertools.product(np.linspace(-1, 1, GRID), repeat=dimensions)], np.float32)
    return np.tile(grid, (count, 1, 1))


def _random_actions(generator: np.random.Generator, spec: EnvSpec, shape: tuple[int, ...]) -> np.ndarray[Any, Any]:
    """Uniform actions, `[*shape]` int32 or `[*shape, D]` float32."""
    if spec.action_bounds is None:
        return generator.integers(spec.num_actions, size=shape, dtype=np.int32)
    return generator.uniform(-1.0, 1.0, (*shape, *spec.action_shape)).astype(np.float32)


def _generator(key: Array) -> np.random.Generator:
    """A NumPy generator seeded by a JAX key."""
    return np.random.default_rng(np.asarray(jax.random.key_data(key)))
