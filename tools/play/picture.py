"""Boards as SVG, and the square at a point of the picture."""

from __future__ import annotations

import base64
import io
from collections.abc import Mapping, Sequence
from html import escape
from typing import Any, NamedTuple

import numpy as np

from podzero.envs import SimulatorReplay
from podzero.envs.boards.hex import HEX_GAMES
from podzero.tools.play.drawing import Drawing, Square, handicap_squares
from podzero.tools.play.game import PlayableGame

CELL, MARGIN = 60, 34
"""Side of a square, and width of the border with the labels, in SVG units."""
_STONES = {"connect_four": ("#d43d2f", "#f2c230")}
_DARK_AND_LIGHT = ("#1c1c1c", "#fafafa")
"""Colours of the two players' stones, and those in other games."""
_WOOD = "#dcb66c"
_GROUNDS = {
    "connect_four": "#2b5fad", "go_7x7": _WOOD, "go_9x9": _WOOD, "go_19x19": _WOOD, "othello": "#2e7d4f",
    "shogi": _WOOD, "animal_shogi": _WOOD, **dict.fromkeys(HEX_GAMES, "#e9dfc7"),
}  # fmt: skip
_CHEQUERED = ("#f0d9b5", "#b58863")
"""Light and dark squares of games whose pieces move."""
_SOLID = dict(zip("♔♕♖♗♘♙", "♚♛♜♝♞♟", strict=True))
"""The solid figures that fill the outlines of white pieces."""
_AS_TEXT = "\ufe0e"
"""After a figure: it is drawn as text; some fonts would draw a pawn as a coloured emoji."""
_TILE = "M0 -25L16 -17L22 24H-22L-16 -17Z"
"""The outline of a shogi piece that points up, centred at 0."""


class Marks(NamedTuple):
    """What is drawn on a board besides its pieces."""

    heat: Mapping[Square, float] = {}
    """The policy's probability of each square."""
    last: Sequence[Square] = ()
    """The squares of the last move."""
    chosen: Square | None = None
    """The square whose piece the person is about to move."""
    owned: Mapping[Square, float] = {}
    """How certainly each square will be the first player's, 1, or the other's, -1."""


