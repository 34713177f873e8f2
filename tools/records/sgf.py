"""Reads games in the Smart Game Format (Hollosi 1999, https://www.red-bean.com/sgf/): their main lines."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import cache

from podzero.evaluation.records import SGF_GAMES, board_size, sgf_point
from podzero.tools.records.games import Fault, RecordedGame, recorded_game
from podzero.types import EnvSpec

Node = Mapping[str, list[str]]
"""The values of a node's properties, by identifier."""
_TOKEN = re.compile(r"([();])|([A-Za-z]+)|\[((?:[^\]\\]|\\.)*)\]", re.DOTALL)
"""A bracket or semicolon, an identifier, or a value."""
_SETUP = ("AB", "AW", "AE")
"""Properties that place or remove stones."""
_GO = 1


def read_sgf(text: str, file: str, spec: EnvSpec) -> Iterator[RecordedGame | Fault]:
    """The games of a collection.

    Args:
      text: the file's content.
      file: the name of the file, for messages.
      spec: the game to read.
    """
    for number, nodes in enumerate(main_lines(text), 1):
        where = f"{file}, game {number}"
        yield _game(where, nodes, spec) if nodes else Fault(where, "unreadable", "it ends in the middle of a game")


def main_lines(text: str) -> Iterator[Sequence[Node]]:
    """The nodes on the main line of each game tree, without variations; no nodes for a tree without end."""
    depth, ended, line = 0, False, list[Sequence[str]]()
    for token in (found.groups("") for found in _TOKEN.finditer(text)):
        if token[0] == "(":
            if depth == 0:
                ended, line = False, []
            depth += 1
        elif token[0] == ")":
            # First children are on the main line, so whatever follows the first end of a branch is not.
            ended, depth = True, max(depth - 1, 0)
            if depth == 0:
                yield _nodes(line)
        elif depth and not ended:
            line.append(token)
    if depth:
        yield []


def _nodes(line: Iterable[Sequence[str]]) -> Sequence[Node]:
    nodes, name = list[dict[str, list[str]]](), ""
    for semicolon, identifier, value in line:
        if semicolon:
            nodes.append({})
        elif identifier:
            name = re.sub("[a-z]", "", identifier)  # FF[1] to FF[3] allow Black for B
        elif nodes:
            nodes[-1].setdefault(name, []).append(value)
    return nodes


def _game(where: str, nodes: Sequence[Node], spec: EnvSpec) -> RecordedGame | Fault:
    root, number = nodes[0], SGF_GAMES.get(spec.name)
    game, default = _number(root, "GM", _GO), 19 if number == _GO else board_size(spec)
    if game != number:
        expected = "has no number there" if number is None else f"has {number}"
        return Fault(where, "foreign", f"it is SGF's game {game}, and {spec.name} {expected}")
    if (size := _number(root, "SZ", default)) != board_size(spec):
        return Fault(where, "foreign", f"its board has size {size}, that of {spec.name} has {board_size(spec)}")
    if any(name in node for node in nodes for name in _SETUP):
        return Fault(where, "foreign", "it does not start from the empty board")
    moves: list[int] = []
    for colour, point in ((colour, node[colour][0]) for node in nodes for colour in "BW" if colour in node):
        action = _actions(spec).get(point.strip().lower())
        if colour != "BW"[len(moves) % 2] or action is None:
            return Fault(where, "illegal", f"move {len(moves) + 1}, {colour}[{point}], cannot be played")
        moves.append(action)
    return recorded_game(where, moves, _points(root), komi=_komi(root))


def _number(node: Node, name: str, default: int) -> int:
    """The number that a property begins with; -1 if it begins with none."""
    found = re.match(r"\s*(\d+)", node.get(name, [str(default)])[0])
    return int(found[1]) if found else -1


@cache
def _actions(spec: EnvSpec) -> Mapping[str, int]:
    """The actions by point. FF[3] writes tt for a pass, which is no point of boards up to 19x19."""
    points = {sgf_point(spec, action): action for action in range(spec.num_actions)}
    return points | ({"tt": points[""]} if "" in points else {})


def _komi(root: Node) -> float | None:
    try:
        return float(root["KM"][0])
    except (KeyError, ValueError):
        return None


def _points(root: Node) -> float | None:
    result = root.get("RE", [""])[0].strip().upper()
    if result.startswith(("B+", "W+")):
        return float(result[0] == "B")
    return 0.5 if result in ("0", "DRAW") else None
