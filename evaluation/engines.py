"""Other programs as players: Go, Othello and other games by GTP, chess by UCI, shogi by USI, and GNU Backgammon.

A few processes serve all games. One that fails loses only the game in which it fails; each call has a timeout.
"""

from __future__ import annotations

import logging
import os
import re
import subprocess
import time
import weakref
from collections import OrderedDict, deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from itertools import chain, pairwise, takewhile
from queue import Empty, Full, Queue, SimpleQueue
from threading import Thread
from typing import IO, Any, NamedTuple

import jax
import numpy as np

from podzero.config import KOMI
from podzero.core.errors import ConfigError, PodzeroError, os_errors
from podzero.core.types import EnvSpec
from podzero.envs.boards.backgammon import BAR, OFF, POINTS, START, BackgammonPosition, turn_to
from podzero.envs.boards.go import GO_GAMES
from podzero.envs.notation import LineNotation, notation_errors, notation_of
from podzero.evaluation.players import GIVES_UP, Turn
from podzero.files.players import RATINGS, EnginePlayer, check_engine_plays, engine_program

NODES = 100_000
"""Positions that a chess or shogi engine searches for each move, at all levels."""
MOVE_TIMEOUT_S = 120.0
"""Longest wait for an answer of an engine."""
_HASH_MIB = 16
_GNUGO_RULES = ("--chinese-rules", "--capture-all-dead", "--positional-superko", "--forbid-suicide")
"""podzero's rules: area scoring in which all stones on the board are alive, positional superko, no suicide."""


def engine_contestant(name: str, player: EnginePlayer, spec: EnvSpec) -> EngineContestant:
    """Makes the engine player with this name and starts its engine."""
    check_engine_plays(name, player, spec.name)
    program, notation, planned = engine_program(name, player), notation_of(spec), OrderedDict[bytes, int]()

    def start() -> Engine:
        command = program, *_arguments(player)
        if player.kind == "gnubg":
            return GnubgEngine(command, player.level, planned)
        if player.kind in ("gnugo", "gtp-rhino", "gtp"):
            board = (f"boardsize {spec.observation_shape[0]}", f"komi {KOMI}") if spec.name in GO_GAMES else ()
            return GtpEngine(command, notation, (*board, *player.lines), spec.name == "othello")
        protocol = "usi" if spec.name == "shogi" else "uci"
        return UciEngine(command, notation, [*_options(player, spec.name), *player.lines], protocol)

    try:
        return EngineContestant(name, start)
    except EngineFailed as error:
        raise ConfigError(f"player '{name}': {error}") from None


def _arguments(player: EnginePlayer) -> Sequence[str]:
    match player.kind:
        case "gnugo":
            return "--mode", "gtp", "--quiet", "--level", str(player.level), "--seed", "1", *_GNUGO_RULES
        case "gtp-rhino":
            return "--level", str(player.level)
        case "gnubg":
            return "--tty", "--quiet", "--no-rc"
        case _:
            return player.command[1:]


def _options(player: EnginePlayer, game: str) -> Iterator[str]:
    """The commands that set the options of a chess or shogi engine for a game."""
    if game == "gardner_chess" or player.kind == "fairy-stockfish":
        yield _option("UCI_Variant", UCI_VARIANTS.get(game, game))
    if player.command:
        return
    yield _option("Threads", 1)
    yield _option("Hash", _HASH_MIB)
    if player.level in RATINGS:
        yield _option("UCI_LimitStrength", "true")
        yield _option("UCI_Elo", player.level)
    else:
        yield _option("Skill Level", player.level)


def _option(name: str, value: object) -> str:
    return f"setoption {UciOption(name, str(value))}"


log = logging.getLogger(__name__)

PROCESSES = 4
"""The most processes of one player, if there are as many CPU cores."""


class EngineContestant:
    """A `MovesPlayer` that asks an engine.

    An engine that ends, does not answer in time, or answers with an illegal move forfeits the game. The log says why,
    and a new process plays the other games.
    """

    deterministic = True  # podzero's seeds do not change its moves, so matches need random openings

    def __init__(self, name: str, start: Callable[[], Engine], processes: int | None = None) -> None:
        """Starts one process with `start`, and later up to `processes`, by default `PROCESSES` or one for each core."""
        self.name, self._start = name, start
        count = processes or min(PROCESSES, os.cpu_count() or 1)
        self._threads = ThreadPoolExecutor(count, thread_name_prefix=f"{name}-engine")
        self._running: set[Engine] = set()
        self._free: SimpleQueue[Engine | None] = SimpleQueue()
        self._free.put(self._started())
        for _ in range(count - 1):
            self._free.put(None)
        self.close = weakref.finalize(self, _close, self._threads, self._running)
        """Ends all processes. It is also called when the program ends."""

    def choose_after(self, turns: Sequence[Turn]) -> list[int]:
        """See `MovesPlayer`."""
        return list(self._threads.map(self._choose, turns))

    def _choose(self, turn: Turn) -> int:
        engine = self._free.get()
        try:
            engine = engine or self._started()
            action = engine.best(turn)
            if action != GIVES_UP and not turn.legal[action]:
                raise EngineFailed(f"it played action {action}, which is illegal in that position")
            return action
        except EngineFailed as error:
            log.warning("%s forfeits a game at ply %d: %s", self.name, len(turn.moves) + 1, error)
            if engine is not None:
                self._running.discard(engine)
                engine.close()
                engine = None
            return GIVES_UP
        finally:
            self._free.put(engine)

    def _started(self) -> Engine:
        engine = self._start()
        self._running.add(engine)
        return engine


