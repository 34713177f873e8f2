"""The result of a game as GTP names it."""

from __future__ import annotations

from typing import cast

from podzero.envs.boards.go import Go
from podzero.tools.play.game import Game


def final_score(game: Game, komi: float) -> str | None:
    """`B+3.5`, `W+3.5` or `0`; in games other than Go the winner alone, and None while they go on.

    Go is scored by area, as if all stones on the board were alive.
    """
    if game.env.spec.name.startswith("go_"):
        lead = int(cast(Go, game.env).lead(game.state.board)) * (1 if game.first_to_move else -1) - komi
        return _named(lead, f"{abs(lead):g}")
    return _named(game.points, "") if game.over else None


def _named(lead: float, margin: str) -> str:
    return "0" if lead == 0 else f"{'B' if lead > 0 else 'W'}+{margin}"
