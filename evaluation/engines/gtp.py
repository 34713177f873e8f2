"""Engines that speak the Go Text Protocol, version 2 (Farnebäck 2002, https://www.lysator.liu.se/~gunnar/gtp/)."""

from __future__ import annotations

import re
import time
from collections.abc import Sequence

from podzero.envs.notation import LineNotation, NotationError
from podzero.evaluation.engines.process import EngineFailed, LineProcess
from podzero.evaluation.players import GIVES_UP, Turn

_COLOURS = ("b", "w")


class GtpClient:
    """The controller's end of the protocol."""

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
            raise EngineFailed(f"it answered genmove with something else than a move: {error}") from None

    def close(self) -> None:
        """Ends the engine."""
        self.client.close()
