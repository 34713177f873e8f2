"""Boards of all board games: stones where the rules put them, and squares that mean legal moves."""

from functools import cache
from typing import get_args
from xml.etree import ElementTree

import numpy as np
import pytest

from podzero.config import Game
from podzero.envs import make_env
from podzero.play.drawing import PIECES, drawing_of
from podzero.play.picture import BoardPicture, Marks, heat_of
from podzero.play.session import Session

STONES = ("tic_tac_toe", "connect_four", "othello", "hex", "go_9x9")


made = cache(make_env)
"""Games whose programs are compiled once for all tests."""


def random_game(game, plies, seed=0):
    session, rng = Session(made(game)), np.random.default_rng(seed)
    for _ in range(plies):
        if not session.over:
            session.play(int(rng.choice(session.legal)))
    return session


@pytest.mark.parametrize("game", STONES)
def test_a_stone_comes_to_lie_where_the_heat_of_its_action_is_shown(game):
    session = random_game(game, 4)
    for action in session.legal:
        before = drawing_of(session)
        (square,) = heat_of(before, {action: 1.0}) or (None,)
        if square is None:  # pass
            assert action not in before.squares
            continue
        assert before.owner[square] == -1
        assert action in before.actions_at(square)
        mover = session.turn_of(session.player)
        session.play(action)
        assert drawing_of(session).owner[square] == mover
        session.take_back()


@pytest.mark.parametrize("game", ["chess", "gardner_chess"])
def test_a_piece_moves_from_the_first_square_of_its_action_to_the_second(game):
    session = random_game(game, 9)
    before = drawing_of(session)
    assert set(before.squares) == set(session.legal)
    for action in session.legal[:8]:
        origin, target = before.squares[action]
        piece = before.text[origin[0]][origin[1]]
        assert before.owner[origin] == session.turn_of(session.player)
        assert action in before.actions_at(origin)
        assert action in before.actions_at(target, origin)
        session.play(action)
        after = drawing_of(session)
        assert after.text[origin[0]][origin[1]] == ""
        assert after.text[target[0]][target[1]] == piece or piece in "♙♟"
        session.take_back()


@pytest.mark.parametrize("game", [game for game in get_args(Game) if game not in ("go_19x19", "shogi")])
def test_every_board_game_has_a_picture(game):
    session = random_game(game, 5)
    drawing = drawing_of(session)
    picture = BoardPicture(game, drawing.size)
    policy = dict.fromkeys(session.legal, 1 / len(session.legal))
    svg = picture.svg(drawing, Marks(heat_of(drawing, policy), last=[(0, 0)], chosen=(1, 1)))
    elements = list(ElementTree.fromstring(f"<svg>{svg}</svg>").iter())
    assert len(elements) > drawing.owner.size
    if game in PIECES:
        assert any(any(row) for row in drawing.text)


@pytest.mark.parametrize("game", ["hex", "connect_four"])
def test_a_point_of_the_picture_lies_in_the_square_that_is_drawn_there(game):
    picture = BoardPicture(game, (6, 7))
    for row in range(6):
        for column in range(7):
            x, y = picture._center((row, column))
            assert picture.square_at(x, y) == (row, column)
    assert picture.square_at(3, 3) is None
    assert picture.square_at(*picture.extent) is None
