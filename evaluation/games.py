"""Finished games: what is known of each, match results, and the files (JSON lines) in which a run or a tournament keeps
them for people to look at.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from podzero.errors import ConfigError
from podzero.intervals import wilson
from podzero.workdir import Workdir, step_folder, write_atomically


class PlayedGame(NamedTuple):
    """One finished game."""

    first: str
    """The name of the player who moved first, its random opening included."""
    second: str
    moves: tuple[int, ...]
    """All actions from the initial position, those of a random opening included."""
    points: float
    """The first player's points: 1 for a win, 0.5 for a draw, 0 for a loss."""
    opening_plies: int = 0
    """Random actions at the beginning."""
    position: str = ""
    """A digest of the position after the opening."""
    given_up: bool = False
    """Whether the loser resigned or forfeited."""
    cut_off: bool = False
    """Whether a limit on the plies ended the game; it then counts as what its rewards say, usually a draw."""


def game_title(game: PlayedGame) -> str:
    """Who played, the result, and how long it took, as `@20 - random 1-0, 7 plies`."""
    result = {1.0: "1-0", 0.0: "0-1"}.get(game.points, "draw")
    end = " (given up)" if game.given_up else " (cut off)" if game.cut_off else ""
    return f"{game.first} - {game.second} {result}{end}, {len(game.moves)} plies"


class PlayedPair(NamedTuple):
    """The two games of one opening."""

    opened: PlayedGame
    """The game in which the first player of the match moved first."""
    replied: PlayedGame
    """The game in which it moved second."""

    @property
    def points(self) -> tuple[float, float]:
        """Of the first player of the match in each game."""
        return self.opened.points, 1 - self.replied.points


class MatchResult(NamedTuple):
    """The result of a match, counted for the first player."""

    wins: int
    draws: int
    losses: int

    @property
    def games(self) -> int:
        """Games played."""
        return self.wins + self.draws + self.losses

    @property
    def points(self) -> float:
        """Wins, and half of the draws."""
        return self.wins + 0.5 * self.draws

    @property
    def score(self) -> float:
        """Points per game, in [0, 1]."""
        return self.points / self.games

    @property
    def interval(self) -> tuple[float, float]:
        """95% interval of the score, by Wilson's formula (`podzero.intervals`)."""
        return wilson(self.points, self.games)


def match_result(pairs: Iterable[PlayedPair]) -> MatchResult:
    """Wins, draws and losses of the first player of the match."""
    points = [scored for pair in pairs for scored in pair.points]
    return MatchResult(points.count(1.0), points.count(0.5), points.count(0.0))


_ENDS = ("over", "given up", "cut off")


def game_to_tree(game: PlayedGame) -> dict[str, Any]:
    """The game as plain values.

    {"players": ["mcts:20", "random"], "moves": [4, 0, 2], "opening_plies": 0, "position": "5feceb66ffc86f38",
     "points": [1.0, 0.0], "end": "over"}

    `players` names who moved first, and `points` has the same order. `moves` are actions of the environment, from the
    start of the game. `end` is `over`, `given up` if the loser resigned or forfeited, or `cut off` if a limit on the
    plies ended the game.
    """
    return {
        "players": [game.first, game.second],
        "moves": list(game.moves),
        "opening_plies": game.opening_plies,
        "position": game.position,
        "points": [game.points, 1 - game.points],
        "end": "given up" if game.given_up else "cut off" if game.cut_off else "over",
    }


def game_from_tree(tree: Mapping[str, Any]) -> PlayedGame:
    """The game that `game_to_tree` wrote; other keys are ignored.

    Raises:
      ValueError, KeyError, TypeError: something of it cannot be.
    """
    first, second = map(str, tree["players"])
    points = tree["points"]
    if sum(points) != 1 or points[0] not in (0, 0.5, 1):
        raise ValueError("points that cannot be")
    if not all(isinstance(one, int) for one in (tree["opening_plies"], *tree["moves"])) or tree["end"] not in _ENDS:
        raise ValueError("moves or an end that cannot be")
    return PlayedGame(
        first,
        second,
        tuple(tree["moves"]),
        float(points[0]),
        tree["opening_plies"],
        str(tree["position"]),
        given_up=tree["end"] == "given up",
        cut_off=tree["end"] == "cut off",
    )


log = logging.getLogger(__name__)

GAMES_FILE = "games.jsonl"
"""In the folder of a tournament."""
MOST_ROUNDS = 100
"""The rounds of which a run keeps the games; further ones replace others, so that the steps stay evenly spread."""
MOST_READ = 2000
"""The games that are read from a folder, the newest."""
_MOST_BYTES = 32 << 20
"""Bytes that are read of a file, its last ones."""


class KeptGame(NamedTuple):
    """A game and its origin."""

    origin: str
    """`step 2,932`, or the name of a tournament's folder."""
    game: PlayedGame


class GamesFolder:
    """The games of a run's evaluations: `STEP.jsonl` for each round."""

    def __init__(self, folder: Path, most_rounds: int = MOST_ROUNDS) -> None:
        self._folder = folder
        self._most = most_rounds

    def steps(self) -> list[int]:
        """The steps with games, ascending."""
        found = self._folder.glob("*.jsonl") if self._folder.is_dir() else ()
        return sorted(int(file.stem) for file in found if file.stem.isdigit())

    def write(self, step: int, games: Iterable[PlayedGame]) -> None:
        """Keeps the games of a round, which is the newest: rounds of later steps are of a time before a resumption, and
        are deleted. A run does not end because games cannot be written: that is logged.
        """
        text = "".join(json.dumps(game_to_tree(game)) + "\n" for game in games)
        try:
            self._folder.mkdir(parents=True, exist_ok=True)
            write_atomically(self._file(step), text)
            steps = self.steps()
            known = [kept for kept in steps if kept <= step]
            for dropped in {*steps} - {*known} | {*superfluous(known, self._most)}:
                self._file(dropped).unlink(missing_ok=True)
        except OSError as error:
            log.warning("the games of step %d cannot be kept in %s: %s", step, self._folder, error.strerror)

    def read(self, step: int) -> list[KeptGame]:
        """The games of a round; damaged lines are left out."""
        return _read(self._file(step), f"step {step:,}")

    def _file(self, step: int) -> Path:
        return step_folder(self._folder, step).with_suffix(".jsonl")


def superfluous(steps: Sequence[int], most: int) -> list[int]:
    """The steps to drop, so that at most `most` remain, the first and the last among them, as evenly as may be."""
    kept, dropped = sorted(steps), []
    while len(kept) > max(most, 2):
        gaps = [after - before for before, after in zip(kept, kept[2:], strict=False)]
        dropped.append(kept.pop(1 + gaps.index(min(gaps))))
    return dropped


def kept_games(folder: Path) -> list[KeptGame]:
    """The newest games in the working directory of a run, by round, or in the folder of a tournament; newest first.

    Raises:
      ConfigError: there are none.
    """
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
        raise ConfigError(
            f"{folder} keeps no games: neither {GAMES_FILE} of a tournament nor games/ of a run whose evaluator played"
        )
    return games[:MOST_READ]


def _read(file: Path, origin: str) -> list[KeptGame]:
    games = []
    try:
        with file.open("rb") as opened:
            size = opened.seek(0, 2)
            opened.seek(max(0, size - _MOST_BYTES))
            lines = opened.read().splitlines()
    except OSError:
        return []  # another process has just replaced it
    for line in lines:
        try:
            games.append(KeptGame(origin, game_from_tree(json.loads(line))))
        except (ValueError, KeyError, TypeError):
            continue  # half of a line, while it is being written
    return games