class BoardPicture:
    """Converts board positions of one game to SVG; its name decides colours and the shape of the squares."""

    def __init__(self, game: str, size: Square, margin: int = MARGIN) -> None:
        self._game = game
        self._margin = margin
        self._rows, self._columns = size
        self._squares = [(row, column) for row in range(self._rows) for column in range(self._columns)]
        self._slant = CELL / 2 if game in HEX_GAMES else 0.0
        self._lines = game.startswith("go_")

    @property
    def extent(self) -> tuple[int, int]:
        """Width and height of the picture, in SVG units."""
        width = 2 * self._margin + CELL * self._columns + self._slant * (self._rows - 1)
        return round(width), 2 * self._margin + CELL * self._rows

    def square_at(self, x: float, y: float) -> Square | None:
        """The square at a point of the picture; None outside the board."""
        row = int((y - self._margin) // CELL)
        column = int((x - self._margin - self._slant * row) // CELL)
        return (row, column) if 0 <= row < self._rows and 0 <= column < self._columns else None

    def svg(self, drawing: Drawing, marks: Marks) -> str:
        """The picture's elements, without the `svg` element around them."""
        return "".join([self.ground(drawing), *self.pieces(drawing, marks)])

    def over(self, image: str, marks: Marks) -> str:
        """An image of the whole board with marks on it, for a `margin` of 0; `image` is its address."""
        width, height = self.extent
        shown = f'<image href="{image}" width="{width}" height="{height}" preserveAspectRatio="none"/>'
        return "".join([shown, *self._marks_below(marks), *self._marks_above(marks)])

    def ground(self, drawing: Drawing) -> str:
        """The empty board and its labels, the same in all positions of a game."""
        squares = self._crossing_lines() if self._lines else [self._ground(drawing, one) for one in self._squares]
        return "".join([*squares, *self._labels(drawing)])

    def pieces(self, drawing: Drawing, marks: Marks) -> list[str]:
        """The position's pieces and marks, which are drawn over `ground`."""
        pieces = [piece for square in self._squares if (piece := self._piece(drawing, square))]
        return [*self._marks_below(marks), *pieces, *self._marks_above(marks)]

    def _marks_below(self, marks: Marks) -> list[str]:
        # Shares below half a percent would be labelled 0.
        return [self._heat(square, share) for square, share in marks.heat.items() if share >= 0.005]

    def _marks_above(self, marks: Marks) -> list[str]:
        chosen = [] if marks.chosen is None else [self._frame(marks.chosen, "#0077cc")]
        owned = [self._owned(square, owner) for square, owner in marks.owned.items()]
        return owned + [self._frame(square, "#e07b00") for square in marks.last] + chosen

    def center(self, square: Square) -> tuple[float, float]:
        """The point in the middle of a square, in the picture's units."""
        row, column = square
        return self._margin + self._slant * row + CELL * (column + 0.5), self._margin + CELL * (row + 0.5)

    def _ground(self, drawing: Drawing, square: Square) -> str:
        x, y = self.center(square)
        if drawing.in_hand(square):
            return ""
        plain = _CHEQUERED[sum(square) % 2] if drawing.moves_pieces else "#eee6d6"
        colour = _GROUNDS.get(self._game, plain)
        corner = f'x="{x - CELL / 2}" y="{y - CELL / 2}"'
        rect = f'<rect {corner} width="{CELL}" height="{CELL}" fill="{colour}" stroke="#00000055"/>'
        if self._game == "connect_four":
            rect += f'<circle cx="{x}" cy="{y}" r="{0.4 * CELL}" fill="#e8eef8"/>'
        return rect

    def _crossing_lines(self) -> list[str]:
        """The board of Go, whose stones stand where lines cross, with its star points."""
        (left, top), (right, bottom) = self.center((0, 0)), self.center((self._rows - 1, self._columns - 1))
        rows = "".join(f"M{left} {self.center((row, 0))[1]}H{right}" for row in range(self._rows))
        columns = "".join(f"M{self.center((0, column))[0]} {top}V{bottom}" for column in range(self._columns))
        width, height = CELL * self._columns, CELL * self._rows
        return [
            f'<rect x="{self._margin}" y="{self._margin}" width="{width}" height="{height}" fill="{_WOOD}"/>',
            f'<path d="{rows}{columns}" stroke="#333" stroke-width="1.5"/>',
            *(f'<circle cx="{x}" cy="{y}" r="4" fill="#333"/>' for x, y in map(self.center, star_points(self._rows))),
        ]

    def _heat(self, square: Square, share: float) -> str:
        x, y = self.center(square)
        disc = f'<circle cx="{x}" cy="{y}" r="{0.44 * CELL}"'
        # Hides the lines, which would cross the number.
        below = f'{disc} fill="{_WOOD}"/>' if self._lines else ""
        shaded = f'{disc} fill="#c2185b" fill-opacity="{0.12 + 0.6 * share:.2f}"/>'
        return below + shaded + _text(f"{100 * share:.0f}", x, y + 5, 15)

    def _piece(self, drawing: Drawing, square: Square) -> str:
        x, y = self.center(square)
        text, owner = drawing.text[square[0]][square[1]], int(drawing.owner[square])
        if text and drawing.hands:
            turned = f'transform="translate({x} {y}) rotate({180 * owner})"'
            return f'<path d="{_TILE}" {turned} fill="#f7e3b5" stroke="#533"/>' + _text(text, x, y + 7, 20)
        if text and drawing.moves_pieces:
            figure = _SOLID.get(text, text) + _AS_TEXT
            fill, edge = ("#111", "#eee") if owner else ("#fff", "#111")
            return (
                f'<text x="{x}" y="{y + 16}" font-size="46" text-anchor="middle" fill="{fill}" stroke="{edge}" '
                f'stroke-width="2" paint-order="stroke">{figure}</text>'
            )
        if text:
            return _text(text, x, y + 7.5, 22)
        if owner < 0:
            return ""
        colour = _STONES.get(self._game, _DARK_AND_LIGHT)[owner]
        return f'<circle cx="{x}" cy="{y}" r="{0.4 * CELL}" fill="{colour}" stroke="#222" stroke-width="1.5"/>'

    def _owned(self, square: Square, owner: float) -> str:
        x, y = self.center(square)
        colour, side = _STONES.get(self._game, _DARK_AND_LIGHT)[owner < 0], 0.32 * CELL
        place = f'x="{x - side / 2:g}" y="{y - side / 2:g}" width="{side:g}" height="{side:g}"'
        return f'<rect {place} fill="{colour}" stroke="#777" opacity="{abs(owner):.2f}"/>'

    def _frame(self, square: Square, colour: str) -> str:
        x, y = self.center(square)
        return (
            f'<rect x="{x - CELL / 2 + 3}" y="{y - CELL / 2 + 3}" width="{CELL - 6}" height="{CELL - 6}" fill="none" '
            f'stroke="{colour}" stroke-width="4" rx="6"/>'
        )

    def _labels(self, drawing: Drawing) -> list[str]:
        columns = [(self.center((self._rows - 1, place)), label) for place, label in enumerate(drawing.columns)]
        rows = [(self.center((place, 0)), label) for place, label in enumerate(drawing.rows)]
        return [
            *(_text(label, round(x), self.extent[1] - 10, 16, "#777") for (x, _), label in columns),
            *(_text(label, round(x - CELL / 2 - 16), round(y + 5), 16, "#777") for (x, y), label in rows),
        ]


def _text(text: str, x: float, y: float, size: int, fill: str = "#111") -> str:
    return f'<text x="{x}" y="{y}" font-size="{size}" text-anchor="middle" fill="{fill}">{escape(text)}</text>'


def star_points(size: int) -> list[Square]:
    """The marked points of a Go board of `size` lines: its middle and, from 9 lines on, those near its corners."""
    if size < 9:
        return [(size // 2, size // 2)]
    # Boards below 13 lines have none at the middles of the sides.
    return handicap_squares(size, 5 if size < 13 else 9)


def heat_of(drawing: Drawing, policy: Mapping[int, float]) -> dict[Square, float]:
    """The policy by square: the probability that a stone or piece moves there."""
    heat: dict[Square, float] = {}
    for action, share in policy.items():
        squares = drawing.squares.get(action, ())
        free = squares if drawing.moves_pieces else [square for square in squares if drawing.owner[square] < 0]
        # The last one: a piece's target, or the lowest free square of a column.
        if free:
            heat[free[-1]] = heat.get(free[-1], 0.0) + share
    return heat


def png_of(pixels: np.ndarray[Any, Any]) -> bytes:
    """Encodes pixels `[H, W, 3]` uint8 as PNG."""
    # Pillow is optional: boards are drawn without it.
    from PIL import Image

    file = io.BytesIO()
    # The fastest level that compresses: an episode may have thousands of frames.
    Image.fromarray(pixels).save(file, "PNG", compress_level=1)
    return file.getvalue()


def rendered_picture(replay: SimulatorReplay, game: PlayableGame) -> str:
    """The position shown as its simulator renders it (`podzero.envs.RenderedSimulator`): an image's `data:` address."""
    for _ in replay.play(int(game.state.seed), game.moves[: game.ply]):
        pass
    return f"data:image/png;base64,{base64.b64encode(png_of(replay.frame())).decode()}"
