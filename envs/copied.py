"""Gymnasium's environments as `Simulator`s, which tree search copies; they were not written to be copied."""

from __future__ import annotations

import copy
import warnings
from collections.abc import Collection, Mapping
from typing import Any

import gymnasium
import numpy as np

from podzero.core.errors import ConfigError, described
from podzero.envs.gymnasium_envs.making import REMEDY, explained, find, interface_to
from podzero.envs.gymnasium_envs.masks import MASK
from podzero.envs.gymnasium_envs.rendering import STEPS_PER_SECOND, picture, rendered


def copy_of[T](original: T, shared: Collection[str]) -> T:
    """Copies an object attribute by attribute, as `copy.deepcopy` does but without calling `__getstate__`.

    In many environments (those with EzPickle) that method drops the state. Both objects refer to the same values of the
    attributes `shared`, which nobody may change in place.
    """
    twin = object.__new__(type(original))
    memo = {id(original): twin}
    vars(twin).update(
        (name, value if name in shared else copy.deepcopy(value, memo)) for name, value in vars(original).items()
    )
    return twin


_CHANCE_GAMES, _CHANCE_STEPS = 4, 32
"""Episodes, and steps per episode, that are played to detect chance events."""
_GYMNASIUM_CONSTANT = frozenset({"action_space", "observation_space", "metadata", "spec", "reward_range", "_np_random"})


class GymnasiumSimulator:
    """An environment with discrete actions; `Interface` checks its steps and reads its action masks.

    Wrappers from the registration, such as time limits, are not applied: `env.max_plies` truncates episodes.

    Args:
      name: the environment's id.
      kwargs: arguments for `gymnasium.make`.
      module: a module to import first, which registers the id.

    Raises:
      ConfigError: the id is unknown, the environment's spaces are not supported, or it cannot be copied.
    """

    players = 1

    def __init__(self, name: str, kwargs: Mapping[str, Any], module: str | None = None) -> None:
        find(name, module)
        self._env = _make(name, kwargs)
        _check_spaces(self._env, name)
        self._interface = interface_to(self._env, name, self._env.observation_space, self._env.action_space)
        self.num_actions = self._interface.actions.count
        self._all = list(range(self.num_actions))
        self.reset(0)
        try:
            self.clone()
        except Exception as error:
            raise ConfigError(
                f"{name} cannot be copied ({error}), so tree search cannot simulate it; learn a model of it instead, "
                "with env.name: gymnasium and network.name: muzero_mlp or muzero_resnet"
            ) from error
        try:
            has_chance = self._has_chance_events()
        except Exception as error:
            raise ConfigError(f"{name} cannot be played: {described(error)}. {REMEDY}") from error
        if has_chance:
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
            for _ in range(_CHANCE_STEPS):
                action = int(choose.choice(one.legal_actions()))
                one.step(action)
                other.step(action)
                if not np.array_equal(one.observation(), other.observation()) or one.rewards() != other.rewards():
                    return True
                if one.done() or other.done():
                    break
        return False

    def reset(self, seed: int) -> None:
        """See `Simulator`."""
        observation, info = self._interface.after_reset(self._env, self._env.reset(seed=seed))
        self._store(observation, info)

    def step(self, action: int) -> None:
        """See `Simulator`."""
        # Clones share one generator; its state, which each clone stores, is faster to copy than the generator.
        if self._random_state is not None:
            self._env.np_random.bit_generator.state = self._random_state
        seen = self._interface.after_step(self._env, self._env.step(action))
        self._store(seen.observation, seen.info, float(seen.reward), bool(seen.terminated), bool(seen.truncated))

    def legal_actions(self) -> list[int]:
        """See `Simulator`."""
        return self._legal

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
        """The environment's own speed."""
        return float(self._env.metadata.get("render_fps") or STEPS_PER_SECOND)

    def render(self) -> np.ndarray[Any, Any]:
        """See `RenderedSimulator`.

        Raises:
          ConfigError: it was not made with the render mode `rgb_array`, or rendering failed.
        """
        return picture(rendered(self._env, self._env.spec.id), self._env.spec.id)

    def clone(self) -> GymnasiumSimulator:
        """See `Simulator`."""
        # Without __init__, which would make a new environment.
        twin = object.__new__(GymnasiumSimulator)
        vars(twin).update(vars(self))
        twin._env = copy_of(self._env, _GYMNASIUM_CONSTANT)
        return twin

    def _store(
        self,
        observation: np.ndarray[Any, Any],
        info: Mapping[str, Any],
        reward: float = 0.0,
        terminated: bool = False,
        truncated: bool = False,
    ) -> None:
        self._observation = np.array(observation)  # some environments reuse the array they returned
        self._legal = np.flatnonzero(info[MASK]).tolist() if MASK in info else self._all
        self._reward, self._terminated, self._truncated = reward, terminated, truncated
        generator = getattr(self._env, "_np_random", None)
        self._random_state = None if generator is None else generator.bit_generator.state


def _make(name: str, kwargs: Mapping[str, Any]) -> Any:
    with explained(f"env: '{name}'", kwargs), warnings.catch_warnings():
        warnings.simplefilter("ignore")  # gymnasium warns about every id that has a newer version
        return gymnasium.make(name, **kwargs).unwrapped


def _check_spaces(env: Any, name: str) -> None:
    actions, observations = env.action_space, env.observation_space
    if not isinstance(actions, gymnasium.spaces.Discrete) or actions.start != 0:
        raise ConfigError(f"{name} has the action space {actions}; tree search needs a Discrete space that starts at 0")
    if not isinstance(observations, gymnasium.spaces.Box):
        raise ConfigError(f"{name} has the observation space {observations}; expected a Box")
