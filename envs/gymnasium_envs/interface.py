"""What environments take and return, checked: alike before a run, in it, and in recorded episodes."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

import gymnasium
import numpy as np

from podzero.envs.gymnasium_envs.masks import Masks
from podzero.envs.gymnasium_envs.spaces import Actions, HostArray, Observations, is_truth

_RESET = ("observation", "info")
_STEP = ("observation", "reward", "terminated", "truncated", "info")


class Returned(NamedTuple):
    """What a step returned; the shapes are those of one environment, and lead with B for a vector of B."""

    observation: HostArray
    """`[*observation_shape]`, converted."""
    reward: HostArray
    """`[]`, a number, not yet known to be finite."""
    terminated: HostArray
    """`[]` bool."""
    truncated: HostArray
    """`[]` bool."""
    info: dict[str, HostArray]
    """See `Masks.read`; nothing else is kept."""


class Interface(NamedTuple):
    """Converts between an environment and podzero's arrays, and checks what the environment returns."""

    name: str
    observations: Observations
    actions: Actions
    masks: Masks

    def after_reset(self, env: Any, returned: Any) -> tuple[HostArray, dict[str, HostArray]]:
        """The observation and the info after a reset, as in `Returned`.

        Args:
          env: the environment, or a vector of environments.
          returned: what its `reset` returned.

        Raises:
          ValueError: that is not what gymnasium expects; the message names the part that is wrong.
        """
        first, info = parts_of_reset(returned)
        observation = self._converted(env, first)
        return observation, self.masks.read(env, first, info, np.zeros(self._lead(observation), bool))

    def after_step(self, env: Any, returned: Any) -> Returned:
        """What a step returned; takes and raises what `after_reset` does."""
        shown, reward, terminated, truncated, info = _parts(returned, "step", _STEP)
        observation = self._converted(env, shown)
        lead = self._lead(observation)
        rewards = _array("reward", reward, lead)
        if rewards.dtype.kind not in "biuf":
            raise ValueError(f"its reward is {reward!r:.80}; expected a number")
        ended, cut = (_flag(name, value, lead) for name, value in zip(_STEP[2:4], (terminated, truncated), strict=True))
        # `|` makes a scalar of arrays without axes.
        return Returned(observation, rewards, ended, cut, self.masks.read(env, shown, info, np.asarray(ended | cut)))

    def _converted(self, env: Any, observation: Any) -> HostArray:
        if isinstance(env, gymnasium.vector.VectorEnv):
            return self.observations.convert_all(observation, env.observation_space)
        return self.observations.convert(observation)

    def _lead(self, observation: HostArray) -> tuple[int, ...]:
        lead: tuple[int, ...] = observation.shape[: observation.ndim - len(self.observations.shape)]
        return lead


def parts_of_reset(returned: Any) -> tuple[Any, Mapping[str, Any]]:
    """Observation and info; raises as `Interface.after_reset` does."""
    observation, info = _parts(returned, "reset", _RESET)
    return observation, info


def _parts(returned: Any, method: str, names: tuple[str, ...]) -> tuple[Any, ...]:
    if not isinstance(returned, tuple | list) or len(returned) != len(names):
        found = f"{len(returned)} values" if isinstance(returned, tuple | list) else f"{type(returned).__name__}"
        raise ValueError(f"{method} returned {found}; expected {len(names)} values: {', '.join(names)}")
    if not isinstance(returned[-1], Mapping):
        raise ValueError(f"the info that {method} returned is {returned[-1]!r:.80}; expected a dict")
    return tuple(returned)


def _flag(name: str, value: Any, lead: tuple[int, ...]) -> HostArray:
    array = _array(name, value, lead)
    if not is_truth(array):
        raise ValueError(f"its {name} is {value!r:.80}; expected True or False")
    return array.astype(bool)


def _array(name: str, value: Any, lead: tuple[int, ...]) -> HostArray:
    """`[*lead]`: one value of each environment."""
    try:
        array = np.asarray(value)
    except ValueError:
        raise ValueError(f"its {name} is {value!r:.80}, with parts of different lengths") from None
    if array.shape != lead:
        expected = f"shape {list(lead)}" if lead else "one value, without axes"
        raise ValueError(f"its {name} is {value!r:.80}, of shape {list(array.shape)}; expected {expected}")
    return array
