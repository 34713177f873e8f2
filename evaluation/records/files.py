"""The record of a game, and the format in which it is written."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import NamedTuple

from podzero.errors import ConfigError
from podzero.evaluation.records.pgn import pgn_text
from podzero.evaluation.records.sgf import SGF_GAMES, sgf_text
from podzero.protocols import Env


class GameRecord(NamedTuple):
    """One finished game."""

    first: str
    """The name of the player who moved first."""
    second: str
    moves: Sequence[int]
    """All actions from the initial position."""
    points: float
    """What the first player got: positive if it won, negative if it lost."""
    given_up: bool = False
    """Whether the loser resigned or forfeited."""
    date: str | None = None
    """As 2026-01-31."""


def record_suffix(game: str) -> str:
    """`.sgf` or `.pgn`, for the name of a game."""
    return ".sgf" if game in SGF_GAMES else ".pgn"


def record_text(env: Env, record: GameRecord) -> str:
    """The record of one game, as `record_suffix` says; a file may hold several, one after another.

    Chess is written in standard algebraic notation, for which the game is replayed; other games in their own notation
    (`podzero.envs.notation`).
    """
    return sgf_text(env.spec, *record) if env.spec.name in SGF_GAMES else pgn_text(env, *record)


def write_records(path: Path, env: Env, records: Iterable[GameRecord]) -> None:
    """Writes games to a file, whose folder is made.

    Raises:
      ConfigError: it cannot be written.
    """
    text = "\n".join(record_text(env, record) for record in records)
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    except OSError as error:
        raise ConfigError(
            f"the games cannot be written to {path}: {error.strerror}; choose a file by --records"
        ) from None
