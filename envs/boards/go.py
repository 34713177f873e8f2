"""Go with area scoring, komi and positional superko, on boards of 7 x 7, 9 x 9 and 19 x 19."""

from __future__ import annotations

from functools import cache
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from podzero.config import KOMI, LARGEST_KOMI
from podzero.core.types import Array
from podzero.envs.boards.rules import BoardGame, BoardState, PlyResult, as_both_see, beside, chains_beside, placed

_NEIGHBOURS = ((-1, 0), (1, 0), (0, -1), (0, 1))
GO_GAMES = {f"go_{size}x{size}": size for size in (7, 9, 19)}
"""The rows of the board of each game that has a name."""
_HISTORY = 8
"""Positions that an observation shows."""
_KOMI_BITS = 7
"""Planes that show the komi."""
_KOMI_OFFSET = 64
"""What is added to the komi in half points, so that its bits are those of a positive number."""
_NONE = -1
_WORD = 32


class GoBoard(NamedTuple):
    """A position with its history. S squares; M plies at most."""

    chains: Array
    """`[S]` int16, as in `podzero.envs.boards.rules`."""
    first: Array
    """`[8, W]` uint32, the stones of the first player in the last positions, the newest first: bits of W words."""
    second: Array
    """`[8, W]` uint32, those of the second player."""
    hashes: Array
    """`[M]` uint32, hashes of the positions after each ply; zero for plies to come."""
    ko: Array
    """`[]` int16, the square on which the player to move may not recapture, or -1."""
    passes: Array
    """`[]` int8, passes in a row."""
    plies: Array
    """`[]` int16."""
    komi: Array
    """`[]` int8, half points that compensate the second player."""


def check_komi(komi: float) -> None:
    """Raises `ValueError` if games cannot have this komi."""
    if not (abs(komi) <= LARGEST_KOMI and (2 * komi).is_integer()):
        raise ValueError(f"komi {komi} is not a multiple of 0.5 from -{LARGEST_KOMI} to {LARGEST_KOMI}")


def komi_of(state: BoardState) -> float:
    """The komi of one state of `Go`, on the host."""
    return float(state.board.komi) / 2


def with_komi(state: BoardState, komi: Array) -> BoardState:
    """A state of `Go`, or a batch of states, with another komi: `komi` has the batch's shape; see `check_komi`."""
    return state._replace(board=state.board._replace(komi=jnp.asarray(2 * komi).astype(jnp.int8)))


