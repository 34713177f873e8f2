"""What analysis commands of Go programs print."""

from __future__ import annotations

from collections.abc import Callable

from podzero.play.timed_search import Line, SearchedLines


def _visited(searched: SearchedLines) -> list[Line]:
    return [line for line in searched.lines if line.visits] or searched.lines[:1]


def leela_info(searched: SearchedLines, name: Callable[[int], str]) -> str:
    """As Leela Zero writes it: rates and policies in ten-thousandths."""
    return " ".join(
        f"info move {name(line.action)} visits {line.visits} winrate {round(5000 * (line.value + 1))} "
        f"prior {round(10000 * line.probability)} lcb {round(5000 * (line.value + 1))} order {order} "
        f"pv {name(line.action)}"
        for order, line in enumerate(_visited(searched))
    )


def kata_info(searched: SearchedLines, name: Callable[[int], str]) -> str:
    """As KataGo writes it: rates and policies as fractions."""
    return " ".join(
        f"info move {name(line.action)} visits {line.visits} utility {line.value:.6f} "
        f"winrate {(line.value + 1) / 2:.6f} prior {line.probability:.6f} lcb {(line.value + 1) / 2:.6f} "
        f"order {order} pv {name(line.action)}"
        for order, line in enumerate(_visited(searched))
    )
