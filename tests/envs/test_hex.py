"""Hex as the player to move sees it, on boards of several sizes."""

from functools import cache

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from podzero.config import GameConfig
from podzero.envs import make_env
from podzero.envs.boards.hex import HEX_GAMES
from podzero.envs.jax_game import check_game
from podzero.envs.notation import notation_of
from podzero.tools.play.drawing import drawing_of
from podzero.tools.play.game import PlayableGame


@cache
def game(size):
    return make_env(GameConfig(name="hex", size=size))


@cache
def step(size):
    return jax.jit(game(size).step)


def played(size, *actions):
    """The state after some actions."""
    state = game(size).init(jax.random.key(0))
    for action in actions:
        state = step(size)(state, jnp.int32(action))
    return jax.device_get(state)


def seen(state, size):
    """The boards of own stones and of the opponent's, `[size, size]` each."""
    return np.moveaxis(np.asarray(game(size).view(state).observation), -1, 0)[:2]


def test_names_and_specifications_have_the_size():
    assert [*HEX_GAMES.values()] == [5, 6, 7, 8, 9, 10, 11]
    for name, size in HEX_GAMES.items():
        spec = game(size).spec
        assert (spec.name, spec.observation_shape) == (name, (size, size, 3))
        assert (spec.num_actions, spec.max_plies) == (size**2 + 1, size**2 + 1)
    assert make_env("hex").spec == game(11).spec == make_env(GameConfig(name="hex")).spec


@pytest.mark.parametrize("size", [5, 11])
def test_the_contract_of_games_holds(size):
    check_game(game(size), games=32, max_plies=size**2 + 1)


def test_the_second_player_sees_the_board_transposed_and_plays_on_it():
    """The first player's b1 (row 0, column 1) is seen in row 1, column 0. The second player's action 9 is row 1, column
    4, which the first player sees in row 4, column 1.
    """
    after_one = played(5, 1)
    mine, theirs = seen(after_one, 5)
    assert np.argwhere(theirs).tolist() == [[1, 0]]
    assert not mine.any()
    legal = np.asarray(game(5).view(after_one).legal)
    assert np.flatnonzero(~legal).tolist() == [5]
    after_two = played(5, 1, 9)
    mine, theirs = seen(after_two, 5)
    assert (np.argwhere(mine).tolist(), np.argwhere(theirs).tolist()) == ([[0, 1]], [[4, 1]])
    legal = np.asarray(game(5).view(after_two).legal)
    assert np.flatnonzero(~legal).tolist() == [1, 21, 25]


def test_a_swapped_stone_moves_to_the_mirrored_square():
    """b1 becomes the second player's a2, which the first player sees in row 1, column 0."""
    state = played(5, 1, 25)
    mine, theirs = seen(state, 5)
    assert np.argwhere(theirs).tolist() == [[1, 0]]
    assert not mine.any()


FAR = [24, 23, 19, 18, 14]
"""Squares near the corner e5, in either player's view."""


@pytest.mark.parametrize("second", [False, True])
def test_a_column_from_top_to_bottom_wins_for_either_player(second):
    column = [0, 5, 10, 15, 20]
    pairs = zip(FAR, column, strict=True) if second else zip(column, FAR, strict=True)
    moves = [action for pair in pairs for action in pair][: 10 if second else 9]
    before, after = (game(5).view(played(5, *line)) for line in (moves[:-1], moves))
    assert (bool(before.done), bool(after.done)) == (False, True)
    assert float(after.rewards[before.player]) == 1.0


def joined(stones, sides):
    """Whether stones `(row, column)` join two sides of a board, found by a flood."""
    reached = {stone for stone in stones if stone[sides[0]] == 0}
    edge = list(reached)
    while edge:
        row, column = edge.pop()
        steps = ((0, -1), (1, -1), (-1, 0), (1, 0), (-1, 1), (0, 1))
        new = {(row + down, column + right) for down, right in steps} & stones - reached
        reached |= new
        edge += new
    return any(stone[sides[0]] == sides[1] - 1 for stone in reached)


@pytest.mark.parametrize("seed", range(8))
def test_random_games_end_when_the_named_stones_join_the_edges_of_their_player(seed):
    """Names are those of the board as the first player sees it: letters are columns, numbers rows."""
    size, random = 6, np.random.default_rng(seed)
    shown, notation, stones = PlayableGame(game(size)), notation_of(game(size).spec), (set(), set())
    while not shown.over:
        action = int(random.choice(shown.legal))
        name, mover = shown.name(action), shown.turn
        assert notation.action(shown.state, name.upper()) == action
        if name == "swap":
            ((row, column),) = stones[0]
            stones[1].add((column, row))
            stones[0].clear()
        else:
            stones[mover].add((int(name[1:]) - 1, ord(name[0]) - ord("a")))
        shown.play(action)
        owner = drawing_of(shown).owner
        assert [set(map(tuple, np.argwhere(owner == who).tolist())) for who in (0, 1)] == [*stones]
        joins = [joined(stones[who], (who, size)) for who in (0, 1)]
        assert shown.over == any(joins)
    assert joins[mover]
    assert shown.points == (1.0 if mover == 0 else -1.0)
    assert notation.names(shown.moves) == shown.names
