"""Records of games, read again by python-chess and sgfmill."""

import io
from functools import cache

import chess
import chess.pgn
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from sgfmill import sgf

from podzero.core.errors import ConfigError
from podzero.envs import make_env
from podzero.envs.notation import notation_of
from podzero.evaluation.games import PlayedGame
from podzero.evaluation.records import record_suffix, record_text, write_records

FAMOUS = {
    "the immortal game": "e2e4 e7e5 f2f4 e5f4 f1c4 d8h4 e1f1 b7b5 c4b5 g8f6 g1f3 h4h6 d2d3 f6h5 f3h4 h6g5 h4f5 c7c6 "
    "g2g4 h5f6 h1g1 c6b5 h2h4 g5g6 h4h5 g6g5 d1f3 f6g8 c1f4 g5f6 b1c3 f8c5 c3d5 f6b2 f4d6 c5g1 e4e5 b2a1 f1e2 b8a6 "
    "f5g7 e8d8 f3f6 g8f6 d6e7",
    "castling, en passant and promotions": "e2e4 e7e6 e4e5 d7d5 e5d6 f8d6 g1f3 g8f6 f1e2 e8g8 e1g1 h7h5 a2a4 h5h4 "
    "a4a5 h4h3 a5a6 h3g2 a6b7 g2f1q e2f1 a7a5 b7a8n",
    "knights and rooks on one file, rank, and target": "b1c3 b8c6 g1f3 g8f6 d2d3 d7d6 f3d4 f6d5 d4b3 d5b6 b3d2 b6d7 "
    "c3b1 c6b8 d2f3 d7f6 b1d2 b8d7 a2a4 a7a5 h2h4 h7h5 a1a3 a8a6 h1h3 h8h6 a3c3",
}


@cache
def compiled(env):
    return jax.jit(env.step)


def actions_of(env, moves):
    notation, state, actions, step = notation_of(env.spec), env.init(jax.random.key(0)), [], compiled(env)
    for move in moves.split():
        actions.append(notation.action(jax.device_get(state), move))
        state = step(state, jnp.int32(actions[-1]))
    return actions


@pytest.fixture(scope="module")
def board():
    return make_env("chess")


@pytest.mark.parametrize("name", FAMOUS)
def test_python_chess_reads_games_of_chess_and_writes_the_same_moves(board, name):
    text = record_text(board, PlayedGame("a", "b", actions_of(board, FAMOUS[name]), 1.0), "2026-01-31")
    game = chess.pgn.read_game(io.StringIO(text))
    assert not game.errors
    assert " ".join(move.uci() for move in game.mainline_moves()) == FAMOUS[name]
    written = game.accept(chess.pgn.StringExporter(columns=80, headers=False))
    assert text.split("\n\n", maxsplit=1)[1] == written + "\n"
    assert (game.headers["Result"], game.headers["Date"]) == ("1-0", "2026.01.31")


def test_quotes_and_backslashes_in_names_are_escaped(board):
    """As section 7 of the standard says; python-chess 1.11 leaves the escapes in the names."""
    text = record_text(board, PlayedGame('a "b" \\c', "runs/x@1", [], 0.0, end="given up"))
    headers = chess.pgn.read_game(io.StringIO(text)).headers
    assert (headers["White"], headers["Black"], headers["Result"]) == (
        r'a \"b\" \\c', "runs/x@1", "0-1",
    )  # fmt: skip


def test_gardner_chess_names_its_variant_and_start():
    env = make_env("gardner_chess")
    text = record_text(env, PlayedGame("a", "b", actions_of(env, "c2c3 b4c3 b1c3"), 0.5))
    assert '[Variant "Gardner"]' in text
    assert "1. c3 bxc3 2. Nxc3 1/2-1/2\n" in text


@pytest.mark.parametrize(("game", "size"), [("go_9x9", 9), ("go_19x19", 19)])
def test_sgfmill_reads_games_of_go(game, size):
    env = make_env(game)
    moves = [0, size - 1, size * size, size * size - 1]
    read = sgf.Sgf_game.from_string(record_text(env, PlayedGame("a]b", "gnugo:1", moves, 0.0, end="given up")))
    played = [node.get_move() for node in read.main_sequence_iter() if node.get_move()[0]]
    last = size - 1
    assert played == [("b", (last, 0)), ("w", (last, last)), ("b", None), ("w", (0, last))]
    assert (read.get_size(), read.get_komi(), read.get_winner()) == (size, 7.5, "w")
    assert (read.get_player_name("b"), read.get_player_name("w")) == ("a]b", "gnugo:1")


def test_othello_and_hex_are_written_as_the_format_says():
    othello = record_text(make_env("othello"), PlayedGame("a", "b", [19, 64], 1.0))
    assert "GM[2]" in othello
    assert othello.endswith("RE[B+]\n;B[dc]\n;W[])\n")
    swapped = record_text(make_env("hex"), PlayedGame("a", "b", [12, 121, 1, 1], 0.0))
    assert "GM[11]" in swapped
    assert swapped.endswith("RE[W+]\n;B[b2]\n;W[swap-pieces]\n;B[b1]\n;W[a2])\n")


def test_other_games_are_written_with_their_own_names_of_moves():
    env = make_env("connect_four")
    text = record_text(env, PlayedGame("a", "b", [3, 3, 0], 0.5))
    assert '[Variant "connect_four"]' in text
    assert text.endswith("1. d d 2. a 1/2-1/2\n")


def test_several_games_in_one_file_are_read_one_by_one(tmp_path, board):
    games = [PlayedGame("a", "b", actions_of(board, "e2e4 e7e5"), points) for points in (1.0, 0.0)]
    write_records(tmp_path / "new" / "games.pgn", board, games)
    with (tmp_path / "new" / "games.pgn").open() as file:
        results = [chess.pgn.read_game(file).headers["Result"] for _ in range(2)]
        assert chess.pgn.read_game(file) is None
    assert results == ["1-0", "0-1"]
    assert [record_suffix(name) for name in ("chess", "go_9x9", "hex_11x11", "connect_four")] == [
        ".pgn", ".sgf", ".sgf", ".pgn",
    ]  # fmt: skip


def test_a_file_that_cannot_be_written_is_named(tmp_path, board):
    (tmp_path / "taken").write_text("")
    with pytest.raises(ConfigError, match=r"cannot be written.*taken/games\.pgn"):
        write_records(tmp_path / "taken" / "games.pgn", board, [])


def test_random_games_are_written_as_python_chess_writes_them(board):
    step, view = compiled(board), jax.jit(board.view)
    state, choose, actions = board.init(jax.random.key(3)), np.random.default_rng(5), []
    while len(actions) < 150 and not (seen := jax.device_get(view(state))).done:
        actions.append(int(choose.choice(np.flatnonzero(seen.legal))))
        state = step(state, jnp.int32(actions[-1]))
    game = chess.pgn.read_game(io.StringIO(text := record_text(board, PlayedGame("a", "b", actions, 0.5))))
    written = game.accept(chess.pgn.StringExporter(columns=80, headers=False))
    assert text.split("\n\n", maxsplit=1)[1] == written + "\n"
