"""Boards of all board games: stones where the rules put them, and squares that mean legal moves."""

from functools import cache
from xml.etree import ElementTree

import numpy as np
import pytest

from podzero.config import ChanceGameConfig, SimulatorConfig
from podzero.envs import make_env
from podzero.envs.registry import GAMES
from podzero.tools.play.drawing import checkers, drawing_of
from podzero.tools.play.game import PlayableGame
from podzero.tools.play.picture import BoardPicture, Marks, heat_of

TURNED = '''
import copy

import numpy as np


class Turned:
    """Two rows of pieces that step forward; each player sees the own ones below. Who has no piece to move loses."""

    num_actions, players = 5, 2

    def reset(self, seed):
        self.board = np.zeros((2, 5, 5), bool)  # as the player to move sees it
        self.board[0, 4] = self.board[1, 0] = True
        self.mover = 0

    def step(self, action):
        column = self.board[0, :, action]
        row = int(np.flatnonzero(column)[0])
        column[row], column[row - 1] = False, True
        self.board[1, row - 1, action] = False
        self.board, self.mover = self.board[::-1, ::-1, ::-1].copy(), 1 - self.mover

    def legal_actions(self):
        return [c for c in range(5) if self.board[0, 1:, c].any() and not self.board[0, 0, c]]

    def observation(self):
        return np.moveaxis(self.board, 0, -1)

    def player(self):
        return self.mover

    def done(self):
        return not self.legal_actions()

    def rewards(self):
        return (0.0, 0.0) if not self.done() else (-1.0, 1.0) if self.mover == 0 else (1.0, -1.0)

    def clone(self):
        return copy.deepcopy(self)
'''
STONES = ("tic_tac_toe", "connect_four", "othello", "hex", "go_9x9")


made = cache(make_env)
"""Games whose programs are compiled once for all tests."""


def random_game(name, plies, seed=0):
    game, rng = PlayableGame(made(name)), np.random.default_rng(seed)
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


# Gardner chess and go_9x9 are drawn by the same code, and compile faster.
SLOW = ("animal_shogi", "chess", "go_7x7")
DRAWN = [name for name in GAMES if name not in (*SLOW, "go_19x19", "shogi")]


@pytest.mark.parametrize("name", [*DRAWN, *(pytest.param(name, marks=pytest.mark.slow) for name in SLOW)])
def test_every_board_game_has_a_picture(name):
    game = random_game(name, 5)
    drawing = drawing_of(game)
    picture = BoardPicture(name, drawing.size)
    policy = dict.fromkeys(game.legal, 1 / len(game.legal))
    svg = picture.svg(drawing, Marks(heat_of(drawing, policy), last=[(0, 0)], chosen=(1, 1)))
    elements = list(ElementTree.fromstring(f"<svg>{svg}</svg>").iter())
    assert len(elements) > drawing.owner.size
    assert (drawing.owner >= 0).any()


@pytest.mark.slow
def test_captured_pieces_are_beside_the_board_and_dropped_from_there():
    game = random_game("animal_shogi", 0)
    game.restart(game.read("2c2b 1a2b"))  # each side's chick is taken
    drawing = drawing_of(game)
    assert drawing.hands == 1
    assert drawing.text[3][4] == "C"  # of the first player
    assert drawing.owner[3, 4] == 0
    assert drawing.in_hand((3, 4))
    drops = [action for action in game.legal if game.name(action).startswith("C*")]
    assert drops
    assert sorted(drawing.actions_at((3, 4))) == drops


def open_spiel(name):
    return PlayableGame(make_env(SimulatorConfig(name="open_spiel", id=name)))


@pytest.mark.parametrize(
    ("name", "stones"), [("tic_tac_toe", (3, 2)), ("connect_four", (3, 2)), ("breakthrough", (16, 16)), ("mnk", (3, 2))]
)
def test_stones_of_foreign_games_have_their_owners(name, stones):
    game = open_spiel(name)
    for _ in range(5):
        game.play(game.legal[0])
    for ply in (4, 5):
        game.show(ply)
        drawing = drawing_of(game)
        first, second = stones
        assert [int((drawing.owner == who).sum()) for who in (0, 1)] == [first - (ply == 4 and first < 16), second]
        assert not any(map(any, drawing.text))


def test_stones_of_foreign_games_fall_to_the_lowest_row():
    game = open_spiel("connect_four")
    game.restart([3, 3])
    assert drawing_of(game).owner[:, 3].tolist() == [-1, -1, -1, -1, 1, 0]
    assert heat_of(drawing_of(game), {3: 1.0}) == {(3, 3): 1.0}


def test_stones_that_are_seen_by_the_player_to_move_keep_their_owners():
    game = open_spiel("connect_four(egocentric_obs_tensor=True)")
    game.play(game.legal[0])
    first = drawing_of(game).owner
    game.play(game.legal[1])
    second = drawing_of(game).owner
    assert (first == 0).sum() == 1
    assert ((first == 0) == (second == 0)).all()
    assert (second == 1).sum() == 1
    while not game.over:
        before = drawing_of(game).owner
        mover = game.turn
        game.play(game.legal[-1])
    after = drawing_of(game).owner
    assert (after != before).sum() == 1
    assert after[after != before].tolist() == [mover]


@pytest.mark.parametrize("name", ["chess", "hex", "checkers"])
def test_planes_of_more_than_stones_are_numbered(name):
    drawing = drawing_of(open_spiel(name))
    assert (drawing.owner < 0).all()
    assert any(map(any, drawing.text))


def test_boards_that_are_turned_to_the_player_to_move_are_numbered(tmp_path, monkeypatch):
    (tmp_path / "turned.py").write_text(TURNED)
    monkeypatch.chdir(tmp_path)
    game = PlayableGame(make_env(SimulatorConfig(name="simulator", id="turned.py:Turned", max_plies=20)))
    game.play(game.legal[0])
    assert (drawing_of(game).owner < 0).all()


@pytest.mark.parametrize("name", ["hex_5x5", "connect_four"])
def test_a_point_of_the_picture_lies_in_the_square_that_is_drawn_there(name):
    picture = BoardPicture(name, (6, 7))
    for row in range(6):
        for column in range(7):
            x, y = picture.center((row, column))
            assert picture.square_at(x, y) == (row, column)
    assert picture.square_at(3, 3) is None
    assert picture.square_at(*picture.extent) is None


def test_tiles_of_2048_have_their_numbers():
    game = PlayableGame(make_env(ChanceGameConfig(name="2048")))
    drawn = drawing_of(game)
    tiles = [text for row in drawn.text for text in row if text]
    assert len(tiles) == (drawn.owner == 0).sum() == 2
    assert set(tiles) <= {"2", "4"}


def test_checkers_of_backgammon_stand_on_the_points_of_the_player_to_move():
    game = PlayableGame(make_env(ChanceGameConfig(name="backgammon")))
    mover, other, dice = checkers(game).splitlines()
    # Both see the own rear checkers on 24; the opponent's 24 is the player's 1.
    assert mover.split() == ["X", "24:2", "13:5", "8:3", "6:5", "bar:0", "off:0"]
    assert other.split() == ["O", "19:5", "17:3", "12:5", "1:2", "bar:0", "off:0"]
    assert len(dice.partition("dice")[2].split()) == 2
