"""A GTP server: a player as an engine for Go programs, and for other games with their own names of moves."""

from __future__ import annotations

import math
import re
import time
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future
from importlib.metadata import version
from queue import Queue
from typing import NamedTuple, cast

import numpy as np

from podzero.config import KOMI
from podzero.envs.boards.chess import CHESS_SIZES
from podzero.envs.boards.go import Go, check_komi, with_komi
from podzero.envs.notation import NotationError, fen_of
from podzero.evaluation.engines import GTP_COLOURS, GtpAnswer
from podzero.reading import End, read_ahead
from podzero.tools.play.drawing import board_text
from podzero.tools.play.game import PlayableGame
from podzero.tools.play.search_steps import Line, SearchedLines
from podzero.tools.play.timed_search import EngineParts, GtpClock
from podzero.types import EnvState

_GREATEST = 1e6
"""Largest absolute value of a numeric argument: an `int` of infinity would fail, and more is a controller's mistake."""


class GtpError(Exception):
    """A command failed; the message goes to the controller."""


class GtpCommand(NamedTuple):
    """A command from the controller."""

    number: str
    name: str
    arguments: list[str]


def parse(line: str) -> GtpCommand | None:
    """Parses a line; None if it has no command."""
    # As the specification says, comments and control characters are dropped and tabs are spaces.
    text = re.sub(r"[\x00-\x08\x0b-\x1f\x7f]", "", line.partition("#")[0].replace("\t", " "))
    words = text.split()
    number = words.pop(0) if words and words[0].isdecimal() else ""
    return GtpCommand(number, words[0], words[1:]) if words else None


def word_at(words: list[str], place: int, expected: str) -> str:
    """The argument at index `place`; raises `GtpError` if it is missing."""
    if place >= len(words):
        raise GtpError(f"syntax error: expected {expected}")
    return words[place]


def number_at(words: list[str], place: int, expected: str) -> float:
    """The number at index `place`; raises `GtpError` if it is missing or not a number."""
    try:
        number = float(word_at(words, place, expected))
    except ValueError:
        raise GtpError(f"syntax error: expected {expected}, not '{words[place][:80]}'") from None
    # Not `>`, so that NaN is refused too.
    if not abs(number) <= _GREATEST:
        raise GtpError(f"syntax error: expected {expected}, not '{words[place][:80]}'")
    return number


def colour_of(words: list[str]) -> bool:
    """Whether the first argument is the first player's colour, black; raises `GtpError` if it is not a colour."""
    try:
        return GTP_COLOURS[word_at(words, 0, "a colour").lower()]
    except KeyError:
        raise GtpError("syntax error: expected a colour, black or white") from None


RESIGN_TURNS = 3
"""Turns in a row at which the engine must see its game lost before it resigns, as in KataGo."""
_COLUMNS = "ABCDEFGHJKLMNOPQRST"
_HANDICAP_LINES = {9: (3, 5, 7), 19: (4, 10, 16)}
"""By the size of the board, the lines on whose intersections the stones of a fixed handicap stand."""
_MOST_STONES = 9
_WAITING = 1000
"""Most commands read ahead."""
_KGS = ("none", "absolute", "byoyomi", "canadian")


