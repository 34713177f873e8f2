"""Recorded games as samples: targets computed by hand, and the games that the rules refuse."""

import re

import chess
import chess.pgn
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from podzero.config import GameConfig
from podzero.envs import make_env
from podzero.envs.notation import NotationError, notation_of, state_of
from podzero.tools.records.games import Fault, RecordedGame
from podzero.tools.records.pgn import chess_action, read_pgn
from podzero.tools.records.positions import GameReplay, ReplayedGame

WON = (0, 3, 1, 4, 2)
"""The first player completes the first row of tic-tac-toe."""
DRAWN = (0, 4, 8, 1, 7, 6, 2, 5, 3)


@pytest.fixture(scope="module")
def replay():
    """Two games at once, so that each place has several."""
    replay = GameReplay(make_env("tic_tac_toe"), at_once=2)
    return lambda *games: list(replay(RecordedGame(f"game {i}", *game) for i, game in enumerate(games)))


def test_targets_are_the_moves_played_and_the_outcome_for_the_player_to_move(replay):
    ((_, samples),) = replay((WON, None))
    np.testing.assert_array_equal(samples.policy_target, np.eye(9)[list(WON)])
    np.testing.assert_array_equal(samples.value_target, [1, -1, 1, -1, 1])
    np.testing.assert_array_equal(samples.outcome, [2, 0, 2, 0, 2])
    np.testing.assert_array_equal(samples.moves_left, [5, 4, 3, 2, 1])
    np.testing.assert_array_equal(samples.reply, [3, 1, 4, 2, -1])
    np.testing.assert_array_equal(samples.legal.sum(axis=1), [9, 8, 7, 6, 5])
    assert not samples.observation[0].any()
    # The player to move comes first: after two plies, its stone is on square 0 and the opponent's on square 3.
    assert samples.observation[2].reshape(9, 2)[[0, 3]].tolist() == [[True, False], [False, True]]


def test_searched_positions_have_the_policy_of_the_search_and_the_outcome_of_the_game():
    env = make_env("tic_tac_toe")

    def policy_of(states):
        """Twice as much for each further free square."""
        legal = np.asarray(jax.vmap(env.view)(states).legal)
        weights = np.where(legal, 2.0 ** np.cumsum(legal, axis=1), 0)
        return (weights / weights.sum(axis=1, keepdims=True)).astype(np.float32)

    games = [RecordedGame(f"game {number}", moves, None) for number, moves in enumerate((WON, DRAWN, WON))]
    found = {one.game.where: one.samples for one in GameReplay(env, at_once=2, policy_of=policy_of)(games)}
    for moves, samples in zip((WON, DRAWN, WON), (found[f"game {number}"] for number in range(3)), strict=True):
        for ply, policy in enumerate(samples.policy_target):
            expected = np.zeros(9)
            free = [square for square in range(9) if square not in moves[:ply]]
            expected[free] = 2.0 ** np.arange(1, len(free) + 1)
            np.testing.assert_allclose(policy, expected / expected.sum(), rtol=1e-6)
    np.testing.assert_array_equal(found["game 2"].value_target, [1, -1, 1, -1, 1])
    np.testing.assert_array_equal(found["game 2"].reply, [3, 1, 4, 2, -1])


def test_a_discount_lowers_the_value_of_early_positions():
    ((_, samples),) = GameReplay(make_env("tic_tac_toe"), 0.5, at_once=2)([RecordedGame("x", WON, None)])
    np.testing.assert_allclose(samples.value_target, [1 / 16, -1 / 8, 1 / 4, -1 / 2, 1])


@pytest.mark.parametrize(("points", "values"), [(0.0, [-1, 1]), (1.0, [1, -1]), (0.5, [0, 0])])
def test_a_game_that_was_given_up_has_the_recorded_result(replay, points, values):
    ((_, samples),) = replay(((0, 4), points))
    np.testing.assert_array_equal(samples.value_target, values)


