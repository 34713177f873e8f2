"""Agents of gymnasium environments: actions for observations, and whole episodes."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import closing
from itertools import count
from typing import Any

import gymnasium
import jax
import numpy as np

from podzero.config import GymnasiumConfig
from podzero.core.errors import ConfigError
from podzero.envs import VectorEnv, VectorStep, gymnasium_interface
from podzero.envs.gymnasium_envs.interface import MASK
from podzero.envs.gymnasium_envs.making import make_one
from podzero.evaluation.episodes import SIDE_BY_SIDE, EpisodesResult, play_episodes
from podzero.evaluation.resolve import acting


class EnvironmentAgent:
    """A trained agent of a gymnasium environment; made by `podzero.load`.

    Observations are those of the experiment's environment with its wrappers, which `make` makes; actions are as its
    `step` takes them. The agent takes the strongest action of its search, without noise.
    """

    def __init__(self, who: str, env: GymnasiumConfig, simulations: int | None = None) -> None:
        self.name, self._choose = acting(who, env, simulations)
        """The name given to `load`; a working directory is completed to `DIR@STEP`."""
        self._env, self._interface = env, gymnasium_interface(env)
        self._keys = map(jax.random.key, count())

    @property
    def plays(self) -> str:
        """The environment's name."""
        return self._env.title

    def make(self) -> gymnasium.Env[Any, Any]:
        """An environment as the agent was trained in, with its wrappers."""
        return make_one(self._env)

    def act(self, observation: Any, info: Mapping[str, Any] | None = None) -> Any:
        """The action for an observation.

        In an environment whose actions are not all legal, give the `info` that came with the observation if the mask is
        in it; in others it is not needed. Raises `ConfigError` for an observation, or a mask, of another environment.
        """
        running, interface = np.zeros(1, bool), self._interface
        try:
            seen = interface.observations.convert(observation)
            mask = interface.masks.read(None, observation, info or {}, running[0])
            legal = mask[MASK][None] if mask else np.ones((1, interface.actions.count), bool)
        except (ValueError, TypeError) as error:
            raise ConfigError(f"{self.plays}: {error}") from None
        reward = np.zeros(1, np.float32)
        step = VectorStep(seen[None], reward, running, running, ~running, running, legal)
        return interface.actions.decode(self._choose(next(self._keys), step)[0])[0]

    def rollout(self, seed: int = 0, episodes: int = 1) -> EpisodesResult:
        """Plays episodes, as `podzero evaluate WHO --games EPISODES --seed SEED` does."""
        with closing(VectorEnv(self._env, min(episodes, SIDE_BY_SIDE), seed)) as environments:
            return play_episodes(environments, self._choose, episodes, jax.random.key(seed))

    def __repr__(self) -> str:
        return f"<{self.name}, an agent of {self.plays}>"
