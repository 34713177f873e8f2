"""Names of moves, along random games; those of chess beside python-chess."""

import os
import re
import shutil
import subprocess
from types import SimpleNamespace

import chess
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from podzero.core.types import EnvSpec
from podzero.envs import make_env
from podzero.envs.boards import BOARD_GAMES
from podzero.envs.notation import NotationError, fen_of, notation_of, state_of

PLIES = {"go_19x19": 40, "go_9x9": 90, "chess": 120, "gardner_chess": 120}


class Walk:
    """A random game on the host: states before each action, legal actions there, and the actions."""

    def __init__(self, name, seed=0, plies=None):
        self.env = make_env(name)
        self.notation = notation_of(self.env.spec)
        self.states, self.legal, self.actions = [], [], []
        self.init, self.view, self.step = map(jax.jit, (self.env.init, self.env.view, self.env.step))
        state = self.init(jax.random.key(seed))
        choose = np.random.default_rng(seed)
        for _ in range(plies or PLIES.get(name, 400)):
            seen = jax.device_get(self.view(state))
            if seen.done:
                break
            self.states.append(jax.device_get(state))
            self.legal.append(np.flatnonzero(seen.legal))
            self.actions.append(int(choose.choice(self.legal[-1])))
            state = self.step(state, jnp.int32(self.actions[-1]))


@pytest.fixture(scope="module")
def walks():
    made = {}
    return lambda name: made.setdefault(name, Walk(name))


@pytest.fixture(scope="module")
def chess_game(walks):
    """Chess as compiled for its random game."""
    walk = walks("chess")
    return SimpleNamespace(
        init=walk.init,
        notation=walk.notation,
        step=walk.step,
        legal=lambda state: np.flatnonzero(walk.view(state).legal),
    )


def after(chess_game, moves):
    state = chess_game.init(jax.random.key(0))
    for move in moves.split():
        state = chess_game.step(state, jnp.int32(chess_game.notation.action(state, move)))
    return jax.device_get(state)


NAMED = [*BOARD_GAMES, "tic_tac_toe", "animal_shogi", pytest.param("shogi", marks=pytest.mark.slow)]


@pytest.mark.parametrize("name", NAMED)
def test_every_legal_action_has_a_name_of_its_own_that_leads_back_to_it(walks, name):
    walk = walks(name)
    assert len(walk.actions) > 4
    for state, legal in zip(walk.states, walk.legal, strict=True):
        names = [walk.notation.name(state, int(action)) for action in legal]
        assert len(set(names)) == len(names)
        assert [walk.notation.action(state, named.upper()) for named in names] == legal.tolist()


@pytest.mark.parametrize("name", NAMED)
def test_the_names_of_a_game_are_those_in_its_positions(walks, name):
    walk = walks(name)
    one_by_one = [walk.notation.name(state, action) for state, action in zip(walk.states, walk.actions, strict=True)]
    assert walk.notation.names(walk.actions) == one_by_one


def test_legal_moves_and_positions_of_chess_are_those_of_python_chess(walks):
    walk = walks("chess")
    board = chess.Board()
    for state, legal, action in zip(walk.states, walk.legal, walk.actions, strict=True):
        assert {walk.notation.name(state, int(one)) for one in legal} == {move.uci() for move in board.legal_moves}
        assert fen_of(state, 8) == board.fen(en_passant="fen")
        board.push_uci(walk.notation.name(state, action))


@pytest.mark.parametrize(
    "moves",
    [
        "e2e4 e7e5 g1f3 b8c6 f1c4 f8c5 e1g1 g8f6 d2d3 e8g8",
        "d2d4 d7d5 c1f4 c8f5 b1c3 b8c6 d1d2 d8d7 e1c1 e8c8",
        "e2e4 a7a6 e4e5 d7d5 e5d6 a6a5 d6c7 a5a4 b2b4 a4b3",
        "a2a4 h7h5 a4a5 h5h4 a5a6 h4h3 a6b7 h3g2 b7a8n g2h1q",
        "a2a4 h7h5 a4a5 h5h4 a5a6 h4h3 a6b7 h3g2 b7c8r g2h1b",
    ],
)
def test_castling_en_passant_and_promotions_have_the_names_of_uci(chess_game, moves):
    notation = chess_game.notation
    board = chess.Board()
    for number in range(len(moves.split()) + 1):
        state = after(chess_game, " ".join(moves.split()[:number]))
        legal = chess_game.legal(state)
        assert {notation.name(state, int(one)) for one in legal} == {move.uci() for move in board.legal_moves}
        assert fen_of(state, 8) == board.fen(en_passant="fen")
        if number < len(moves.split()):
            board.push_uci(moves.split()[number])


@pytest.mark.slow
def test_legal_moves_of_shogi_are_those_of_fairy_stockfish(walks):
    program = shutil.which("fairy-stockfish", path=os.pathsep.join([os.environ["PATH"], "/usr/games"]))
    if program is None:
        missing = "the program fairy-stockfish is not installed: apt-get install fairy-stockfish"
        pytest.fail(missing) if os.environ.get("PODZERO_ENGINES") == "required" else pytest.skip(missing)
    walk, lines = walks("shogi"), ["usi"]
    names = walk.notation.names(walk.actions)
    shown = range(0, len(walk.states), 10)
    for ply in shown:
        lines += [f"position startpos moves {' '.join(names[:ply])}", "go perft 1"]
    said = subprocess.run(
        [program], input="\n".join([*lines, "quit", ""]), capture_output=True, text=True, timeout=60, check=True
    ).stdout
    counted = [re.findall(r"^(\S+): 1$", part, re.MULTILINE) for part in said.split("Nodes searched")[: len(shown)]]
    for ply, theirs in zip(shown, counted, strict=True):
        assert {walk.notation.name(walk.states[ply], action) for action in walk.legal[ply]} == set(theirs)


