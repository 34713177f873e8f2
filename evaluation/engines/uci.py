"""Engines that speak the Universal Chess Interface (Huber & Meyer-Kahlen 2006)."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence

from podzero.envs.notation import LineNotation, NotationError
from podzero.evaluation.engines.process import EngineFailed, LineProcess
from podzero.evaluation.players import Turn


class UciEngine:
    """A chess engine that is given the whole game before each of its moves, so that it may serve several games."""

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
            raise EngineFailed(f"it answered go with something else than a move: {error}") from None

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
