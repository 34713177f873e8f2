"""From the `env` section of an experiment to what it names."""

from __future__ import annotations

from typing import get_args

from podzero.config import EnvConfig, Game, GameConfig, GymnasiumConfig, SimulatorConfig
from podzero.envs.gymnasium_envs import VectorEnv, interface_of
from podzero.envs.pgx_games import PgxGame
from podzero.envs.simulators import make_host_env
from podzero.errors import ConfigError, nearest
from podzero.protocols import Env
from podzero.types import EnvSpec

GAMES: tuple[str, ...] = get_args(Game)
"""All two-player perfect-information games of pgx."""


def make_env(env: str | EnvConfig) -> Env:
    """The game or simulator that search can play forward; a name alone is that of a game in JAX.

    Raises:
      ConfigError: there is none; names the nearest one.
    """
    match env:
        case GameConfig(name=name):
            return PgxGame(name)
        case str() if env in GAMES:
            return PgxGame(env)
        case str():
            raise ConfigError(f"unknown game '{env}'{nearest(env, GAMES)}; known: {', '.join(GAMES)}")
        case SimulatorConfig():
            return make_host_env(env)
        case GymnasiumConfig():
            raise ConfigError(f"{env.id} is a gymnasium environment: it can be acted in, but not be played forward")


def spec_of(env: EnvConfig) -> EnvSpec:
    """Shapes and dtypes of an environment of any kind.

    Raises:
      ConfigError: there is no such environment, or it has spaces that podzero does not know.
    """
    return interface_of(env).spec if isinstance(env, GymnasiumConfig) else make_env(env).spec


def make_vector_env(config: GymnasiumConfig, count: int, seed: int) -> VectorEnv:
    """`count` environments that step together; see `VectorEnv`.

    Raises:
      ConfigError: there is no such environment, it has spaces that podzero does not know, or breaks its own.
    """
    return VectorEnv(config, count, seed)
