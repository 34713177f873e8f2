"""Tournaments: matches chosen by uncertainty until the ratings are certain enough, and their folders.

The folder holds the settings (`tournament.json`) and the games (`games.jsonl`), one JSON object a line:

    {"batch": 3, "pair": 17, "players": ["mcts:20", "random"], "moves": [4, 0, 2], "opening_plies": 0,
     "position": "5feceb66ffc86f38", "points": [1.0, 0.0], "end": "over", "seed": 0}

Games of one `pair` share an opening; `batch` and `seed` determine the random numbers. The other fields are described in
`podzero.evaluation.games.game_to_tree`.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import jax

from podzero.config import GymnasiumConfig
from podzero.core.errors import ConfigError, PodzeroError, nearest
from podzero.core.protocols import Env
from podzero.envs import make_env
from podzero.evaluation.arena import OPENING_PLIES, Arena, Interrupted
from podzero.evaluation.bradley_terry import cycles, next_pair, surprises
from podzero.evaluation.evaluate import discount_of
from podzero.evaluation.games import GAMES_FILE, PlayedGame, PlayedPair, game_from_tree, game_to_tree
from podzero.evaluation.players import Contestant
from podzero.evaluation.ratings import ANCHOR, Ladder, Rating, fixed_ratings
from podzero.evaluation.records import write_records
from podzero.evaluation.resolve import resolve
from podzero.files.players import game_to_play
from podzero.files.workdir import Workdir, sync, write_atomically

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


class _Line(NamedTuple):
    """A line of `games.jsonl`."""

    batch: int
    pair: int
    game: PlayedGame


class TournamentFiles:
    """The folder of one tournament."""

    def __init__(self, folder: Path, settings: TournamentSettings) -> None:
        """Makes the folder, or checks that it holds the same tournament; locks it until `close`."""
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
        """All games so far. Truncates an incomplete line or pair that an interruption left at the end of the file."""
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
        """Appends games and syncs the file to disk."""
        self._lock.check()
        lines = "".join(json.dumps(line) + "\n" for pair in pairs for line in self._lines(pair))
        try:
            with self._file.open("a", encoding="utf-8") as file:
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
                raise ValueError("invalid players")
            if not isinstance(tree["batch"], int) or not isinstance(tree["pair"], int):
                raise ValueError("invalid batch or pair")
            return _Line(tree["batch"], tree["pair"], game)
        except (ValueError, KeyError, TypeError) as error:
            raise self._damaged(number, f"{type(error).__name__} {error}") from None

    def _join(self, number: int, one: _Line, other: _Line) -> NumberedPair:
        players = (one.game.first, one.game.second)
        if one.pair != other.pair or players != (other.game.second, other.game.first):
            raise self._damaged(number + 1, "this and the next line are not the two games of an opening")
        return NumberedPair(one.batch, one.pair, PlayedPair(one.game, other.game))

    def _damaged(self, number: int, why: str) -> TournamentError:
        return TournamentError(
            f"{self._file}, line {number} is damaged ({why}). Remove it together with the other game of its pair, or "
            "choose another --workdir."
        )


def _check_same(held: Path, given: dict[str, Any]) -> None:
    try:
        found = json.loads(held.read_text(encoding="utf-8"))
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
    """The difference in words; for lists, the entries that only one of them has."""
    if isinstance(held, Sequence) and isinstance(given, list) and not isinstance(held, str):
        parts = {"holds": [x for x in held if x not in given], "given": [x for x in given if x not in held]}
        return ", ".join(f"only {name}: {', '.join(map(str, values))}" for name, values in parts.items() if values)
    return f"holds {held}, given {given}"


OPENINGS = 8
"""Openings in a match; each is played from both sides."""


class TournamentProgress(NamedTuple):
    """The state of a tournament after a match."""

    games: int
    """Games so far, including those of earlier processes."""
    first: str
    second: str
    largest_error: float | None
    """See `Tournament.largest_error`."""


class Tournament:
    """A tournament, which resumes from its files."""

    def __init__(
        self,
        env: Env,
        players: Sequence[Contestant],
        anchors: Mapping[str, float],
        files: TournamentFiles,
        settings: TournamentSettings,
    ) -> None:
        """Reads the games so far.

        Args:
          env: the game.
          players: the players, in the order of `settings.players`.
          anchors: Elo points of at least one player with a known rating.
          files: the tournament's folder.
          settings: the tournament's settings.
        """
        self._players = {player.name: player for player in players}
        self._names = [player.name for player in players]
        self._anchors = anchors
        self._files = files
        self._settings = settings
        self._env = env
        self._arena = Arena(env)
        self._ladder = Ladder()
        self._known: dict[tuple[str, str], set[str]] = {}
        """Positions of played openings, by sorted names."""
        self._exhausted: set[tuple[int, int]] = set()
        self._batches = self._pairs = self._cut_off = 0
        for pair in files.read():
            self._count(pair)

    @property
    def folder(self) -> Path:
        """The folder with the files of the tournament."""
        return self._files.folder

    @property
    def games(self) -> int:
        """Games so far."""
        return 2 * self._pairs

    def play(
        self,
        games: int,
        until: float | None = None,
        keep_going: Callable[[], bool] = lambda: True,
        report: Callable[[TournamentProgress], None] = lambda progress: None,
    ) -> str:
        """Plays matches; returns the reason for which it ended.

        Args:
          games: most games of the tournament, including those so far; the last match may exceed it.
          until: the tournament ends when half of every interval is at most this, in Elo points.
          keep_going: called before every ply; if it returns False, the unfinished match is dropped.
          report: called after each match.
        """
        while self.games < games:
            if until is not None and (self.largest_error() or float("inf")) <= until:
                return f"every interval is within ±{until:g} Elo"
            pair = self._next()
            if pair is None:
                return "all pairs of players have played all their openings"
            first, second = (self._names[i] for i in pair)
            try:
                played = self._match(first, second, keep_going)
            except Interrupted:
                # The whole match is dropped: its finished games would be the short ones.
                return "interrupted"
            if not played:
                self._exhausted.add(pair)
                continue
            self._files.append(played)
            for one in played:
                self._count(one)
            report(TournamentProgress(self.games, first, second, self.largest_error()))
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
        """Ratings, cross table and results that contradict the ratings, as plain values.

        Returns:
          `games`, `cut_off` (games ended by the limit on plies), `players` (strongest first: `name, elo, low, high,
          games, score`; `elo`, `low` and `high` are None without a rating), `cross` (`[N][N]` in the order of
          `players`: `wins, draws, losses`, or None), `surprises` (pairs whose games differ from the ratings by more
          than chance) and `cycles` (triples of players, each of which beats the next).
        """
        rated = self.ratings()
        order = [*rated, *(name for name in self._names if name not in rated)]
        cross = [[self._meeting(one, other) for other in order] for one in order]
        results, names = self._ladder.results(self._names), self._names
        found = surprises(results, fixed_ratings(names, self._anchors))
        triples = cycles(results, found, len(names))
        return {
            "games": self.games,
            "cut_off": self._cut_off,
            "players": [self._row(name, rated.get(name)) for name in order],
            "cross": cross,
            "surprises": [one._asdict() | {"first": names[one.first], "second": names[one.second]} for one in found],
            "cycles": [[names[i] for i in triple] for triple in triples],
        }

    def _next(self) -> tuple[int, int] | None:
        results = self._ladder.results(self._names)
        points = results.points_of(len(self._names), results.count)
        fixed = fixed_ratings(self._names, self._anchors)
        return next_pair(points, fixed, 2 * self._settings.openings, barred=self._exhausted)

    def _match(self, first: str, second: str, keep_going: Callable[[], bool]) -> list[NumberedPair]:
        """A match; empty if two deterministic players have played all openings of the game."""
        settings, batch = self._settings, self._batches
        played = self._arena.pairs(
            self._players[first],
            self._players[second],
            settings.openings,
            jax.random.fold_in(jax.random.key(settings.seed), batch),
            settings.opening_plies,
            keep_going,
            self._known.get(_sorted(first, second), ()),
        )
        return [NumberedPair(batch, self._pairs + number, games) for number, games in enumerate(played)]

    def _count(self, pair: NumberedPair) -> None:
        """Counts the two games of an opening."""
        one, other = pair.games
        self._ladder.add(one.first, one.second, [pair.games.points])
        self._known.setdefault(_sorted(one.first, one.second), set()).add(one.position)
        self._batches, self._pairs = pair.batch + 1, pair.pair + 1
        self._cut_off += one.cut_off + other.cut_off

    def _meeting(self, one: str, other: str) -> dict[str, int] | None:
        result = self._ladder.meetings(one, other)
        return result._asdict() if one != other and result.games else None

    def _row(self, name: str, rating: Rating | None) -> dict[str, Any]:
        results = [self._ladder.meetings(name, other) for other in self._names if other != name]
        games = sum(result.games for result in results)
        return {
            "name": name,
            "elo": None if rating is None else rating.elo,
            "low": None if rating is None else rating.low,
            "high": None if rating is None else rating.high,
            "games": games,
            "score": sum(result.points for result in results) / games if games else None,
        }


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
    if isinstance(where, GymnasiumConfig):
        raise ConfigError(f"{where.title} has a single agent, so there are no matches; see podzero evaluate")
    env = make_env(where)
    if env.spec.players == 1:
        raise ConfigError(f"{env.spec.name} has a single agent, so there are no matches; see podzero evaluate")
    called = {name: resolve(name, env, simulations, discount_of(where)) for name in who}
    players = sorted({player.name: player for player in called.values()}.values(), key=lambda player: player.name)
    if len(players) < max(2, len(who)):
        raise ConfigError(f"a tournament needs at least two players, each named once; got {', '.join(who)}")
    names = tuple(player.name for player in players)
    plies = OPENING_PLIES if sum(player.deterministic for player in players) > 1 else 0
    played = where if isinstance(where, str) else where.model_dump(mode="json")
    settings = TournamentSettings(played, names, simulations, plies, OPENINGS, seed)
    known = _anchors(anchors, who, {name: player.name for name, player in called.items()})
    files = TournamentFiles(folder or default_folder(env.spec.name, settings), settings)
    return Tournament(env, players, known, files, settings)


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


def _sorted(first: str, second: str) -> tuple[str, str]:
    return (first, second) if first < second else (second, first)
