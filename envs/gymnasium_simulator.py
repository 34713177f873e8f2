"""Environments of gymnasium that can be copied, behind the `Simulator` protocol: games for one player."""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from typing import Any

import gymnasium
import numpy as np

from podzero.envs.copying import copy_of
from podzero.envs.gymnasium_envs.making import find
from podzero.errors import ConfigError
from podzero.importing import INSTALL_ENVS

_CONSTANT = frozenset({"action_space", "observation_space", "metadata", "spec", "reward_range", "_np_random"})


class GymnasiumSimulator:
    """An environment with counted actions, each open at all times.

    Time limits and other wrappers of the registration are left out: `env.max_plies` cuts episodes off. All clones share
    one random generator, and each carries the state that it is to be in, which is faster to take along.

    Args:
      name: the environment's id.
      kwargs: of the environment.
      module: imported first, for the registrations that it makes.

    Raises:
      ConfigError: there is no such environment, its spaces are of another kind, or it cannot be copied.
    """

    players = 1

    def __init__(self, name: str, kwargs: Mapping[str, Any], module: str | None = None) -> None:
        find(name, module)
        self._env = _make(name, kwargs)
        self.num_actions = _count_actions(self._env, name)
        self._actions = list(range(self.num_actions))
        try:
            self.reset(0)
        except Exception as error:
            raise ConfigError(f"{name}: its first reset failed: {type(error).__name__}: {error}") from error
        try:
            self.clone()
        except Exception as error:
            raise ConfigError(
                f"{name} cannot be copied ({error}), so search cannot play it forward; learn its model instead, with "
                "env.name: gymnasium and network.name: muzero_mlp or muzero_resnet"
            ) from error

    def reset(self, seed: int) -> None:
        """See `Simulator`."""
        observation, _ = self._env.reset(seed=seed)
        self._take(observation, reward=0.0, done=False)

    def step(self, action: int) -> None:
        """See `Simulator`."""
        if self._chance is not None:
            self._env.np_random.bit_generator.state = self._chance
        observation, reward, terminated, truncated, _ = self._env.step(action)
        self._take(observation, float(reward), bool(terminated or truncated))

    def legal_actions(self) -> list[int]:
        """See `Simulator`."""
        return self._actions

    def observation(self) -> np.ndarray[Any, Any]:
        """See `Simulator`."""
        return self._observation

    def player(self) -> int:
        """See `Simulator`."""
        return 0

    def rewards(self) -> tuple[float]:
        """See `Simulator`."""
        return (self._reward,)

    def done(self) -> bool:
        """See `Simulator`."""
        return self._done

    def clone(self) -> GymnasiumSimulator:
        """See `Simulator`."""
        twin = object.__new__(GymnasiumSimulator)
        vars(twin).update(vars(self))
        twin._env = copy_of(self._env, _CONSTANT)
        return twin

    def _take(self, observation: Any, reward: float, done: bool) -> None:
        self._observation = np.array(observation)  # some environments go on to write into what they returned
        self._reward, self._done = reward, done
        generator = getattr(self._env, "_np_random", None)
        self._chance = None if generator is None else generator.bit_generator.state


def _make(name: str, kwargs: Mapping[str, Any]) -> Any:
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # gymnasium announces every environment that is not at its last version
            return gymnasium.make(name, **kwargs).unwrapped
    except gymnasium.error.DependencyNotInstalled as error:
        raise ConfigError(f"{name} is missing a package ({error}): {INSTALL_ENVS}") from error
    except Exception as error:
        what = f"{type(error).__name__}: {error}"
        raise ConfigError(f"gymnasium cannot make {name} with the arguments {dict(kwargs)}: {what}") from error


def _count_actions(env: Any, name: str) -> int:
    actions, observations = env.action_space, env.observation_space
    if not isinstance(actions, gymnasium.spaces.Discrete) or actions.start != 0:
        raise ConfigError(f"{name} has the actions {actions}; search can play Discrete ones from 0 forward, no others")
    if not isinstance(observations, gymnasium.spaces.Box):
        raise ConfigError(f"{name} has observations {observations}; expected a Box")
    return int(actions.n)
