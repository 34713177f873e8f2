"""Boards from observations `[rows, columns, planes]` of games whose rules are not known here."""

from __future__ import annotations

from collections.abc import Hashable
from functools import lru_cache
from itertools import combinations, pairwise
from typing import Any, NamedTuple, cast

import numpy as np

from podzero.play.game import Game

Planes = np.ndarray[Any, np.dtype[np.bool_]]
_LONGEST_OPENING = 8
"""Plies after which it must be clear whose stones a plane shows."""


class Stones(NamedTuple):
    """The two planes that show stones."""

    planes: tuple[int, int]
    """Of the player to move and of the other if `by_mover`, else of the player who began and of the other."""
    by_mover: bool
    upside_down: bool
    """Whether stones that are put into columns fall to the first row."""


def owners(game: Game) -> np.ndarray[Any, Any] | None:
    """`[rows, columns]` int8, the owner of each stone as in a `Drawing`; None if its planes show more than stones."""
    found = _stones(cast(Hashable, game.env))
    if found is None:
        return None
    first, second = found.planes[::-1] if found.by_mover and game.turn else found.planes
    planes = _planes(game)
    owner = np.full(planes.shape[:2], -1, np.int8)
    owner[planes[..., first]], owner[planes[..., second]] = 0, 1
    return owner[::-1] if found.upside_down else owner


@lru_cache(maxsize=16)
def _stones(env: Any) -> Stones | None:
    """Which planes show stones, found by the first moves of a game; None if there may be others than stones.

    Planes that are the same in all squares are left out. Of the two or three others at most one is set in each square;
    two of them are set equally often at the beginning, those of the players. A third one marks empty squares.
    """
    game = Game(env)
    seen = [_planes(game)]
    while len(seen) <= _LONGEST_OPENING and not game.over:
        game.play(game.legal[0])
        seen.append(_planes(game))
    told = [plane for plane in range(seen[0].shape[-1]) if not _constant([position[..., plane] for position in seen])]
    if len(told) not in (2, 3) or any((position[..., told].sum(axis=-1) > 1).any() for position in seen):
        return None
    pairs = [pair for pair in combinations(told, 2) if len({int(seen[0][..., plane].sum()) for plane in pair}) == 1]
    columns = env.spec.num_actions == seen[0].shape[1]
    return _assigned(seen, pairs[0], columns) if len(pairs) == 1 else None


def _assigned(seen: list[Planes], pair: tuple[int, int], columns: bool) -> Stones | None:
    """Whose stones the planes show; None if that cannot be told."""
    stay = swap = 0  # stones that stay on their squares are in the same plane after a move, or in the other one
    for before, after in pairwise(position[..., pair] for position in seen):
        stay += int((before & after).sum())
        swap += int((before & after[..., ::-1]).sum())
    if stay == swap:
        return None
    start, moved = seen[0][..., pair], seen[1][..., pair]
    if swap > stay:
        start = start[..., ::-1]
    new = moved & ~start
    by_first = pair if new[..., 0].sum() > new[..., 1].sum() else pair[::-1]
    # After the first move, the stone that it put is not one of the player to move.
    planes = by_first[::-1] if swap > stay else by_first
    return Stones(planes, by_mover=swap > stay, upside_down=columns and bool(new[0].any()))


def _planes(game: Game) -> Planes:
    """`[rows, columns, planes]` of the position that is shown, where they are not zero."""
    return cast(Planes, np.asarray(game.position.view.observation) != 0)


def _constant(plane: list[Planes]) -> bool:
    """Whether a plane says the same of all squares in each position."""
    return all(bool(position.all()) or not position.any() for position in plane)
