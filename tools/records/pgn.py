"""Reads games in Portable Game Notation (Edwards 1994, its import format), and chess moves in algebraic notation."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from mmap import mmap

from podzero.core.types import Array, EnvSpec, EnvState
from podzero.envs.boards.chess import CHESS_SIZES
from podzero.envs.notation import Notation, NotationError, pieces_of, white_to_move
from podzero.envs.notation.chess import ChessNames
from podzero.envs.notation.names import FixedNames
from podzero.evaluation.records import variant_tags
from podzero.tools.records.games import RESULTS, Fault, RecordedGame, usable

_SHORTHANDS = {"GAP": r"(?:\s|\0|BOM)*", "FAR": "{0,65536}", "BOM": "\ufeff"}
_COMMON = r"""
      (?P<line>(?>\r\n?|\n)[ \t\0]*(?=[\r\n]))                      # an empty line
    | (?<![^\r\n])%[^\r\n]* | ;[^\r\n]* | \$\d* | BOM               # an escape, a comment, a glyph
    | \{(?![^}]FAR[\r\n]\[[A-Z][^}]FAR\{)[^}]FAR\}                  # a comment, unless tags and another one begin in it
    | (?P<open>\{[^\r\n]*)
    | (?P<tag>\[GAP(?P<name>(?:(?!BOM)[^\s\0"\[\]])+)GAP
        "(?P<value>(?:[^"\\\r\n]|\\[^\r\n])*|[^\[\]\r\n]*)"GAP\])   # a string, or one whose quotes are not escaped
    | (?P<bracket>\[[^\r\n]*)
    | \d+(?:GAP(?:\.|…))+                                           # a move's number
"""
_CHESS = r"""
    | \d+(?![-/\w]) | (?:\.|…)+ | e\.?p\.?(?![\w.])
    | (?!--(?![-+]))(?:[-+=#!?/~^]|±|∓|∞|⩲|⩱|□)+                    # marks; -- is a null move
    | (?P<opens>\() | (?P<closes>\))
    | (?P<word>\*|½-½|\w+(?:[-=/:]\w+)*(?:\.p\.?)?|(?:(?!BOM)[^\s\0(){}\[\];$])+|[\]}])
"""
_OTHERS = r"""
    | [!?]+
    | (?P<word>(?:(?!BOM)[^\s\0,({;$!?]|\([^)\r\n]*\)|\()+)
"""


def _compiled(tokens: str) -> re.Pattern[bytes]:
    for short, long in _SHORTHANDS.items():
        tokens = tokens.replace(short, long)
    return re.compile(tokens.encode(), re.VERBOSE)


_TOKENS = {True: _compiled(_COMMON + _CHESS), False: _compiled(_COMMON + _OTHERS)}
"""PGN's tokens, for chess or not. In other games parentheses belong to names, and a number without a dot is a name."""
_DRAWS = dict.fromkeys(("½-½", "½", "1/2"), "1/2-1/2")
_START = "rnbqkbnr/pppppppp/8/8/8/8/PPPPPPPP/RNBQKBNR w KQkq - 0 1"
_USUAL = ("", "standard", "normal", "chess")
"""Names of chess in the tags Variant and Rules."""
_USUAL_FROM_START = ("chess960", "fischerandom", "from position")
"""Names of chess there if the tag FEN has its start."""
_EVENTS = re.compile(
    r"chess.?960|\b960\b|fischer.?random|freestyle chess|(3|three).?check|king of the hill|racing kings|\bwild/"
    r"|\b(crazyhouse|bughouse|antichess|suicide|giveaway|atomic|horde)\b|\blosers (chess|game)",
    re.IGNORECASE,
)
"""What events of variants are called."""


@dataclass
class _Game:
    """What has been read of a game."""

    tags: dict[str, str] = field(default_factory=dict)
    """Values by name in lower case."""
    names: list[str] = field(default_factory=list)
    """The moves of the main line."""
    ended: str = ""
    """The result at the end of the moves."""
    depth: int = 0
    """Variations that are open."""
    fault: str = ""
    """The first reason why it cannot be read."""

    @property
    def begun(self) -> bool:
        """Whether moves have been read."""
        return bool(self.names) or self.depth > 0

    def add_tag(self, found: re.Match[bytes], apart: bool) -> None:
        """Adds a pair in brackets, `apart` if an empty line precedes it, or says why it cannot belong here."""
        shown = _text(found[0])[:40]
        if found.lastgroup == "bracket":
            self._doubt(f'{shown} is not a tag such as [White "name"]')
        elif self.begun:
            self._doubt(f"{shown} stands among its moves")
        elif (name := _tag_name(found)) in self.tags or (apart and self.tags):
            self._doubt(f"an empty line before {shown} divides its tags, or it is given twice")
        else:
            self.tags[name] = _text(found["value"])

    def add(self, found: re.Match[bytes]) -> None:
        """Adds another token."""
        text = _text(found[0])
        match found.lastgroup:
            case "opens":
                self.depth += 1
            case "closes" if self.depth:
                self.depth -= 1
            case "closes":
                self._doubt("a variation ends that did not begin")
            case "open":
                self.names.append(text)
                self._doubt(f"the comment {text[:40]} has no end")
            case "word" if not self.depth:
                result = _DRAWS.get(text, text)
                if result in RESULTS:
                    self.ended = result
                else:
                    self.names.append(text)

    def _doubt(self, reason: str) -> None:
        self.fault = self.fault or reason


def read_pgn(data: bytes | mmap, file: str, spec: EnvSpec) -> Iterator[RecordedGame | Fault]:
    """The games of a file, whose name is for messages; names in its content may be in any encoding."""
    tokens = _TOKENS[spec.name in CHESS_SIZES].finditer(data)
    for number, game in enumerate(_games(tokens), 1):
        yield _recorded(f"{file}, game {number}", game, spec)


def _games(tokens: Iterable[re.Match[bytes]]) -> Iterator[_Game]:
    """Games end with their results, and one without where a line after its moves begins with a tag.

    An empty line after tags divides two games if the next tag is the first of all, Event, or known already.
    """
    game, apart = _Game(), False
    for found in tokens:
        if found.lastgroup == "line":
            apart = True
        elif found.lastgroup in ("tag", "bracket"):
            known = _tag_name(found) in (*game.tags, "event")
            if (game.begun and _begins_line(found)) or (game.tags and apart and known):
                yield game
                game = _Game()
            game.add_tag(found, apart)
            apart = False
        elif found.lastgroup:
            game.add(found)
            if game.ended:
                yield game
                game = _Game()
    if game.tags or game.begun or game.fault:
        yield game


def _tag_name(found: re.Match[bytes]) -> str:
    return _text(found["name"] or b"").lower()


def _text(found: bytes) -> str:
    return found.decode("utf-8", "replace")


def _begins_line(found: re.Match[bytes]) -> bool:
    start = found.string.rfind(b"\n", 0, found.start()) + 1
    return not found.string[start : found.start()].strip(b" \t\r\0\xef\xbb\xbf")


def _recorded(where: str, game: _Game, spec: EnvSpec) -> RecordedGame | Fault:
    if game.fault or game.depth:
        return Fault(where, "unreadable", game.fault or "a variation has no end")
    if foreign := _foreign(game.tags, spec):
        return Fault(where, "foreign", foreign)
    tag = game.tags.get("result", "")
    stated = {_DRAWS.get(tag, tag), game.ended} - {"", "?"}
    if game.names and (len(stated) > 1 or not stated <= RESULTS.keys()):
        return Fault(where, "wrong result", f"its result is given as {' and '.join(sorted(stated))}")
    points = RESULTS[stated.pop()] if game.names and stated else None
    first, second = (re.sub(r"\\(.)", r"\1", game.tags.get(side, "")) for side in ("white", "black"))
    return usable(RecordedGame(where, tuple(game.names), points, players=(first, second)))


def _foreign(tags: Mapping[str, str], spec: EnvSpec) -> str | None:
    """Why a game with these tags is another than `spec`'s, or begins from another position, if it does."""
    own = variant_tags(spec.name)
    expected, start, fen = own.get("Variant", "Standard"), own.get("FEN", _START), tags.get("fen")
    from_start = fen is not None and fen.replace("HAha", "KQkq").split() in (start.split(), start.split()[:4])
    if not from_start and (fen is not None or tags.get("setup", "0") != "0"):
        return f"it begins from the position {fen}, and {spec.name} from {start}"
    usual = (expected.lower(),) if own else (*_USUAL, *(_USUAL_FROM_START if from_start else ()))
    for name in ("variant", "rules"):
        found = tags.get(name, "Standard" if name == "variant" else expected)
        if found.strip().lower() not in usual:
            return f"its {name} is '{found}', and that of {spec.name} is '{expected}'"
    if not own and "variant" not in tags and _EVENTS.search(event := tags.get("event", "")):
        return f"its event is '{event}', so it may be a variant"
    return None


def recorded_action(notation: Notation, legal: Array, state: Callable[[], EnvState], move: int | str) -> int:
    """The action of a move in a record (`RecordedGame.moves`); raises `NotationError` if there is none.

    `legal` is `[A]` bool. `state` gives the position on the host, where a name or a message needs it.
    """
    if isinstance(move, str):
        if isinstance(notation, ChessNames):
            return chess_action(notation, state(), legal, move)
        action = notation.action(state(), move)
    else:
        action = move
    if not 0 <= action < len(legal):
        raise NotationError(f"'{move}' is not the number of a move")
    if not legal[action]:
        name = notation.name(state(), action) if isinstance(notation, FixedNames) else move
        raise NotationError(f"'{name}' is not legal")
    return action


_MOVE = re.compile(r"([PKQRBN]?)([a-h]?)([1-8]?)[-x:]?([a-h][1-8])(?:[=/]?([QRBNqrbn]))?(?:e\.?p\.?)?[+#!?]*")
_CASTLING = re.compile(r"([O0])-\1(-\1)?[+#!?]*")


def chess_action(notation: Notation, state: EnvState, legal: Array, name: str) -> int:
    """The legal action of a chess move in standard or long algebraic notation, or as in UCI; `legal` is `[A]` bool."""
    white = white_to_move(state)
    if castling := _CASTLING.fullmatch(name):
        rank = "1" if white else "8"
        piece, origin, target, promotion = "K", f"e{rank}", ("c" if castling[2] else "g") + rank, ""
    elif found := _MOVE.fullmatch(name):
        piece, origin, target, promotion = found[1], found[2] + found[3], found[4], (found[5] or "").lower()
    else:
        return _legal(name, [notation.action(state, name)], legal)
    if piece in ("", "P") and len(origin) < 2:
        # A pawn that takes is named with its file.
        piece, origin = "P", origin if origin.isalpha() else origin + target[0]
    origins = [
        square
        for square, found in pieces_of(state).items()
        if found.isupper() == white
        and piece in ("", found.upper())
        and all(letter in square for letter in origin)
        # Kg1 is a step, and e1g1 or O-O castles.
        and (castling or piece != "K" or abs(ord(square[0]) - ord(target[0])) < 2)
    ]
    return _legal(name, [_action(notation, state, square + target + promotion) for square in origins], legal)


def _legal(name: str, actions: Iterable[int | None], legal: Array) -> int:
    """The only legal one of the actions that a name may mean."""
    playable = [action for action in actions if action is not None and legal[action]]
    if len(playable) != 1:
        raise NotationError(f"'{name}' names {len(playable)} legal moves")
    return playable[0]


def _action(notation: Notation, state: EnvState, name: str) -> int | None:
    try:
        return notation.action(state, name)
    except NotationError:
        return None
