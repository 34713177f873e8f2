"""Portable Game Notation (Edwards 1994), the format of chess; other games have their own names of moves in it."""

from __future__ import annotations

import textwrap

from podzero.envs.boards.chess import CHESS_SIZES
from podzero.envs.notation import notation_of
from podzero.evaluation.games import PlayedGame
from podzero.evaluation.records.san import san_moves
from podzero.protocols import Env

_LINE = 79
"""Longest line of moves."""
_RESULTS = {1.0: "1-0", 0.5: "1/2-1/2", 0.0: "0-1"}
"""By the points of White."""
_GARDNER = {"Variant": "Gardner", "SetUp": "1", "FEN": "rnbqk/ppppp/5/PPPPP/RNBQK w - - 0 1"}


def pgn_text(env: Env, played: PlayedGame, date: str | None) -> str:
    """The record of one game; `date` is as 2026-01-31."""
    game, moves = env.spec.name, played.moves
    result = _RESULTS[played.points]
    tags = {"Event": "podzero", "Site": "?", "Date": (date or "????-??-??").replace("-", "."), "Round": "-"}
    tags |= {"White": played.first, "Black": played.second, "Result": result}
    if game == "gardner_chess":
        tags |= _GARDNER
    elif game != "chess":
        tags |= {"Variant": game}
    if played.given_up:
        tags |= {"Termination": "abandoned"}
    in_algebra = game in CHESS_SIZES
    names = san_moves(env, moves) if in_algebra else notation_of(env.spec).names(moves)
    text = " ".join(f"{ply // 2 + 1}. {name}" if ply % 2 == 0 else name for ply, name in enumerate(names))
    lines = textwrap.wrap(f"{text} {result}", _LINE, break_long_words=False, break_on_hyphens=False)
    return "\n".join([*(f'[{tag} "{_escaped(value)}"]' for tag, value in tags.items()), "", *lines, ""])


def _escaped(text: str) -> str:
    return text.replace("\\", "\\\\").replace('"', '\\"')
