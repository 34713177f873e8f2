"""Evaluation in single-agent environments: the returns of agents and of baseline policies."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import closing
from typing import Any, NamedTuple

import jax
import numpy as np

from podzero.config import (
    ChanceGameConfig,
    EnvConfig,
    Experiment,
    GymnasiumConfig,
    JaxLibraryConfig,
    ModelNetworkConfig,
    SimulatorConfig,
)
from podzero.core.protocols import Env
from podzero.core.types import Array, EnvSpec, Exploration, Params
from podzero.envs import VectorEnv, VectorStep, spec_of
from podzero.evaluation.arena import Arena, Interrupted
from podzero.evaluation.players import NetworkPlayers
from podzero.evaluation.statistics import student
from podzero.networks import make_model_network
from podzero.search import make_model_search

Policy = Callable[[Array, VectorStep], tuple[Array, Array | None]]
"""`(key, newest step of B environments)` to actions, `[B]` int32 or `[B, D]` float32 in [-1, 1], and to the expected
discounted returns, `[B]` float32, if the policy knows them."""

MAX_STEPS = 27_000
"""Steps after which an episode is cut off: 108,000 Atari frames at four frames per step."""


class EpisodesResult(NamedTuple):
    """The episodes of one evaluation."""

    returns: np.ndarray[Any, Any]
    """`[N]` float64, undiscounted sums of rewards."""
    lengths: np.ndarray[Any, Any]
    """`[N]` int64, steps."""
    failures: int
    """Episodes that failed and were repeated."""


def summary(returns: np.ndarray[Any, Any]) -> dict[str, Any]:
    """`episodes`, `mean_return`, `std_return`, and the 95% `interval` of the expected return by Student's t.

    A single return has the standard deviation 0 and the interval None.
    """
    episodes, mean = len(returns), float(returns.mean())
    deviation = float(returns.std(ddof=1)) if episodes > 1 else 0.0
    interval = list(student(mean, deviation, episodes)) if episodes > 1 else None
    return {"episodes": episodes, "mean_return": mean, "std_return": deviation, "interval": interval}


def play_episodes(
    vector_env: VectorEnv,
    choose: Policy,
    episodes: int,
    key: Array,
    keep_going: Callable[[], bool] = lambda: True,
    watch: Callable[[VectorStep], None] = lambda step: None,
) -> EpisodesResult:
    """Plays `episodes` whole episodes, divided equally among the environments; repeats failed ones.

    The environments are reset first, and left with episodes that are running. An episode longer than `MAX_STEPS` is cut
    off there, and its remaining steps count as the next episode. `watch` is called with the result of every step.

    Raises `Interrupted` once `keep_going` is false before a step, `EnvironmentFailed` after many failures in a row.
    """
    if episodes <= 0:
        raise ValueError(f"episodes must be positive, got {episodes}")
    count = vector_env.count
    # Fixed beforehand: counting whichever episodes end first would favor short ones.
    left = episodes // count + (np.arange(count) < episodes % count)
    returns, lengths = np.zeros(count), np.zeros(count, np.int64)
    played: list[tuple[float, int]] = []
    failures = 0
    step = vector_env.reset()
    while left.any():
        if not keep_going():
            raise Interrupted
        key, choose_key = jax.random.split(key)
        step = vector_env.step(choose(choose_key, step)[0])
        watch(step)
        failures += int((step.failed & (left > 0)).sum())
        # An episode starts with a step of its own, after the one that ended or failed.
        returns = np.where(step.started, 0.0, returns + step.reward)
        lengths = np.where(step.started, 0, lengths + 1)
        counted = (step.terminated | step.truncated | (lengths >= MAX_STEPS)) & (left > 0)
        played += zip(returns[counted].tolist(), lengths[counted].tolist(), strict=True)
        left = left - counted
        returns, lengths = np.where(counted, 0.0, returns), np.where(counted, 0, lengths)
    return EpisodesResult(np.array([one[0] for one in played]), np.array([one[1] for one in played]), failures)


def random_policy(spec: EnvSpec) -> Policy:
    """Uniformly random legal actions."""

    def choose(key: Array, step: VectorStep) -> tuple[Array, None]:
        generator = np.random.default_rng(np.asarray(jax.random.key_data(key)))
        if spec.masked:
            chosen = np.where(step.legal, generator.random(step.legal.shape), -1.0).argmax(axis=1)
            return chosen.astype(np.int32), None
        return uniform_actions(generator, spec, (len(step.observation),)), None

    return choose


def uniform_actions(generator: np.random.Generator, spec: EnvSpec, shape: tuple[int, ...]) -> np.ndarray[Any, Any]:
    """Uniform actions, `[*shape]` int32 or `[*shape, D]` float32."""
    if spec.action_bounds is None:
        return generator.integers(spec.num_actions, size=shape, dtype=np.int32)
    return generator.uniform(-1.0, 1.0, (*shape, *spec.action_shape)).astype(np.float32)


SIDE_BY_SIDE = 64
"""Most environments in a batch."""
_SEED = 7_919
"""Added to a run's seed, so that evaluation and training have different episodes."""


