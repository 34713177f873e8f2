"""Finished games, match results, and the JSON lines in which runs and tournaments store games."""

from __future__ import annotations

import json
import logging
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal, NamedTuple, get_args

from podzero.core.errors import ConfigError
from podzero.core.reading import last_lines, parse_json
from podzero.evaluation.statistics import wilson
from podzero.files.storage import StorageError
from podzero.files.store import store_of
from podzero.files.workdir import STEP_NAME, Workdir, step_folder, write_atomically

End = Literal["over", "given up", "cut off"]


class PlayedGame(NamedTuple):
    """One finished game."""

    first: str
    """Name of the player that moved first, counting the random opening."""
    second: str
    moves: tuple[int, ...]
    """All actions, including the random opening."""
    points: float
    """The first player's points: 1 for a win, 0.5 for a draw, 0 for a loss."""
    opening_plies: int = 0
    """Length of the random opening."""
    position: str = ""
    """Digest of the position after the opening."""
    end: End = "over"
    """`over` by the rules; `given up` by the loser, who resigned or forfeited; `cut off` at the limit on plies and
    scored by the rewards so far, usually as a draw."""


def game_title(game: PlayedGame) -> str:
    """Players, result and length, for example `@20 - random 1-0, 7 plies`."""
    result = {1.0: "1-0", 0.0: "0-1"}.get(game.points, "draw")
    end = "" if game.end == "over" else f" ({game.end})"
    return f"{game.first} - {game.second} {result}{end}, {len(game.moves)} plies"


class PlayedPair(NamedTuple):
    """The two games of one opening."""

    opened: PlayedGame
    """The game in which the first player of the match moved first."""
    replied: PlayedGame
    """The game in which that player moved second."""

    @property
    def points(self) -> tuple[float, float]:
        """Points of the first player of the match in each game."""
        return self.opened.points, 1 - self.replied.points


class MatchResult(NamedTuple):
    """The result of a match for its first player."""

    wins: int
    draws: int
    losses: int

    @property
    def games(self) -> int:
        """Number of games."""
        return self.wins + self.draws + self.losses

    @property
    def points(self) -> float:
        """Wins plus half the draws."""
        return self.wins + 0.5 * self.draws

    @property
    def score(self) -> float:
        """Points per game, in [0, 1]."""
        return self.points / self.games

    @property
    def interval(self) -> tuple[float, float]:
        """95% interval of the score, by Wilson's formula."""
        return wilson(self.points, self.games)


def match_result(pairs: Iterable[PlayedPair]) -> MatchResult:
    """The result of a match, from its pairs of games."""
    points = [scored for pair in pairs for scored in pair.points]
    return MatchResult(points.count(1.0), points.count(0.5), points.count(0.0))


def game_to_tree(game: PlayedGame) -> dict[str, Any]:
    """The game as plain values.

    {"players": ["mcts:20", "random"], "moves": [4, 0, 2], "opening_plies": 0, "position": "5feceb66ffc86f38",
     "points": [1.0, 0.0], "end": "over"}

    `players` and `points` begin with the player that moved first. `moves` are actions of the environment. `end` is
    `over`, `given up` (the loser resigned or forfeited), or `cut off` (by the limit on plies).
    """
    return {
        "players": [game.first, game.second],
        "moves": list(game.moves),
        "opening_plies": game.opening_plies,
        "position": game.position,
        "points": [game.points, 1 - game.points],
        "end": game.end,
    }


def game_from_tree(tree: Mapping[str, Any]) -> PlayedGame:
    """The inverse of `game_to_tree`; an invalid tree raises `ValueError`, `KeyError` or `TypeError`."""
    first, second = map(str, tree["players"])
    points = tree["points"]
    if points not in ([0, 1], [0.5, 0.5], [1, 0]):
        raise ValueError("invalid points")
    plies, moves, end = tree["opening_plies"], tuple(tree["moves"]), tree["end"]
    if not all(isinstance(one, int) for one in (plies, *moves)) or end not in get_args(End):
        raise ValueError("invalid moves, opening_plies or end")
    return PlayedGame(first, second, moves, float(points[0]), plies, str(tree["position"]), end)


log = logging.getLogger(__name__)

GAMES_FILE = "games.jsonl"
"""Holds a tournament's games."""
MOST_ROUNDS = 100
"""Evaluation rounds whose games a run keeps; beyond that some are deleted so that the steps stay evenly spread."""
MOST_READ = 2000
"""Newest games that are read from a folder."""
_MOST_BYTES = 32 << 20
"""Last bytes that are read from a file."""


class StoredGame(NamedTuple):
    """A stored game and its origin."""

    origin: str
    """For example `step 2,932`, or the name of a tournament's folder."""
    game: PlayedGame


class GamesFolder:
    """The games of a run's evaluations: `STEP.jsonl` for each round."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._store = store_of(folder)

    def steps(self) -> list[int]:
        """The steps with games, ascending."""
        files = map(Path, self._store.list(self._folder))
        return sorted(int(file.stem) for file in files if file.suffix == ".jsonl" and STEP_NAME.fullmatch(file.stem))

    def write(self, step: int, games: Iterable[PlayedGame]) -> None:
        """Stores the games of the newest round; a failed write is only logged."""
        text = "".join(json.dumps(game_to_tree(game)) + "\n" for game in games)
        try:
            self._folder.mkdir(parents=True, exist_ok=True)
            write_atomically(self._file(step), text)
            self._store.put(self._file(step))
            steps = self.steps()
            # Rounds of later steps are from before a resumption.
            stored = [each for each in steps if each <= step]
            for deleted in {*steps} - {*stored} | {*superfluous(stored, MOST_ROUNDS)}:
                self._store.delete(self._file(deleted))
        except (OSError, StorageError) as error:
            log.warning("the games of step %d cannot be stored in %s: %s", step, self._folder, error)

    def read(self, step: int) -> list[StoredGame]:
        """The games of a round, without damaged lines."""
        self._store.get(self._file(step))
        return _read(self._file(step), f"step {step:,}")

    def _file(self, step: int) -> Path:
        return step_folder(self._folder, step).with_suffix(".jsonl")


def superfluous(steps: Sequence[int], most: int) -> list[int]:
    """The steps to delete so that at most `most` remain, evenly spread and including the first and the last."""
    left, deleted = sorted(steps), []
    while len(left) > max(most, 2):
        gaps = [after - before for before, after in zip(left, left[2:], strict=False)]
        deleted.append(left.pop(1 + gaps.index(min(gaps))))
    return deleted


def stored_games(folder: Path) -> list[StoredGame]:
    """The newest `MOST_READ` games of a run's working directory or a tournament's folder, newest first."""
    tournament = folder / GAMES_FILE
    if tournament.is_file():
        games = _read(tournament, folder.name)[::-1]
    else:
        rounds = GamesFolder(Workdir(folder).games)
        games = []
        for step in reversed(rounds.steps()):
            games += rounds.read(step)
            if len(games) >= MOST_READ:
                break
    if not games:
        raise ConfigError(f"{folder} holds no games: neither a tournament's {GAMES_FILE} nor games/ of a run")
    return games[:MOST_READ]


def _read(file: Path, origin: str) -> list[StoredGame]:
    games = []
    for line in last_lines(file, _MOST_BYTES):
        try:
            games.append(StoredGame(origin, game_from_tree(parse_json(line))))
        except (ValueError, KeyError, TypeError):
            # A line may be incomplete while it is written.
            continue
    return games