def _close(threads: ThreadPoolExecutor, running: set[Engine]) -> None:
    threads.shutdown(wait=False, cancel_futures=True)
    for engine in list(running):
        engine.close()


LONGEST_LINE = 2**16
"""The longest line in bytes; longer ones are read in parts."""
WAITING_LINES = 1000
"""The most lines that are read ahead; the program waits while there are more."""
_STDERR_LINES = 5
"""How many of the last lines of standard error an error message quotes."""
_EXIT_S = 2.0
"""Seconds between asking a program to end and killing it."""


class EngineFailed(PodzeroError, RuntimeError):
    """An engine ended, did not answer in time, or answered what its protocol does not allow."""


class LineProcess:
    """A running program that reads and writes lines, and ends at `quit`. Only one thread at a time may use it."""

    def __init__(self, command: Sequence[str]) -> None:
        """Starts the program."""
        self.name = command[0].rpartition("/")[2]
        with os_errors(EngineFailed, f"{self.name} cannot be started"):
            self._process = subprocess.Popen(
                command,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                start_new_session=True,  # Ctrl-C does not reach it
            )
        self._lines: Queue[str | None] = Queue(WAITING_LINES)
        self._stderr: deque[str] = deque(maxlen=_STDERR_LINES)
        self._closed = False
        self.pid = self._process.pid
        Thread(target=self._read, args=(self._process.stdout,), daemon=True).start()
        self._drainer = Thread(target=lambda: self._stderr.extend(_lines_of(self._process.stderr)), daemon=True)
        self._drainer.start()

    def send(self, line: str) -> None:
        """Sends one line."""
        assert self._process.stdin is not None
        try:
            self._process.stdin.write(f"{line}\n".encode())
            self._process.stdin.flush()
        except OSError:
            raise EngineFailed(self._ended(line)) from None

    def answer(self, question: str) -> Iterator[str]:
        """The lines that come next, stripped, at most `MOVE_TIMEOUT_S` later; `question` is what they answer."""
        deadline = time.monotonic() + MOVE_TIMEOUT_S
        while True:
            try:
                # A deadline that has passed still takes a line that waits; `get` refuses negative times.
                line = self._lines.get(timeout=max(deadline - time.monotonic(), 0.001))
            except Empty:
                raise EngineFailed(f"{self.name} has not answered '{question}' in time") from None
            if line is None:
                # The next call must find the end too.
                self._lines.put(None)
                raise EngineFailed(self._ended(question))
            yield line

    def close(self) -> None:
        """Ends the program: with `quit` and the end of its input, then by a signal if it still runs."""
        self._closed = True
        with suppress(EngineFailed):
            self.send("quit")
        with suppress(OSError):
            if self._process.stdin is not None:
                self._process.stdin.close()
        try:
            self._process.wait(timeout=_EXIT_S)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()

    def _read(self, stream: IO[bytes]) -> None:
        for line in chain(_lines_of(stream), [None]):
            while not self._closed:
                with suppress(Full):
                    self._lines.put(line, timeout=0.2)
                    break

    def _ended(self, waiting_for: str) -> str:
        with suppress(subprocess.TimeoutExpired):
            self._process.wait(timeout=_EXIT_S)
        # The last words of a process may be read after its end.
        self._drainer.join(_EXIT_S)
        said = " / ".join(self._stderr)
        return f"{self.name} ended ({self._process.poll()}) at '{waiting_for}'" + (f"; it said: {said}" if said else "")


def _lines_of(stream: IO[bytes] | None) -> Iterator[str]:
    assert stream is not None
    for line in iter(lambda: stream.readline(LONGEST_LINE), b""):
        yield line.decode(errors="replace").strip()


# The lines of the Go Text Protocol, version 2 (Farnebäck 2002, https://www.lysator.liu.se/~gunnar/gtp/), of the
# Universal Chess Interface (Huber & Meyer-Kahlen 2006), of which `podzero engine` speaks the other side, and of the
# Universal Shogi Interface (http://hgm.nubati.net/usi.html), which differs from it by a few names.

