"""Reads games in the Smart Game Format (Hollosi 1999, https://www.red-bean.com/sgf/): their main lines."""

from __future__ import annotations

import re
from codecs import lookup
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import cache
from mmap import mmap
from typing import NamedTuple

from podzero.core.types import EnvSpec
from podzero.evaluation.records import SGF_GAMES, board_size, sgf_point
from podzero.tools.records.games import Fault, FaultKind, RecordedGame, usable

Node = Mapping[str, Sequence[str]]
"""The values of a node's properties, by identifier; what is not in the game's charset is replaced."""
_BEGIN = re.compile(rb"\(\s*;")
_NEXT = rb"\(\s*;\s*(?:[A-Za-z]+\s*(?:\[[^\]\\]*\]\s*)+)*?(?:FF|GM|SZ)\s*\["
"""Where the next game begins, however the one before it has been cut off: at a node with a property of roots."""
_NEXT_GAME = re.compile(_NEXT)
_CHARSET = re.compile(rb"(?<![A-Za-z])CA\s*\[\s*([\w.:-]+)\s*\]")
_SUPERSETS = {"gb2312": "gb18030", "gbk": "gb18030", "shift_jis": "cp932", "big5": "big5hkscs", "cp950": "big5hkscs"}
_LEADS = {"cp932": rb"[\x81-\x9f\xe0-\xfc]"} | dict.fromkeys(("big5hkscs", "gb18030", "johab"), rb"[\x81-\xfe]")
"""The first bytes of two where the second may be that of a bracket or backslash."""
_ASCII = bytes(range(128)) + b"\x1b$BAA"
"""What no charset that is read takes for other characters; with an escape sequence, after which some do."""
_ESCAPED = re.compile(rb"[\x80-\xff]\\")
"""A backslash after another character may be a part of it, if the charset is not the one that is named."""
_SETUP = ("AB", "AW", "AE")
"""Properties that place or remove stones."""
_OF_ROOTS = ("FF", "GM", "SZ", "KM", "HA", "RE")
"""Properties that a game has once, at its beginning."""
_GO = "1"
_NAMES = {_GO: "Go", "2": "Othello", "11": "Hex"}
_KOMI = re.compile(r"[-+]?\d{1,4}(?:[.,]\d*)?")
_WINNER = re.compile(r"([BW])(?:LACK|HITE)?(?:\s*\+(?!\s*0+(?:[.,]0*)?$).*)?", re.DOTALL)
"""Of a result in capital letters. Nobody wins by zero points."""


class _LeftOutError(Exception):
    """A game that is not read: `kind` of fault and reason."""

    def __init__(self, kind: FaultKind, reason: str) -> None:
        self.kind, self.reason = kind, reason


class _Tree(NamedTuple):
    """A game tree in a file."""

    line: Sequence[Sequence[bytes | None]]
    """The tokens of its main line, as groups of `_tokens`."""
    end: int
    """The byte after it."""
    fault: str
    """Why it cannot be read, if it cannot."""
    codec: str = "utf-8"


def read_sgf(data: bytes | mmap, file: str, spec: EnvSpec) -> Iterator[RecordedGame | Fault]:
    """The games of a collection, whose file is for messages; what is outside of games is ignored.

    The charset of a game is that of its property CA, or else UTF-8.
    """
    for number, tree in enumerate(_trees(data), 1):
        where = f"{file}, game {number}"
        try:
            if tree.fault:
                raise _LeftOutError("unreadable", tree.fault)
            yield _game(where, _nodes(tree.line, tree.codec), spec)
        except _LeftOutError as left_out:
            yield Fault(where, left_out.kind, left_out.reason)


def _trees(data: bytes | mmap) -> Iterator[_Tree]:
    end = 0
    while found := _BEGIN.search(data, end):
        tree = _tree(data, found.start(), b"")
        charset = _CHARSET.search(data, found.start(), tree.end)
        if not charset and not _is_utf8(data[found.start() : tree.end]):
            # A part of a character may have been taken for the end of the tree.
            following = _NEXT_GAME.search(data, found.end())
            charset = _CHARSET.search(data, found.start(), following.start() if following else len(data))
        name = charset[1].decode() if charset else "UTF-8"
        try:
            tree = _in_charset(data, found.start(), tree, name)
        except (LookupError, ValueError):
            missing = "" if charset else " and has no property CA"
            remedy = "save it as UTF-8, or name its charset, such as CA[Shift_JIS], CA[Big5] or CA[GB18030]"
            tree = tree._replace(fault=f"it is not in {name}{missing}: {remedy}")
        yield tree
        end = tree.end


def _in_charset(data: bytes | mmap, start: int, tree: _Tree, charset: str) -> _Tree:
    """The tree that begins at `start`, in its charset. `tree` was read as if each byte of a bracket were a bracket."""
    codec = lookup(charset).name
    codec, plain = _SUPERSETS.get(codec, codec), tree
    if codec in _LEADS:
        tree = _tree(data, start, _LEADS[codec])
    text = data[start : tree.end]
    # Records say Latin-1 or Shift_JIS and are in another charset.
    doubtful = (tree != plain and _is_utf8(text)) if codec in _LEADS else codec != "utf-8" and _ESCAPED.search(text)
    if doubtful or _ASCII.decode(codec) != _ASCII.decode() or not text.decode(codec):
        raise LookupError
    return tree._replace(codec=codec)


def _is_utf8(text: bytes) -> bool:
    try:
        return bool(text.decode())
    except ValueError:
        return False


