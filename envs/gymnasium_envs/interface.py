"""The observation and action spaces of an environment, found by making one."""

from __future__ import annotations

from contextlib import closing
from typing import Any, NamedTuple

import gymnasium

from podzero.config import GymnasiumConfig
from podzero.envs.gymnasium_envs.making import Factory, make_own
from podzero.envs.gymnasium_envs.spaces import Actions, Observations, mismatch
from podzero.errors import ConfigError
from podzero.types import EnvSpec


class Interface(NamedTuple):
    """An environment's spaces, with their conversion to and from podzero's arrays."""

    name: str
    observations: Observations
    actions: Actions

    @property
    def spec(self) -> EnvSpec:
        """Shapes and dtypes."""
        return EnvSpec(
            name=self.name,
            observation_shape=self.observations.shape,
            observation_dtype=self.observations.dtype.name,
            num_actions=self.actions.count,
            players=1,
            action_bounds=self.actions.bounds,
        )


def interface_of(config: GymnasiumConfig, seed: int | None = None) -> Interface:
    """Makes an environment, reads its spaces and closes it; given a `seed`, checks its first observation too.

    Raises:
      ConfigError: the environment cannot be made, its spaces are not supported, or its first observation is not in its
        observation space.
    """
    if config.vectorization == "own":
        with closing(make_own(config, 1)) as own:
            interface = _interface(config, own.single_observation_space, own.single_action_space)
            if seed is not None:
                batch = _first_observation(interface, own, seed)
                for one in gymnasium.vector.utils.iterate(own.observation_space, batch):
                    _check(interface, one)
            return interface
    with closing(Factory(config)()) as env:
        interface = _interface(config, env.observation_space, env.action_space)
        if seed is not None:
            _check(interface, _first_observation(interface, env, seed))
        return interface


def _interface(config: GymnasiumConfig, observations: Any, actions: Any) -> Interface:
    name = f"gymnasium/{config.id}"
    return Interface(name, Observations(observations, name), Actions(actions, name))


def _first_observation(interface: Interface, env: Any, seed: int) -> Any:
    try:
        return env.reset(seed=seed)[0]
    except Exception as error:
        raise ConfigError(f"{interface.name}: its first reset failed: {type(error).__name__}: {error}") from error


def _check(interface: Interface, first: Any) -> None:
    space = interface.observations.source
    if (wrong := mismatch(space, first, bounds=True)) is not None:
        raise ConfigError(
            f"{interface.name}: its first observation is not in its observation space {space}: {wrong}. "
            "Fix the environment, or convert its observations with a wrapper"
        )
