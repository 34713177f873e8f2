"""The folder of a tournament: what is played (`tournament.json`), and every game (`games.jsonl`).

A line of `games.jsonl` is one game, as

    {"batch": 3, "pair": 17, "players": ["mcts:20", "random"], "moves": [4, 0, 2], "opening_plies": 0,
     "position": "5feceb66ffc86f38", "points": [1.0, 0.0], "end": "over", "seed": 0}

It has what `podzero.evaluation.records.lines` says. The games of one `pair` have the same opening. Random numbers are
those of batch `batch` of the tournament with this `seed`.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from podzero.errors import PodzeroError
from podzero.evaluation.games import PlayedGame, PlayedPair
from podzero.evaluation.records import game_from_tree, game_to_tree
from podzero.workdir import Workdir, sync, write_atomically

SETTINGS_FILE = "tournament.json"
GAMES_FILE = "games.jsonl"
_FORMAT = 1


class TournamentError(PodzeroError, RuntimeError):
    """The folder of a tournament cannot be used; the message says why and what to do."""


class Settings(NamedTuple):
    """What is played. A tournament is resumed only with the same settings."""

    game: Any
    """The name of a game, or the section `env` of an experiment as plain values."""
    players: tuple[str, ...]
    """Full names, sorted."""
    simulations: int | None
    """Simulations per move of trained players; None for those of their training."""
    opening_plies: int
    """Random plies at the start of each game."""
    openings: int
    """Openings in a match."""
    seed: int


class NumberedPair(NamedTuple):
    """The two games of an opening, and where they stand in the tournament."""

    batch: int
    pair: int
    games: PlayedPair


class _Line(NamedTuple):
    """A line of the file of games."""

    batch: int
    pair: int
    game: PlayedGame


class TournamentFiles:
    """The folder of one tournament."""

    def __init__(self, folder: Path, settings: Settings) -> None:
        """Makes the folder, or checks that it holds the same tournament; reserves it until `close`.

        Raises:
          TournamentError: it holds another tournament (the message says what differs), or cannot be read or written.
          WorkdirError: another process plays there.
        """
        self._lock = Workdir(folder).lock()
        self.folder = folder
        self._settings = settings
        self._file = folder / GAMES_FILE
        held = folder / SETTINGS_FILE
        tree = {"format": _FORMAT, **json.loads(json.dumps(settings._asdict()))}
        try:
            if held.exists():
                _check_same(held, tree)
            elif self._file.exists():
                raise TournamentError(f"{folder} holds {GAMES_FILE} without {SETTINGS_FILE}; choose another --workdir")
            else:
                write_atomically(held, json.dumps(tree, indent=1) + "\n")
        except OSError as error:
            self.close()
            raise TournamentError(f"cannot write the folder {folder}: {error.strerror}") from None
        except TournamentError:
            self.close()
            raise

    def close(self) -> None:
        """Lets other processes use the folder."""
        self._lock.close()

    def read(self) -> list[NumberedPair]:
        """All games so far. What an interruption left at the end of the file, half a line or one game of a pair, is
        dropped from the file.

        Raises:
          TournamentError: a complete line is damaged.
        """
        if not self._file.exists():
            return []
        text = self._file.read_bytes()
        lines = text[: text.rfind(b"\n") + 1].splitlines(keepends=True)
        games = [self._parse(number, line) for number, line in enumerate(lines, 1)]
        if len(games) % 2:
            games.pop()
        pairs = [self._join(number, *games[number : number + 2]) for number in range(0, len(games), 2)]
        kept = sum(map(len, lines[: len(games)]))
        if kept < len(text):
            os.truncate(self._file, kept)
            sync(self._file)
        return pairs

    def append(self, pairs: Iterable[NumberedPair]) -> None:
        """Writes further games, and waits until they are on disk.

        Raises:
          TournamentError: the file cannot be written.
        """
        lines = "".join(json.dumps(line) + "\n" for pair in pairs for line in self._lines(pair))
        try:
            with self._file.open("a") as file:
                file.write(lines)
                file.flush()
                os.fsync(file.fileno())
        except OSError as error:
            raise TournamentError(f"cannot write {self._file}: {error.strerror}") from None

    def _lines(self, pair: NumberedPair) -> Iterable[dict[str, Any]]:
        for game in pair.games:
            yield {"batch": pair.batch, "pair": pair.pair, **game_to_tree(game), "seed": self._settings.seed}

    def _parse(self, number: int, line: bytes) -> _Line:
        try:
            tree = json.loads(line)
            game = game_from_tree(tree)
            if not {game.first, game.second} <= set(self._settings.players) or game.first == game.second:
                raise ValueError("players that cannot be")
            if not isinstance(tree["batch"], int) or not isinstance(tree["pair"], int):
                raise ValueError("a batch or pair that cannot be")
            return _Line(tree["batch"], tree["pair"], game)
        except (ValueError, KeyError, TypeError) as error:
            raise self._damaged(number, f"{type(error).__name__} {error}") from None

    def _join(self, number: int, one: _Line, other: _Line) -> NumberedPair:
        players = (one.game.first, one.game.second)
        if one.pair != other.pair or players != (other.game.second, other.game.first):
            raise self._damaged(number + 1, "it and the next one are not the two games of an opening")
        return NumberedPair(one.batch, one.pair, PlayedPair(one.game, other.game))

    def _damaged(self, number: int, why: str) -> TournamentError:
        return TournamentError(
            f"{self._file}, line {number} is damaged ({why}). Remove it together with the other game of its pair, or "
            "choose another --workdir."
        )


def _check_same(held: Path, given: dict[str, Any]) -> None:
    try:
        found = json.loads(held.read_text())
        keys = sorted({*found, *given})
    except (ValueError, TypeError) as error:
        raise TournamentError(f"{held} is damaged ({error}); choose another --workdir") from None
    changes = [(key, found.get(key), given.get(key)) for key in keys if found.get(key) != given.get(key)]
    if changes:
        listed = "\n".join(f"  {key}: {_difference(old, new)}" for key, old, new in changes)
        raise TournamentError(
            f"{held.parent} holds another tournament:\n{listed}\n"
            "Choose another --workdir, or give the same players and settings to resume it."
        )


def _difference(held: Any, given: Any) -> str:
    """What differs; of lists, only the entries that one of them lacks."""
    if isinstance(held, Sequence) and isinstance(given, list) and not isinstance(held, str):
        parts = {"holds": [x for x in held if x not in given], "given": [x for x in given if x not in held]}
        return ", ".join(f"only {name}: {', '.join(map(str, values))}" for name, values in parts.items() if values)
    return f"holds {held}, given {given}"
