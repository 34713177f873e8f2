"""The notation of each game."""

from __future__ import annotations

from functools import cache

from podzero.envs.notation.chess_names import ChessNames
from podzero.envs.notation.names import FixedNames, Notation
from podzero.types import EnvSpec

_LETTERS = "abcdefghijk"
_GO_LETTERS = "ABCDEFGHJKLMNOPQRST"
"""Of columns, without I."""


@cache
def notation_of(spec: EnvSpec) -> Notation:
    """The names of a game's actions.

    Go: vertices of GTP, as D4 and pass. Chess: moves of UCI, as e2e4. Connect four: the column, a to g (1 to 7 are
    understood). Othello, Hex and tic-tac-toe: column and row, from a1 at the top left; pass, and swap in Hex. Actions
    of other games have their number, as a17.
    """
    match spec.name:
        case "chess":
            return ChessNames("chess", 8)
        case "gardner_chess":
            return ChessNames("gardner_chess", 5)
        case "connect_four":
            return FixedNames(spec.name, _LETTERS[:7], {str(column + 1): column for column in range(7)})
        case "go_9x9" | "go_19x19":
            return FixedNames(spec.name, _vertices(spec.observation_shape[0]))
        case "othello":
            return FixedNames(spec.name, [*_squares(8), "pass"])
        case "hex":
            return FixedNames(spec.name, [*_squares(11), "swap"])
        case "tic_tac_toe":
            return FixedNames(spec.name, _squares(3))
        case _:
            return FixedNames(spec.name, [f"a{action}" for action in range(spec.num_actions)])


def _squares(size: int) -> list[str]:
    return [f"{_LETTERS[column]}{row + 1}" for row in range(size) for column in range(size)]


def _vertices(size: int) -> list[str]:
    """The first action is the top left corner; GTP numbers rows from the bottom."""
    return [*(f"{_GO_LETTERS[column]}{size - row}" for row in range(size) for column in range(size)), "pass"]
