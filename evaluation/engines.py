"""Engines outside of podzero as players: GNU Go by GTP, Stockfish and Fairy-Stockfish by UCI.

A few processes serve all games of a player. A process that fails costs only the game in which it fails, and no call
waits for it longer than its timeout.
"""

from __future__ import annotations

import logging
import os
import re
import subprocess
import time
import weakref
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from queue import Empty, Full, Queue, SimpleQueue
from threading import Thread
from typing import IO, Protocol

from podzero.envs.boards.go import KOMI
from podzero.envs.notation import LineNotation, NotationError, notation_of
from podzero.errors import ConfigError, PodzeroError
from podzero.evaluation.players import GIVES_UP, Turn
from podzero.player_names import EnginePlayer, engine_program
from podzero.types import EnvSpec

NODES = 100_000
"""Positions that a chess engine searches for a move, at all levels."""
MOVE_TIMEOUT_S = 120.0
_HASH_MIB = 16


def engine_contestant(name: str, player: EnginePlayer, spec: EnvSpec) -> EngineContestant:
    """Makes the player with a name, which stands for `player`, and starts its engine.

    Raises:
      ConfigError: the engine does not play this game, is not installed, or cannot be used.
    """
    program = engine_program(name, player, spec.name)
    start = _gnugo(program, player.level, spec) if player.kind == "gnugo" else _stockfish(program, player, spec)
    try:
        return EngineContestant(name, start)
    except EngineFailed as error:
        raise ConfigError(f"player '{name}': {error}") from None


def _gnugo(program: str, level: int, spec: EnvSpec) -> Callable[[], Engine]:
    """GNU Go under podzero's rules: area scoring in which all stones left on the board are alive, positional superko,
    no suicide.
    """
    rules = ("--chinese-rules", "--capture-all-dead", "--positional-superko", "--forbid-suicide")
    command = (program, "--mode", "gtp", "--quiet", "--level", str(level), "--seed", "1", *rules)
    setup = (f"boardsize {spec.observation_shape[0]}", f"komi {KOMI}")
    return lambda: GtpEngine(command, notation_of(spec), setup, MOVE_TIMEOUT_S)


def _stockfish(program: str, player: EnginePlayer, spec: EnvSpec) -> Callable[[], Engine]:
    variants = {"chess": "chess", "gardner_chess": "gardner"}
    options = {"Threads": "1", "Hash": str(_HASH_MIB), "Skill Level": str(player.level)}
    if player.kind == "fairy-stockfish":
        options = {"UCI_Variant": variants[spec.name], **options}
    return lambda: UciEngine((program,), notation_of(spec), options, NODES, MOVE_TIMEOUT_S)


log = logging.getLogger(__name__)

PROCESSES = 4
"""The most processes of one player; no more than there are CPU cores."""


class Engine(Protocol):
    """One running process of an engine."""

    def best(self, turn: Turn) -> int:
        """The action that the engine chooses, or `GIVES_UP`; raises `EngineFailed`."""
        ...

    def close(self) -> None:
        """Ends the process."""
        ...


class EngineContestant:
    """A `MovesPlayer` that asks an engine.

    An engine that ends, does not answer in time, or answers with an illegal move forfeits the game. The log says why,
    and a new process plays the other games.
    """

    deterministic = True  # chance in the engine is its own: matches need random openings to be varied

    def __init__(self, name: str, start: Callable[[], Engine], processes: int | None = None) -> None:
        """Starts one process, the others when they are needed.

        Args:
          name: in results.
          start: starts a process.
          processes: the most at a time; by default `PROCESSES`, or the number of cores if it is smaller.

        Raises:
          EngineFailed: the engine cannot be started.
        """
        self._name, self._start = name, start
        count = processes or min(PROCESSES, os.cpu_count() or 1)
        self._threads = ThreadPoolExecutor(count, thread_name_prefix=f"{name}-engine")
        self._running: set[Engine] = set()
        self._free: SimpleQueue[Engine | None] = SimpleQueue()
        self._free.put(self._started())
        for _ in range(count - 1):
            self._free.put(None)
        self.close = weakref.finalize(self, _close, self._threads, self._running)
        """Ends all processes; called at the end of the program as well."""

    @property
    def name(self) -> str:
        """See `Player`."""
        return self._name

    def choose_after(self, turns: Sequence[Turn]) -> list[int]:
        """See `MovesPlayer`."""
        return list(self._threads.map(self._choose, turns))

    def _choose(self, turn: Turn) -> int:
        engine = self._free.get()
        try:
            engine = engine or self._started()
            return _legal(engine.best(turn), turn)
        except EngineFailed as error:
            log.warning("%s forfeits a game at ply %d: %s", self._name, len(turn.moves) + 1, error)
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


