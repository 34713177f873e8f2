"""Boards of all board games: stones where the rules put them, and squares that mean legal moves."""

from functools import cache
from xml.etree import ElementTree

import numpy as np
import pytest

from podzero.envs import GAMES, make_env
from podzero.play.drawing import PIECES, drawing_of
from podzero.play.game import Game
from podzero.play.picture import BoardPicture, Marks, heat_of

STONES = ("tic_tac_toe", "connect_four", "othello", "hex", "go_9x9")


made = cache(make_env)
"""Games whose programs are compiled once for all tests."""


def random_game(name, plies, seed=0):
    game, rng = Game(made(name)), np.random.default_rng(seed)
    for _ in range(plies):
        if not game.over:
            game.play(int(rng.choice(game.legal)))
    return game


@pytest.mark.parametrize("name", STONES)
def test_a_stone_comes_to_lie_where_the_heat_of_its_action_is_shown(name):
    game = random_game(name, 4)
    for action in game.legal:
        before = drawing_of(game)
        (square,) = heat_of(before, {action: 1.0}) or (None,)
        if square is None:  # pass
            assert action not in before.squares
            continue
        assert before.owner[square] == -1
        assert action in before.actions_at(square)
        mover = game.turn
        game.play(action)
        assert drawing_of(game).owner[square] == mover
        game.take_back()


@pytest.mark.parametrize("name", [pytest.param("chess", marks=pytest.mark.slow), "gardner_chess"])
def test_a_piece_moves_from_the_first_square_of_its_action_to_the_second(name):
    game = random_game(name, 9)
    before = drawing_of(game)
    assert set(before.squares) == set(game.legal)
    for action in game.legal[:8]:
        origin, target = before.squares[action]
        piece = before.text[origin[0]][origin[1]]
        assert before.owner[origin] == game.turn
        assert action in before.actions_at(origin)
        assert action in before.actions_at(target, origin)
        game.play(action)
        after = drawing_of(game)
        assert after.text[origin[0]][origin[1]] == ""
        assert after.text[target[0]][target[1]] == piece or piece in "♙♟"
        game.take_back()


DRAWN = [name for name in GAMES if name not in ("chess", "go_19x19", "shogi")]


@pytest.mark.parametrize("name", [*DRAWN, pytest.param("chess", marks=pytest.mark.slow)])
def test_every_board_game_has_a_picture(name):
    game = random_game(name, 5)
    drawing = drawing_of(game)
    picture = BoardPicture(name, drawing.size)
    policy = dict.fromkeys(game.legal, 1 / len(game.legal))
    svg = picture.svg(drawing, Marks(heat_of(drawing, policy), last=[(0, 0)], chosen=(1, 1)))
    elements = list(ElementTree.fromstring(f"<svg>{svg}</svg>").iter())
    assert len(elements) > drawing.owner.size
    if name in PIECES:
        assert any(any(row) for row in drawing.text)


@pytest.mark.parametrize("name", ["hex", "connect_four"])
def test_a_point_of_the_picture_lies_in_the_square_that_is_drawn_there(name):
    picture = BoardPicture(name, (6, 7))
    for row in range(6):
        for column in range(7):
            x, y = picture._center((row, column))
            assert picture.square_at(x, y) == (row, column)
    assert picture.square_at(3, 3) is None
    assert picture.square_at(*picture.extent) is None
