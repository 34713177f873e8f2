"""A game in the terminal: a coloured board, and moves typed by their names."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import numpy as np
from rich.console import Console
from rich.table import Table

from podzero.envs.notation import NotationError
from podzero.tools.play.drawing import board_text
from podzero.tools.play.game import PlayableGame
from podzero.tools.play.searching import PositionSearch

HELP = "a move by its name, or: hint, undo, moves, new, quit"
_SHOWN = 5
"""Moves that a hint shows."""


class TerminalGame:
    """Games between a person and a player, or of a person alone, one after another, in the terminal.

    Args:
      game: the game.
      player: the person's opponent; in a game for one player it gives hints.
      simulations: simulations per search.
      side: 0 if the person plays first, 1 otherwise.
      console: the console to print to.
      read: prompts for a line; raises `EOFError` at the end of the input.
    """

    def __init__(
        self,
        game: PlayableGame,
        player: PositionSearch,
        simulations: int,
        side: int,
        console: Console,
        read: Callable[[str], str] = input,
    ) -> None:
        self._game, self._player, self._simulations, self._side = game, player, simulations, side
        self._console, self._read = console, read

    def run(self) -> None:
        """Plays until the person quits."""
        player = self._player.name(self._simulations)
        alone = self._game.env.spec.players == 1
        side = f"{'XO'[self._side]}, {self._game.sides[self._side]}"
        roles = f"You play alone; {player} gives hints" if alone else f"You play {side}, against {player}"
        self._console.print(f"{roles}. Type {HELP}.")
        self._show()
        for command in self._commands():
            match command.split():
                case []:
                    continue
                case ["hint"]:
                    self._hint()
                case ["undo"]:
                    self._undo()
                case ["moves"]:
                    self._console.print(" ".join(self._game.names) or "no move yet", highlight=False)
                case ["new"]:
                    self._game.restart()
                    self._show()
                case ["help" | "?"]:
                    self._console.print(HELP)
                case _:
                    self._move(command)

    def _commands(self) -> Iterator[str]:
        """The lines that the person types, until `quit` or the end of the input."""
        while True:
            # A loop, since some games give a player several moves in a row.
            while not self._game.over and self._game.turn != self._side:
                self._reply()
            try:
                line = self._read("over> " if self._game.over else "move> ").strip()
            except EOFError:
                return
            if line in ("quit", "exit"):
                return
            yield line

    def _move(self, name: str) -> None:
        try:
            self._game.play(name)
        except NotationError as error:
            legal = " ".join(self._game.name(action) for action in self._game.legal)
            self._console.print(f"{error}. Legal: {legal or 'none'}", highlight=False)
            return
        self._show()

    def _undo(self) -> None:
        """Takes back the person's last move and the replies to it."""
        self._game.take_back()
        while self._game.ply and self._game.turn != self._side:
            self._game.take_back()
        self._show()

    def _reply(self) -> None:
        """Plays the player's move."""
        found = self._player(self._game.state, self._simulations)
        name = self._game.name(found.action)
        value = "" if found.value is None else f" (value {found.value:+.2f} for itself)"
        self._game.play(found.action)
        self._console.print(f"{self._player.name(self._simulations)} plays {name}{value}", highlight=False)
        self._show()

    def _hint(self) -> None:
        """Shows the best moves of the player's search."""
        if self._game.over:
            self._console.print(self._game.result)
            return
        found = self._player(self._game.state, self._simulations)
        if found.policy is None or found.visits is None:
            self._console.print(f"the player would play {self._game.name(found.action)}", highlight=False)
            return
        table = Table("move", "policy", "visits", box=None)
        for action in np.argsort(-found.policy)[:_SHOWN]:
            if int(action) in self._game.legal:
                name = self._game.name(int(action))
                table.add_row(name, f"{found.policy[action]:.1%}", str(int(found.visits[action])))
        self._console.print(table)

    def _show(self) -> None:
        self._console.print(board_text(self._game))
        if self._game.over:
            self._console.print(f"[bold]{self._game.result}[/]. `new` starts another game, `undo` takes moves back.")