def _legal(action: int, turn: Turn) -> int:
    if action != GIVES_UP and not turn.legal[action]:
        raise EngineFailed(f"it played action {action}, which is illegal in that position")
    return action


def _close(threads: ThreadPoolExecutor, running: set[Engine]) -> None:
    threads.shutdown(wait=False, cancel_futures=True)
    for engine in list(running):
        engine.close()


LONGEST_LINE = 2**16
"""Bytes; a longer line is read in parts."""
_WAITING_LINES = 1000
"""Lines that were read and not yet asked for; the program waits while there are more."""
_STDERR_LINES = 5
"""Last lines of standard error that an error message quotes."""
_EXIT_S = 2.0
"""Seconds between asking a program to end and killing it."""


class EngineFailed(PodzeroError, RuntimeError):
    """An engine ended, did not answer in time, or answered what its protocol does not allow."""


class LineProcess:
    """A running program; one thread at a time may use it."""

    def __init__(self, command: Sequence[str]) -> None:
        """Starts the program, in a session of its own so that Ctrl-C does not reach it.

        Raises:
          EngineFailed: it cannot be started.
        """
        self.name = command[0].rpartition("/")[2]
        try:
            self._process = subprocess.Popen(
                command,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                start_new_session=True,
            )
        except OSError as error:
            raise EngineFailed(f"{self.name} cannot be started: {error}") from None
        self._lines: Queue[str | None] = Queue(_WAITING_LINES)
        self._stderr: deque[str] = deque(maxlen=_STDERR_LINES)
        self._closed = False
        for read, stream in ((self._read, self._process.stdout), (self._drain, self._process.stderr)):
            Thread(target=read, args=(stream,), name=f"{self.name}-output", daemon=True).start()

    @property
    def pid(self) -> int:
        """The number of the process."""
        return self._process.pid

    def send(self, line: str) -> None:
        """Sends one line.

        Raises:
          EngineFailed: the program has ended.
        """
        assert self._process.stdin is not None
        try:
            self._process.stdin.write(f"{line}\n".encode())
            self._process.stdin.flush()
        except OSError:
            raise EngineFailed(self._ended(line)) from None

    def receive(self, deadline: float, waiting_for: str) -> str:
        """The next line, without its end and surrounding spaces.

        Args:
          deadline: on the clock of `time.monotonic`.
          waiting_for: what the line should answer, for error messages.

        Raises:
          EngineFailed: the program has ended, or wrote no line before the deadline.
        """
        try:
            line = self._lines.get(timeout=max(deadline - time.monotonic(), 0.001))
        except Empty:
            raise EngineFailed(f"{self.name} has not answered '{waiting_for}' in time") from None
        if line is None:
            self._lines.put(None)
            raise EngineFailed(self._ended(waiting_for))
        return line

    def close(self, farewell: str = "") -> None:
        """Ends the program: by the line `farewell` and the end of its input, and by a signal if it stays."""
        self._closed = True
        with suppress(EngineFailed):
            if farewell:
                self.send(farewell)
        with suppress(OSError):
            if self._process.stdin is not None:
                self._process.stdin.close()
        try:
            self._process.wait(timeout=_EXIT_S if farewell else 0)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()

    def _read(self, stream: IO[bytes]) -> None:
        for line in iter(lambda: stream.readline(LONGEST_LINE), b""):
            self._put(line.decode(errors="replace").strip())
        self._put(None)

    def _put(self, line: str | None) -> None:
        while not self._closed:
            with suppress(Full):
                self._lines.put(line, timeout=0.2)
                return

    def _drain(self, stream: IO[bytes]) -> None:
        for line in iter(lambda: stream.readline(LONGEST_LINE), b""):
            self._stderr.append(line.decode(errors="replace").strip())

    def _ended(self, waiting_for: str) -> str:
        with suppress(subprocess.TimeoutExpired):
            self._process.wait(timeout=_EXIT_S)
        said = " / ".join(self._stderr)
        return f"{self.name} ended ({self._process.poll()}) at '{waiting_for}'" + (f"; it said: {said}" if said else "")


_COLOURS = ("b", "w")