def test_every_game_comes_back_once_whatever_its_length_and_faults(replay):
    games = [(WON, 1.0), ((0, 0), 1.0), (DRAWN, 0.5), ((4,), 0.0), (WON, None), ((9,), 1.0), (DRAWN, None)]
    found = {one.where if isinstance(one, Fault) else one.game.where: one for one in replay(*games)}
    assert len(found) == len(games)
    plies = {where: len(one.samples.legal) for where, one in found.items() if not isinstance(one, Fault)}
    assert plies == {"game 0": 5, "game 2": 9, "game 3": 1, "game 4": 5, "game 6": 9}
    np.testing.assert_array_equal(found["game 6"].samples.policy_target, np.eye(9)[list(DRAWN)])
    assert not found["game 2"].samples.value_target.any()


@pytest.mark.parametrize(
    ("moves", "points", "kind", "reason"),
    [
        ((0, 4, 0), 1.0, "illegal", "move 3"),
        ((0, -1), 1.0, "illegal", "move 2"),
        ((0, "z9"), 1.0, "illegal", "move 2.*z9"),
        ((*WON, 5), 1.0, "illegal", "move 5.*1 more"),
        ((0, 4), None, "unfinished", "move 2"),
        (WON, 0.0, "wrong result", "1-0"),
        (DRAWN, 1.0, "wrong result", "1/2-1/2"),
    ],
)
def test_games_that_the_rules_refuse_say_where(replay, moves, points, kind, reason):
    refused, kept = replay((moves, points), (WON, 1.0))
    if not isinstance(refused, Fault):
        refused, kept = kept, refused
    assert (refused.where, refused.kind) == ("game 0", kind)
    assert re.search(reason, refused.reason)
    assert kept.samples.value_target.tolist() == [1, -1, 1, -1, 1]


def test_nothing_is_learned_from_a_random_opening(replay):
    ((_, samples),) = replay((WON, None, 3))
    np.testing.assert_array_equal(samples.policy_target, np.eye(9)[[4, 2]])
    np.testing.assert_array_equal(samples.value_target, [-1, 1])
    np.testing.assert_array_equal(samples.moves_left, [2, 1])


def test_moves_may_be_names(replay):
    (numbers, _), (names, _) = replay((WON, None), (("a1", "A2", "b1", "b2", "c1"), None))
    assert numbers.moves == WON
    assert names.moves[1] == "A2"


def test_in_go_the_record_decides():
    """Two passes end the game; on the empty board white wins by komi, whatever the record says."""
    replay = GameReplay(make_env("go_9x9"), at_once=2)
    ((_, samples),) = replay([RecordedGame("x", (81, 81), 1.0)])
    assert samples.value_target.tolist() == [1, -1]
    ((_, samples),) = replay([RecordedGame("x", (81, 81), None)])
    assert samples.value_target.tolist() == [-1, 1]


def test_an_illegal_move_is_named_as_people_write_it():
    (fault,) = GameReplay(make_env("go_9x9"), at_once=2)([RecordedGame("x", (40, 40), 1.0)])
    assert (fault.kind, fault.reason) == ("illegal", "move 2: 'E5' is not legal")


def test_where_the_network_sees_the_komi_it_is_that_of_the_record():
    """7.5 if there is none; the planes hold 64 plus the half points for the player to move, black first."""
    replay = GameReplay(make_env(GameConfig(name="go_9x9", komi=(7.5, 7.5))), at_once=2)
    games = [RecordedGame(str(number), (40, 81), 1.0, komi=komi) for number, komi in enumerate((6.5, None, -3, 375))]
    found = {game.game.komi: game.samples for game in replay(games) if isinstance(game, ReplayedGame)}
    seen = {komi: samples.observation[:, 0, 0, 17:] @ 2 ** np.arange(7) - 64 for komi, samples in found.items()}
    assert {komi: points.tolist() for komi, points in seen.items()} == {6.5: [-13, 13], None: [-15, 15], -3: [6, -6]}
    (fault,) = (one for one in replay(games) if isinstance(one, Fault))
    assert (fault.where, fault.kind) == ("3", "foreign")
    assert "375" in fault.reason