GTP_COLOURS = {"b": True, "black": True, "w": False, "white": False}
"""Whether a colour is that of the player who moves first."""
UCI_VARIANTS = {"chess": "chess", "gardner_chess": "gardner"}
"""The value of the option UCI_Variant for each game."""


class GtpAnswer(NamedTuple):
    """An answer to a command of GTP."""

    number: str
    """The number of the command, or an empty string."""
    text: str
    failed: bool = False

    @classmethod
    def parse(cls, lines: Sequence[str]) -> GtpAnswer:
        """Reads the lines of an answer, of which the first begins with `=` or `?`."""
        number, text = re.fullmatch(r"(\d*)\s*(.*)", lines[0][1:]).groups()  # type: ignore[union-attr]
        return cls(number, "\n".join([text, *lines[1:]]), lines[0].startswith("?"))

    def __str__(self) -> str:
        return f"{'?' if self.failed else '='}{self.number} {self.text}".rstrip() + "\n"


class UciPosition(NamedTuple):
    """The arguments of the command `position` of UCI."""

    start: str
    """`startpos`, or `fen` and the position."""
    moves: list[str]

    @classmethod
    def parse(cls, words: list[str]) -> UciPosition:
        """Reads the words after `position`."""
        at = words.index("moves") if "moves" in words else len(words)
        return cls(" ".join(words[:at]), words[at + 1 :])

    def __str__(self) -> str:
        return " ".join([self.start, *(["moves"] if self.moves else []), *self.moves])


class UciOption(NamedTuple):
    """The arguments of the command `setoption` of UCI."""

    name: str
    value: str

    @classmethod
    def parse(cls, words: list[str]) -> UciOption:
        """Reads the words after `setoption`."""
        name, _, value = " ".join(words).removeprefix("name").partition(" value ")
        return cls(name.strip(), value.strip())

    def __str__(self) -> str:
        return f"name {self.name} value {self.value}"


class GtpEngine(LineProcess):
    """An engine of GTP. It gets the whole game before each of its moves, so it can serve several games."""

    def __init__(
        self, command: Sequence[str], notation: LineNotation, setup: Sequence[str], passes_are_forced: bool = False
    ) -> None:
        """Starts the engine and sends the commands in `setup`.

        Where only a player without another move may pass, the engine is not told of passes: some refuse them.
        """
        super().__init__(command)
        self._notation, self._passes_are_forced, self._number = notation, passes_are_forced, 0
        try:
            for line in setup:
                self.ask(line)
        except EngineFailed:
            self.close()
            raise

    def ask(self, command: str) -> str:
        """The answer to a command, without `=`."""
        self._number += 1
        self.send(f"{self._number} {command}")
        lines = self.answer(command)
        # Other output before the line that begins the answer is skipped.
        first = next(line for line in lines if line.startswith(("=", "?")))
        answer = GtpAnswer.parse([first, *takewhile(bool, lines)])
        if answer.number != str(self._number):
            raise EngineFailed(f"{self.name} answered another command than '{command}': '{first[:80]}'")
        if answer.failed:
            raise EngineFailed(f"{self.name} refused '{command}': {answer.text[:200]}")
        return answer.text

    def best(self, turn: Turn) -> int:
        """The engine's move, or `GIVES_UP` if it resigns."""
        self.ask("clear_board")
        for ply, name in enumerate(self._notation.names(turn.moves)):
            if name != "pass" or not self._passes_are_forced:
                self.ask(f"play {'bw'[ply % 2]} {name}")
        answer = self.ask(f"genmove {'bw'[len(turn.moves) % 2]}").strip()
        if answer.lower() == "resign":
            return GIVES_UP
        with notation_errors(EngineFailed, "its answer to genmove is not a move"):
            return self._notation.action(turn.state, answer)


class UciEngine(LineProcess):
    """An engine for chess or shogi. It gets the whole game before each of its moves, so it can serve several games."""

    def __init__(self, command: Sequence[str], notation: LineNotation, setup: Iterable[str], protocol: str) -> None:
        """Starts the engine, which speaks `protocol`, `uci` or `usi`, and sends it the lines in `setup`.

        A line with `go` is sent for each move instead, by default `go nodes` with `NODES`. An option that the engine
        does not offer is an error.
        """
        super().__init__(command)
        self._notation, self._go = notation, f"go nodes {NODES}"
        try:
            self.send(protocol)
            offered = [*takewhile(lambda line: line.split()[:1] != [f"{protocol}ok"], self.answer(protocol))]
            for line in setup:
                first, *words = line.split()
                if first == "go":
                    self._go = line
                    continue
                if first == "setoption":
                    name, _ = UciOption.parse(words)
                    if not any(option.startswith(f"option name {name} ") for option in offered):
                        raise EngineFailed(f"{self.name} has no option '{name}'")
                self.send(line)
            self.send("isready")
            self._line_with("readyok", "isready")
            self.send("usinewgame" if protocol == "usi" else "ucinewgame")
        except EngineFailed:
            self.close()
            raise

    def best(self, turn: Turn) -> int:
        """The engine's move, or `GIVES_UP` if it resigns."""
        self.send(f"position {UciPosition('startpos', self._notation.names(turn.moves))}")
        self.send(self._go)
        _, *answer = self._line_with("bestmove", "go").split()
        name = answer[0] if answer else "nothing"
        if name == "resign":
            return GIVES_UP
        with notation_errors(EngineFailed, "its answer to go is not a move"):
            return self._notation.action(turn.state, name)

    def _line_with(self, word: str, question: str) -> str:
        """The line of the answer that begins with `word`."""
        return next(line for line in self.answer(question) if line.split()[:1] == [word])


