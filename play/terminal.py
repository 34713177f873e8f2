"""Play in the terminal: the board in colours, moves by their names."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import numpy as np
from rich.console import Console
from rich.table import Table
from rich.text import Text

from podzero.envs.notation import NotationError
from podzero.play.drawing import Drawing, drawing_of
from podzero.play.searching import PositionSearch
from podzero.play.session import Session

HELP = "a move by its name, or: hint, undo, moves, new, quit"
_COLOURS = ("bold red", "bold cyan")
_SHOWN = 5
"""Moves of a hint."""


class TerminalGame:
    """One game after the other between a person and a player.

    Args:
      session: the game.
      player: the person's opponent.
      simulations: of each of its searches.
      side: 0 if the person begins, otherwise 1.
      console: where the board is shown.
      read: asks for a line; raises `EOFError` at the end of the input.
    """

    def __init__(
        self,
        session: Session,
        player: PositionSearch,
        simulations: int,
        side: int,
        console: Console,
        read: Callable[[str], str] = input,
    ) -> None:
        self._session = session
        self._player = player
        self._simulations = simulations
        self._side = side
        self._console = console
        self._read = read

    def run(self) -> None:
        """Plays until the person ends it."""
        self._console.print(f"You play against {self._player.name(self._simulations)}. Type {HELP}.")
        self._show()
        for command in self._commands():
            match command.split():
                case []:
                    continue
                case ["hint"]:
                    self._hint()
                case ["undo"]:
                    self._session.take_back(2 if self._session.ply >= 2 else 1)
                    self._show()
                case ["moves"]:
                    self._console.print(" ".join(self._session.names()) or "no move yet", highlight=False)
                case ["new"]:
                    self._session.start_with([])
                    self._show()
                case ["help" | "?"]:
                    self._console.print(HELP)
                case _:
                    self._move(command)

    def _commands(self) -> Iterator[str]:
        """The person's lines; the player moves before each of them if it is its turn."""
        while True:
            while not self._session.over and self._session.turn_of(self._session.player) != self._side:
                self._reply()
            try:
                line = self._read("over> " if self._session.over else "move> ").strip()
            except EOFError:
                return
            if line in ("quit", "exit"):
                return
            yield line

    def _move(self, name: str) -> None:
        try:
            self._session.play_named(name)
        except NotationError as error:
            legal = " ".join(self._session.name(action) for action in self._session.legal)
            self._console.print(f"{error}. Legal: {legal or 'none'}", highlight=False)
            return
        self._show()

    def _reply(self) -> None:
        """The player's move."""
        found = self._player(self._session.position.state, self._simulations)
        name = self._session.name(found.action)
        value = "" if found.value is None else f" (value {found.value:+.2f} for it)"
        self._session.play(found.action)
        self._console.print(f"{self._player.name(self._simulations)} plays {name}{value}", highlight=False)
        self._show()

    def _hint(self) -> None:
        """What the player would do here."""
        if self._session.over:
            self._console.print(self._session.result)
            return
        found = self._player(self._session.position.state, self._simulations)
        if found.policy is None or found.visits is None:
            self._console.print(f"it would play {self._session.name(found.action)}", highlight=False)
            return
        table = Table("move", "policy", "visits", box=None)
        for action in np.argsort(-found.policy)[:_SHOWN]:
            if int(action) in self._session.legal:
                name = self._session.name(int(action))
                table.add_row(name, f"{found.policy[action]:.1%}", str(int(found.visits[action])))
        self._console.print(table)

    def _show(self) -> None:
        drawing = drawing_of(self._session)
        if drawing is not None:
            self._console.print(board_text(drawing))
        if self._session.over:
            self._console.print(f"[bold]{self._session.result}[/]. `new` begins another game, `undo` takes moves back.")


def board_text(drawing: Drawing) -> Text:
    """The board with the labels of rows and columns; stones are x for the player who began, and o."""
    width = max(map(len, (*drawing.rows, "")))
    text = Text()
    for row, label in enumerate(drawing.rows):
        text.append(f"{label:>{width}} ", style="dim")
        for column in range(drawing.size[1]):
            owner = int(drawing.owner[row, column])
            written = drawing.text[row][column] or ("." if owner < 0 else "xo"[owner])
            text.append(f"{written} ", style="dim" if owner < 0 else _COLOURS[owner])
        text.append("\n")
    text.append(" " * (width + 1) + " ".join(drawing.columns), style="dim")
    return text