FAMOUS = {
    "castling, en passant and promotions": "e2e4 e7e6 e4e5 d7d5 e5d6 f8d6 g1f3 g8f6 f1e2 e8g8 e1g1 h7h5 a2a4 h5h4 "
    "a4a5 h4h3 a5a6 h3g2 a6b7 g2f1q e2f1 a7a5 b7a8n",
    "knights and rooks on one file, rank, and target": "b1c3 b8c6 g1f3 g8f6 d2d3 d7d6 f3d4 f6d5 d4b3 d5b6 b3d2 b6d7 "
    "c3b1 c6b8 d2f3 d7f6 b1d2 b8d7 a2a4 a7a5 h2h4 h7h5 a1a3 a8a6 h1h3 h8h6 a3c3",
}


@pytest.mark.parametrize("name", FAMOUS)
def test_algebraic_names_of_python_chess_are_understood(name):
    env, uci = make_env("chess"), FAMOUS[name].split()
    notation, step, view = notation_of(env.spec), jax.jit(env.step), jax.jit(env.view)
    board, state = chess.Board(), jax.device_get(env.init(jax.random.key(0)))
    for move in uci:
        legal = np.asarray(view(state).legal)
        action = notation.action(state, move)
        assert chess_action(notation, state, legal, board.san(chess.Move.from_uci(move))) == action
        board.push_uci(move)
        state = jax.device_get(step(state, jnp.int32(action)))


@pytest.mark.parametrize("name", ["Nd2", "e5", "O-O", "Ke2", "xx", "e9", "e8=Q", ""])
def test_algebraic_names_without_a_single_legal_move_are_refused(name):
    """In the initial position; a pawn stands on d2 and on e2."""
    env = make_env("chess")
    state = jax.device_get(env.init(jax.random.key(0)))
    legal = np.asarray(jax.jit(env.view)(state).legal)
    with pytest.raises(NotationError):
        chess_action(notation_of(env.spec), state, legal, name)


@pytest.mark.parametrize("name", ["d5", "Pd5", "4d5"])
def test_a_pawn_that_takes_is_named_with_its_file(name):
    spec = make_env("chess").spec
    notation, legal = notation_of(spec), np.ones(spec.num_actions, bool)
    state = state_of("4k3/8/8/3p4/2P5/8/8/4K3 w - - 0 1", 8)
    assert chess_action(notation, state, legal, "cxd5") == chess_action(notation, state, legal, "c4d5")
    with pytest.raises(NotationError):
        chess_action(notation, state, legal, name)


def test_castling_is_not_named_as_a_move_of_the_king():
    spec = make_env("chess").spec
    notation, legal = notation_of(spec), np.ones(spec.num_actions, bool)
    state = state_of("4k3/8/8/8/8/8/8/R3K3 w Q - 0 1", 8)
    assert chess_action(notation, state, legal, "O-O-O") == chess_action(notation, state, legal, "e1c1")
    with pytest.raises(NotationError):
        chess_action(notation, state, legal, "Kc1")


@pytest.mark.slow
def test_random_games_of_python_chess_are_replayed_move_by_move():
    env, random, texts, played = make_env("chess"), np.random.default_rng(0), [], []
    for _ in range(8):
        board = chess.Board()
        while len(board.move_stack) < 120 and (moves := list(board.legal_moves)):
            board.push(moves[random.integers(len(moves))])
        game = chess.pgn.Game.from_board(board)
        game.headers["Result"] = board.result() if board.is_game_over() else "0-1"
        texts.append(f"{game}\n\n")
        played.append([move.uci() for move in board.move_stack])
    games = list(read_pgn("".join(texts).encode(), "x", env.spec))
    found = {one.game.where: one.samples for one in GameReplay(env, at_once=4)(games)}
    names = [notation_of(env.spec).names(np.argmax(found[game.where].policy_target, axis=1).tolist()) for game in games]
    assert names == played
    for game in games:
        assert found[game.where].value_target[:2].tolist() == [2 * game.points - 1, 1 - 2 * game.points]
