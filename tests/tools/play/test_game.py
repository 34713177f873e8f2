"""One game: moves by name, steps back and forth, who is to move, and the words for its end."""

import pytest

from podzero.config import SimulatorConfig, load
from podzero.envs import SimulatorError, make_env
from podzero.envs.host import HostEnv
from podzero.envs.notation import NotationError, names_in_text
from podzero.envs.simulator_libraries import OpenSpielGame
from podzero.tools.play.game import PlayableGame

ENV = make_env("connect_four")


@pytest.fixture
def game():
    """A game of connect four."""
    return PlayableGame(ENV)


def test_a_won_game_names_the_winner_and_takes_no_more_moves(game):
    game.restart(game.read("d, e d e d e d"))
    assert game.over
    assert game.result == "Red wins"
    assert game.legal == []
    with pytest.raises(NotationError, match="over: Red wins"):
        game.play(0)


def test_a_move_in_the_middle_of_a_line_replaces_what_followed(game):
    game.restart([3, 3, 2])
    game.show(1)
    assert game.last_move == 3
    game.play(6)
    assert game.names == ["d", "g"]
    game.take_back()
    assert (game.moves, game.ply) == ([3], 1)


def test_full_columns_and_unknown_names_are_refused(game):
    game.restart([0] * 6)
    with pytest.raises(NotationError, match="'a' is illegal"):
        game.play("a")
    with pytest.raises(NotationError, match=r"move 2: 'z' .*connect_four"):
        game.read("a z")
    assert game.moves == [0] * 6


def test_a_copy_goes_its_own_way(game):
    game.restart([3, 3])
    other = game.copy()
    other.play(2)
    assert (game.moves, other.moves) == ([3, 3], [3, 3, 2])


def test_who_began_is_first_even_where_the_start_draws_the_player():
    """pgx draws which of its two players begins."""
    env = make_env("tic_tac_toe")
    began = set()
    for seed in range(6):
        game = PlayableGame(env, seed)
        began.add(int(game.position.view.player))
        game.restart(game.read("a1 b1 a2 b2"))
        game.play("a3")
        assert game.result == "first player wins"
        assert [game.turn_at(ply) for ply in range(3)] == [0, 1, 0]
    assert began == {0, 1}


def test_the_player_who_began_gets_the_points_of_the_shown_position(game):
    game.restart(game.read("d e d e d e a e"))
    assert (game.points, game.result) == (-1.0, "Yellow wins")
    game.take_back()
    assert (game.points, game.result, game.first_to_move) == (0.0, "", False)


def test_a_move_of_a_new_line_that_is_illegal_is_named_by_its_place(game):
    with pytest.raises(NotationError, match=r"move 7: move 0 .*illegal"):
        game.restart([0] * 7)
    with pytest.raises(NotationError, match="move 1: move 7 is illegal"):
        game.restart([7])
    with pytest.raises(NotationError, match="move -1 is illegal"):
        game.play(-1)


def test_only_moves_that_are_there_are_taken_back(game):
    game.restart([3, 3, 2])
    plies = []
    for taken in (2, 2, 1):
        game.take_back(taken)
        plies.append(game.ply)
    assert plies == [1, 0, 0]


def test_a_game_from_a_given_state_counts_its_own_first_player(game):
    game.restart([3])
    state = game.state
    game.restart(state=state)
    assert (game.moves, game.position.view.player, game.turn, game.from_beginning) == ([], 1, 0, False)
    assert game.copy().read("d d") == [3, 3]
    game.restart()
    assert game.from_beginning
    assert game.position is game.beginning


def test_a_game_goes_on_from_a_state_and_keeps_its_moves(game):
    game.restart(game.read("d e d e d e d"))
    going_on = game.copy()
    going_on.take_back()
    game.resume(going_on.state)
    assert not game.over
    assert game.names == ["d", "e", "d", "e", "d", "e", "d"]
    game.play("d")
    assert game.result == "Red wins"


def test_the_mask_and_the_list_of_legal_actions_agree(game):
    game.restart([0] * 6)
    assert game.legal == [1, 2, 3, 4, 5, 6]
    assert game.legal_mask.tolist() == [False] + [True] * 6


def test_a_line_is_named_up_to_the_end_of_the_game_and_not_played(game):
    game.restart(game.read("d, e d e d e"))
    assert game.names_of([3, 4, 4]) == ["d"]
    assert game.names_of([0, 1]) == ["a", "b"]
    assert game.ply == 6


def test_moves_have_the_names_of_a_simulator_that_names_them():
    game = PlayableGame(make_env(SimulatorConfig(name="open_spiel", id="tic_tac_toe")))
    assert game.name(4) == "x(1,1)"
    game.play("X(1, 1)")  # in any case, with any white space
    with pytest.raises(NotationError, match=r"'x\(0,0\)'.*: o\(0,0\), o\(0,1\)"):
        game.play("x(0,0)")
    assert game.read("x(1,1), o(0,0)") == [4, 0]


def test_names_that_differ_by_case_alone_are_told_apart(monkeypatch):
    monkeypatch.setattr(OpenSpielGame, "action_name", lambda self, action: "aA"[action] if action < 2 else str(action))
    game = PlayableGame(HostEnv(OpenSpielGame("tic_tac_toe", {}), "cased", max_plies=9))
    assert (game.action("a"), game.action("A")) == (0, 1)


def test_a_simulator_whose_names_fail_is_named(monkeypatch):
    monkeypatch.setattr(OpenSpielGame, "action_name", lambda self, action: {}[action])
    game = PlayableGame(HostEnv(OpenSpielGame("tic_tac_toe", {}), "failing", max_plies=9))
    with pytest.raises(SimulatorError, match="failing: action_name raised KeyError: 4"):
        game.name(4)


@pytest.mark.parametrize(
    ("text", "names"),
    [
        ("d e", ["d", "e"]),
        ("d,e, f", ["d", "e", "f"]),
        ("x(1,1), o(0, 0)", ["x(1,1)", "o(0, 0)"]),
        ("P*5e 8h2b+", ["P*5e", "8h2b+"]),
        ("a( b", ["a(", "b"]),
        ("", []),
    ],
)
def test_commas_in_parentheses_belong_to_a_name(text, names):
    assert names_in_text(text) == names


def test_the_returns_of_three_players_are_the_result_of_their_game(three_players):
    game = PlayableGame(make_env(load(str(three_players)).env))
    game.restart([0, 24, 23, 1, 22, 21, 2])
    assert game.over
    assert game.result == "over, returns 1, -0.5, -0.5"