class GtpServer:
    """The engine's side of GTP.

    Args:
      who: the player's name, for the command `name`.
      parts: the game and the player; the first command that needs them waits until they are loaded.
      write: sends a response, which may have several lines.
      resign_at: the engine resigns when the value of its best move is at most this for `RESIGN_TURNS` turns in a row;
        None if it never does.
      knows_komi: whether the search is told the komi of a game of Go; without it, only scores change.
    """

    def __init__(
        self,
        who: str,
        parts: Future[EngineParts],
        write: Callable[[str], None],
        resign_at: float | None = None,
        knows_komi: bool = False,
    ) -> None:
        self._who, self._parts, self._write, self._knows_komi = who, parts, write, knows_komi
        self._komi = KOMI
        self._start: EnvState | None = None
        """The state in which games begin; None for the initial state."""
        self._resign_at = resign_at
        self._lost_turns = {True: 0, False: 0}
        self._clocks = {True: GtpClock(), False: GtpClock()}
        self._incoming: Queue[str | End] = Queue()
        self._commands: dict[str, Callable[[list[str]], str]] = {
            "protocol_version": lambda _: "2",
            "name": lambda _: f"podzero {self._who}",
            "version": lambda _: version("podzero"),
            "known_command": lambda words: str(self._known(word_at(words, 0, "a command"))).lower(),
            "list_commands": lambda _: "\n".join(sorted([*self._commands, *self._analyses, "quit"])),
            "boardsize": self._boardsize,
            "clear_board": self._clear,
            "komi": self._set_komi,
            "play": self._play,
            "genmove": lambda words: self._generated(words, keep=True),
            "reg_genmove": lambda words: self._generated(words, keep=False),
            "undo": self._undo,
            "fixed_handicap": self._fixed_handicap,
            # The engine may choose the stones, and chooses those of a fixed handicap.
            "place_free_handicap": self._fixed_handicap,
            "set_free_handicap": self._set_free_handicap,
            "final_score": self._final_score,
            "showboard": self._showboard,
            "time_settings": self._time_settings,
            "kgs-time_settings": self._kgs_time_settings,
            "time_left": self._time_left,
        }
        self._analyses = {"lz-analyze": leela_info, "kata-analyze": kata_info}

    @property
    def _game(self) -> PlayableGame:
        return self._parts.result().game

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
            command = parse(line)
            if command is None:
                continue
            if command.name in self._analyses:
                self._analyze(command)
            else:
                self._answer(command)
            if command.name == "quit":
                return

    def _answer(self, command: GtpCommand) -> None:
        try:
            if command.name == "quit":
                text = ""
            elif command.name in self._commands:
                text = self._commands[command.name](command.arguments)
            else:
                raise GtpError("unknown command")
            self._write(str(GtpAnswer(command.number, text)))
        except (GtpError, NotationError) as error:
            self._write(str(GtpAnswer(command.number, str(error), failed=True)))

    def _known(self, name: str) -> bool:
        return name in self._commands or name in self._analyses or name == "quit"

    def _showboard(self, _: list[str]) -> str:
        game, name = self._game, self._game.env.spec.name
        # Chess pieces of `board_text` are not ASCII.
        if name in CHESS_SIZES:
            return f"\n{fen_of(game.state, CHESS_SIZES[name])}"
        return f"\n{board_text(game).plain}"

    def _boardsize(self, words: list[str]) -> str:
        size, spec = number_at(words, 0, "a size"), self._game.env.spec
        if size != spec.observation_shape[0]:
            raise GtpError("unacceptable size")
        return self._clear([])

    def _clear(self, _: list[str]) -> str:
        self._game.restart(state=self._start)
        self._lost_turns = {True: 0, False: 0}
        return ""

    def _fixed_handicap(self, words: list[str]) -> str:
        stones, size = int(number_at(words, 0, "a number of stones")), self._go_size()
        if not 2 <= stones <= _MOST_STONES:
            raise GtpError(f"invalid number of stones: expected 2 to {_MOST_STONES}")
        return self._place(handicap_points(size, stones))

    def _set_free_handicap(self, words: list[str]) -> str:
        self._go_size()
        if len(words) < 2:
            raise GtpError("syntax error: expected at least two points")
        self._place(words)
        return ""

    def _go_size(self) -> int:
        spec = self._game.env.spec
        if not spec.name.startswith("go_"):
            raise GtpError(f"{spec.name} has no handicap")
        return spec.observation_shape[0]

    def _place(self, points: list[str]) -> str:
        """Places Black's stones on the empty board; White passes after each but the last."""
        game = self._game
        if game.moves:
            raise GtpError("board not empty")
        try:
            for number, point in enumerate(points):
                if number:
                    game.play("pass")
                game.play(point)
        except NotationError as error:
            self._clear([])
            raise GtpError(f"invalid handicap: {error}") from None
        return " ".join(points)

    def _set_komi(self, words: list[str]) -> str:
        komi = number_at(words, 0, "a komi")
        if self._knows_komi and isinstance(self._game.env, Go):
            try:
                check_komi(komi)
            except ValueError as error:
                raise GtpError(f"unacceptable {error}") from None
            self._start = with_komi(self._game.beginning, np.asarray(komi))
            self._game.restart(list(self._game.moves), self._start)
        self._komi = komi
        return ""

    def _play(self, words: list[str]) -> str:
        first, name = colour_of(words), word_at(words, 1, "a move")
        # Some controllers report a resignation as a move; the position stays.
        if name.lower() == "resign":
            return ""
        passes = self._turn_to(first)
        try:
            self._game.play(name)
        except NotationError as error:
            for _ in range(passes):
                self._game.take_back()
            raise GtpError(f"illegal move: {error}") from None
        return ""

    def _turn_to(self, first: bool) -> int:
        """Gives a colour the turn, in Go by a pass of the other one; returns the number of passes, 0 or 1."""
        game = self._game
        if game.over or game.first_to_move == first:
            return 0
        if not game.env.spec.name.startswith("go_"):
            raise GtpError(f"illegal move: it is {'black' if game.first_to_move else 'white'}'s turn")
        game.play("pass")
        # It was the second pass in a row.
        if self._game.over:
            game.take_back()
            raise GtpError("illegal move: after another pass the game would be over")
        return 1

    def _generated(self, words: list[str], keep: bool) -> str:
        first = colour_of(words)
        game, search = self._parts.result()
        passes = self._turn_to(first)
        if game.over:
            if game.env.spec.name.startswith("go_"):
                return "pass"
            raise GtpError("the game is over")
        clock = self._clocks[first]
        seconds = clock.seconds()
        started = time.monotonic()
        simulations = search.usual if seconds is None else search.most
        *_, searched = search.results(game.state, game.legal_mask, simulations, seconds)
        clock.spend(time.monotonic() - started)
        best = searched.lines[0]
        name = "resign" if keep and self._resigns(first, best.value) else game.name(best.action)
        if keep and name != "resign":
            game.play(best.action)
        # `reg_genmove` and a resignation leave the position as it was.
        else:
            for _ in range(passes):
                game.take_back()
        return name

    def _resigns(self, first: bool, value: float) -> bool:
        """Counts the turns in a row at which a colour's best move had a value of a lost game."""
        lost = self._resign_at is not None and value <= self._resign_at
        self._lost_turns[first] = self._lost_turns[first] + 1 if lost else 0
        return self._lost_turns[first] >= RESIGN_TURNS

    def _undo(self, _: list[str]) -> str:
        if not self._game.take_back():
            raise GtpError("cannot undo")
        self._lost_turns = {True: 0, False: 0}
        return ""

    def _final_score(self, _: list[str]) -> str:
        score = final_score(self._game, self._komi)
        if score is None:
            raise GtpError("cannot score: the game is not over")
        return score

    def _time_settings(self, words: list[str]) -> str:
        main, period, stones = (number_at(words, i, "three numbers") for i in range(3))
        for clock in self._clocks.values():
            clock.settings(main, period, int(stones))
        return ""

    def _kgs_time_settings(self, words: list[str]) -> str:
        kind = word_at(words, 0, "a kind of time").lower()
        if kind not in _KGS:
            raise GtpError(f"syntax error: expected {', '.join(_KGS)}")
        main = 0.0 if kind == "none" else number_at(words, 1, "seconds")
        period = number_at(words, 2, "seconds") if kind in ("byoyomi", "canadian") else 1.0 if kind == "none" else 0.0
        stones = int(number_at(words, 3, "stones")) if kind == "canadian" else int(kind == "byoyomi")
        for clock in self._clocks.values():
            clock.settings(main, period, stones)
        return ""

    def _time_left(self, words: list[str]) -> str:
        first = colour_of(words)
        self._clocks[first].left(number_at(words, 1, "seconds"), int(number_at(words, 2, "stones")))
        return ""

    def _analyze(self, command: GtpCommand) -> None:
        """Writes a search's result so far in each interval, until another command arrives."""
        try:
            first, interval = self._analysis_arguments(command.arguments)
            game, search = self._parts.result()
            passes = self._turn_to(first)
            if game.over:
                raise GtpError("the game is over")
        except (GtpError, NotationError) as error:
            self._write(str(GtpAnswer(command.number, str(error), failed=True)))
            return
        self._write(f"={command.number}")
        written = -math.inf
        results = search.results(game.state, game.legal_mask, search.most, math.inf, self._interrupted)
        # After the last result, it is repeated.
        for searched in _repeating_last(results):
            if time.monotonic() >= written + interval:
                written = time.monotonic()
                self._write(self._analyses[command.name](searched, game))
            if self._interrupted():
                break
        for _ in range(passes):
            game.take_back()
        self._write("")

    def _interrupted(self) -> bool:
        return not self._incoming.empty()

    def _analysis_arguments(self, words: list[str]) -> tuple[bool, float]:
        """The colour and the seconds between lines, from `[colour] [interval] [key value ...]`."""
        rest = list(words)
        first = (
            GTP_COLOURS[rest.pop(0).lower()] if rest and rest[0].lower() in GTP_COLOURS else self._game.first_to_move
        )
        if rest[:1] == ["interval"]:
            rest.pop(0)
        hundredths = number_at(rest, 0, "an interval") if rest else 100.0
        return first, max(hundredths, 1.0) / 100


