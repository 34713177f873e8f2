"""What analysis commands of Go programs print."""

from __future__ import annotations

from podzero.tools.play.game import Game
from podzero.tools.play.timed_search import Line, SearchedLines


def _visited(searched: SearchedLines) -> list[Line]:
    return [line for line in searched.lines if line.visits] or searched.lines[:1]


def leela_info(searched: SearchedLines, game: Game) -> str:
    """As Leela Zero writes it: rates and policies in ten-thousandths."""
    return " ".join(
        f"info move {game.name(line.action)} visits {line.visits} winrate {round(5000 * (line.value + 1))} "
        f"prior {round(10000 * line.probability)} lcb {round(5000 * (line.value + 1))} order {order} "
        f"pv {' '.join(game.names_of(line.moves))}"
        for order, line in enumerate(_visited(searched))
    )


def kata_info(searched: SearchedLines, game: Game) -> str:
    """As KataGo writes it: rates and policies as fractions."""
    return " ".join(
        f"info move {game.name(line.action)} visits {line.visits} utility {line.value:.6f} "
        f"winrate {(line.value + 1) / 2:.6f} prior {line.probability:.6f} lcb {(line.value + 1) / 2:.6f} "
        f"order {order} pv {' '.join(game.names_of(line.moves))}"
        for order, line in enumerate(_visited(searched))
    )
