"""Game records for other programs: SGF for Go, Othello and Hex, PGN for the others."""

from __future__ import annotations

import textwrap
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from functools import lru_cache, partial
from math import tan
from pathlib import Path
from typing import Any, NamedTuple, cast

import jax
import numpy as np

from podzero.config import KOMI
from podzero.core.errors import ConfigError, os_errors
from podzero.core.protocols import Env
from podzero.core.types import EnvSpec, EnvState
from podzero.envs.boards.chess import CHESS_SIZES, Chess
from podzero.envs.boards.hex import HEX_GAMES
from podzero.envs.notation import notation_of, pieces_of
from podzero.evaluation.games import PlayedGame


def record_suffix(game: str) -> str:
    """The file suffix for a game's records: `.sgf` or `.pgn`."""
    return ".sgf" if game in SGF_GAMES else ".pgn"


class Note(NamedTuple):
    """What a record says about a move."""

    value: float
    """The value after it for the first player, in [-1, 1]."""
    comment: str = ""
    better: tuple[int, ...] = ()
    """The actions of a line that was better than the move."""


def record_text(
    env: Env, game: PlayedGame, date: str | None = None, notes: Mapping[int, Note] | None = None, komi: float = KOMI
) -> str:
    """The SGF or PGN record of one game; a file may hold several in a row. `date` has the form 2026-01-31.

    The `komi` is that of games of Go. `notes` are on moves by their number, from 0 on. In SGF values are win rates in
    SBKV, as Sabaki writes them, and better lines variations. In PGN values are `[%eval]`s, in pawns, and chess has
    variations.
    """
    if env.spec.name in SGF_GAMES:
        return sgf_text(env.spec, game, date, notes or {}, komi)
    return pgn_text(env, game, date, notes or {})


def write_records(path: Path, env: Env, games: Iterable[PlayedGame], date: str | None = None) -> None:
    """Writes games to a file; makes its folder."""
    text = "\n".join(record_text(env, game, date) for game in games)
    with os_errors(ConfigError, f"the games cannot be written to {path}", "choose another file with --records"):
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")


_LINE = 79
"""Longest line of moves, in characters."""
_RESULTS = {1.0: "1-0", 0.5: "1/2-1/2", 0.0: "0-1"}
"""PGN results by White's points."""
_GARDNER = {"Variant": "Gardner", "SetUp": "1", "FEN": "rnbqk/ppppp/5/PPPPP/RNBQK w - - 0 1"}


def pgn_text(env: Env, played: PlayedGame, date: str | None, notes: Mapping[int, Note]) -> str:
    """The game in Portable Game Notation (Edwards 1994), with moves of other games than chess in their own notation."""
    game, moves = env.spec.name, played.moves
    result = _RESULTS.get(played.points, "*")
    tags = {"Event": "podzero", "Site": "?", "Date": (date or "????-??-??").replace("-", "."), "Round": "-"}
    tags |= {"White": played.first, "Black": played.second, "Result": result}
    tags |= variant_tags(game)
    if played.end == "given up":
        tags |= {"Termination": "abandoned"}
    named = partial(san_moves, env) if game in CHESS_SIZES else notation_of(env.spec).names
    words = list[str]()
    for ply, name in enumerate(named(moves)):
        # After a comment or a variation the second player's move needs its number.
        dots = "." if ply % 2 == 0 else "..." if ply - 1 in notes else ""
        words.append(f"{ply // 2 + 1}{dots} {name}" if dots else name)
        if note := notes.get(ply):
            words.append(f"{{[%eval {centipawns(note.value) / 100:.2f}] {note.comment}".strip() + "}")
            if note.better and game in CHESS_SIZES:
                line = " ".join(named([*moves[:ply], *note.better])[ply:])
                words.append(f"({ply // 2 + 1}{'.' if ply % 2 == 0 else '...'} {line})")
    text = " ".join(words)
    lines = textwrap.wrap(f"{text} {result}", _LINE, break_long_words=False, break_on_hyphens=False)
    return "\n".join([*(f'[{tag} "{_escaped(value)}"]' for tag, value in tags.items()), "", *lines, ""])


def centipawns(value: float) -> int:
    """Converts a value v to a score, 90 tan(1.5637541897 v), as Leela Chess Zero (https://github.com/LeelaChessZero/lc0)."""
    return round(90 * tan(1.5637541897 * value))


def variant_tags(game: str) -> dict[str, str]:
    """The tags that distinguish a game from chess in PGN."""
    if game == "chess":
        return {}
    return _GARDNER if game == "gardner_chess" else {"Variant": game}


def _escaped(text: str, end: str = '"') -> str:
    """The text with backslashes before backslashes, and before the character that would end it."""
    return text.replace("\\", "\\\\").replace(end, f"\\{end}")


