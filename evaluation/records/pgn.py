"""Portable Game Notation (Edwards 1994), the format of chess; other games have their own names of moves in it."""

from __future__ import annotations

import textwrap
from collections.abc import Sequence

from podzero.envs.notation import notation_of
from podzero.evaluation.records.san import san_moves
from podzero.protocols import Env

_LINE = 79
"""Longest line of moves."""
_GARDNER = {"Variant": "Gardner", "SetUp": "1", "FEN": "rnbqk/ppppp/5/PPPPP/RNBQK w - - 0 1"}


def pgn_text(
    env: Env, first: str, second: str, moves: Sequence[int], points: float, given_up: bool, date: str | None
) -> str:
    """The record of one game; see `podzero.evaluation.records.GameRecord`."""
    game = env.spec.name
    result = "1/2-1/2" if points == 0 else "1-0" if points > 0 else "0-1"
    tags = {"Event": "podzero", "Site": "?", "Date": (date or "????-??-??").replace("-", "."), "Round": "-"}
    tags |= {"White": first, "Black": second, "Result": result}
    if game == "gardner_chess":
        tags |= _GARDNER
    elif game != "chess":
        tags |= {"Variant": game}
    if given_up:
        tags |= {"Termination": "abandoned"}
    in_algebra = game in ("chess", "gardner_chess")
    names = san_moves(env, moves) if in_algebra else notation_of(env.spec).names(moves)
    text = " ".join(f"{ply // 2 + 1}. {name}" if ply % 2 == 0 else name for ply, name in enumerate(names))
    lines = textwrap.wrap(f"{text} {result}", _LINE, break_long_words=False, break_on_hyphens=False)
    return "\n".join([*(f'[{tag} "{_escaped(value)}"]' for tag, value in tags.items()), "", *lines, ""])


def _escaped(text: str) -> str:
    return text.replace("\\", "\\\\").replace('"', '\\"')
