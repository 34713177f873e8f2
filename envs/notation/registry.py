"""The notation of each game."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache, partial

from podzero.envs.boards.chess import CHESS_SIZES
from podzero.envs.notation.chess_names import ChessNames
from podzero.envs.notation.names import FixedNames, LineNotation
from podzero.envs.notation.shogi_names import SHOGI_GAMES, ShogiNames
from podzero.types import EnvSpec

_LETTERS = "abcdefghijk"
_GO_LETTERS = "ABCDEFGHJKLMNOPQRST"
"""Of columns, without I."""


_COLUMNS = {str(column + 1): column for column in range(7)}
"""Of connect four, counted from 1."""


def _squares(size: int) -> list[str]:
    return [f"{_LETTERS[column]}{row + 1}" for row in range(size) for column in range(size)]


def _vertices(size: int) -> list[str]:
    """The first action is the top left corner; GTP numbers rows from the bottom."""
    return [*(f"{_GO_LETTERS[column]}{size - row}" for row in range(size) for column in range(size)), "pass"]


_NOTATIONS: dict[str, Callable[[], LineNotation]] = {
    **{name: partial(ChessNames, name, size) for name, size in CHESS_SIZES.items()},
    **{name: partial(ShogiNames, name) for name in SHOGI_GAMES},
    "connect_four": partial(FixedNames, "connect_four", _LETTERS[:7], _COLUMNS),
    "go_9x9": partial(FixedNames, "go_9x9", _vertices(9)),
    "go_19x19": partial(FixedNames, "go_19x19", _vertices(19)),
    "othello": partial(FixedNames, "othello", [*_squares(8), "pass"]),
    "hex": partial(FixedNames, "hex", [*_squares(11), "swap"]),
    "tic_tac_toe": partial(FixedNames, "tic_tac_toe", _squares(3)),
}


@cache
def notation_of(spec: EnvSpec) -> LineNotation:
    """The names of a game's actions.

    Go: vertices of GTP, as D4 and pass. Chess: moves of UCI, as e2e4. Shogi: moves of USI, as 7g7f, 8h2b+ and P*5e.
    Connect four: the column, a to g (1 to 7 are understood). Othello, Hex and tic-tac-toe: column and row, from a1 at
    the top left; pass, and swap in Hex. Actions of other games have their number, as a17.
    """
    if spec.name in _NOTATIONS:
        return _NOTATIONS[spec.name]()
    return FixedNames(spec.name, [f"a{action}" for action in range(spec.num_actions)])
