"""Reads games in Portable Game Notation (Edwards 1994), and chess moves in its standard algebraic notation."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping

from podzero.envs.boards.chess import CHESS_SIZES
from podzero.envs.notation import Notation, NotationError, names_in_text, pieces_of, white_to_move
from podzero.evaluation.records import variant_tags
from podzero.tools.records.games import RESULTS, Fault, RecordedGame, recorded_game
from podzero.types import Array, EnvSpec, EnvState

_TAG = re.compile(r'\[\s*(\w+)\s+"((?:[^"\\]|\\.)*)"\s*\]\s*')
_NO_MOVES = re.compile(r"\{[^}]*\}|;[^\n]*|\$\d+|(?<!\S)\d+\.+|[!?]+(?=\s|$)")
"""Comments, glyphs, move numbers and marks."""
_CHESS = {"Variant": "Standard", "FEN": "rnbqkbnr/pppppppp/8/8/8/8/PPPPPPPP/RNBQKBNR w KQkq - 0 1"}
"""What these tags are if they are missing."""
_VARIATION = re.compile(r"\([^()]*\)")


def read_pgn(lines: Iterable[str], file: str, spec: EnvSpec) -> Iterator[RecordedGame | Fault]:
    """The games of a file.

    Args:
      lines: the file's lines.
      file: the name of the file, for messages.
      spec: the game to read.
    """
    for number, (tags, text) in enumerate(_texts(lines), 1):
        yield _game(f"{file}, game {number}", tags, text, spec)


def _texts(lines: Iterable[str]) -> Iterator[tuple[dict[str, str], str]]:
    """The tags and the text of the moves of each game."""
    tags: dict[str, str] = {}
    text: list[str] = []
    for line in lines:
        if found := _TAG.fullmatch(line):
            if text:
                yield tags, "".join(text)
                tags, text = {}, []
            tags[found[1]] = found[2]
        elif line.strip():
            text.append(line)
    if tags or text:
        yield tags, "".join(text)


def _game(where: str, tags: Mapping[str, str], text: str, spec: EnvSpec) -> RecordedGame | Fault:
    for name, default in _CHESS.items():
        found, expected = tags.get(name, default), variant_tags(spec.name).get(name, default)
        if found.casefold() != expected.casefold():
            return Fault(where, "foreign", f"its {name} is '{found}', and that of {spec.name} is '{expected}'")
    text = _NO_MOVES.sub(" ", text)
    while spec.name in CHESS_SIZES and "(" in text and (shorter := _VARIATION.sub(" ", text)) != text:
        text = shorter
    names = names_in_text(text)
    ended = names.pop() if names and names[-1] in RESULTS else "*"
    return recorded_game(where, names, RESULTS.get(tags.get("Result", ended)))


_SAN = re.compile(r"([KQRBN]?)([a-h]?)([1-8]?)x?([a-h][1-8])(?:=?([QRBN]))?[+#]?")
_CASTLING = re.compile(r"([O0])-\1(-\1)?[+#]?")


def san_action(notation: Notation, state: EnvState, legal: Array, name: str) -> int:
    """The legal action of a chess move in standard algebraic notation.

    Args:
      notation: the names of the game's actions.
      state: the position.
      legal: `[A]` bool.
      name: the move's name.

    Raises:
      NotationError: no legal move has this name, or several have.
    """
    white = white_to_move(state)
    if castling := _CASTLING.fullmatch(name):
        rank = "1" if white else "8"
        piece, origin, target, promotion = "K", f"e{rank}", ("c" if castling[2] else "g") + rank, ""
    elif found := _SAN.fullmatch(name):
        piece, origin, target, promotion = found[1] or "P", found[2] + found[3], found[4], (found[5] or "").lower()
    else:
        raise NotationError(f"'{name}' is not a chess move")
    moved = piece if white else piece.lower()
    origins = [square for square, found in pieces_of(state).items() if found == moved and _fits(square, origin)]
    actions = (_action(notation, state, square + target + promotion) for square in origins)
    playable = [action for action in actions if action is not None and legal[action]]
    if len(playable) != 1:
        raise NotationError(f"'{name}' names {len(playable)} legal moves")
    return playable[0]


def _fits(square: str, origin: str) -> bool:
    """Whether `origin`, a square, a file, a rank or nothing, describes the square."""
    return all(letter in square for letter in origin)


def _action(notation: Notation, state: EnvState, name: str) -> int | None:
    try:
        return notation.action(state, name)
    except NotationError:
        return None