class GtpClient:
    """The controller's side of the Go Text Protocol, version 2 (Farnebäck 2002, https://www.lysator.liu.se/~gunnar/gtp/)."""

    def __init__(self, command: Sequence[str], timeout_s: float) -> None:
        """Starts the engine; `timeout_s` limits the wait for each answer."""
        self._process = LineProcess(command)
        self._timeout_s = timeout_s
        self._number = 0

    @property
    def pid(self) -> int:
        """The number of the engine's process."""
        return self._process.pid

    def ask(self, command: str) -> str:
        """The answer to a command, without `=`.

        Raises:
          EngineFailed: the engine refused the command, ended, took too long, or did not answer in the protocol.
        """
        self._number += 1
        self._process.send(f"{self._number} {command}")
        deadline = time.monotonic() + self._timeout_s
        lines = [self._first_line(deadline, command)]
        while lines[-1]:
            lines.append(self._process.receive(deadline, command))
        status, number, text = re.fullmatch(r"([=?])(\d*)\s*(.*)", lines[0]).groups()  # type: ignore[union-attr]
        if number != str(self._number):
            raise EngineFailed(f"{self._process.name} answered another command than '{command}': '{lines[0][:80]}'")
        answer = "\n".join([text, *lines[1:-1]])
        if status == "?":
            raise EngineFailed(f"{self._process.name} refused '{command}': {answer[:200]}")
        return answer

    def close(self) -> None:
        """Ends the engine."""
        self._process.close("quit")

    def _first_line(self, deadline: float, command: str) -> str:
        """The line that begins the answer; other output before it is passed over."""
        while True:
            line = self._process.receive(deadline, command)
            if line[:1] in ("=", "?"):
                return line


class GtpEngine:
    """A Go engine that is given the whole game before each of its moves, so that it may serve several games."""

    def __init__(self, command: Sequence[str], notation: LineNotation, setup: Sequence[str], timeout_s: float) -> None:
        """Starts the engine and sends it the commands `setup`.

        Raises:
          EngineFailed: it does not answer, or refuses one.
        """
        self._notation = notation
        self.client = GtpClient(command, timeout_s)
        try:
            for line in setup:
                self.client.ask(line)
        except EngineFailed:
            self.close()
            raise

    def best(self, turn: Turn) -> int:
        """The engine's move, or `GIVES_UP` if it resigns.

        Raises:
          EngineFailed: see `GtpClient.ask`; or the answer names no move.
        """
        self.client.ask("clear_board")
        for ply, name in enumerate(self._notation.names(turn.moves)):
            self.client.ask(f"play {_COLOURS[ply % 2]} {name}")
        answer = self.client.ask(f"genmove {_COLOURS[len(turn.moves) % 2]}")
        if answer.strip().lower() == "resign":
            return GIVES_UP
        try:
            return self._notation.action(turn.state, answer.strip())
        except NotationError as error:
            raise EngineFailed(f"its answer to genmove is not a move: {error}") from None

    def close(self) -> None:
        """Ends the engine."""
        self.client.close()


class UciEngine:
    """A chess engine, by the Universal Chess Interface (Huber & Meyer-Kahlen 2006).

    It is given the whole game before each of its moves, so that it may serve several games.
    """

    def __init__(
        self, command: Sequence[str], notation: LineNotation, options: Mapping[str, str], nodes: int, timeout_s: float
    ) -> None:
        """Starts the engine, which searches `nodes` positions for each move, and sets its options.

        Raises:
          EngineFailed: it does not answer, or does not know an option.
        """
        self._notation, self._nodes, self._timeout_s = notation, nodes, timeout_s
        self._process = LineProcess(command)
        try:
            self._set_up(options)
        except EngineFailed:
            self.close()
            raise

    @property
    def pid(self) -> int:
        """The number of the engine's process."""
        return self._process.pid

    def best(self, turn: Turn) -> int:
        """The engine's move.

        Raises:
          EngineFailed: the engine ended, took too long, or did not answer with a move.
        """
        moves = " ".join(self._notation.names(turn.moves))
        self._process.send(f"position startpos moves {moves}" if moves else "position startpos")
        self._process.send(f"go nodes {self._nodes}")
        _, *answer = self._lines_to("bestmove", "go")[-1].split()
        name = answer[0] if answer else "nothing"
        try:
            return self._notation.action(turn.state, name)
        except NotationError as error:
            raise EngineFailed(f"its answer to go is not a move: {error}") from None

    def close(self) -> None:
        """Ends the engine."""
        self._process.close("quit")

    def _set_up(self, options: Mapping[str, str]) -> None:
        self._process.send("uci")
        offered = self._lines_to("uciok", "uci")
        for name, value in options.items():
            if not any(line.startswith(f"option name {name} ") for line in offered):
                raise EngineFailed(f"{self._process.name} has no option '{name}'")
            self._process.send(f"setoption name {name} value {value}")
        self._process.send("isready")
        self._lines_to("readyok", "isready")

    def _lines_to(self, word: str, question: str) -> list[str]:
        """The lines up to the one that begins with `word`."""
        deadline, lines = time.monotonic() + self._timeout_s, [""]
        while lines[-1].split()[:1] != [word]:
            line = self._process.receive(deadline, question)
            lines = [*lines, line] if word == "uciok" else [line]
        return lines
