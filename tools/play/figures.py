"""Searched trees and values of a game as plain values, for the components that show them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from podzero.searched_nodes import SearchedNodes
from podzero.tools.play.game import Game
from podzero.tools.play.searching import Branch, Searched, branches


def tree_of(game: Game, nodes: SearchedNodes) -> list[dict[str, Any]]:
    """The most visited nodes of a search of the shown position: `id`, `label` and `children` of each."""
    looked = _Paths(game)
    return [_node(branch, looked) for branch in branches(nodes, looked.exists)]


class _Paths:
    """The positions below the one that is shown, by the actions that lead to them."""

    def __init__(self, game: Game) -> None:
        self._games: dict[tuple[int, ...], Game] = {(): game.copy()}

    def exists(self, path: tuple[int, ...]) -> bool:
        """Whether the game was not over before the last action of a path."""
        return not (path and self[path[:-1]].over)

    def __getitem__(self, path: tuple[int, ...]) -> Game:
        if path not in self._games:
            found = self[path[:-1]].copy()
            found.play(path[-1])
            self._games[path] = found
        return self._games[path]


def _node(branch: Branch, looked: _Paths) -> dict[str, Any]:
    name = looked[branch.path[:-1]].name(branch.path[-1])
    return {
        "id": "/".join(map(str, branch.path)),
        "label": f"{name}  visits {branch.visits}  value {branch.value:+.2f}  prior {branch.prior:.1%}",
        "children": [_node(child, looked) for child in branch.children],
    }


def value_points(game: Game, searched: Mapping[int, Searched]) -> list[tuple[int, float]]:
    """The values of all searched positions of a game, by ply, for the player who began it."""
    points = []
    for ply, found in sorted(searched.items()):
        if found.value is not None:
            points.append((ply, -found.value if game.turn_at(ply) else found.value))
    return points


def value_chart(points: list[tuple[int, float]]) -> dict[str, Any]:
    """The value for the first player over the plies of the game, as options of ECharts."""
    return {
        "title": {"text": "value for the first player", "textStyle": {"fontSize": 12}},
        "grid": {"left": 36, "right": 10, "top": 30, "bottom": 24},
        "xAxis": {"type": "value", "minInterval": 1},
        "yAxis": {"type": "value", "min": -1, "max": 1},
        "series": [{"type": "line", "data": [list(point) for point in points], "symbolSize": 7}],
    }