def test_drops_and_promotions_of_animal_shogi_have_the_names_of_usi(walks):
    walk = walks("animal_shogi")
    names = walk.notation.names(walk.actions)
    assert all(re.fullmatch(r"([1-3][a-d]|[CEG]\*)[1-3][a-d]", name) for name in names)
    assert any("*" in name for name in names)


def test_a_move_of_other_positions_is_named_in_animal_shogi(walks):
    walk = walks("animal_shogi")
    assert walk.notation.action(walk.states[0], "c*2B") not in walk.legal[0]


@pytest.mark.parametrize("name", ["2c2b+", "4a4b", "P*2b", "2c", "9i9h", "c*2İ"])
def test_a_name_of_no_move_of_animal_shogi_is_refused(walks, name):
    walk = walks("animal_shogi")
    with pytest.raises(NotationError, match="animal_shogi"):
        walk.notation.action(walk.states[0], name)


def test_go_is_named_as_in_gtp():
    notation = notation_of(make_env("go_9x9").spec)
    assert notation.names([0, 8, 72, 80, 40, 81]) == ["A9", "J9", "A1", "J1", "E5", "pass"]
    assert notation_of(make_env("go_19x19").spec).names([18, 342]) == ["T19", "A1"]


def test_columns_of_connect_four_have_letters_and_numbers():
    notation = notation_of(make_env("connect_four").spec)
    assert notation.names([0, 6]) == ["a", "g"]
    assert [notation.action(None, name) for name in ("1", "7", "D")] == [0, 6, 3]


def test_actions_of_other_games_have_their_number():
    notation = notation_of(EnvSpec("simulator/my_games:Nim", (9, 9, 119), "bool", 2187))
    assert notation.names([17]) == ["a17"]
    assert notation.action(None, "a17") == 17


@pytest.mark.parametrize(("game", "name"), [("go_9x9", "I5"), ("go_9x9", "A10"), ("othello", "i1")])
def test_a_name_of_no_move_is_refused(game, name):
    with pytest.raises(NotationError, match=f"'{name}'.*{game}"):
        notation_of(make_env(game).spec).action(None, name)


def test_a_name_of_no_move_of_hex_is_refused(walks):
    walk = walks("hex")
    with pytest.raises(NotationError, match="'' is not a move of hex"):
        walk.notation.action(walk.states[0], "")


@pytest.mark.parametrize("name", ["e2", "e2e9", "i2i4", "e2e4q", "e2f7", "a1b3n", "0000"])
def test_a_name_of_no_move_of_chess_is_refused(chess_game, name):
    with pytest.raises(NotationError, match="moves are as e2e4"):
        chess_game.notation.action(after(chess_game, ""), name)


def test_squares_outside_the_small_board_are_refused():
    env = make_env("gardner_chess")
    with pytest.raises(NotationError, match="gardner_chess"):
        notation_of(env.spec).action(jax.device_get(jax.jit(env.init)(jax.random.key(0))), "f2f3")


@pytest.mark.parametrize(
    "fen",
    [
        "r3k2r/p1ppqpb1/bn2pnp1/3PN3/1p2P3/2N2Q1p/PPPBBPPP/R3K2R w KQkq - 0 1",
        "8/2p5/3p4/KP5r/1R3p1k/8/4P1P1/8 w - - 12 34",
        "rnbqkbnr/pppp1ppp/8/8/3Pp3/8/PPP1PPPP/RNBQKBNR b Qk d3 0 3",
        "r3k2r/Pppp1ppp/1b3nbN/nP6/BBP1P3/q4N2/Pp1P2PP/R2Q1RK1 w kq - 0 1",
    ],
)
def test_a_fen_and_its_state_are_the_same_position(chess_game, fen):
    notation = chess_game.notation
    state = state_of(fen, 8)
    assert fen_of(state, 8) == fen
    legal = chess_game.legal(state)
    expected = {move.uci() for move in chess.Board(fen).legal_moves}
    assert {notation.name(state, int(one)) for one in legal} == expected


def test_the_fen_of_the_start_is_the_start():
    for name, size in (("chess", 8), ("gardner_chess", 5)):
        start = jax.jit(make_env(name).init)(jax.random.key(1))
        again = state_of(fen_of(start, size), size)
        assert jax.tree.all(jax.tree.map(np.array_equal, again.board, start.board))
    assert fen_of(start, 5) == "rnbqk/ppppp/5/PPPPP/RNBQK w - - 0 1"


@pytest.mark.parametrize(
    "fen",
    [
        "",
        "8/8/8/8/8/8/8/8 w - - 0 1",
        "8/8/8/8/8/8/8/kK w - -",
        "8/8/8/8/8/8/8/kK5x w - - 0 1",
        "kK6/8/8/8/8/8/8/8 x - - 0 1",
        "kK6/8/8/8/8/8/8/8 w - e4 0 1",
        "kK6/8/8/8/8/8/8/8 w - - a 1",
        "kKP5/8/8/8/8/8/8/8 w - - 0 1",
    ],
)
def test_a_malformed_fen_is_refused(fen):
    with pytest.raises(NotationError):
        state_of(fen, 8)