def search_actors(experiment: Experiment, spec: EnvSpec, simulations: int | None = None) -> Callable[[Params], Policy]:
    """Makes policies from parameters, which share one compiled search over the learned model.

    They take the strongest action without noise; the value is the root's. `simulations`: None for those of training.
    """
    assert isinstance(experiment.network, ModelNetworkConfig)
    network, config = make_model_network(experiment.network, spec), experiment.search
    if simulations is not None:
        config = config.model_copy(update={"simulations": simulations})
    search = make_model_search(config, network, spec, experiment.env.discount)

    @jax.jit
    def decide(params: Params, key: Array, observation: Array, legal: Array) -> tuple[Array, Array]:
        found = search(params, key, observation, Exploration.none(observation.shape[0]), legal)
        return found.action, found.value

    def actor(params: Params) -> Policy:
        placed = jax.device_put(params)
        return lambda key, step: jax.device_get(decide(placed, key, step.observation, step.legal))

    return actor


Returns = Callable[[Params, Array, Callable[[], bool]], np.ndarray[Any, Any]]
"""Plays `evaluation.games` episodes with parameters: `(params, key, keep_going)` to their returns `[N]`."""


class ReturnRounds:
    """Judges snapshots of a single agent by the returns of episodes."""

    def __init__(self, returns: Returns, seed: int) -> None:
        self._returns, self._key = returns, jax.random.key(seed)
        self.rated = -1

    def ladder(self) -> dict[str, Any]:
        """Empty, without opponents."""
        return {}

    def judge(self, step: int, params: Params, keep_going: Callable[[], bool]) -> dict[str, float]:
        """Metrics of the returns."""
        found = summary(self._returns(params, jax.random.fold_in(self._key, step), keep_going))
        self.rated = step
        return {f"evaluation/{name}": float(found[name]) for name in ("mean_return", "std_return", "episodes")}


def gymnasium_returns(experiment: Experiment) -> Returns:
    """Plays in a gymnasium environment; raises `ConfigError` if it cannot be made."""
    env, episodes = experiment.env, experiment.evaluation.games
    assert isinstance(env, GymnasiumConfig)
    actor = search_actors(experiment, spec_of(env), experiment.evaluation.simulations)
    # An asynchronous environment is a process; run no more of them than an actor does.
    most = experiment.actors.games if env.vectorization == "async" else SIDE_BY_SIDE

    def returns(params: Params, key: Array, keep_going: Callable[[], bool]) -> np.ndarray[Any, Any]:
        with closing(VectorEnv(env, min(episodes, most), experiment.seed + _SEED)) as environments:
            return play_episodes(environments, actor(params), episodes, key, keep_going).returns

    return returns


def simulator_returns(experiment: Experiment, env: Env) -> Returns:
    """Plays in a single-agent simulator."""
    search = experiment.search.model_copy(update={"simulations": experiment.evaluation.simulations})
    players = NetworkPlayers(env, experiment.network, search, experiment.env.discount)
    arena, games, scale = Arena(env), experiment.evaluation.games, reward_scale(experiment.env)
    return lambda params, key, keep_going: arena.alone(players.player("", params), games, key, keep_going) / scale


def reward_scale(env: EnvConfig) -> float:
    """The factor on a game's rewards; reported returns are divided by it."""
    match env:
        case ChanceGameConfig():
            scale = env.scale
        case SimulatorConfig() | JaxLibraryConfig():
            scale = env.reward_scale
        case _:
            return 1.0
    # Rewards are scaled in float32, by this factor: divided by it, integer returns are integers again.
    return float(np.float32(scale))