_GNUBG_SETUP = (
    "set display off",
    "set automatic game off",
    "set automatic roll off",
    "set automatic move off",
    "set player 0 human",
    "set player 1 human",
    "set cube use off",
    "set jacoby off",  # else gammons count as much as wins
    "set evaluation chequerplay evaluation cubeful off",
    "new session",
)
_GNUBG_HINT = re.compile(r"1\. Cube\w+ \d-ply +(.*?) +Eq\.:|(There are no legal moves)")
_GNUBG_MOVE = re.compile(r"\b(bar|1\d|2[0-4]|[1-9])((?:/(?:off|1\d|2[0-4]|[1-9])\*?)+)(?:\((\d)\))?")
"""A checker's origin, all points that it reaches, and how many checkers move so, for example `24/18*/13(2)`."""
_MOST_PLANNED = 10_000


class GnubgEngine(LineProcess):
    """GNU Backgammon without the cube, by the commands of its terminal. It gets the position and the roll of each turn.

    A turn is several actions: those that it has not played yet wait in `planned`, which all processes share.
    """

    def __init__(self, command: Sequence[str], plies: int, planned: OrderedDict[bytes, int]) -> None:
        """Starts the program, which looks `plies` ahead."""
        super().__init__(command)
        self._planned = planned
        try:
            for line in (*_GNUBG_SETUP, f"set evaluation chequerplay evaluation plies {plies}"):
                self.send(line)
            self._hint(START, (3, 1))
        except EngineFailed:
            self.close()
            raise

    def best(self, turn: Turn) -> int:
        """The next action of the engine's move."""
        position: BackgammonPosition = jax.device_get(turn.state.game)
        board, roll = np.asarray(position.board), np.asarray(position.dice)
        if (action := self._planned.get(_key(position))) is not None:
            return action
        dice = np.repeat(np.arange(1, 7), roll).tolist()
        # It cannot be asked about the rest of a roll, which the random plies of an opening leave.
        if len(dice) % 2 or len(dice) == 2 > len(set(dice)) or turn.legal[0]:
            return int(np.argmax(turn.legal))
        move = self._hint(board, dice[:2])
        actions = turn_to(position, board_after(board, move))
        if not actions:
            raise EngineFailed(f"its move {move} is illegal in that position")
        self._planned.update({_key(before): action for before, action in actions})
        while len(self._planned) > _MOST_PLANNED:
            self._planned.popitem(last=False)
        return actions[0][1]

    def _hint(self, board: np.ndarray[Any, Any], dice: Sequence[int]) -> str:
        """The best move, such as `8/5 6/5`."""
        checkers = [board[BAR], *board[POINTS - 1 :: -1], board[BAR + 1]]
        self.send(f"set turn 1\nset board simple {' '.join(map(str, checkers))}\nset dice {dice[0]} {dice[1]}\nhint 1")
        found = next(filter(None, map(_GNUBG_HINT.search, self.answer("hint"))))
        return found[1] or ""


def _key(position: BackgammonPosition) -> bytes:
    return bytes(position.board.tobytes() + position.dice.tobytes())


def board_after(board: np.ndarray[Any, Any], move: str) -> np.ndarray[Any, Any]:
    """The board `[28]` after a move in the notation of GNU Backgammon, whose points count down to the mover's home."""
    after, places = board.copy(), {"bar": BAR, "off": OFF} | {str(POINTS - point): point for point in range(POINTS)}
    for first, others, times in _GNUBG_MOVE.findall(move):
        for _ in range(int(times or 1)):
            for origin, target in pairwise(places[place] for place in (first, *re.findall(r"off|\d+", others))):
                hit = after[target] == -1
                after[origin] -= 1
                after[target] += 1 + hit
                after[BAR + 1] -= hit
    return after


Engine = GtpEngine | UciEngine | GnubgEngine
"""One running process of an engine; `best` raises `EngineFailed`."""
