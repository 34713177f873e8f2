"""The format in which finished games are written, and their files."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from podzero.errors import ConfigError
from podzero.evaluation.games import PlayedGame
from podzero.evaluation.records.pgn import pgn_text
from podzero.evaluation.records.sgf import SGF_GAMES, sgf_text
from podzero.protocols import Env


def record_suffix(game: str) -> str:
    """`.sgf` or `.pgn`, for the name of a game."""
    return ".sgf" if game in SGF_GAMES else ".pgn"


def record_text(env: Env, game: PlayedGame, date: str | None = None) -> str:
    """The record of one game, as `record_suffix` says; a file may hold several, one after another.

    Chess is written in standard algebraic notation, for which the game is replayed; other games in their own notation
    (`podzero.envs.notation`). `date` is as 2026-01-31.
    """
    return sgf_text(env.spec, game, date) if env.spec.name in SGF_GAMES else pgn_text(env, game, date)


def write_records(path: Path, env: Env, games: Iterable[PlayedGame], date: str | None = None) -> None:
    """Writes games to a file, whose folder is made.

    Raises:
      ConfigError: it cannot be written.
    """
    text = "\n".join(record_text(env, game, date) for game in games)
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    except OSError as error:
        raise ConfigError(
            f"the games cannot be written to {path}: {error.strerror}; choose a file by --records"
        ) from None
