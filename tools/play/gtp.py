"""A GTP server: a player as an engine for Go programs, and for other games with their own names of moves."""

from __future__ import annotations

import math
import re
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future
from contextlib import contextmanager, suppress
from importlib.metadata import version
from pathlib import Path
from queue import Queue
from typing import Any, NamedTuple

import numpy as np

from podzero.config import KOMI
from podzero.core.errors import ConfigError
from podzero.core.reading import End, read_ahead
from podzero.envs.boards.chess import CHESS_SIZES
from podzero.envs.boards.go import Go, check_komi, with_komi
from podzero.envs.notation import NotationError, fen_of, names_in_text, notation_errors
from podzero.evaluation.engines import GTP_COLOURS, GtpAnswer
from podzero.tools.play.drawing import board_text, handicap_squares
from podzero.tools.play.game import PlayableGame, colour_name, give_turn, place_stones, play_on
from podzero.tools.play.searching import EngineParts, GtpClock, Line, Root, SearchedLines, TimedSearch, failure_of
from podzero.tools.records.files import check_files, nth_game

_GREATEST = 1e6
"""Largest absolute value of a numeric argument: an `int` of infinity would fail, and more is a controller's mistake."""


class GtpError(Exception):
    """A command failed; the message goes to the controller."""


class GtpCommand(NamedTuple):
    """A command from the controller."""

    number: str
    name: str
    arguments: list[str]

    @classmethod
    def parse(cls, line: str) -> GtpCommand | None:
        """Parses a line; None if it has no command."""
        # As the specification says, comments and control characters are left out and tabs are spaces.
        text = re.sub(r"[\x00-\x08\x0b-\x1f\x7f]", "", line.partition("#")[0].replace("\t", " "))
        words = text.split()
        number = words.pop(0) if words and words[0].isdecimal() else ""
        return cls(number, words[0], words[1:]) if words else None


# Each takes the next argument, and raises `GtpError` if it is missing or wrong.


def take_word(words: list[str], expected: str) -> str:
    """Any word."""
    if not words:
        raise GtpError(f"syntax error: expected {expected}")
    return words.pop(0)


def take_number(words: list[str], expected: str, least: float = -_GREATEST, whole: bool = False) -> float:
    """A number; with `whole`, an integer."""
    word = take_word(words, expected)
    with suppress(ValueError):
        if least <= (number := float(word)) <= _GREATEST and (number.is_integer() or not whole):
            return number
    raise GtpError(f"syntax error: expected {expected}, not '{word[:80]}'")


def take_count(words: list[str], expected: str, least: int = 0) -> int:
    """A number of things."""
    return int(take_number(words, expected, least, whole=True))


def take_colour(words: list[str]) -> bool:
    """Whether it is the first player's colour, black."""
    colour = GTP_COLOURS.get(take_word(words, "a colour").lower())
    if colour is None:
        raise GtpError("syntax error: expected a colour, black or white")
    return colour


RESIGN_TURNS = 3
"""Turns in a row at which the engine must see its game lost before it resigns, as in KataGo."""
_MOST_STONES = 9
_WAITING = 1000
"""Most commands read ahead."""


Show = Callable[[SearchedLines], None]
RootLimit = tuple[str, bool, list[str], int]
"""`allow` or `avoid` in an analysis; whether the moves are the first player's, black's; their names; and the number of
plies for which they alone are searched, or are not."""


