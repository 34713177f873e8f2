"""Standard algebraic notation of chess: the least that tells a move from the other legal ones, as Nbd7 or exd8=Q+."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from functools import lru_cache
from typing import Any, cast

import jax
import numpy as np

from podzero.envs.boards.chess import Chess
from podzero.envs.notation import notation_of, pieces_of
from podzero.protocols import Env
from podzero.types import EnvState

_Facts = tuple[Any, Any]
"""Legal actions, and whether the player to move is in check."""


def san_moves(env: Env, actions: Sequence[int]) -> list[str]:
    """The names of the moves of a whole game of `Chess`."""
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
def _programs(env: Hashable) -> tuple[Callable[[EnvState], _Facts], Callable[[EnvState, Any], EnvState]]:
    game = cast(Chess, env)

    def facts(state: EnvState) -> _Facts:
        return game.legal(state.board), game.checks(state.board) > 0

    return jax.jit(facts), jax.jit(game.step)


def _move(env: Env, state: EnvState, legal: Sequence[int], action: int) -> str:
    """The name without the sign of a check."""
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
    """The file if it tells the piece from its rivals, else the rank if that does, else both."""
    if not rivals:
        return ""
    if all(rival[0] != origin[0] for rival in rivals):
        return origin[0]
    return origin[1] if all(rival[1] != origin[1] for rival in rivals) else origin
