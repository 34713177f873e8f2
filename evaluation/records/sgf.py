"""Smart Game Format, version 4 (Hollosi 1999, https://www.red-bean.com/sgf/)."""

from __future__ import annotations

from collections.abc import Sequence

from podzero.envs.boards.go import KOMI
from podzero.envs.notation import notation_of
from podzero.types import EnvSpec

SGF_GAMES = {"go_9x9": 1, "go_19x19": 1, "othello": 2, "hex": 11}
"""The property GM of each game that the format knows and whose moves it can write."""
_GO = f"KM[{KOMI}]RU[Tromp-Taylor]"


def sgf_text(
    spec: EnvSpec, first: str, second: str, moves: Sequence[int], points: float, given_up: bool, date: str | None
) -> str:
    """The game tree of one game; see `podzero.evaluation.records.GameRecord`."""
    size = spec.observation_shape[0]
    rules = _GO if SGF_GAMES[spec.name] == 1 else ""
    played_on = f"DT[{date}]" if date else ""
    names = f"PB[{_escaped(first)}]PW[{_escaped(second)}]"
    root = f";FF[4]GM[{SGF_GAMES[spec.name]}]CA[UTF-8]AP[podzero]SZ[{size}]{rules}{names}{played_on}"
    nodes = "".join(f"\n;{'BW'[ply % 2]}[{_point(spec, size, action)}]" for ply, action in enumerate(moves))
    return f"({root}RE[{_result(points, given_up)}]{nodes})\n"


def _point(spec: EnvSpec, size: int, action: int) -> str:
    """Column and row as letters, from the top left; in Hex as its notation has it."""
    if spec.name == "hex":
        (name,) = notation_of(spec).names([action])
        return "swap-pieces" if name == "swap" else name
    row, column = divmod(action, size)
    return "" if action == size * size else f"{chr(ord('a') + column)}{chr(ord('a') + row)}"


def _result(points: float, given_up: bool) -> str:
    if points == 0:
        return "0"
    return f"{'B' if points > 0 else 'W'}+{'R' if given_up else ''}"


def _escaped(text: str) -> str:
    return text.replace("\\", "\\\\").replace("]", "\\]")
