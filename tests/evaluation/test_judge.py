import jax
import jax.numpy as jnp
import numpy as np
import pytest

from podzero.config import GameConfig
from podzero.envs import make_env
from podzero.evaluation.evaluator import judgement_metrics
from podzero.evaluation.players import RandomPlayer
from podzero.evaluation.solvers import (
    WON_OPENINGS,
    Judge,
    JudgedPositions,
    SolverPlayer,
    draw_positions,
    game_values,
    judge_actions,
    judge_openings,
    make_solver,
    read_labels,
)
from podzero.evaluation.statistics import wilson

NAN = np.nan


@pytest.fixture(scope="module", params=["tic_tac_toe", "connect_four"])
def game(request):
    labels = read_labels(request.param, "test")
    in_book = np.flatnonzero(labels.plies <= 11)  # solved at once
    rows = np.random.default_rng(3).choice(in_book, 150, replace=False)
    return make_env(request.param), make_solver(request.param), labels.at(rows)


def test_the_solver_is_always_right(game):
    env, solver, positions = game
    result = Judge(env, positions)(SolverPlayer(env, solver), jax.random.key(0))
    assert (result.positions, result.keeps_value, result.exact) == (150, 1.0, 1.0)


def test_random_play_keeps_the_share_of_moves_that_keep_the_value(game):
    env, _, positions = game
    values = game_values(positions.scores)
    expected = np.mean([(row == np.nanmax(row)).sum() / (~np.isnan(row)).sum() for row in values])
    judge, player = Judge(env, positions), RandomPlayer(env)
    kept = [judge(player, jax.random.key(i)).keeps_value for i in range(20)]
    assert np.mean(kept) == pytest.approx(expected, abs=0.03)


def test_shares_by_hand():
    positions = JudgedPositions(
        moves=np.array([[-1, -1], [3, -1], [4, -1], [3, 3]], np.int32),
        scores=np.array([[5, 2, -1, NAN], [0, -3, NAN, -1], [-2, -4, 1, NAN], [0, 1, 3, 3]], np.float32),
    )
    result = judge_actions(np.array([1, 3, 2, 0]), positions)  # wins later, loses a draw, best, draws a win
    assert result.keeps_value == 0.5
    assert result.exact == 0.25
    assert result.by_ply == {0: 1.0, 1: 0.5, 2: 0.0}
    assert result.interval == wilson(2, 4)
    assert result.bands == {(0, 9): result._replace(bands={})}
    assert result.value_error is None
    # The best of the positions are won, drawn, won and won for the player to move.
    judged = judge_actions(np.array([1, 3, 2, 0]), positions, np.float32([0.5, -0.5, 1.0, -1.0]))
    assert judged.value_error == (0.5 + 0.5 + 0.0 + 2.0) / 4
    assert judged.bands == {(0, 9): judged._replace(bands={})}
    assert judged._replace(value_error=None, bands={}) == result._replace(bands={})


def test_the_judgement_by_bands_of_plies_by_hand():
    moves = np.full((5, 30), -1, np.int32)
    for row, plies in enumerate((0, 9, 9, 20, 30)):
        moves[row, :plies] = 0
    result = judge_actions(np.array([0, 0, 1, 0, 1]), JudgedPositions(moves, np.array([[1, -1]] * 5, np.float32)))
    assert [(plies, band.positions, band.exact) for plies, band in result.bands.items()] == [
        ((0, 9), 3, 2 / 3), ((20, 30), 2, 1 / 2),
    ]  # fmt: skip
    assert judgement_metrics(result) == {
        "evaluation/keeps_value": 3 / 5,
        "evaluation/keeps_value_0_9": 2 / 3,
        "evaluation/positions_0_9": 3.0,
        "evaluation/keeps_value_20_30": 1 / 2,
        "evaluation/positions_20_30": 2.0,
    }


def test_an_illegal_move_keeps_nothing():
    positions = JudgedPositions(np.array([[-1]], np.int32), np.array([[NAN, 1, 0]], np.float32))
    assert judge_actions(np.array([0]), positions).keeps_value == 0


class WinOrBlock:
    """Wins at once if it can, else stops the other from doing so, else plays at random."""

    name, deterministic = "one-ply", False

    def __init__(self, env):
        self._env = env

    def _wins(self, state):
        """`[A]` whether each legal move of the mover ends the game in its favour."""

        def try_action(action):
            after = self._env.view(self._env.step(state, action))
            return after.done & (after.rewards[self._env.view(state).player] > 0)

        return jax.vmap(try_action)(jnp.arange(7)) & self._env.view(state).legal

    def _choose(self, key, state):
        legal = self._env.view(state).legal
        swapped = state.board._replace(mine=state.board.theirs, theirs=state.board.mine)
        other = state._replace(board=swapped, player=1 - state.player)
        wins, blocks = self._wins(state), self._wins(other)
        among = jnp.where(wins.any(), wins, jnp.where(blocks.any(), blocks, legal))
        return jax.random.categorical(key, jnp.where(among, 0.0, -jnp.inf))

    def choose(self, key, states):
        keys = jax.random.split(key, states.player.shape[0])
        return jax.jit(jax.vmap(self._choose))(keys, states)


@pytest.mark.slow
def test_the_scale_of_connect_four():
    """Random play keeps about a third of the values; taking a win, or else blocking one, 70%."""
    env = make_env("connect_four")
    judge = Judge(env, draw_positions(env, make_solver("connect_four"), 1000, seed=0))
    assert judge(RandomPlayer(env), jax.random.key(0)).keeps_value == pytest.approx(0.34, abs=0.05)
    assert judge(WinOrBlock(env), jax.random.key(0)).keeps_value == pytest.approx(0.70, abs=0.05)


class Swaps:
    """A player that swaps these openings of Hex, and answers the others on the next square."""

    name = "swaps"
    deterministic = True

    def __init__(self, openings):
        self.openings = openings.split()

    def choose(self, key, states):
        names = [f"{'abcdefg'[square % 7]}{square // 7 + 1}" for square in range(49)]
        swaps = np.isin(names, self.openings)
        # The opening of each state: the only stone, as the first player sees it.
        np.testing.assert_array_equal(np.argmax(np.asarray(states.board.chains) != 0, axis=1), np.arange(49))
        return jnp.where(swaps, 49, (jnp.arange(49) + 1) % 49)


@pytest.mark.parametrize(
    ("openings", "right", "wrong"),
    [(WON_OPENINGS, 49, []), ("", 22, WON_OPENINGS.split()), (WON_OPENINGS.replace("d4", "d2"), 47, ["d2", "d4"])],
)
def test_openings_of_hex_that_win_are_to_be_swapped_and_no_other(openings, right, wrong):
    found = judge_openings(make_env(GameConfig(name="hex", size=7)), Swaps(openings), jax.random.key(0))
    assert (found["right"], sorted(found["wrong"])) == (right, sorted(wrong))


def test_the_won_openings_of_hex_are_the_same_on_the_board_turned_by_half():
    turned = {f"{'abcdefg'[ord('g') - ord(name[0])]}{8 - int(name[1])}" for name in WON_OPENINGS.split()}
    assert turned == set(WON_OPENINGS.split())
