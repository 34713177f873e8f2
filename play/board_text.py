"""Positions as text, for people who watch an engine."""

from __future__ import annotations

import jax

from podzero.envs.notation import fen_of
from podzero.play.game import Game

_WITH_PLANES = ("go_9x9", "go_19x19", "othello", "hex", "connect_four", "tic_tac_toe")
"""Games whose observations begin with own stones and the opponent's."""
_CHESS = {"chess": 8, "gardner_chess": 5}
_GO_LETTERS = "ABCDEFGHJKLMNOPQRST"
_LETTERS = "abcdefghijk"


def board_text(game: Game) -> str:
    """The board, with X for the player who moves first and O for the other; the FEN of chess; else the moves."""
    name = game.env.spec.name
    if name in _CHESS:
        return fen_of(game.state, _CHESS[name])
    if name not in _WITH_PLANES:
        return " ".join(game.names)
    seen = jax.device_get(game.env.view(game.state).observation)
    mine, theirs = ("X", "O") if game.first_to_move else ("O", "X")
    height, width = seen.shape[:2]
    from_below = name.startswith("go_") or name == "connect_four"
    letters = "  ".rjust(4) + " ".join((_GO_LETTERS if name.startswith("go_") else _LETTERS)[:width])
    rows = []
    for row in range(height):
        cells = (mine if cell[0] else theirs if cell[1] else "." for cell in seen[row])
        rows.append(f"{height - row if from_below else row + 1:3d} {' '.join(cells)}")
    return "\n".join([letters, *rows])
