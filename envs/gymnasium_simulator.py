"""Copyable gymnasium environments as `Simulator`s: games for one player."""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from typing import Any

import gymnasium
import numpy as np

from podzero.envs.copying import copy_of
from podzero.envs.gymnasium_envs.making import explained, find
from podzero.envs.gymnasium_envs.rendering import STEPS_PER_SECOND, picture, rendered
from podzero.errors import ConfigError

_CHANCE_GAMES, _CHANCE_STEPS = 4, 32
"""Episodes, and steps of each, that are played to find out whether an environment has chance events."""
_CONSTANT = frozenset({"action_space", "observation_space", "metadata", "spec", "reward_range", "_np_random"})


class GymnasiumSimulator:
    """An environment with discrete actions, all of them always legal.

    Wrappers from the registration, such as time limits, are not applied: `env.max_plies` truncates episodes. All clones
    share one random generator. Each clone stores the generator's state, which is faster to copy than the generator, and
    restores it before a step.

    Args:
      name: the environment's id.
      kwargs: arguments for `gymnasium.make`.
      module: is imported first, because it registers the id.

    Raises:
      ConfigError: the id is unknown, the environment's spaces are not supported, or it cannot be copied.
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
                f"{name} cannot be copied ({error}), so tree search cannot simulate it; learn a model of it instead, "
                "with env.name: gymnasium and network.name: muzero_mlp or muzero_resnet"
            ) from error
        if self._has_chance_events():
            raise ConfigError(
                f"{name} has chance events: the same actions lead to different observations. Tree search plays copies, "
                "so it would foresee them; learn a model of it instead, with env.name: gymnasium and network.name: "
                "muzero_mlp or muzero_resnet"
            )

    def _has_chance_events(self) -> bool:
        """Whether equal copies of the environment with other random generators differ after the same actions."""
        choose = np.random.default_rng(0)
        for seed in range(_CHANCE_GAMES):
            self.reset(seed)
            one, other = self.clone(), self.clone()
            other._random_state = np.random.default_rng(seed + 1).bit_generator.state
            for action in choose.integers(self.num_actions, size=_CHANCE_STEPS).tolist():
                one.step(action)
                other.step(action)
                if not np.array_equal(one.observation(), other.observation()) or one.rewards() != other.rewards():
                    return True
                if one.done() or other.done():
                    break
        return False

    def reset(self, seed: int) -> None:
        """See `Simulator`."""
        observation, _ = self._env.reset(seed=seed)
        self._store(observation)

    def step(self, action: int) -> None:
        """See `Simulator`."""
        if self._random_state is not None:
            self._env.np_random.bit_generator.state = self._random_state
        observation, reward, terminated, truncated, _ = self._env.step(action)
        self._store(observation, float(reward), bool(terminated), bool(truncated))

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
        return self._terminated or self._truncated

    def truncated(self) -> bool:
        """See `LimitedSimulator`."""
        return self._truncated and not self._terminated

    @property
    def steps_per_second(self) -> float:
        """The speed at which the environment wants to be shown."""
        return float(self._env.metadata.get("render_fps") or STEPS_PER_SECOND)

    def render(self) -> np.ndarray[Any, Any]:
        """See `RenderedSimulator`.

        Raises:
          ConfigError: it was not made with the render mode `rgb_array`, or rendering failed.
        """
        return picture(rendered(self._env, self._env.spec.id), self._env.spec.id)

    def clone(self) -> GymnasiumSimulator:
        """See `Simulator`."""
        twin = object.__new__(GymnasiumSimulator)
        vars(twin).update(vars(self))
        twin._env = copy_of(self._env, _CONSTANT)
        return twin

    def _store(self, observation: Any, reward: float = 0.0, terminated: bool = False, truncated: bool = False) -> None:
        self._observation = np.array(observation)  # some environments reuse the array they returned
        self._reward, self._terminated, self._truncated = reward, terminated, truncated
        generator = getattr(self._env, "_np_random", None)
        self._random_state = None if generator is None else generator.bit_generator.state


def _make(name: str, kwargs: Mapping[str, Any]) -> Any:
    with explained(f"env: '{name}'", kwargs), warnings.catch_warnings():
        warnings.simplefilter("ignore")  # gymnasium warns about every id that has a newer version
        return gymnasium.make(name, **kwargs).unwrapped


def _count_actions(env: Any, name: str) -> int:
    actions, observations = env.action_space, env.observation_space
    if not isinstance(actions, gymnasium.spaces.Discrete) or actions.start != 0:
        raise ConfigError(f"{name} has the action space {actions}; tree search needs a Discrete space that starts at 0")
    if not isinstance(observations, gymnasium.spaces.Box):
        raise ConfigError(f"{name} has the observation space {observations}; expected a Box")
    return int(actions.n)
