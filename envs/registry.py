"""From the `env` section of an experiment to what it names."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar, get_args

from podzero.config import EnvConfig, Game, GameConfig, GymnasiumConfig, SimulatorConfig
from podzero.deadline import DeadlineThread
from podzero.envs.gymnasium_envs import VectorEnv, interface_of
from podzero.envs.pgx_games import PgxGame
from podzero.envs.simulators import make_host_env
from podzero.errors import ConfigError, nearest
from podzero.protocols import Env
from podzero.types import EnvSpec

GAMES: tuple[str, ...] = get_args(Game)
"""All two-player perfect-information games of pgx."""

_Config = TypeVar("_Config", GymnasiumConfig, SimulatorConfig)
_Made = TypeVar("_Made")


def make_env(env: str | EnvConfig) -> Env:
    """The game or simulator that search can play forward; a name alone is that of a game in JAX.

    Raises:
      ConfigError: there is none, and what is the nearest one; or it cannot be made, or not in time.
    """
    match env:
        case GameConfig(name=name):
            return PgxGame(name)
        case str() if env in GAMES:
            return PgxGame(env)
        case str():
            raise ConfigError(f"unknown game '{env}'{nearest(env, GAMES)}; known: {', '.join(GAMES)}")
        case SimulatorConfig():
            return _in_time(make_host_env, env)
        case GymnasiumConfig():
            raise ConfigError(f"{env.id} is a gymnasium environment: it can be acted in, but not be played forward")


def spec_of(env: EnvConfig) -> EnvSpec:
    """Shapes and dtypes of an environment of any kind.

    Raises:
      ConfigError: there is no such environment, it has spaces that podzero does not know, or it is not made in time.
    """
    return _in_time(interface_of, env).spec if isinstance(env, GymnasiumConfig) else make_env(env).spec


def make_vector_env(config: GymnasiumConfig, count: int, seed: int) -> VectorEnv:
    """`count` environments that step together; see `VectorEnv`.

    Raises:
      ConfigError: there is no such environment, it has spaces that podzero does not know, or breaks its own.
    """
    return VectorEnv(config, count, seed)


def _in_time(make: Callable[[_Config], _Made], config: _Config) -> _Made:
    """What `make` makes of `config`: whatever it runs is somebody else's code, which may never be done."""
    thread = DeadlineThread(config.title)
    try:
        return thread.call(make, config, config.build_timeout_s)
    except TimeoutError as error:
        raise ConfigError(f"{config.title} cannot be made: {error} (env.build_timeout_s)") from None
    finally:
        thread.stop()
