"""Tournaments: matches chosen by uncertainty until the ratings are certain enough, and their folders.

The folder holds the settings (`tournament.json`) and the games (`games.jsonl`), a line each: what
`podzero.evaluation.games.game_to_tree` describes, and `batch`, `pair` and `seed`. Games of one `pair` share an opening;
`batch` and `seed` determine the random numbers.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import jax

from podzero.config import GameConfig, GymnasiumConfig
from podzero.core.errors import ConfigError, PodzeroError, nearest, os_errors
from podzero.core.protocols import Env
from podzero.core.reading import parse_json
from podzero.envs import make_env
from podzero.evaluation.arena import OPENING_PLIES, Arena, Interrupted
from podzero.evaluation.games import GAMES_FILE, PlayedGame, PlayedPair, game_from_tree, game_to_tree
from podzero.evaluation.players import Contestant
from podzero.evaluation.ratings import ANCHOR, Ladder, Rating
from podzero.evaluation.records import write_records
from podzero.evaluation.resolve import resolve
from podzero.files.players import game_to_play
from podzero.files.store import sync
from podzero.files.workdir import Workdir, read_json, write_atomically

SETTINGS_FILE = "tournament.json"
_FORMAT = 1


class TournamentError(PodzeroError, RuntimeError):
    """The folder of a tournament cannot be used."""


class TournamentSettings(NamedTuple):
    """The settings of a tournament, which stay the same when it is resumed."""

    game: Any
    """A game's name, or the section `env` of an experiment as plain values."""
    players: tuple[str, ...]
    """Full names, sorted."""
    simulations: int | None
    """Simulations per move of trained players; None for the number used in training."""
    opening_plies: int
    """Random plies at the start of each game."""
    openings: int
    """Openings in a match."""
    seed: int


class NumberedPair(NamedTuple):
    """The two games of an opening, with the numbers of their batch and pair in the tournament."""

    batch: int
    pair: int
    games: PlayedPair


class TournamentFiles:
    """The folder of one tournament."""

    def __init__(self, folder: Path, settings: TournamentSettings) -> None:
        """Makes the folder, or checks that it holds the same tournament; locks it until `close`."""
        self._lock = Workdir(folder).lock()
        self.folder, self.settings = folder, settings
        self._file = folder / GAMES_FILE
        stored = folder / SETTINGS_FILE
        tree = {"format": _FORMAT, **json.loads(json.dumps(settings._asdict()))}
        try:
            if stored.exists():
                _check_same(stored, tree)
            elif self._file.exists():
                raise TournamentError(f"{folder} holds {GAMES_FILE} without {SETTINGS_FILE}; choose another --workdir")
            else:
                with os_errors(TournamentError, f"cannot write the folder {folder}"):
                    write_atomically(stored, json.dumps(tree, indent=1) + "\n")
        except BaseException:
            self.close()
            raise

    def close(self) -> None:
        """Lets other processes use the folder."""
        self._lock.close()

    def read(self) -> list[NumberedPair]:
        """All games so far. Truncates an incomplete line or pair that an interruption left at the end of the file."""
        if not self._file.exists():
            return []
        text = self._file.read_bytes()
        lines = text[: text.rfind(b"\n") + 1].splitlines(keepends=True)
        games = [self._parse(number, line) for number, line in enumerate(lines, 1)]
        pairs = []
        for at, ((batch, pair, opened), (_, also, replied)) in enumerate(zip(games[::2], games[1::2], strict=False)):
            if pair != also or (opened.first, opened.second) != (replied.second, replied.first):
                raise self._damaged(2 * at + 1, "this and the next line are not the two games of an opening")
            pairs.append(NumberedPair(batch, pair, PlayedPair(opened, replied)))
        whole = sum(map(len, lines[: 2 * len(pairs)]))
        if whole < len(text):
            os.truncate(self._file, whole)
            sync(self._file)
        return pairs

    def append(self, pairs: Iterable[NumberedPair]) -> None:
        """Appends games and syncs the file to disk."""
        self._lock.check()
        lines = "".join(
            json.dumps({"batch": batch, "pair": pair, **game_to_tree(game), "seed": self.settings.seed}) + "\n"
            for batch, pair, games in pairs
            for game in games
        )
        with os_errors(TournamentError, f"cannot write {self._file}"), self._file.open("a", encoding="utf-8") as file:
            file.write(lines)
            file.flush()
            os.fsync(file.fileno())

    def _parse(self, number: int, line: bytes) -> tuple[int, int, PlayedGame]:
        """The batch, the pair and the game of a line."""
        try:
            tree = parse_json(line)
            game = game_from_tree(tree)
            if not {game.first, game.second} <= set(self.settings.players) or game.first == game.second:
                raise ValueError("invalid players")
            if not isinstance(tree["batch"], int) or not isinstance(tree["pair"], int):
                raise ValueError("invalid batch or pair")
            return tree["batch"], tree["pair"], game
        except (ValueError, KeyError, TypeError) as error:
            raise self._damaged(number, f"{type(error).__name__} {error}") from None

    def _damaged(self, number: int, why: str) -> TournamentError:
        return TournamentError(
            f"{self._file}, line {number} is damaged ({why}). Remove it together with the other game of its pair, or "
            "choose another --workdir."
        )


