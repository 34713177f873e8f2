"""Agents in Python: what they say of positions, and the games that they play."""

import jax
import numpy as np
import pytest
from untrained_agents import write_untrained

import podzero
from podzero.core.errors import ConfigError
from podzero.evaluation.players import GIVES_UP
from podzero.tools.api.agent import Agent

NEARLY_WON = "a1 b1 a2 b2"
"""The player who began wins with a3."""


def test_an_agent_is_named_by_its_folder_and_step(agent, folder):
    assert (agent.name, agent.plays, agent.simulations) == (f"{folder}@5", "tic_tac_toe", 8)
    assert podzero.load(f"{folder}@5", simulations=3).name == f"{folder}@5"
    assert repr(agent) == f"<{folder}@5, an agent of tic_tac_toe>"


def test_an_agent_is_refused_where_jax_computes_in_64_bits():
    with jax.enable_x64(True), pytest.raises(ConfigError, match="jax_enable_x64"):
        podzero.load("zoo:tic_tac_toe")


def test_the_network_gives_probabilities_of_legal_moves_alone(agent):
    said = agent.evaluate("a1 b2")
    assert (said.policy.shape, said.policy.dtype) == ((9,), np.float32)
    assert said.policy.sum() == pytest.approx(1)
    assert said.policy[[0, 4]].tolist() == [0, 0]
    assert -1 <= said.value <= 1
    assert set(said.probabilities) == {"b1", "c1", "a2", "c2", "a3", "b3", "c3"}
    assert next(iter(said.probabilities)) == said.best
    assert agent.evaluate("a1 b2").policy.tolist() == said.policy.tolist()


def test_a_search_finds_the_winning_move_and_counts_its_visits(mcts):
    found = mcts.search(NEARLY_WON)
    assert (found.best, found.simulations, found.visits.sum()) == ("a3", 64, 64)
    assert found.value > 0.5
    assert next(iter(found.visit_counts.items())) == ("a3", found.visits[6])
    assert repr(found) == f"Search(best='a3', value={found.value:+.3f})"


def test_the_number_of_simulations_is_that_of_training_unless_it_is_given(agent, mcts):
    assert agent.search().visits.sum() == 8
    assert agent.search(simulations=2).visits.sum() == 2
    assert mcts.search(simulations=5).visits.sum() == 5


def test_the_heat_map_has_the_policy_on_the_board(agent):
    said = agent.evaluate("a1 b2")
    np.testing.assert_allclose(said.heat_map, said.policy.reshape(3, 3))
    drawn = podzero.board(said.game)
    assert (drawn.owner[0, 0], drawn.owner[1, 1], drawn.columns) == (0, 1, ("a", "b", "c"))


def test_given_games_are_not_changed(agent):
    game = agent.new_game("a1")
    said, played = agent.evaluate(game), agent.play(position=game)
    game.play("b2")
    assert said.game.names == ["a1"]
    assert played.moves[0] == "a1"
    assert game.names == ["a1", "b2"]


def test_the_shown_position_is_the_one_that_is_searched(mcts):
    game = mcts.new_game(f"{NEARLY_WON} a3")
    game.show(4)
    assert mcts.search(game).best == "a3"


def test_agents_play_to_the_end_with_values_for_the_player_who_began(agent, mcts):
    assert agent.play("random").game.over  # a name as in `load`
    played = agent.play(mcts, NEARLY_WON, second=True)
    assert played.moves == ["a1", "b1", "a2", "b2", "a3"]
    assert played.players == (mcts.name, agent.name)
    assert (played.result, played.points) == ("first player wins", 1.0)
    assert np.isnan(played.values[:4]).all()
    assert played.values[4] > 0.5
    assert repr(played) == f"<mcts:64 against {agent.name}: first player wins after 5 moves>"


def test_the_sign_of_a_value_is_that_of_the_player_who_began(mcts):
    played = mcts.play(position="a1 b1 a2 b2 c3")  # the second player wins with b3
    assert played.result == "second player wins"
    assert (played.values[5] < -0.5, played.points) == (True, 0.0)


