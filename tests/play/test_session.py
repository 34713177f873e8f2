"""A game with a person: moves by name, steps back and forth, and the words for its end."""

import pytest

from podzero.envs import make_env
from podzero.envs.notation import NotationError
from podzero.play.session import Session


@pytest.fixture
def session():
    """A game of connect four."""
    return Session(make_env("connect_four"))


def test_a_won_game_names_the_winner_and_takes_no_more_moves(session):
    session.start_with(session.read("d, e d e d e d"))
    assert session.over
    assert session.result == "first player wins"
    assert session.legal == []
    with pytest.raises(NotationError, match="the game is over: first player wins"):
        session.play(0)


def test_a_move_in_the_middle_of_a_line_replaces_what_followed(session):
    session.start_with([3, 3, 2])
    session.show(1)
    assert session.last_move == 3
    session.play(6)
    assert session.names() == ["d", "g"]
    session.take_back()
    assert (session.moves, session.ply) == ([3], 1)


def test_full_columns_and_unknown_names_are_refused(session):
    session.start_with([0] * 6)
    with pytest.raises(NotationError, match="'a' is illegal in this position"):
        session.play_named("a")
    with pytest.raises(NotationError, match="move 2: 'z' is no move of connect_four"):
        session.read("a z")
    assert session.moves == [0] * 6


def test_a_copy_goes_its_own_way(session):
    session.start_with([3, 3])
    other = session.copy()
    other.play(2)
    assert (session.moves, other.moves) == ([3, 3], [3, 3, 2])


def test_who_began_is_first_even_where_the_start_draws_the_player():
    """pgx draws which of its two players begins."""
    env = make_env("tic_tac_toe")
    began = set()
    for seed in range(6):
        session = Session(env, seed)
        began.add(session.player)
        session.start_with(session.read("a1 b1 a2 b2"))
        session.play_named("a3")
        assert session.result == "first player wins"
        assert [session.turn_at(ply) for ply in range(3)] == [0, 1, 0]
