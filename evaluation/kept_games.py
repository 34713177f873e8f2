"""Games that a run or a tournament keeps, so that people can look at them: JSON lines, a file a round.

A line is a game as `podzero.evaluation.records.lines` writes it.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import NamedTuple

from podzero.errors import ConfigError
from podzero.evaluation.games import PlayedGame
from podzero.evaluation.records import game_from_tree, game_to_tree
from podzero.evaluation.tournament_files import GAMES_FILE
from podzero.workdir import Workdir, step_folder, write_atomically

log = logging.getLogger(__name__)

MOST_ROUNDS = 100
"""The rounds of which a run keeps the games; further ones replace others, so that the steps stay evenly spread."""
MOST_READ = 2000
"""The games that are read from a folder, the newest."""
_MOST_BYTES = 32 << 20
"""Bytes that are read of a file, its last ones."""


class KeptGame(NamedTuple):
    """A game, and where it is from."""

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