def _check_same(file: Path, given: dict[str, Any]) -> None:
    if not (found := read_json(file)):
        raise TournamentError(f"{file} is damaged or cannot be read; choose another --workdir")
    both = {key: (found.get(key), given.get(key)) for key in sorted({*found, *given})}
    changes = [f"  {key}: {_difference(old, new)}\n" for key, (old, new) in both.items() if old != new]
    if changes:
        raise TournamentError(
            f"{file.parent} holds another tournament:\n{''.join(changes)}"
            "Choose another --workdir, or give the same players and settings to resume it."
        )


def _difference(old: Any, new: Any) -> str:
    """The difference in words; for lists, the entries that only one of them has."""
    if isinstance(old, list) and isinstance(new, list):
        parts = {"holds": [x for x in old if x not in new], "given": [x for x in new if x not in old]}
        return ", ".join(f"only {name}: {', '.join(map(str, values))}" for name, values in parts.items() if values)
    return f"holds {old}, given {new}"


OPENINGS = 8
"""Openings in a match; each is played from both sides."""


class Tournament:
    """A tournament, which resumes from its files."""

    def __init__(
        self, env: Env, players: Sequence[Contestant], anchors: Mapping[str, float], files: TournamentFiles
    ) -> None:
        """Reads the games so far. `anchors` are the Elo points of at least one player with a known rating."""
        self._players = {player.name: player for player in players}
        self._names, self._anchors = [*files.settings.players], anchors
        self._files, self._settings = files, files.settings
        self.folder = files.folder
        """The folder with the files of the tournament."""
        self._env, self._arena = env, Arena(env)
        self._ladder = Ladder()
        self._known: dict[frozenset[str], set[str]] = defaultdict(set)
        """Positions of played openings, by the names of two players."""
        self._exhausted: set[tuple[str, str]] = set()
        self._batches = self._pairs = self._cut_off = 0
        for pair in files.read():
            self._count(pair)

    @property
    def games(self) -> int:
        """Games so far, including those of earlier processes."""
        return 2 * self._pairs

    def play(
        self,
        games: int,
        until: float | None = None,
        keep_going: Callable[[], bool] = lambda: True,
        report: Callable[[str, str], None] = lambda first, second: None,
    ) -> str:
        """Plays matches; returns the reason for which it ended.

        It ends after `games`, including those so far, which the last match may exceed; when half of every interval is
        at most `until`, in Elo points; or when `keep_going`, which is called before every ply, returns False: the
        unfinished match is then discarded. `report` is called with the names of the two players after each match.
        """
        while self.games < games:
            if until is not None and (self.largest_error() or float("inf")) <= until:
                return f"every interval is within ±{until:g} Elo"
            pair = self._ladder.next_pair(
                self._names,
                self._anchors,
                2 * self._settings.openings,
                may_play=lambda one, other: (one, other) not in self._exhausted,
            )
            if pair is None:
                return "all pairs of players have played all their openings"
            try:
                played = self._match(*pair, keep_going)
            except Interrupted:
                # The whole match is discarded: its finished games would be the short ones.
                return "interrupted"
            if not played:
                self._exhausted.add(pair)
                continue
            self._files.append(played)
            for one in played:
                self._count(one)
            report(*pair)
        return "the most games were played"

    def write_records(self, path: Path) -> None:
        """Writes all games so far to one SGF or PGN file (`podzero.evaluation.records`)."""
        write_records(path, self._env, (game for pair in self._files.read() for game in pair.games))

    def close(self) -> None:
        """Lets other processes use the folder."""
        self._files.close()

    def ratings(self) -> dict[str, Rating]:
        """Ratings of the players that games connect with an anchor, strongest first."""
        return self._ladder.ratings(self._anchors)

    def largest_error(self) -> float | None:
        """Half the longest interval of a rating, in Elo points; None while a player has no rating."""
        rated = self.ratings()
        if any(name not in rated for name in self._names):
            return None
        return max(rating.error for rating in rated.values())

    def standings(self) -> dict[str, Any]:
        """Ratings and cross table, as plain values.

        Returns:
          `games`, `cut_off` (games ended by the limit on plies), `players` (strongest first: `name, elo, low, high,
          games, score`; `elo`, `low` and `high` are None without a rating) and `cross` (`[N][N]` in the order of
          `players`: `wins, draws, losses`, or None).
        """
        rated = self.ratings()
        order = [*rated, *(name for name in self._names if name not in rated)]
        cross = [[self._ladder.meetings(one, other) for other in order] for one in order]
        return {
            "games": self.games,
            "cut_off": self._cut_off,
            "players": [self._row(name, rated.get(name)) for name in order],
            "cross": [[met._asdict() if met.games else None for met in row] for row in cross],
        }

    def _match(self, first: str, second: str, keep_going: Callable[[], bool]) -> list[NumberedPair]:
        """A match; empty if two deterministic players have played all openings of the game."""
        settings, batch = self._settings, self._batches
        one, other = self._players[first], self._players[second]
        key, known = jax.random.fold_in(jax.random.key(settings.seed), batch), self._known[frozenset((first, second))]
        played = self._arena.pairs(one, other, settings.openings, key, settings.opening_plies, keep_going, known)
        return [NumberedPair(batch, self._pairs + number, games) for number, games in enumerate(played)]

    def _count(self, pair: NumberedPair) -> None:
        one = pair.games.opened
        self._ladder.add(one.first, one.second, [pair.games.points])
        self._known[frozenset((one.first, one.second))].add(one.position)
        self._batches, self._pairs = pair.batch + 1, pair.pair + 1
        self._cut_off += sum(game.end == "cut off" for game in pair.games)

    def _row(self, name: str, rating: Rating | None) -> dict[str, Any]:
        results = [self._ladder.meetings(name, other) for other in self._names]
        games = self._ladder.games(name)
        elo, low, high = (rating.elo, rating.low, rating.high) if rating else (None, None, None)
        score = sum(result.points for result in results) / games if games else None
        return {"name": name, "elo": elo, "low": low, "high": high, "games": games, "score": score}


