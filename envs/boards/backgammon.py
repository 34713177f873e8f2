"""Backgammon without the doubling cube; each action moves one checker by one die."""

from __future__ import annotations

from collections import deque
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from podzero.core.types import Array, View

POINTS, _DICE, _CHECKERS = 24, 6, 15
# After the points: checkers on the bar and borne off, those of the player to move first.
BAR, OFF = 24, 26
_HOME = slice(18, 24)
_NOTHING, _FROM_BAR, _FROM_POINT = 0, 1, 2
"""The sources of actions: none, the bar, and the 24 points from here on."""
START = np.array([2, 0, 0, 0, 0, -5, 0, -3, 0, 0, 0, 5, -5, 0, 0, 0, 3, 0, 5, 0, 0, 0, 0, -2, 0, 0, 0, 0], np.int8)
_ROLLS = np.array([(one, two) for one in range(_DICE) for two in range(one, _DICE)], np.int8)
"""The 21 rolls of two dice."""
_DOUBLE = _ROLLS[:, 0] == _ROLLS[:, 1]
_COUNTS = np.array([(np.arange(_DICE) == roll[:, None]).sum(axis=0) for roll in _ROLLS], np.int8)
_COUNTS[_DOUBLE] *= 2
"""`[21, 6]`, how often each die of a roll is played."""
_PROBABILITIES = np.where(_DOUBLE, 1, 2).astype(np.float32) / _DICE**2
_MOST_SEEN = 6
"""Checkers on a point or the bar that an observation tells apart."""


class BackgammonPosition(NamedTuple):
    """A state of backgammon, from the side of the player to move, who moves to higher points."""

    board: jax.Array
    """`[28]` int8, checkers on 24 points, on the bars and off: positive for the player to move, else negative."""
    dice: jax.Array
    """`[6]` int8, how often each die can still be played."""
    player: jax.Array
    """`[]` int32, who moves next: 0 or 1."""
    reward: jax.Array
    """`[]` float32, player 0's reward for the last action; player 1's is its negative."""
    waits: jax.Array
    """`[]` bool, whether the dice are to be rolled."""
    done: jax.Array
    """`[]` bool, whether the game is over."""


class Backgammon:
    """The `ChanceGame` backgammon, with the rules of pgx.

    Action `6 * s + d` moves a checker by `d + 1` points: from the bar (s = 1) or from point s - 2. If nothing can move,
    actions 0 to 5 end the turn. Outcomes are the 21 rolls. A win is worth 1 point, a gammon 2, a backgammon 3.
    """

    players, outcomes = 2, len(_ROLLS)

    def __init__(self, reward_scale: float) -> None:
        """Makes the game; rewards are multiplied by `reward_scale`."""
        self._scale = reward_scale

    def init(self, key: Array) -> BackgammonPosition:
        """The first position; the key decides who begins, with two different dice."""
        player_key, dice_key = jax.random.split(key)
        roll = jax.random.choice(dice_key, jnp.asarray(np.flatnonzero(~_DOUBLE)))
        player = jax.random.bernoulli(player_key).astype(jnp.int32)
        no = jnp.array(False)
        return BackgammonPosition(jnp.asarray(START), jnp.asarray(_COUNTS)[roll], player, jnp.float32(0), no, no)

    def step(self, state: BackgammonPosition, action: Array) -> BackgammonPosition:
        """Moves a checker; the turn ends when all dice are played or nothing can be moved."""
        source, die = action // _DICE, action % _DICE
        passes = source == _NOTHING
        moved = jnp.where(passes, state.board, _moved(state.board, source, die))
        dice = state.dice - ((jnp.arange(_DICE) == die) & ~passes).astype(jnp.int8)
        won = moved[OFF] == _CHECKERS
        ends = (passes | ~jnp.any(dice > 0)) & ~won
        points = jnp.where(won, _points(moved) * self._scale, 0.0)
        after = BackgammonPosition(
            board=jnp.where(ends, _from_other_side(moved), moved),
            dice=jnp.where(ends, 0, dice).astype(jnp.int8),
            player=jnp.where(ends, 1 - state.player, state.player),
            reward=jnp.where(state.player == 0, points, -points).astype(jnp.float32),
            waits=ends,
            done=won,
        )
        over = state._replace(reward=jnp.float32(0))
        return BackgammonPosition(*(jnp.where(state.done, old, new) for old, new in zip(over, after, strict=True)))

    def chance(self, state: BackgammonPosition) -> jax.Array:
        """The probability of each roll."""
        return jnp.where(state.waits, _PROBABILITIES, np.float32(0))

    def resolve(self, state: BackgammonPosition, outcome: Array) -> BackgammonPosition:
        """The position with the dice of a roll."""
        dice = jnp.sum(jnp.where((jnp.arange(len(_ROLLS)) == outcome)[:, None], _COUNTS, 0), axis=0, dtype=jnp.int8)
        return state._replace(dice=dice, waits=jnp.array(False))

    def view(self, state: BackgammonPosition) -> View:
        """The view of `state`; `_observed` tells what an observation holds."""
        moves = _moves(state.board) & (state.dice > 0)
        passes = jnp.zeros_like(moves).at[_NOTHING].set(~jnp.any(moves))
        return View(
            observation=_observed(state),
            legal=(moves | passes).reshape(-1) | state.done,
            player=state.player,
            rewards=jnp.stack([state.reward, -state.reward]),
            done=state.done,
            truncated=jnp.array(False),
        )