def unended(state: BoardState, most_passes: int = 2) -> BoardState:
    """A state of `Go` (without a batch axis, on the host), whose game goes on although the rules have ended it.

    Controllers and servers play on after two passes, a repetition or the last ply. At the last ply the earlier half of
    the plies is forgotten, so that there is room for more. At most `most_passes` passes in a row are counted.
    """
    board: GoBoard = state.board
    if board.plies >= len(board.hashes):
        # Even, since the parity says who is to move.
        forgotten = 2 * (len(board.hashes) // 4)
        hashes = np.append(board.hashes[forgotten:], np.zeros(forgotten, np.uint32))
        board = board._replace(hashes=hashes, plies=np.asarray(board.plies - forgotten, np.int16))
    board = board._replace(passes=np.minimum(board.passes, np.int8(most_passes)))
    return state._replace(board=board, reward=jnp.zeros((), jnp.int8), done=jnp.zeros((), bool))


class Go(BoardGame):
    """`Env` of Go; an action is a square, or as the last one a pass.

    A game ends after two passes, after `2 * S` plies, or when a position is repeated: the player who repeats it loses.
    Positions are compared by 32-bit hashes.

    `komi` is the least and the largest one, multiples of 0.5: each game draws its own, which its observation shows. If
    it is None, all games have `KOMI`, and observations do not show it.
    """

    def __init__(self, size: int, komi: tuple[float, float] | None = None) -> None:
        self.shows_komi = komi is not None
        """Whether the observation shows the komi."""
        least, most = komi or (KOMI, KOMI)
        self._komis = np.arange(round(2 * least), round(2 * most) + 1, dtype=np.int8)
        self._size, self._squares = size, size * size
        self._words = -(-self._squares // _WORD)
        self.max_plies = 2 * self._squares
        self._zobrist = np.random.default_rng(size).integers(1, 2**32, (2, self._squares), np.uint32)
        self.name = f"go_{size}x{size}"

    def init(self, key: Array) -> BoardState:
        """Starts a game; the key decides which player begins and, if the game has several, its komi."""
        if len(self._komis) == 1:
            return super().init(key)
        first, drawn = jax.random.split(jnp.asarray(key))
        return with_komi(super().init(first), jax.random.choice(drawn, self._komis) / 2)

    def start(self) -> GoBoard:
        """The empty board, with the smallest komi."""
        history = np.zeros((_HISTORY, self._words), np.uint32)
        hashes = np.zeros(self.max_plies, np.uint32)
        chains = np.zeros(self._squares, np.int16)
        ko, passes, plies = np.full((), _NONE, np.int16), np.zeros((), np.int8), np.zeros((), np.int16)
        return GoBoard(chains, history, history, hashes, ko, passes, plies, self._komis[0])

    def play(self, board: GoBoard, action: Array) -> PlyResult:
        """Places a stone and takes the opponent's chains that have no liberty left, or passes."""
        stone, passes = jnp.arange(self._squares) == action, action == self._squares
        taken = self._taken(board.chains, action) & ~passes
        # A ko: one stone is taken by a stone without own or empty neighbours.
        count = jnp.sum(taken, dtype=jnp.int16)
        alone = ~jnp.any(stone & self._any_beside(board.chains >= 0))
        ko = jnp.where((count == 1) & alone, jnp.argmax(taken).astype(jnp.int16), _NONE)
        chains = placed(jnp.where(taken, 0, board.chains), action, self._size, _NEIGHBOURS)
        first_moves = board.plies % 2 == 0
        first, second = (jnp.where(first_moves, one, other) for one, other in ((chains, -chains), (-chains, chains)))
        number = self._hash(first > 0, second > 0)
        # A pass repeats the position as well, but is allowed.
        repeated = ~passes & jnp.any(board.hashes == number)
        after = GoBoard(
            chains=-chains,
            first=self._remember(board.first, first > 0),
            second=self._remember(board.second, second > 0),
            hashes=jnp.where(jnp.arange(self.max_plies) == board.plies, number, board.hashes),
            ko=ko,
            passes=jnp.where(passes, board.passes + 1, 0).astype(jnp.int8),
            plies=board.plies + 1,
            komi=board.komi,
        )
        done = repeated | (after.passes >= 2) | (after.plies >= self.max_plies)
        # In half points: a whole komi can make it zero, a draw.
        lead = 2 * self._area(chains, done) - jnp.where(first_moves, board.komi, -board.komi)
        result = jnp.where(repeated, -1, jnp.sign(lead)) * done
        return PlyResult(after, result.astype(jnp.int8), done)

    def legal(self, board: GoBoard) -> jax.Array:
        """The empty squares except suicide and immediate recapture of a ko, and the pass."""
        chains, empty = board.chains, board.chains == 0
        least, most = self._outer_liberties(chains)
        # A stone lives beside an empty square, an own chain with another liberty, or a chain that it takes.
        in_atari = least == most
        safe = empty | ((chains > 0) & ~in_atari) | ((chains < 0) & in_atari)
        allowed = empty & self._any_beside(safe) & (jnp.arange(self._squares) != board.ko)
        return jnp.append(allowed, True)

    def observe(self, board: GoBoard) -> jax.Array:
        """The observation of the player to move, `[size, size, 17]` or `[size, size, 24]` bool.

        Planes: own and the opponent's stones in the last eight positions, whether the second player is to move and, if
        the game shows its komi, the seven bits of 64 plus the half points of komi for the player to move.
        """
        squares = np.arange(self._squares)
        first, second = (
            (words[:, squares // _WORD] >> (squares % _WORD).astype(np.uint32)) & 1 == 1
            for words in (board.first, board.second)
        )
        second_moves = board.plies % 2 == 1
        mine, theirs = jnp.where(second_moves, second, first), jnp.where(second_moves, first, second)
        planes = jnp.stack([mine, theirs], axis=1).reshape(2 * _HISTORY, self._squares)
        constants = second_moves[None]
        if self.shows_komi:
            own = jnp.where(second_moves, board.komi, -board.komi) + _KOMI_OFFSET
            constants = jnp.append(constants, own >> jnp.arange(_KOMI_BITS, dtype=jnp.int8) & 1 == 1)
        filled = jnp.broadcast_to(constants[:, None], (len(constants), self._squares))
        return jnp.concatenate([planes, filled]).T.reshape(self._size, self._size, -1)

    def ownership(self, board: GoBoard, done: Array) -> jax.Array:
        """The area of each player; all stones count as alive."""
        return as_both_see(self._ownership(jnp.asarray(board.chains), done))

    def observed(self, shows_komi: bool) -> Go:
        """The same game with or without the komi in its observation; equal calls give the same object."""
        return self if shows_komi == self.shows_komi else _in_matches(self._size, shows_komi)

    def lead(self, board: GoBoard) -> jax.Array:
        """The area of the player to move minus the opponent's, `[]` int32, without komi; all stones count as alive."""
        return self._area(jnp.asarray(board.chains), jnp.ones((), bool))

    def _any_beside(self, squares: Array) -> jax.Array:
        """For each square, whether a neighbour is among `squares`, `[S]` bool."""
        found = jnp.zeros(squares.shape, bool)
        for step in _NEIGHBOURS:
            found |= beside(squares, self._size, step)
        return found

    def _taken(self, chains: Array, action: Array) -> jax.Array:
        """The opponent's stones that lose their last liberty to a new stone, `[S]` bool."""
        free = self._any_beside((chains == 0) & (jnp.arange(self._squares) != action))
        taken = jnp.zeros(chains.shape, bool)
        for chain in chains_beside(chains, action, self._size, _NEIGHBOURS):
            members = (chains == chain) & (chain < 0)
            taken |= members & ~jnp.any(members & free)
        return taken

    def _outer_liberties(self, chains: Array) -> tuple[jax.Array, jax.Array]:
        """The first and the last liberty of each square's chain, `[S]` each; equal if it has only one."""
        numbers = jnp.arange(self._squares, dtype=jnp.int16)
        same = chains[:, None] == chains
        least, most = jnp.full_like(numbers, self._squares), jnp.full_like(numbers, _NONE)
        for step in _NEIGHBOURS:
            liberty = jnp.where(chains == 0, numbers, _NONE)
            near = beside(liberty, self._size, step, outside=_NONE)
            least = jnp.minimum(least, jnp.where(near == _NONE, self._squares, near))
            most = jnp.maximum(most, near)
        return (
            jnp.min(jnp.where(same, least[:, None], self._squares), axis=0),
            jnp.max(jnp.where(same, most[:, None], _NONE), axis=0),
        )

    def _hash(self, first: jax.Array, second: jax.Array) -> jax.Array:
        """The Zobrist hash of a position, `[]` uint32."""
        numbers = jnp.where(first, self._zobrist[0], 0) ^ jnp.where(second, self._zobrist[1], 0)
        return jax.lax.reduce_xor(numbers, (0,))

    def _remember(self, history: Array, stones: jax.Array) -> jax.Array:
        """The history `[8, W]` with the newest stones `[S]` in front, without the oldest."""
        padded = jnp.pad(stones, (0, self._words * _WORD - self._squares)).reshape(self._words, _WORD)
        bits = jnp.where(padded, jnp.uint32(1) << jnp.arange(_WORD, dtype=jnp.uint32), 0)
        return jnp.concatenate([jax.lax.reduce_or(bits, (1,))[None], history[:-1]])

    def _area(self, chains: jax.Array, needed: jax.Array) -> jax.Array:
        """By how much the area of the player to move is larger, `[]` int32; zero unless `needed`."""
        return jnp.sum(self._ownership(chains, needed), dtype=jnp.int32)

    def _ownership(self, chains: jax.Array, needed: Array) -> jax.Array:
        """The area of the player to move (stones, and empty squares that only they reach) as 1, the opponent's as -1,
        `[S]` int8; zero unless `needed`.
        """
        empty = chains == 0

        def grow(carry: tuple[jax.Array, jax.Array, jax.Array]) -> tuple[jax.Array, jax.Array, jax.Array]:
            mine, theirs, _ = carry
            more, fewer = (reached | (empty & self._any_beside(reached)) for reached in (mine, theirs))
            return more, fewer, jnp.any((more != mine) | (fewer != theirs))

        # Under `vmap` the loop runs until no game grows; games whose area is not needed start as finished.
        start = ((chains > 0) & needed, (chains < 0) & needed, jnp.asarray(needed))
        mine, theirs, _ = jax.lax.while_loop(lambda carry: carry[2], grow, start)
        return mine.astype(jnp.int8) - theirs.astype(jnp.int8)


@cache
def _in_matches(size: int, shows_komi: bool) -> Go:
    return Go(size, (KOMI, KOMI) if shows_komi else None)