def _repeating_last(results: Iterable[SearchedLines]) -> Iterator[SearchedLines]:
    """The results, then the last one again and again, with pauses."""
    for searched in results:
        yield searched
    while True:
        time.sleep(0.01)
        yield searched


def _visited(searched: SearchedLines) -> list[Line]:
    return [line for line in searched.lines if line.visits] or searched.lines[:1]


def leela_info(searched: SearchedLines, game: PlayableGame) -> str:
    """A line in Leela Zero's format, with win rates and policies in units of 1/10,000."""
    return " ".join(
        f"info move {game.name(line.action)} visits {line.visits} winrate {round(5000 * (line.value + 1))} "
        f"prior {round(10000 * line.probability)} lcb {round(5000 * (line.value + 1))} order {order} "
        f"pv {' '.join(game.names_of(line.moves))}"
        for order, line in enumerate(_visited(searched))
    )


def kata_info(searched: SearchedLines, game: PlayableGame) -> str:
    """A line in KataGo's format, with win rates and policies as fractions."""
    return " ".join(
        f"info move {game.name(line.action)} visits {line.visits} utility {line.value:.6f} "
        f"winrate {(line.value + 1) / 2:.6f} prior {line.probability:.6f} lcb {(line.value + 1) / 2:.6f} "
        f"order {order} pv {' '.join(game.names_of(line.moves))}"
        for order, line in enumerate(_visited(searched))
    )


def handicap_points(size: int, stones: int) -> list[str]:
    """The points of a fixed handicap of 2 to 9 stones, in the order of the GTP specification (section 4.1.1)."""
    low, middle, high = _HANDICAP_LINES[size]
    corners = [(low, low), (high, high), (low, high), (high, low)]
    sides = [(low, middle), (high, middle), (middle, low), (middle, high)]
    # The centre is the last stone of 5, 7 and 9.
    around = stones if stones < len(corners) else stones - stones % 2
    points = [*(corners + sides)[:around], *[(middle, middle)] * (stones - around)]
    return [f"{_COLUMNS[column - 1]}{row}" for column, row in points]


def final_score(game: PlayableGame, komi: float) -> str | None:
    """The score of Go, such as `B+3.5`, or the winner of other games; `0` for a draw, None before their end."""
    if game.env.spec.name.startswith("go_"):
        # By area; all stones count as alive.
        lead = int(cast(Go, game.env).lead(game.state.board)) * (1 if game.first_to_move else -1) - komi
        return _named(lead, f"{abs(lead):g}")
    return _named(game.points, "") if game.over else None


def _named(lead: float, margin: str) -> str:
    return "0" if lead == 0 else f"{'B' if lead > 0 else 'W'}+{margin}"
