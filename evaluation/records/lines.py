"""A finished game as one JSON object, for files that podzero reads again: a game a line."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from podzero.evaluation.games import PlayedGame

_ENDS = ("over", "given up", "cut off")


def game_to_tree(game: PlayedGame) -> dict[str, Any]:
    """The game as plain values.

    {"players": ["mcts:20", "random"], "moves": [4, 0, 2], "opening_plies": 0, "position": "5feceb66ffc86f38",
     "points": [1.0, 0.0], "end": "over"}

    `players` names who moved first, and `points` has the same order. `moves` are actions of the environment, from the
    start of the game. `end` is `over`, `given up` if the loser resigned or forfeited, or `cut off` if a limit on the
    plies ended the game.
    """
    return {
        "players": [game.first, game.second],
        "moves": list(game.moves),
        "opening_plies": game.opening_plies,
        "position": game.position,
        "points": [game.points, 1 - game.points],
        "end": "given up" if game.given_up else "cut off" if game.cut_off else "over",
    }


def game_from_tree(tree: Mapping[str, Any]) -> PlayedGame:
    """The game that `game_to_tree` wrote; other keys are ignored.

    Raises:
      ValueError, KeyError, TypeError: something of it cannot be.
    """
    first, second = map(str, tree["players"])
    points = tree["points"]
    if sum(points) != 1 or points[0] not in (0, 0.5, 1):
        raise ValueError("points that cannot be")
    if not all(isinstance(one, int) for one in (tree["opening_plies"], *tree["moves"])) or tree["end"] not in _ENDS:
        raise ValueError("moves or an end that cannot be")
    return PlayedGame(
        first,
        second,
        tuple(tree["moves"]),
        float(points[0]),
        tree["opening_plies"],
        str(tree["position"]),
        given_up=tree["end"] == "given up",
        cut_off=tree["end"] == "cut off",
    )
