"""Positions as text."""

from __future__ import annotations

from rich.text import Text

from podzero.tools.play.drawing import drawing_of
from podzero.tools.play.game import Game

_COLOURS = ("bold red", "bold cyan")
_STONES = "XO"


def board_text(game: Game) -> Text:
    """The board with the labels of rows and columns; the moves of a game without one.

    Stones are X for the player who began the game, and O for the other.
    """
    drawing = drawing_of(game)
    if drawing is None:
        return Text(" ".join(game.names))
    width = max(map(len, (*drawing.rows, "")))
    cell = max(len(written) for row in (drawing.columns, *drawing.text) for written in (*row, "."))
    text = Text()
    for row, label in enumerate(drawing.rows):
        text.append(f"{label:>{width}}", style="dim")
        for column in range(drawing.size[1]):
            owner = int(drawing.owner[row, column])
            empty = " " if drawing.in_hand((row, column)) else "."
            written = drawing.text[row][column] or (empty if owner < 0 else _STONES[owner])
            text.append(f" {written:<{cell}}", style="dim" if owner < 0 else _COLOURS[owner])
        text.append("\n")
    labels = " ".join(f"{label:<{cell}}" for label in drawing.columns)
    text.append(f"{'':{width}} {labels}", style="dim")
    return text