def san_moves(env: Env, actions: Sequence[int]) -> list[str]:
    """A chess game's moves in standard algebraic notation."""
    facts, step = _programs(cast(Hashable, env))
    state = jax.device_get(env.init(jax.random.key(0)))
    legal, _ = jax.device_get(facts(state))
    named = []
    for action in actions:
        after = jax.device_get(step(state, np.int32(action)))
        replies, check = jax.device_get(facts(after))
        mark = "" if not check else "+" if replies.any() else "#"
        named.append(_move(env, state, np.flatnonzero(legal).tolist(), action) + mark)
        state, legal = after, replies
    return named


@lru_cache(maxsize=4)
def _programs(env: Hashable) -> tuple[Callable[[EnvState], Any], Callable[[EnvState, Any], EnvState]]:
    """The legal actions `[A]` and whether the player to move is in check; and the step."""
    game = cast(Chess, env)
    return jax.jit(lambda state: (game.legal(state.board), game.checks(state.board) > 0)), jax.jit(game.step)


def _move(env: Env, state: EnvState, legal: Sequence[int], action: int) -> str:
    """The move's name without the sign of a check."""
    notation, pieces = notation_of(env.spec), pieces_of(state)
    name = notation.name(state, action)
    origin, target, promotion = name[:2], name[2:4], name[4:]
    piece = pieces[origin].upper()
    if piece == "K" and abs(ord(origin[0]) - ord(target[0])) == 2:
        return "O-O" if target[0] == "g" else "O-O-O"
    takes = "x" if target in pieces or (piece == "P" and origin[0] != target[0]) else ""
    if piece == "P":
        return (origin[0] if takes else "") + takes + target + (f"={promotion.upper()}" if promotion else "")
    others = [notation.name(state, other) for other in legal]
    rivals = {other[:2] for other in others if other[2:4] == target and pieces[other[:2]].upper() == piece} - {origin}
    return piece + _distinction(origin, rivals) + takes + target


def _distinction(origin: str, rivals: set[str]) -> str:
    """The origin's file if it distinguishes the piece from its rivals, else its rank, else both."""
    if not rivals:
        return ""
    if all(rival[0] != origin[0] for rival in rivals):
        return origin[0]
    return origin[1] if all(rival[1] != origin[1] for rival in rivals) else origin


SGF_GAMES = {"go_7x7": 1, "go_9x9": 1, "go_19x19": 1, "othello": 2, **dict.fromkeys(HEX_GAMES, 11)}
"""SGF's game number (property GM) of each game recorded in it."""


def sgf_text(spec: EnvSpec, game: PlayedGame, date: str | None, notes: Mapping[int, Note], komi: float) -> str:
    """The game in the Smart Game Format, version 4 (Hollosi 1999, https://www.red-bean.com/sgf/)."""
    size = board_size(spec)
    # The rules of a game with notes are those of its own record, which is not known here.
    rules = f"KM[{komi:g}]{'' if notes else 'RU[Tromp-Taylor]'}" if SGF_GAMES[spec.name] == 1 else ""
    played_on = f"DT[{date}]" if date else ""
    names = f"PB[{_escaped(game.first, ']')}]PW[{_escaped(game.second, ']')}]"
    root = f";FF[4]GM[{SGF_GAMES[spec.name]}]CA[UTF-8]AP[podzero]SZ[{size}]{rules}{names}{played_on}"
    nodes = ""
    for ply, action in reversed(list(enumerate(game.moves))):
        note = notes.get(ply)
        nodes = _node(spec, action, ply) + ("" if note is None else _noted(note)) + nodes
        if note is not None and note.better:
            # The first of two trees is the main line.
            line = "".join(_node(spec, one, later) for later, one in enumerate(note.better, ply))
            nodes = f"\n({nodes})\n({line})"
    by = "R" if game.end == "given up" else ""
    result = {0.5: "0", 1.0: f"B+{by}", 0.0: f"W+{by}"}.get(game.points, "?")
    return f"({root}RE[{result}]{nodes})\n"


def _node(spec: EnvSpec, action: int, ply: int) -> str:
    return f"\n;{'BW'[ply % 2]}[{sgf_point(spec, action, ply)}]"


def _noted(note: Note) -> str:
    comment = f"C[{_escaped(note.comment, ']')}]" if note.comment else ""
    return f"SBKV[{50 * (1 + note.value):.2f}]{comment}"


def board_size(spec: EnvSpec) -> int:
    """SGF's property SZ: the rows and columns of a game's board."""
    return spec.observation_shape[0]


def sgf_point(spec: EnvSpec, action: int, ply: int) -> str:
    """Column and row as letters from the top left, empty for a pass; in Hex the name at this ply in its notation."""
    if spec.name in HEX_GAMES:
        *_, name = notation_of(spec).names([action] * (1 + ply % 2))
        return "swap-pieces" if name == "swap" else name
    size = board_size(spec)
    row, column = divmod(action, size)
    return "" if action == size * size else f"{chr(ord('a') + column)}{chr(ord('a') + row)}"
