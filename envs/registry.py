"""The games podzero knows, by name."""

from __future__ import annotations

from typing import get_args

from podzero.config import Game
from podzero.envs.pgx_games import PgxGame
from podzero.errors import ConfigError, nearest

GAMES: tuple[str, ...] = get_args(Game)
"""All two-player perfect-information games of pgx."""


def make_env(name: str) -> PgxGame:
    """The game called `name`.

    Raises:
      ConfigError: no such game; names the nearest one.
    """
    if name not in GAMES:
        raise ConfigError(f"unknown game '{name}'{nearest(name, GAMES)}; known: {', '.join(GAMES)}")
    return PgxGame(name)