def _moves(board: jax.Array) -> jax.Array:
    """The moves that the board allows, `[26, 6]` bool, whatever the dice."""
    points, off, bar = board[:POINTS], board[OFF], board[BAR]
    numbers, steps = jnp.arange(POINTS)[:, None], jnp.arange(1, _DICE + 1)
    target = numbers + steps
    open_ = jnp.stack([jnp.pad(points, (0, step))[step:] >= -1 for step in range(1, _DICE + 1)], axis=1)
    mine = points > 0
    home = jnp.sum(jnp.maximum(points[_HOME], 0), dtype=jnp.int32) == _CHECKERS - off
    rear = jnp.min(jnp.where(mine, jnp.arange(POINTS), POINTS))
    # A checker is borne off by its exact distance, or by more if it is the rearmost.
    bears_off = home & ((target == POINTS) | ((target > POINTS) & (numbers == rear)))
    from_points = mine[:, None] & jnp.where(target < POINTS, open_ & (bar == 0), bears_off)
    from_bar = (bar > 0) & (points[:_DICE] >= -1)
    return jnp.concatenate([jnp.zeros((1, _DICE), bool), from_bar[None], from_points])


def _moved(board: jax.Array, source: Array, die: Array) -> jax.Array:
    """The board after a checker of the player has moved; a single checker of the opponent goes to the bar."""
    numbers = jnp.arange(len(START))
    origin = jnp.where(source == _FROM_BAR, BAR, source - _FROM_POINT)
    target = jnp.where(source == _FROM_BAR, die, origin + die + 1)
    target = jnp.where(target < POINTS, target, OFF)
    left, reached = (numbers == origin).astype(jnp.int8), (numbers == target).astype(jnp.int8)
    hit = jnp.any((board == -1) & (reached > 0)).astype(jnp.int8)
    onto_bar = (numbers == BAR + 1).astype(jnp.int8)
    return board - left + (1 + hit) * reached - hit * onto_bar


def _points(board: jax.Array) -> jax.Array:
    """What the player to move has won: 1; 2 if the opponent has borne off nothing; 3 if one is in the player's home."""
    gammon = board[OFF + 1] == 0
    return 1 + gammon + (gammon & jnp.any(board[_HOME] != 0))


def _from_other_side(board: Array) -> jax.Array:
    swapped = [jnp.flip(board[:POINTS]), jnp.flip(board[BAR:OFF]), jnp.flip(board[OFF:])]
    return -jnp.concatenate(swapped)


def _observed(state: BackgammonPosition) -> jax.Array:
    """Counts of checkers and dice in units (Tesauro 1995), `[355]` bool: unit n tells if there are n or more.

    There are six units for own checkers on each of 25 places (the points and the bar), as many for the opponent's, 15
    for checkers borne off by either, four for the plays of each die, and one for whether checkers can still be hit.
    """
    mine, theirs = jnp.maximum(state.board, 0), jnp.maximum(-state.board, 0)
    several, all_, plays = (jnp.arange(1, most + 1) for most in (_MOST_SEEN, _CHECKERS, 4))
    own_places, their_places = mine[: BAR + 1], jnp.append(theirs[:POINTS], theirs[BAR + 1])
    rear = jnp.min(jnp.where(mine[:POINTS] > 0, jnp.arange(POINTS), POINTS))
    furthest = jnp.max(jnp.where(theirs[:POINTS] > 0, jnp.arange(POINTS), -1))
    contact = (rear < furthest) | (mine[BAR] > 0) | (theirs[BAR + 1] > 0)
    counts = [
        own_places[:, None] >= several,
        their_places[:, None] >= several,
        mine[OFF] >= all_,
        theirs[OFF + 1] >= all_,
        state.dice[:, None] >= plays,
        contact[None],
    ]
    return jnp.concatenate([units.reshape(-1) for units in counts])


def turn_to(position: BackgammonPosition, board: np.ndarray[Any, Any]) -> list[tuple[BackgammonPosition, int]]:
    """The actions of a whole turn, each with the position before it, that lead to a `board` (`[28]`, of the player who
    moves); empty if none do. All arrays are of the host.
    """
    paths: deque[tuple[BackgammonPosition, list[tuple[BackgammonPosition, int]]]] = deque([(position, [])])
    seen, of_other_side = set(), np.asarray(_from_other_side(board))
    while paths:
        before, path = paths.popleft()
        legal, tried = jax.device_get(_tried(before))
        for action in np.flatnonzero(legal).tolist():
            after = BackgammonPosition(*(leaf[action] for leaf in tried))
            played = [*path, (before, action)]
            if after.waits or after.done:
                if np.array_equal(after.board, board if after.done else of_other_side):
                    return played
            elif (key := (after.board.tobytes(), after.dice.tobytes())) not in seen:
                seen.add(key)
                paths.append((after, played))
    return []


@jax.jit
def _tried(position: BackgammonPosition) -> tuple[Array, BackgammonPosition]:
    """The legal actions `[156]` bool, and the positions after all actions."""
    rules = Backgammon(1.0)
    legal = rules.view(position).legal
    return legal, jax.vmap(rules.step, in_axes=(None, 0))(position, jnp.arange(len(legal)))