class AnalysisArguments(NamedTuple):
    """The arguments of `lz-analyze` and `kata-analyze`."""

    first: bool
    """Whether the first player, black, is to move."""
    interval: float = 100.0
    """Hundredths of a second between lines."""
    minmoves: int = 1
    maxmoves: int = 10**6
    limits: tuple[RootLimit, ...] = ()

    @classmethod
    def parse(cls, words: list[str], first: bool) -> AnalysisArguments:
        """Reads `[colour] [interval] [key value ...]`, in any order; raises `GtpError` for what is not supported.

        Without a colour it is that of `first`.
        """
        found: dict[str, Any] = {"first": first}
        limits: list[RootLimit] = []
        while words:
            word = words.pop(0)
            match word.lower():
                case colour if colour in GTP_COLOURS:
                    found["first"] = GTP_COLOURS[colour]
                case number if re.fullmatch(r"\d+(\.\d*)?", number):
                    found["interval"] = take_number([word], "an interval")
                case "interval":
                    found["interval"] = take_number(words, "an interval")
                case "minmoves" | "maxmoves" as key:
                    found[key] = take_count(words, "a number of moves", least=int(key == "maxmoves"))
                case "allow" | "avoid" as key:
                    mover, names = take_colour(words), names_in_text(take_word(words, "moves"))
                    limits.append((key, mover, names, take_count(words, "a depth")))
                case _:
                    supported = "interval, minmoves, maxmoves, allow, avoid"
                    raise GtpError(f"'{word[:80]}' is not supported; supported: {supported}")
        return cls(limits=tuple(limits), **found)

    def shown(self, searched: SearchedLines) -> list[Line]:
        """The moves to write: those with visits, and more or fewer as was asked for."""
        visited = sum(line.visits > 0 for line in searched.lines)
        return searched.lines[: min(max(visited, self.minmoves), self.maxmoves)]


