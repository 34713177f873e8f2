"""A game in the terminal, from the person's lines to what is shown."""

import io

import pytest
from rich.console import Console

from podzero.config import ChanceGameConfig
from podzero.envs import make_env
from podzero.evaluation.players import mcts_player
from podzero.tools.play.command import TerminalGame
from podzero.tools.play.game import PlayableGame
from podzero.tools.play.searching import PositionSearch

ENV = make_env("tic_tac_toe")
SEARCH = PositionSearch(lambda simulations: mcts_player(ENV, simulations))


@pytest.fixture
def played():
    """Runs a game with the given lines; returns the game and what was shown."""

    def run(*lines, side=0, env=ENV):
        shown, waiting = io.StringIO(), iter(lines)
        game = PlayableGame(env)

        def read(prompt):
            try:
                return next(waiting)
            except StopIteration:
                raise EOFError from None

        TerminalGame(game, SEARCH, 64, side, Console(file=shown, width=100), read).run()
        return game, shown.getvalue()

    return run


def test_the_player_replies_to_each_move(played):
    game, shown = played("b2")
    assert game.ply == 2
    assert "mcts:64 plays" in shown
    assert "2 . X ." in shown


def test_a_person_on_the_second_side_sees_a_move_first(played):
    game, _ = played(side=1)
    assert game.ply == 1


def test_wrong_names_list_the_legal_moves_and_cost_nothing(played):
    game, shown = played("z9", "quit", "a1")
    assert game.ply == 0
    assert "'z9' is not a move of tic_tac_toe" in shown
    assert "Legal: a1 b1 c1" in shown


def test_undo_takes_back_the_move_and_its_reply(played):
    game, _ = played("b2", "undo")
    assert game.moves == []


def test_in_a_game_for_one_nobody_replies_and_undo_takes_back_one_move(played):
    env = make_env(ChanceGameConfig(name="2048"))
    game = PlayableGame(env)
    first = game.name(game.legal[0])
    game.play(first)
    second = game.name(game.legal[0])
    played_out, shown = played(first, second, "undo", env=env)
    assert played_out.names == [first]
    assert "You play alone" in shown


def test_a_hint_shows_policy_and_visits(played):
    _, shown = played("hint", "moves", "help")
    assert "policy" in shown
    assert "no move yet" in shown
    assert "hint, undo" in shown
