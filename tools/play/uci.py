"""A UCI server: a player as an engine for chess programs."""

from __future__ import annotations

import math
import re
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from itertools import takewhile
from threading import Event, Lock, Thread
from typing import Any

import numpy as np

from podzero.envs.boards.chess import CHESS_SIZES
from podzero.envs.notation import NotationError, fen_of, pieces_of, state_of, white_to_move
from podzero.evaluation.engines import UCI_VARIANTS, UciOption, UciPosition
from podzero.evaluation.records import centipawns
from podzero.tools.play.game import PlayableGame
from podzero.tools.play.searching import MOVES_LEFT, EngineParts, Root, SearchedLines, failure_of, share_of_clock

_MOST_LINES = 218
"""Most legal moves of a chess position."""
_MOST_SIMULATIONS = 1_000_000
_NOTHING = "(none)"
"""The best move of a position without legal moves, and where there is no position."""


class UciServer:
    """The engine's side of UCI. Searches run in a thread, so `stop` and `isready` are answered during them.

    `game` is a key of `UCI_VARIANTS`; `isready` waits until the parts are loaded; `write` sends a line.
    """

    def __init__(self, who: str, game: str, parts: Future[EngineParts], write: Callable[[str], None]) -> None:
        self._who, self._game, self._parts = who, game, parts
        self._size = CHESS_SIZES[game]
        # Two threads write lines: that of the search, and the one that reads commands.
        self._write, self._writing = write, Lock()
        # This thread is never started: no search is alive yet.
        self._stop, self._search = Event(), Thread()
        self._limits, self._until = GoLimits(), math.inf
        """Of the newest search, and the time at which it ends after `ponderhit`."""
        self._may_answer = Event()
        """Whether a search without an end of its own, as of `go ponder`, may say its move."""
        self._switches = {"ponder": False, "uci_showwdl": False}
        """Options that are on or off: whether the expected reply is said, and chances of winning."""
        self._position: UciPosition | None = UciPosition("startpos", [])
        """None after a position that was refused."""
        self._lines = 1
        self._simulations: int | None = None
        self._commands: dict[str, Callable[[list[str]], None]] = {
            "uci": self._introduce,
            "isready": self._ready,
            "ucinewgame": lambda _: self._finish(),
            "position": self._place,
            "go": self._go,
            "stop": lambda _: self._finish(),
            "ponderhit": lambda _: self._ponder_hit(),
            "setoption": self._set,
            "debug": lambda _: None,
            "register": lambda _: None,
        }

    def run(self, lines: Iterable[str]) -> None:
        """Answers lines until `quit` or the end of the input; raises the error of loading the player."""
        for line in lines:
            words = line.split()
            if words[:1] == ["quit"]:
                break
            # The protocol says to skip unknown words.
            while words and words[0] not in self._commands:
                self._say(f"info string unknown command: {words.pop(0)[:80]}")
            if words:
                try:
                    self._commands[words[0]](words[1:])
                except Exception as error:
                    self._say(f"info string {failure_of(words[0], error, self._parts)}")
        self._finish()

    def _say(self, line: str) -> None:
        with self._writing:
            self._write(line)

    def _introduce(self, _: list[str]) -> None:
        self._say(f"id name podzero {self._who}")
        self._say("id author the podzero authors")
        self._say(f"option name MultiPV type spin default 1 min 1 max {_MOST_LINES}")
        self._say(f"option name Simulations type spin default 0 min 0 max {_MOST_SIMULATIONS}")
        self._say("option name Ponder type check default false")
        self._say("option name UCI_ShowWDL type check default false")
        if (variant := UCI_VARIANTS[self._game]) != "chess":
            self._say(f"option name UCI_Variant type combo default {variant} var {variant}")
        self._say("uciok")

    def _ready(self, _: list[str]) -> None:
        if not self._search.is_alive():
            self._prepared()
        self._say("readyok")

    def _prepared(self) -> EngineParts:
        parts = self._parts.result()
        if self._simulations is not None:
            parts.search.limit(self._simulations)
        parts.search.prepare(Root.of(parts.game.beginning))
        return parts

    def _set(self, words: list[str]) -> None:
        name, value = UciOption.parse(words)
        bounds = {"multipv": (1, _MOST_LINES), "simulations": (0, _MOST_SIMULATIONS)}.get(name.lower())
        if name.lower() == "uci_variant" and value == UCI_VARIANTS[self._game]:
            return
        if name.lower() in self._switches and value in ("true", "false"):
            self._switches[name.lower()] = value == "true"
        elif bounds is None:
            self._say(f"info string no such option: {name[:80]}")
        elif not re.fullmatch(r"\d{1,9}", value) or not bounds[0] <= int(value) <= bounds[1]:
            self._say(f"info string {name}: expected a number from {bounds[0]} to {bounds[1]}, not '{value[:80]}'")
        elif name.lower() == "multipv":
            self._lines = int(value)
        else:
            self._finish()
            self._simulations = int(value)

    def _place(self, words: list[str]) -> None:
        """Sets the position; if a move is illegal, keeps those before it."""
        self._finish()
        start, moves = UciPosition.parse(words)
        game = self._parts.result().game
        try:
            # Programs send all moves each time: play only the new ones, unless this is another game.
            known = self._position
            if known is None or start != known.start or known.moves != moves[: len(known.moves)]:
                self._position = None
                self._begin(game, start)
                self._position = known = UciPosition(start, [])
            for name in moves[len(known.moves) :]:
                game.play(name)
                known.moves.append(name)
                # A game that podzero's rules end as a draw goes on, since programs need not claim it. A state made
                # from a FEN has no history, so no repetition.
                if game.over:
                    game.resume(state_of(fen_of(game.state, self._size), self._size))
        except NotationError as error:
            self._say(f"info string position: {error}")

    def _begin(self, game: PlayableGame, start: str) -> None:
        if start == "startpos":
            game.restart()
            return
        if not start.startswith("fen "):
            raise NotationError(f"expected startpos or fen, not '{start[:80]}'")
        game.restart(state=state_of(start.removeprefix("fen "), self._size))
        king = "k" if white_to_move(game.state) else "K"
        for square, piece in pieces_of(game.state).items():
            if piece == king and any(game.name(action)[2:4] == square for action in game.legal):
                raise NotationError(f"'{start[:80]}': the player to move could take the king on {square}")

    def _go(self, words: list[str]) -> None:
        self._finish()
        limits, unknown = parse_go(words)
        if unknown:
            self._say(f"info string go: not understood: {' '.join(unknown)[:80]}")
        # Here, since in the thread of the search the error of loading the player would be lost.
        self._parts.result()
        self._stop.clear()
        self._may_answer.clear()
        self._limits, self._until = limits, math.inf
        self._search = Thread(target=self._run, args=(limits,), name="uci-search", daemon=True)
        self._search.start()

    def _finish(self) -> None:
        """Stops the search, and waits until it has answered."""
        self._stop.set()
        self._may_answer.set()
        if self._search.is_alive():
            self._search.join()

    def _ponder_hit(self) -> None:
        """The move on which the engine pondered was played: its clock runs from now on; without one the search ends."""
        if self._search.is_alive() and self._limits.ponder:
            white = white_to_move(self._parts.result().game.state)
            self._until = time.monotonic() + (self._limits.seconds(white=white) or 0.0)
            self._may_answer.set()

    def _given_up(self) -> bool:
        return self._stop.is_set() or time.monotonic() >= self._until

    def _run(self, limits: GoLimits) -> None:
        try:
            best = self._best(limits)
        except Exception as error:
            best = _NOTHING
            self._say(f"info string {failure_of('go', error, self._parts)}")
        # The protocol: no move before `stop`, or after `go ponder` before `ponderhit`.
        if limits.endless:
            self._may_answer.wait()
        self._say(f"bestmove {best}")

    def _best(self, limits: GoLimits) -> str:
        if self._position is None:
            self._say("info string go: no position: the last one was refused")
            return _NOTHING
        parts = self._prepared()
        if parts.game.over:
            return _NOTHING
        depth, shown = 0, 0
        for searched in self._results(parts, limits):
            # Not every result, since a controller has to read them all.
            if searched.simulations >= 2 * shown:
                depth, shown = depth + 1, searched.simulations
                self._show(parts, searched, depth)
        if searched.simulations > shown:
            self._show(parts, searched, depth + 1)
        move, *expected = parts.game.names_of(searched.lines[0].moves[:2])
        return f"{move} ponder {expected[0]}" if expected and self._switches["ponder"] else move

    def _results(self, parts: EngineParts, limits: GoLimits) -> Iterator[SearchedLines]:
        search, position = parts.search, parts.game.position
        seconds = math.inf if limits.endless else limits.seconds(white=white_to_move(position.state))
        simulations = search.usual if seconds is None else search.most
        if limits.nodes is not None and not limits.endless:
            simulations = limits.nodes
        root = Root.of(position, self._forbidden(parts, limits.searchmoves))
        return search.results(root, simulations, seconds, self._given_up)

    def _forbidden(self, parts: EngineParts, names: Sequence[str]) -> np.ndarray[Any, Any] | None:
        """`[A]` bool, the actions that are not in `names`; None if none of these is legal."""
        if names and not parts.search.can_forbid:
            self._say(f"info string searchmoves: {self._who} does not search, so its moves cannot be chosen")
            return None
        named = np.zeros_like(parts.game.legal_mask)
        for name in names:
            try:
                named[parts.game.action(name)] = True
            except NotationError as error:
                self._say(f"info string searchmoves: {error}")
        return ~named if named.any() else None

    def _show(self, parts: EngineParts, searched: SearchedLines, depth: int) -> None:
        new = searched.simulations - searched.reused
        speed = f"nodes {searched.simulations} nps {round(new / max(searched.seconds, 1e-6))}"
        for number, line in enumerate(searched.lines[: self._lines], start=1):
            # A value says nothing of draws: each counts as half a win.
            won = round(500 * (1 + line.value))
            wdl = f" wdl {won} 0 {1000 - won}" if self._switches["uci_showwdl"] else ""
            self._say(
                f"info depth {depth} multipv {number} score cp {centipawns(line.value)}{wdl} {speed} "
                f"time {round(1000 * searched.seconds)} pv {' '.join(parts.game.names_of(line.moves))}"
            )