class GtpServer:
    """The engine's side of GTP, for the player called `who`.

    The first command that needs the parts waits until they are loaded; `write` sends a response, of one line or more.
    The engine resigns when the value of its best move is at most `resign_at` for `RESIGN_TURNS` turns in a row. The
    komi of a game of Go changes only its score, unless the search knows it.
    """

    def __init__(
        self, who: str, parts: Future[EngineParts], write: Callable[[str], None], resign_at: float | None = None
    ) -> None:
        self._who, self._parts, self._write = who, parts, write
        self._komi = KOMI
        self._undoable: list[int] = []
        """Plies before each command that `undo` takes back, so that it takes back a pass that gave the turn as well."""
        self._resign_at = resign_at
        self._lost_turns: Counter[bool] = Counter()
        """By colour, the turns in a row at which its best move had the value of a lost game."""
        self._set_clocks(0.0, 1.0, 0)
        self._incoming: Queue[str | End] = Queue()
        self._commands: dict[str, Callable[[list[str]], str | None]] = {
            "protocol_version": lambda _: "2",
            "name": lambda _: f"podzero {self._who}",
            "version": lambda _: version("podzero"),
            "known_command": lambda words: str(take_word(words, "a command") in {*self._commands, *ANALYSES}).lower(),
            "list_commands": lambda _: "\n".join(sorted([*self._commands, *ANALYSES])),
            "quit": lambda _: None,
            "boardsize": self._boardsize,
            "clear_board": self._clear,
            "komi": self._set_komi,
            "play": self._play,
            "genmove": lambda words: self._generate(take_colour(words), keep=True),
            "reg_genmove": lambda words: self._generate(take_colour(words), keep=False),
            "undo": self._undo,
            "fixed_handicap": self._handicap,
            # The engine may choose the stones, and chooses those of a fixed handicap.
            "place_free_handicap": lambda words: self._handicap(words, fewer=True),
            "set_free_handicap": self._set_free_handicap,
            "final_score": self._final_score,
            "final_status_list": self._final_status_list,
            "loadsgf": self._load,
            "clear_cache": lambda _: self._search.forget(),
            "showboard": self._showboard,
            "time_settings": self._time_settings,
            "kgs-time_settings": self._kgs_time_settings,
            "time_left": self._time_left,
        }

    @property
    def _game(self) -> PlayableGame:
        return self._parts.result().game

    @property
    def _search(self) -> TimedSearch:
        return self._parts.result().search

    def run(self, lines: Iterable[str]) -> None:
        """Answers commands until `quit` or the end of the input; raises the error of loading the player."""
        # Read ahead, so that an analysis notices the next command, which ends it.
        self._incoming = read_ahead(lines, _WAITING)
        while True:
            line = self._incoming.get()
            if isinstance(line, Exception):
                raise line
            if line is None:
                return
            if command := GtpCommand.parse(line):
                self._answer(command)
                if command.name == "quit":
                    return

    def _answer(self, command: GtpCommand) -> None:
        failed = True
        try:
            if command.name in ANALYSES:
                (self._generate_and_show if "genmove" in command.name else self._analyze)(command)
                return
            if command.name not in self._commands:
                raise GtpError("unknown command")
            text, failed = self._commands[command.name](command.arguments) or "", False
        except (GtpError, NotationError) as error:
            text = str(error)
        except Exception as error:
            text = failure_of(command.name, error, self._parts)
        self._write(str(GtpAnswer(command.number, text, failed)))

    def _showboard(self, _: list[str]) -> str:
        game, size = self._game, CHESS_SIZES.get(self._game.env.spec.name)
        # Chess pieces of `board_text` are not ASCII.
        return f"\n{fen_of(game.state, size) if size else board_text(game).plain}"

    def _boardsize(self, words: list[str]) -> None:
        if take_count(words, "a size") != self._game.env.spec.observation_shape[0]:
            raise GtpError("unacceptable size")
        self._clear([])

    def _clear(self, _: list[str]) -> None:
        self._game.restart()
        self._undoable.clear()
        self._lost_turns.clear()

    def _handicap(self, words: list[str], fewer: bool = False) -> str:
        """Places a fixed handicap; with `fewer`, as many stones as it has at most if more are asked for."""
        stones, size = take_count(words, "a number of stones"), self._go_size()
        squares = handicap_squares(size, stones)
        if len(squares) < 2 or (len(squares) < stones and not fewer):
            most = len(handicap_squares(size, _MOST_STONES))
            raise GtpError(f"invalid number of stones: a board of this size has {f'2 to {most}' if most else 'none'}")
        return self._place([self._game.name(row * size + column) for row, column in squares])

    def _set_free_handicap(self, words: list[str]) -> None:
        self._go_size()
        if len(words) < 2:
            raise GtpError("syntax error: expected at least two points")
        self._place(words)

    def _go_size(self) -> int:
        spec = self._game.env.spec
        if not isinstance(self._game.env, Go):
            raise GtpError(f"{spec.name} has no handicap")
        return spec.observation_shape[0]

    def _place(self, points: list[str]) -> str:
        """Places Black's stones on the empty board; White passes after each but the last."""
        if self._game.state.board.chains.any():
            raise GtpError("board not empty")
        with notation_errors(GtpError, "invalid handicap"):
            place_stones(self._game, [(True, point) for point in points])
        self._undoable.clear()
        return " ".join(points)

    def _set_komi(self, words: list[str]) -> None:
        komi = take_number(words, "a komi")
        if self._parts.result().knows_komi:
            try:
                check_komi(komi)
            except ValueError as error:
                raise GtpError(f"unacceptable {error}") from None
        self._komi = komi

    def _root(self, forbidden: np.ndarray[Any, Any] | None = None) -> Root:
        """The position to search, with the controller's komi if the search knows it."""
        position = self._game.position
        if self._parts.result().knows_komi:
            position = position._replace(state=with_komi(position.state, np.asarray(self._komi)))
        return Root.of(position, forbidden)

    def _play(self, words: list[str]) -> None:
        first, name = take_colour(words), take_word(words, "a move")
        # Some controllers report a resignation as a move; the position stays.
        if name.lower() == "resign":
            return
        with self._turn_of(first), notation_errors(GtpError, "illegal move"):
            play_on(self._game, name)

    @contextmanager
    def _turn_of(self, first: bool) -> Iterator[PlayableGame]:
        """The game with this colour to move.

        `undo` takes back what is played in it with the pass that gave the turn; if nothing is, the game stays.
        """
        game = self._game
        before = game.ply
        with notation_errors(GtpError, "illegal move"):
            give_turn(game, first)
        turned = game.ply
        try:
            yield game
        finally:
            if game.ply > turned:
                self._undoable.append(before)
            else:
                game.take_back(turned - before)

    def _generate(
        self, first: bool, keep: bool, show: Show = lambda searched: None, limits: Sequence[RootLimit] = ()
    ) -> str:
        """The move of a colour, which is played if it is to be kept; `show` is told the results of its search."""
        with self._turn_of(first) as game:
            if game.over:
                raise GtpError("the game is over")
            if isinstance(game.env, Go) and game.state.board.passes >= 2:
                action = game.action("pass")
            else:
                best = self._best(first, show, limits)
                if keep and self._resign_at is not None:
                    self._lost_turns[first] = self._lost_turns[first] + 1 if best.value <= self._resign_at else 0
                    if self._lost_turns[first] >= RESIGN_TURNS:
                        return "resign"
                action = best.action
            name = game.name(action)
            if keep:
                play_on(game, action)
        return name

    def _best(self, first: bool, show: Show, limits: Sequence[RootLimit]) -> Line:
        """The line that a search within the time of a colour chooses."""
        search, clock, root = self._search, self._clocks[first], self._root(self._forbidden(limits))
        seconds = clock.seconds()
        started = time.monotonic()
        for searched in search.results(root, search.usual if seconds is None else search.most, seconds):
            show(searched)
        clock.spend(time.monotonic() - started)
        return searched.lines[0]

    def _undo(self, _: list[str]) -> None:
        if not self._undoable:
            raise GtpError("cannot undo")
        self._game.take_back(self._game.ply - self._undoable.pop())
        self._lost_turns.clear()

    def _final_score(self, _: list[str]) -> str:
        """The score of Go, such as `B+3.5`, or the winner of other games; `0` for a draw."""
        game = self._game
        if isinstance(game.env, Go):
            # By area; all stones count as alive.
            lead = int(game.env.lead(game.state.board)) * (1 if game.first_to_move else -1) - self._komi
            margin = f"{abs(lead):g}"
        elif game.over:
            lead, margin = game.points, ""
        else:
            raise GtpError("cannot score: the game is not over")
        return "0" if lead == 0 else f"{'B' if lead > 0 else 'W'}+{margin}"

    def _final_status_list(self, words: list[str]) -> str:
        """The stones with a status: all stones count as alive."""
        status, game = take_word(words, "alive, dead or seki").lower(), self._game
        if status not in ("alive", "dead", "seki"):
            raise GtpError(f"syntax error: expected alive, dead or seki, not '{status[:80]}'")
        if not isinstance(game.env, Go):
            raise GtpError(f"{game.env.spec.name} has no dead stones")
        stones = np.flatnonzero(game.state.board.chains) if status == "alive" else ()
        return "\n".join(game.notation.name(game.state, int(square)) for square in stones)

    def _load(self, words: list[str]) -> str:
        """Loads the first game of a file, up to before a move's number if that is given; says who is to move."""
        # The file's name may hold spaces, which divide a command's words.
        before = take_count([words.pop()], "a move's number", least=1) if words[1:] and words[-1].isdecimal() else None
        file, game = Path(take_word([" ".join(words)] if words else [], "a file")).expanduser(), self._game
        try:
            check_files([file], [".sgf"])
            found = nth_game(file, game.env.spec)
        except ConfigError as error:
            raise GtpError(f"cannot load file: {error}") from None
        loaded = game.copy()
        loaded.restart()
        for number, move in enumerate(found.moves[: None if before is None else before - 1], 1):
            with notation_errors(GtpError, f"cannot load file: move {number}"):
                play_on(loaded, move)
        if found.komi is not None:
            self._set_komi([str(found.komi)])
        self._clear([])
        for move in loaded.moves:
            play_on(game, move)
        self._undoable = list(range(game.ply))
        return colour_name(game.first_to_move)

    def _time_settings(self, words: list[str]) -> None:
        main, period = (take_number(words, "three numbers") for _ in range(2))
        self._set_clocks(main, period, take_count(words, "three numbers"))

    def _kgs_time_settings(self, words: list[str]) -> None:
        match take_word(words, "a kind of time").lower():
            case "none":
                self._set_clocks(0.0, 1.0, 0)
            case "absolute":
                self._set_clocks(take_number(words, "seconds"), 0.0, 0)
            case "byoyomi" | "canadian" as kind:
                main, period = (take_number(words, "seconds") for _ in range(2))
                self._set_clocks(main, period, take_count(words, "stones") if kind == "canadian" else 1)
            case _:
                raise GtpError("syntax error: expected none, absolute, byoyomi, canadian")

    def _set_clocks(self, main_s: float, period_s: float, stones: int) -> None:
        self._clocks = {first: GtpClock(main_s, period_s, stones) for first in (True, False)}

    def _time_left(self, words: list[str]) -> None:
        clock = self._clocks[take_colour(words)]
        clock.left(take_number(words, "seconds"), take_count(words, "stones"))

    def _generate_and_show(self, command: GtpCommand) -> None:
        """Plays a move, and writes its search's result so far in each interval."""
        wanted = AnalysisArguments.parse(command.arguments, self._game.first_to_move)
        due, begin = -math.inf, f"={command.number}\n"

        def show(searched: SearchedLines) -> None:
            nonlocal due, begin
            if time.monotonic() >= due:
                due = time.monotonic() + max(wanted.interval, 1.0) / 100
                self._write(begin + info(wanted.shown(searched), self._game, command.name))
                begin = ""

        move = self._generate(wanted.first, True, show, wanted.limits)
        self._write(f"{begin}play {move}\n")

    def _analyze(self, command: GtpCommand) -> None:
        """Writes a search's result so far in each interval, until another command arrives."""
        wanted = AnalysisArguments.parse(command.arguments, self._game.first_to_move)
        with self._turn_of(wanted.first) as game:
            if game.over:
                raise GtpError("the game is over")
            root = self._root(self._forbidden(wanted.limits))
            self._write(f"={command.number}")
            try:
                for searched in self._in_intervals(root, max(wanted.interval, 1.0) / 100):
                    self._write(info(wanted.shown(searched), game, command.name))
            # The answer has begun, so it can only end.
            except Exception as error:
                failure_of(command.name, error, self._parts)
            self._write("")

    def _in_intervals(self, root: Root, seconds: float) -> Iterator[SearchedLines]:
        """A search's result so far in each interval, until another command arrives."""
        results = self._search.results(root, self._search.most, math.inf, self._interrupted)
        searched, yielded = next(results), -math.inf
        while True:
            if time.monotonic() >= yielded + seconds:
                yielded = time.monotonic()
                yield searched
            if self._interrupted():
                return
            if (better := next(results, None)) is None:
                # The last result is repeated.
                time.sleep(0.01)
            searched = better or searched

    def _forbidden(self, limits: Sequence[RootLimit]) -> np.ndarray[Any, Any] | None:
        """`[A]` bool, the actions that `allow` and `avoid` forbid in the position shown; None without either."""
        if not limits:
            return None
        if not self._search.can_forbid:
            raise GtpError(f"{limits[0][0]}: {self._who} does not search, so its moves cannot be chosen")
        named: dict[str, list[str]] = {"allow": [], "avoid": []}
        for key, first, names, depth in limits:
            if depth != 1:
                raise GtpError(f"{key}: only moves of the position itself can be chosen: depth 1, not {depth}")
            if first != self._game.first_to_move:
                raise GtpError(f"{key}: only moves of {colour_name(not first)}, who is to move, can be chosen")
            named[key] += names
        return self._game.forbidden(named["allow"], named["avoid"], "allow and avoid leave no legal move")

    def _interrupted(self) -> bool:
        return not self._incoming.empty()


_LEELA = 10_000, "winrate {win:.0f} prior {prior:.0f} lcb {win:.0f}"
_KATAGO = 1, "utility {utility:.6f} winrate {win:.6f} prior {prior:.6f} lcb {win:.6f}"
ANALYSES = {
    "lz-analyze": _LEELA, "lz-genmove_analyze": _LEELA, "kata-analyze": _KATAGO, "kata-genmove_analyze": _KATAGO,
}  # fmt: skip
"""The commands for analysis: what win rates and policies are multiplied by, and how a move's numbers are written."""


def info(lines: Sequence[Line], game: PlayableGame, command: str) -> str:
    """A line in the format of Leela Zero or of KataGo, by the command."""
    scale, form = ANALYSES[command]
    moves = []
    for order, line in enumerate(lines):
        win, prior = scale * (line.value + 1) / 2, scale * line.probability
        numbers = form.format(utility=line.value, win=win, prior=prior)
        moves.append(
            f"info move {game.name(line.action)} visits {line.visits} {numbers} order {order} "
            f"pv {' '.join(game.names_of(line.moves))}"
        )
    return " ".join(moves)
