"""Symmetries are groups of transformations; test_games.py plays transformed games."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from podzero.envs import make_env
from podzero.envs.registry import GAMES

COUNTS = {"tic_tac_toe": 7, "connect_four": 1, "othello": 7, "go_7x7": 7, "go_9x9": 7, "go_19x19": 7, "hex": 1,
          "gardner_chess": 1}  # fmt: skip


@pytest.mark.parametrize("name", GAMES)
def test_number_of_symmetries(name):
    assert len(make_env(name).symmetries) == COUNTS.get(name, 0)


@pytest.mark.parametrize("name", COUNTS)
def test_symmetries_are_a_group_with_the_identity(name):
    env = make_env(name)
    identity = tuple(range(env.spec.num_actions))
    group = {identity} | {tuple(s.actions.tolist()) for s in env.symmetries}
    assert len(group) == 1 + len(env.symmetries)
    for first in group:
        assert sorted(first) == list(identity)
        for second in group:
            assert tuple(first[action] for action in second) in group


@pytest.mark.parametrize("name", sorted(COUNTS.keys() - {"gardner_chess"}))
def test_symmetries_move_the_board_as_they_move_the_actions(name):
    """The cell of an action moves to the entry of the new policy that belongs to the same action."""
    env = make_env(name)
    rows, columns, *_ = env.spec.observation_shape
    cells = np.arange(rows * columns).reshape(rows, columns)
    turn = jax.jit(lambda cells: [symmetry.observation(cells) for symmetry in env.symmetries])
    for symmetry, moved in zip(env.symmetries, jax.device_get(turn(cells)), strict=True):
        assert symmetry.actions.dtype == np.int32
        if name == "connect_four":
            np.testing.assert_array_equal(moved[0], symmetry.actions)
        else:
            np.testing.assert_array_equal(moved.ravel(), symmetry.actions[: rows * columns])


def test_gardner_chess_mirrors_both_squares_of_a_move_and_keeps_its_promotion():
    """By pgx's own decoding of actions, impossible ones (to -1) included."""
    from pgx.gardner_chess import Action, _rotate

    (symmetry,) = make_env("gardner_chess").symmetries
    shown = np.asarray(_rotate(jnp.arange(25).reshape(5, 5)))  # the number of the square at each cell of an observation
    mirror = np.full(26, -1)  # the last entry keeps -1
    mirror[shown] = symmetry.observation(shown)
    np.testing.assert_array_equal(mirror[:5], [20, 21, 22, 23, 24])  # the a-file becomes the e-file
    moves = jax.device_get(jax.vmap(Action._from_label)(jnp.arange(1225)))
    np.testing.assert_array_equal(moves.from_[symmetry.actions], mirror[moves.from_])
    np.testing.assert_array_equal(moves.to[symmetry.actions], mirror[moves.to])
    np.testing.assert_array_equal(moves.underpromotion[symmetry.actions], moves.underpromotion)


def test_shogi_of_pgx_has_no_mirror():
    """pgx allows a mate by a dropped pawn near one corner, and forbids it near the other.

    The king at (7, 8) cannot escape: its knights stand beside it, one lance guards the pawn at (7, 7), the other one
    the file at the edge. pgx's list of the squares around a king has -1 for those beyond the edge, which it then takes
    for the last square of the board, the corner beside the king: an escape that does not exist.
    """
    from pgx.shogi import Game, GameState

    pawn, lance, knight, king, drop_pawn, opponent = 0, 1, 2, 7, 20, 14
    pieces = {(4, 0): king, (7, 5): lance, (8, 6): lance}
    pieces |= {(7, 8): opponent + king, (6, 7): opponent + knight, (6, 8): opponent + knight}
    allowed = []
    for file_of in (lambda x: x, lambda x: 8 - x):
        board = np.full((9, 9), -1, np.int32)  # [file, rank] for the king's owner
        for (x, y), piece in pieces.items():
            board[file_of(x), y] = piece
        drop = np.ravel_multi_index((8 - file_of(7), 8 - 7), (9, 9))
        state = GameState(board=jnp.asarray(board.ravel()[::-1]), hand=jnp.zeros((2, 7), jnp.int32).at[0, pawn].set(1))
        allowed.append(bool(jax.jit(Game().legal_action_mask)(state)[drop_pawn * 81 + drop]))
    assert allowed == [True, False]


def test_animal_shogi_of_pgx_shows_too_little_for_a_mirror():
    """Two games with equal observations, whose mirrored games have different ones: no function maps one to the other.

    They differ in the file of a rook before its move, eight positions ago. pgx shifts its history by 8 squares instead
    of the 12 of a board, so that each past position loses a file: this one, but not its mirror image.
    """
    env = make_env("animal_shogi")
    start = jax.device_get(jax.jit(env.init)(jax.random.key(0)))
    # Actions are eight directions, then three drops, times [3, 4] squares.
    mirror = np.arange(132).reshape(11, 3, 4)[[5, 6, 7, 3, 4, 0, 1, 2, 8, 9, 10], ::-1].ravel()
    mirrored = start.replace(
        _board=start._board.reshape(3, 4)[::-1].ravel(),
        _board_history=start._board_history.reshape(8, 3, 4)[:, ::-1].reshape(8, 12),
        legal_action_mask=start.legal_action_mask[mirror],
    )
    step, view = jax.jit(env.step), jax.jit(env.view)

    def play(state, actions):
        for action in actions:
            assert np.asarray(state.legal_action_mask)[action]
            state = step(state, np.int32(action))
        return jax.device_get(view(state))

    up, down = 3 * 12, 4 * 12  # plus the square; the rook stands on 3
    after = [73, 19, 97, 11, 19, 6]
    games = [[up + 3, up + 3, down + 2, up + 2, up + 3, *after], [up + 3, up + 3, up + 2, up + 2, down + 1, *after]]
    first, second = (play(start, game) for game in games)
    first_mirrored, second_mirrored = (play(mirrored, mirror[game]) for game in games)
    np.testing.assert_array_equal(first_mirrored.legal, first.legal[mirror])
    np.testing.assert_array_equal(first.observation, second.observation)
    assert (first_mirrored.observation != second_mirrored.observation).any()