def test_a_game_against_itself_has_a_record_that_can_be_saved(agent, tmp_path):
    played = agent.play()
    record = played.record("2026-01-31")
    assert f'[White "{agent.name}"]\n[Black "{agent.name}"]' in record
    assert f"1. {played.moves[0]} {played.moves[1]} 2. {played.moves[2]}" in record
    played.save(tmp_path / "games" / "one.pgn", "2026-01-31")
    assert (tmp_path / "games" / "one.pgn").read_text() == record


def test_players_without_a_search_play_and_say_nothing_of_positions(mcts):
    solver = podzero.load("solver", game="tic_tac_toe")
    played = solver.play(mcts)
    assert played.points >= 0.5
    assert np.isnan(played.values[::2]).all()
    with pytest.raises(ConfigError, match="'solver' does not search"):
        solver.search()
    with pytest.raises(ConfigError, match=r"'mcts:64' .*no network"):
        mcts.evaluate()


class Resigns:
    """A program that plays the first legal action, then resigns."""

    name, deterministic = "resigns", True

    def choose_after(self, turns):
        return [int(turn.legal.argmax()) if len(turn.moves) < 2 else GIVES_UP for turn in turns]


def test_a_program_that_resigns_loses(monkeypatch, mcts):
    program = Agent("random", mcts._env)
    monkeypatch.setattr(program, "_player", Resigns())
    played = program.play(mcts)
    assert (len(played.moves), played.resigned, played.points) == (2, True, 0.0)
    assert played.result == "second player wins, the other one resigned"
    assert '[Termination "abandoned"]' in played.record()
    assert mcts.play(program).points == 1.0
    moved = mcts.new_game()
    moved.restart(state=moved.state)
    with pytest.raises(ConfigError, match="all moves of a game"):
        program.play(mcts, moved)


def test_games_from_a_given_state_have_no_record(agent):
    game = agent.new_game("a1")
    game.restart(state=game.state)
    played = agent.play(position=game)
    with pytest.raises(ConfigError, match="two-player games from the initial state"):
        played.record()


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("mcts:200",), r"'mcts:200' .*load\('mcts:200', game='connect_four'\)"),
        (("mcts:200", "tic_tac_toe", 5), "number of simulations; mcts:5"),
        (("zoo:go_9x8",), "no agent 'go_9x8' comes with podzero"),
        (("nowhere",), "unknown player 'nowhere'"),
        (("zoo:go_9x9", "othello"), "these play different games"),
        (("random", "cartpole"), "'random' is no trained agent of gymnasium/CartPole-v1; `podzero evaluate random`"),
        (("zoo:go_9x9", None, 0), "expected at least one simulation, not 0"),
    ],
)
def test_agents_that_cannot_be_loaded_are_refused_with_advice(arguments, words):
    with pytest.raises(ConfigError, match=words):
        podzero.load(*arguments)


@pytest.mark.parametrize(
    ("ask", "words"),
    [
        (lambda agent: agent.search("a1 a1"), "move 2: 'a1' is illegal"),
        (lambda agent: agent.evaluate("z9"), "move 1: 'z9' is not a move of tic_tac_toe"),
        (lambda agent: agent.search(f"{NEARLY_WON} a3"), r"the game is over \(first player wins\)"),
        (lambda agent: agent.search(simulations=-1), "at least one simulation"),
        (lambda agent: agent.play(podzero.load("random", "connect_four")), "plays tic_tac_toe, not connect_four"),
    ],
)
def test_positions_that_cannot_be_asked_for_are_refused_with_advice(agent, ask, words):
    with pytest.raises(podzero.PodzeroError, match=words):
        ask(agent)


def test_two_agents_of_the_same_game_compare(tmp_path, agent):
    other = podzero.load(write_untrained(tmp_path / "other", "tic_tac_toe", 9))
    assert other.evaluate().policy.tolist() != agent.evaluate().policy.tolist()
    assert agent.play(other).game.over


def test_a_game_for_three_is_not_played(three_players):
    with pytest.raises(ConfigError, match="3 players"):
        podzero.load("random", game=str(three_players)).play()
