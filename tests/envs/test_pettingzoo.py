"""PettingZoo's classic games equal OpenSpiel's, and copies are independent."""

import numpy as np
import pytest

from podzero.config import SimulatorConfig
from podzero.core.errors import ConfigError
from podzero.envs import make_env
from podzero.envs.copied import PettingZooGame, copy_of
from podzero.envs.open_spiel import OpenSpielGame


@pytest.mark.parametrize(("name", "other"), [("tictactoe_v3", "tic_tac_toe"), ("connect_four_v3", "connect_four")])
def test_the_same_game_as_openspiels(name, other):
    """Plays random games. Numbering the cells of tic-tac-toe by rows or by columns gives the same lines."""
    random = np.random.default_rng(0)
    for _ in range(20):
        ours, theirs = PettingZooGame(name, {}), OpenSpielGame(other, {})
        while not theirs.done():
            assert not ours.done()
            assert list(ours.legal_actions()) == theirs.legal_actions()
            assert ours.player() == theirs.player()
            action = int(random.choice(theirs.legal_actions()))
            ours.step(action)
            theirs.step(action)
            assert ours.rewards() == theirs.rewards()
        assert ours.done()


def test_observations_are_from_the_perspective_of_the_player_to_move():
    game = PettingZooGame("connect_four_v3", {})
    game.step(3)
    board = game.observation()
    assert (board.shape, board.dtype) == ((6, 7, 2), np.bool_)
    assert board[..., 0].sum() == 0  # the player to move has no stones yet
    assert board[5, 3, 1]


def test_arguments_reach_the_game():
    assert make_env(SimulatorConfig(name="pettingzoo", id="go_v5", kwargs={"board_size": 5})).spec.num_actions == 26


@pytest.mark.parametrize(
    ("name", "kwargs", "message"),
    [
        ("conect_four_v3", {}, r"no classic game 'conect_four_v3' \(did you mean 'connect_four_v3'\?\)"),
        (
            "hanabi_v5",
            {},
            "cannot play PettingZoo's hanabi_v5, which has hidden information; supported: tictactoe_v3",
        ),
        ("go_v5", {"size": 9}, "cannot make go_v5 with the arguments {'size': 9}"),
    ],
)
def test_games_that_search_cannot_play_are_refused(name, kwargs, message):
    with pytest.raises(ConfigError, match=message):
        make_env(SimulatorConfig(name="pettingzoo", id=name, kwargs=kwargs))


class Board:
    def __init__(self):
        self.cells = [[0, 0], [0, 0]]


class Stateless:
    """Its `__getstate__` drops its state, as in many environments."""

    def __init__(self):
        self.board, self.numbers, self.array, self.fixed = Board(), [1, 2], np.zeros(2), {"a": [1]}
        self.again, self.same = self.numbers, self.board
        self.generator = np.random.default_rng(0)

    def __getstate__(self):
        return {}


def test_copies_share_only_the_shared_attributes():
    thing = Stateless()
    twin = copy_of(thing, {"fixed"})
    twin.board.cells[0][0] = 1
    twin.numbers.append(3)
    twin.array[0] = 1
    twin.generator.random()
    assert thing.board.cells == [[0, 0], [0, 0]]
    assert thing.numbers == [1, 2]
    assert thing.array.tolist() == [0, 0]
    assert thing.generator.random() == np.random.default_rng(0).random()
    assert twin.fixed is thing.fixed


class Marks(list):
    """A subclass of list."""

    def __init__(self, *marks):
        super().__init__(marks)


def test_subclasses_of_containers_are_copied():
    thing = Stateless()
    thing.marks = Marks(1, 2)
    twin = copy_of(thing, {"fixed"})
    twin.marks.append(3)
    assert (thing.marks, type(twin.marks)) == ([1, 2], Marks)


def test_references_to_the_same_object_stay_so_in_the_copy():
    twin = copy_of(Stateless(), ())
    assert twin.again is twin.numbers
    assert twin.same is twin.board