@cache
def _tokens(lead: bytes) -> re.Pattern[bytes]:
    """A bracket or semicolon; an identifier; a value and its end, if it has one; anything else."""
    pairs = lead + b".|" if lead else b""
    value = rb"\[((?:" + pairs + rb"[^\]\\(]|\\.|(?!" + _NEXT + rb")\()*)(\]?)"
    return re.compile(rb"([();])|([A-Za-z]+)|" + value + rb"|(\S)", re.DOTALL)


def _tree(data: bytes | mmap, start: int, lead: bytes) -> _Tree:
    """The game tree that begins at a byte, in a charset with these first bytes of two."""
    depth, line, ended, fault = 0, list[Sequence[bytes | None]](), False, ""
    cut = "it ends in the middle of a game"
    for found in _tokens(lead).finditer(data, start):
        mark, _, value, closed, other = token = found.groups()
        if other:
            fault = fault or f"unexpected '{other.decode('ascii', 'replace')}'"
        elif value is not None and not closed:
            fault = fault or cut
        elif mark == b"(":
            if depth and _NEXT_GAME.match(data, found.start()):
                return _Tree((), found.start(), cut)
            depth += 1
        elif mark == b")":
            # First children are on the main line, so whatever follows the first end of a branch is not.
            depth, ended = depth - 1, True
            if not depth:
                return _Tree(line, found.end(), fault)
        elif not ended:
            line.append(token)
    return _Tree((), len(data), fault or cut)


def _nodes(line: Iterable[Sequence[bytes | None]], codec: str) -> Sequence[Node]:
    nodes, name = list[dict[str, list[str]]](), ""
    for mark, identifier, value, *_ in line:
        if mark:
            nodes.append({})
            name = ""
        elif identifier:
            # FF[1] to FF[3] allow Black for B.
            name = re.sub("[a-z]", "", identifier.decode())
        elif not name or value is None:
            raise _LeftOutError("unreadable", "a value follows no property")
        else:
            nodes[-1].setdefault(name, []).append(value.decode(codec, "replace").strip())
    return nodes


def _game(where: str, nodes: Sequence[Node], spec: EnvSpec) -> RecordedGame | Fault:
    root, number = nodes[0], SGF_GAMES.get(spec.name)
    for name in (name for node in nodes[1:] for name in _OF_ROOTS if name in node):
        raise _LeftOutError("unreadable", f"{name} is given after the beginning of the game")
    if (game := _value(root, "GM") or _GO) != str(number or "none"):
        raise _LeftOutError("foreign", f"this SGF is of {_NAMES.get(game, f'game {game}')}, not {spec.name}")
    size = _value(root, "SZ") or str(19 if game == _GO else board_size(spec))
    if not re.fullmatch(rf"{board_size(spec)}(\s*:\s*{board_size(spec)})?", size):
        raise _LeftOutError("foreign", f"its board has size {size}, that of {spec.name} has {board_size(spec)}")
    if any(name in node for node in nodes for name in _SETUP):
        raise _LeftOutError("foreign", "it does not start from the empty board")
    if game == _GO and (stones := _value(root, "HA")) not in ("", "0", "1"):
        raise _LeftOutError("foreign", f"it has a handicap of {stones} without its stones")
    komi = _komi(root) if game == _GO else None
    players = _name(root, "PB"), _name(root, "PW")
    return usable(RecordedGame(where, tuple(_moves(nodes, spec)), _points(root), komi=komi, players=players))


def _name(root: Node, name: str) -> str:
    """A player's name without the backslashes that escape brackets; the first if it is given twice."""
    return re.sub(r"\\(.)", r"\1", root.get(name, ("",))[0], flags=re.DOTALL)


def _value(node: Node, name: str) -> str:
    """The only value of a property; empty if it is missing."""
    if len(values := node.get(name, ("",))) > 1:
        raise _LeftOutError("unreadable", f"{name} is given twice: {', '.join(values)}")
    return values[0]


def _moves(nodes: Sequence[Node], spec: EnvSpec) -> Sequence[int]:
    moves: list[int] = []
    if any("B" in node and "W" in node for node in nodes):
        raise _LeftOutError("unreadable", "both players move in one node")
    for colour, point in ((colour, _value(node, colour)) for node in nodes for colour in "BW" if colour in node):
        action = _actions(spec, len(moves) % 2).get(point)
        if colour != "BW"[len(moves) % 2] or action is None:
            raise _LeftOutError("illegal", f"move {len(moves) + 1}, {colour}[{point}], cannot be played")
        moves.append(action)
    return moves


@cache
def _actions(spec: EnvSpec, ply: int) -> Mapping[str, int]:
    """The actions at a ply by point. FF[3] writes tt for a pass, which is no point of boards up to 19x19."""
    points = {sgf_point(spec, action, ply): action for action in range(spec.num_actions)}
    return points | ({"tt": points[""]} if "" in points else {})


def _komi(root: Node) -> float | None:
    if not (komi := _value(root, "KM")):
        return None
    if not _KOMI.fullmatch(komi):
        raise _LeftOutError("unreadable", f"its komi is '{komi}', not a number")
    return float(komi.replace(",", "."))


def _points(root: Node) -> float | None:
    result = _value(root, "RE").upper()
    if result in ("", "?"):
        return None
    if result in ("0", "DRAW"):
        return 0.5
    if result == "VOID":
        raise _LeftOutError("unfinished", "it has no result")
    if not (found := _WINNER.fullmatch(result)):
        raise _LeftOutError("unreadable", f"its result is '{result}', not one such as B+R, W+3.5 or 0")
    return float(found[1] == "B")
