"""Evaluation rounds of single-agent environments: the returns of whole episodes."""

from __future__ import annotations

from collections.abc import Callable, Hashable
from contextlib import closing
from functools import lru_cache
from typing import Any, cast

import jax
import numpy as np
import optax

from podzero.config import EnvConfig, Experiment, GymnasiumConfig, ModelNetworkConfig, SearchConfig, SimulatorConfig
from podzero.envs import make_vector_env, spec_of
from podzero.evaluation.arena import Interrupted
from podzero.evaluation.episodes import Choose, Decide, EpisodesResult, play_episodes
from podzero.evaluation.players import NetworkPlayers, Player
from podzero.networks import make_model_network
from podzero.protocols import Env
from podzero.search import make_model_search
from podzero.types import Array, EnvSpec, Exploration, Params

SIDE_BY_SIDE = 64
"""Most episodes that run at the same time."""
_SEED = 7_919
"""Added to the seed of a run, so that evaluation and training have different episodes."""


class SearchActors:
    """Policies that share one compiled search over a learned model and differ in their parameters."""

    def __init__(self, experiment: Experiment, spec: EnvSpec, config: SearchConfig) -> None:
        assert isinstance(experiment.network, ModelNetworkConfig)
        network = make_model_network(experiment.network, spec)
        search = make_model_search(config, network, spec, experiment.env.discount)

        def decide(params: Params, key: Array, observation: Array) -> tuple[Array, Array]:
            found = search(params, key, observation, Exploration.none(observation.shape[0]))
            return found.action, found.value

        self._decide = jax.jit(decide)

    def actor(self, params: Params) -> Choose:
        """The strongest action of a search with `params`, without noise."""
        decide = self.decider(params)
        return lambda key, observation: decide(key, observation)[0]

    def decider(self, params: Params) -> Decide:
        """The same action, and the value at the root of its search."""
        placed = jax.device_put(params)
        return lambda key, observation: cast(
            tuple[Array, Array], jax.device_get(self._decide(placed, key, observation))
        )


class EpisodeRounds:
    """Whole episodes of each snapshot in a gymnasium environment; a `Rounds`."""

    def __init__(self, experiment: Experiment) -> None:
        """Creates no environment yet.

        Raises:
          ConfigError: the environment cannot be created.
        """
        config = experiment.evaluation
        self._experiment = experiment
        self._episodes = config.games
        search = experiment.search.model_copy(update={"simulations": config.simulations})
        self._actors = SearchActors(experiment, spec_of(experiment.env), search)
        self.rated = -1

    def ladder(self) -> dict[str, Any]:
        """Empty: there are no opponents."""
        return {}

    def judge(self, step: int, params: Params, keep_going: Callable[[], bool]) -> dict[str, float]:
        """The returns of `evaluation.games` episodes."""
        env, seed = self._experiment.env, self._experiment.seed
        assert isinstance(env, GymnasiumConfig)
        key = jax.random.fold_in(jax.random.key(seed), step)
        # An asynchronous environment is a process; no more of them run than in an actor.
        most = self._experiment.actors.games if env.vectorization == "async" else SIDE_BY_SIDE
        with closing(make_vector_env(env, min(self._episodes, most), seed + _SEED)) as environments:
            result = play_episodes(environments, self._actors.actor(params), self._episodes, key, keep_going)
        self.rated = step
        return _metrics(result.returns)


class SoloRounds:
    """Whole games of each snapshot in a single-agent simulator; a `Rounds`."""

    def __init__(self, experiment: Experiment, env: Env) -> None:
        """Plays no game yet."""
        config = experiment.evaluation
        search = experiment.search.model_copy(update={"simulations": config.simulations})
        self._players = NetworkPlayers(env, experiment.network, search, experiment.env.discount)
        self._env, self._games, self._scale = env, config.games, reward_scale(experiment.env)
        self._seed = jax.random.key(experiment.seed)
        self.rated = -1

    def ladder(self) -> dict[str, Any]:
        """Empty: there are no opponents."""
        return {}

    def judge(self, step: int, params: Params, keep_going: Callable[[], bool]) -> dict[str, float]:
        """The returns of `evaluation.games` games."""
        player = self._players.player(str(step), params)
        returns = play_alone(self._env, player, self._games, jax.random.fold_in(self._seed, step), keep_going)
        self.rated = step
        return _metrics(returns / self._scale)


def reward_scale(env: EnvConfig) -> float:
    """The factor of a game's rewards; reported returns are divided by it."""
    return env.reward_scale if isinstance(env, SimulatorConfig) else 1.0


def play_alone(
    env: Env, player: Player, games: int, key: Array, keep_going: Callable[[], bool] = lambda: True
) -> np.ndarray[Any, Any]:
    """Returns of `player`, `[games]` float64, in single-agent games that run in one batch from start to end.

    Raises:
      Interrupted: `keep_going`, called before every move, returned False.
    """
    init_key, key = jax.random.split(key)
    init, step, view = _programs(cast(Hashable, env))
    starts = init(jax.random.split(init_key, games))
    states, returns, over = starts, np.zeros(games), np.zeros(games, bool)
    while not over.all():
        if not keep_going():
            raise Interrupted
        key, move_key = jax.random.split(key)
        # A game that is over shows its initial state to the player, and the action is ignored.
        shown = jax.vmap(optax.tree.where)(over, starts, states)
        states = step(states, player.choose(move_key, shown))
        seen = jax.device_get(view(states))
        returns += seen.rewards[:, 0]
        over = np.asarray(seen.done)
    return returns


@lru_cache(maxsize=4)
def _programs(env: Env) -> tuple[Callable[..., Any], ...]:
    """The compiled rules of B games."""
    return tuple(jax.jit(jax.vmap(function)) for function in (env.init, env.step, env.view))


def summary(result: EpisodesResult) -> dict[str, Any]:
    """The result as plain values."""
    return {
        "episodes": result.episodes,
        "mean_return": result.mean_return,
        "std_return": result.std_return,
        "interval": list(result.interval) if result.episodes > 1 else None,  # one episode tells no spread
        "mean_length": result.mean_length,
        "failures": result.failures,
    }


def _metrics(returns: np.ndarray[Any, Any]) -> dict[str, float]:
    return {
        "evaluation/mean_return": float(returns.mean()),
        "evaluation/std_return": float(returns.std(ddof=1)) if len(returns) > 1 else 0.0,
        "evaluation/episodes": float(len(returns)),
    }
