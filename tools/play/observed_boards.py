"""Stones of games whose rules are not known here, found in observations `[rows, columns, planes]`."""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from functools import lru_cache
from itertools import combinations, pairwise
from typing import Any, NamedTuple, cast

import numpy as np

from podzero.tools.play.game import Game

Planes = np.ndarray[Any, np.dtype[np.bool_]]
Owners = np.ndarray[Any, np.dtype[np.int8]]
"""`[rows, columns]`: 0 for a stone of the player who began, 1 for one of the other, -1 for none."""
_LONGEST_GAME = 200
"""Plies of a random game from which the meaning of planes is inferred."""


class Stones(NamedTuple):
    """The planes that show stones."""

    varying: tuple[int, ...]
    """Planes that are not the same in all squares: two or three, the third marks empty squares."""
    planes: tuple[int, int]
    """Two of them: of the player to move and of the other if `by_mover`, else of the player who began and of the
    other.
    """
    by_mover: bool
    upside_down: bool = False
    """Whether stones that are put into columns fall to the first row."""

    def owners(self, planes: Planes, turn: int) -> Owners:
        """The owners of all stones where the player `turn` is to move."""
        first, second = self.planes[::-1] if self.by_mover and turn else self.planes
        owner = np.full(planes.shape[:2], -1, np.int8)
        owner[planes[..., first]], owner[planes[..., second]] = 0, 1
        return owner[::-1] if self.upside_down else owner


def owners(game: Game) -> Owners | None:
    """The owner of each stone in the position that is shown; None if its planes show more than stones."""
    stones, planes = _stones(cast(Hashable, game.env)), _planes(game)
    if stones is None or not _only_stones(planes, stones.varying):
        return None
    if not (game.over and game.ply and stones.by_mover):
        return stones.owners(planes, game.turn)
    # Once a game is over nobody is to move: most stones are where they were before the last move.
    ply = game.ply
    game.show(ply - 1)
    before = stones.owners(_planes(game), game.turn)
    game.show(ply)
    return max((stones.owners(planes, turn) for turn in (0, 1)), key=lambda seen: int((seen == before).sum()))


@lru_cache(maxsize=16)
def _stones(env: Any) -> Stones | None:
    """Which planes show stones, found by a random game; None if other planes vary, or if it is not clear.

    Of the two planes of stones, as many squares are set at the beginning. A player's stones come to new squares only
    when this player moves.
    """
    if env.spec.players != 2:
        return None
    game, seen = _random_game(env)
    varying = tuple(i for i in range(seen[0].shape[-1]) if not all(_constant(planes[..., i]) for planes in seen))
    if len(varying) not in (2, 3) or not all(_only_stones(planes, varying) for planes in seen):
        return None
    counts = {plane: int(seen[0][..., plane].sum()) for plane in varying}
    pairs = [pair for pair in combinations(varying, 2) if counts[pair[0]] == counts[pair[1]]]
    found = [
        Stones(varying, order, by_mover)
        for pair in pairs
        for order in (pair, pair[::-1])
        for by_mover in (False, True)
        if _alternate(Stones(varying, order, by_mover), game, seen)
    ]
    if len(found) != 1:
        return None
    (stones,) = found
    falls = env.spec.num_actions == seen[0].shape[1] and bool((stones.owners(seen[1], game.turn_at(1))[0] == 0).any())
    return stones._replace(upside_down=falls)


def _random_game(env: Any) -> tuple[Game, list[Planes]]:
    """A game and the planes of its positions, except for the end."""
    game, choose = Game(env), np.random.default_rng(0)
    seen = [_planes(game)]
    while not game.over and game.ply < _LONGEST_GAME:
        game.play(int(choose.choice(game.legal)))
        seen += [] if game.over else [_planes(game)]
    return game, seen


def _alternate(stones: Stones, game: Game, seen: Sequence[Planes]) -> bool:
    """Whether each player's stones come to new squares in this player's moves, and in no others."""
    owned = [stones.owners(planes, game.turn_at(ply)) for ply, planes in enumerate(seen)]
    came = [
        [bool(((after == player) & (before != player)).any()) for player in (0, 1)] for before, after in pairwise(owned)
    ]
    movers = [game.turn_at(ply) for ply in range(len(came))]
    return any(gains[0] for gains in came) and all(
        not gains[1 - mover] for gains, mover in zip(came, movers, strict=True)
    )


def _planes(game: Game) -> Planes:
    """`[rows, columns, planes]` of the position that is shown, where they are not zero."""
    return cast(Planes, np.asarray(game.position.view.observation) != 0)


def _only_stones(planes: Planes, varying: Sequence[int]) -> bool:
    """Whether all other planes are the same in all squares, and at most one of these is set in each square."""
    others = (i for i in range(planes.shape[-1]) if i not in varying)
    return all(_constant(planes[..., i]) for i in others) and bool((planes[..., varying].sum(axis=-1) <= 1).all())


def _constant(plane: Planes) -> bool:
    return bool(plane.all()) or not plane.any()