@dataclass(frozen=True)
class GoLimits:
    """The arguments of UCI's command `go`, with times in milliseconds."""

    wtime: int | None = None
    btime: int | None = None
    winc: int = 0
    binc: int = 0
    movestogo: int = MOVES_LEFT
    movetime: int | None = None
    nodes: int | None = None
    infinite: bool = False
    ponder: bool = False
    searchmoves: tuple[str, ...] = ()

    @property
    def endless(self) -> bool:
        """Whether the other program ends the search."""
        return self.infinite or self.ponder

    def seconds(self, white: bool) -> float | None:
        """Seconds for this move; None without a time limit."""
        if self.movetime is not None:
            return share_of_clock(self.movetime / 1000, moves=1)
        remaining, increment = (self.wtime, self.winc) if white else (self.btime, self.binc)
        return None if remaining is None else share_of_clock(remaining / 1000, increment / 1000, self.movestogo)


_NUMBERS = ("wtime", "btime", "winc", "binc", "movestogo", "movetime", "nodes")
_IGNORED = ("depth", "mate")
"""Limits that this search cannot obey; a number follows each."""
_WORDS = (*_NUMBERS, *_IGNORED, "infinite", "ponder", "searchmoves")


def parse_go(words: Sequence[str]) -> tuple[GoLimits, list[str]]:
    """Parses the arguments of `go` into limits and unknown words."""
    found: dict[str, int | bool | tuple[str, ...]] = {}
    unknown, rest = [], list(words)
    while rest:
        word = rest.pop(0)
        if word in (*_NUMBERS, *_IGNORED) and rest and re.fullmatch(r"-?\d{1,18}", rest[0]):
            number = max(int(rest.pop(0)), 0)
            if word in _NUMBERS:
                found[word] = number
        elif word in ("infinite", "ponder"):
            found[word] = True
        elif word == "searchmoves":
            moves = list(takewhile(lambda word: word not in _WORDS, rest))
            found["searchmoves"], rest = tuple(moves), rest[len(moves) :]
        else:
            unknown.append(word)
    return GoLimits(**found), unknown  # type: ignore[arg-type]