def open_tournament(
    who: Sequence[str],
    folder: Path | None = None,
    anchors: Mapping[str, float] | None = None,
    simulations: int | None = None,
    seed: int = 0,
    game: str | None = None,
) -> Tournament:
    """Begins a tournament, or resumes the one in `folder`.

    Games start with `OPENING_PLIES` random plies if at least two players are deterministic, and with none otherwise.

    Args:
      who: players, see `podzero.files.players`.
      folder: folder of the tournament's files; None for one below `tournaments/`, named after players and settings.
      anchors: Elo points of players, named as in `who`; None for 0 for `random`, or for the first without `random`.
      simulations: simulations per move of players with a network; None for the number used in training.
      seed: seed of openings and all random choices.
      game: see `podzero.files.players.game_to_play`.

    Raises:
      ConfigError, WorkdirError, SnapshotError: see `podzero.evaluation.resolve.resolve`.
      ConfigError: fewer than two players, a player named twice, an anchor that does not play, or a single-agent game.
      TournamentError: the folder holds another tournament, or its files are damaged.
    """
    where = game_to_play(game, *who)
    if isinstance(where, GymnasiumConfig) or (env := make_env(where)).spec.players == 1:
        raise ConfigError(f"{where.title} has a single agent, so there are no matches; see podzero evaluate")
    called = {name: resolve(name, env, simulations, where.discount) for name in who}
    players = sorted({player.name: player for player in called.values()}.values(), key=lambda player: player.name)
    if len(players) < max(2, len(who)):
        raise ConfigError(f"a tournament needs at least two players, each named once; got {', '.join(who)}")
    names = tuple(player.name for player in players)
    plies = OPENING_PLIES if sum(player.deterministic for player in players) > 1 else 0
    # A game that the command names is written by its name alone, as in the folders of earlier tournaments.
    played = game if isinstance(where, GameConfig) and game == where.name else where.model_dump(mode="json")
    settings = TournamentSettings(played, names, simulations, plies, OPENINGS, seed)
    known = _anchors(anchors, who, {name: player.name for name, player in called.items()})
    files = TournamentFiles(folder or default_folder(env.spec.name, settings), settings)
    return Tournament(env, players, known, files)


def default_folder(game: str, settings: TournamentSettings) -> Path:
    """`tournaments/GAME-DIGEST` with a digest of the settings, so that the same command resumes."""
    digest = hashlib.sha256(json.dumps(settings._asdict()).encode()).hexdigest()[:8]
    return Path("tournaments") / f"{game}-{digest}"


def _anchors(given: Mapping[str, float] | None, who: Sequence[str], names: Mapping[str, str]) -> dict[str, float]:
    """The anchors by the full names of their players."""
    if not given:
        return {names[ANCHOR if ANCHOR in names else who[0]]: 0.0}
    for name in given:
        if name not in names:
            raise ConfigError(f"anchor '{name}' does not play{nearest(name, names)}; players: {', '.join(names)}")
    if len(given) == len(names):
        raise ConfigError("all players are anchors, so there is nothing to rate; remove one anchor")
    return {names[name]: elo for name, elo in given.items()}
