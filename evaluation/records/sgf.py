"""Smart Game Format, version 4 (Hollosi 1999, https://www.red-bean.com/sgf/)."""

from __future__ import annotations

from podzero.envs.boards.go import KOMI
from podzero.envs.notation import notation_of
from podzero.evaluation.games import PlayedGame
from podzero.types import EnvSpec

SGF_GAMES = {"go_9x9": 1, "go_19x19": 1, "othello": 2, "hex": 11}
"""The property GM of each game that the format knows and whose moves it can write."""
_GO = f"KM[{KOMI}]RU[Tromp-Taylor]"


def sgf_text(spec: EnvSpec, game: PlayedGame, date: str | None) -> str:
    """The game tree of one game; `date` is as 2026-01-31."""
    size = spec.observation_shape[0]
    rules = _GO if SGF_GAMES[spec.name] == 1 else ""
    played_on = f"DT[{date}]" if date else ""
    names = f"PB[{_escaped(game.first)}]PW[{_escaped(game.second)}]"
    root = f";FF[4]GM[{SGF_GAMES[spec.name]}]CA[UTF-8]AP[podzero]SZ[{size}]{rules}{names}{played_on}"
    nodes = "".join(f"\n;{'BW'[ply % 2]}[{_point(spec, size, action)}]" for ply, action in enumerate(game.moves))
    return f"({root}RE[{_result(game)}]{nodes})\n"


def _point(spec: EnvSpec, size: int, action: int) -> str:
    """Column and row as letters, from the top left; in Hex as its notation has it."""
    if spec.name == "hex":
        (name,) = notation_of(spec).names([action])
        return "swap-pieces" if name == "swap" else name
    row, column = divmod(action, size)
    return "" if action == size * size else f"{chr(ord('a') + column)}{chr(ord('a') + row)}"


def _result(game: PlayedGame) -> str:
    if game.points == 0.5:
        return "0"
    return f"{'B' if game.points == 1 else 'W'}+{'R' if game.given_up else ''}"


def _escaped(text: str) -> str:
    return text.replace("\\", "\\\\").replace("]", "\\]")
