import copy
from functools import cache
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from podzero.config import OwnGameConfig
from podzero.envs import make_env
from podzero.envs.host import HostEnv
from podzero.evaluation.arena import Arena, Interrupted
from podzero.evaluation.games import MatchResult, match_result
from podzero.evaluation.players import RandomPlayer, mcts_player
from podzero.evaluation.solvers import SolverPlayer, make_solver
from podzero.evaluation.statistics import wilson

arena, random_player = cache(Arena), cache(RandomPlayer)
"""Tests of one game share the compiled programs; most matches have 100 games for the same reason."""


@cache
def views(env):
    return jax.jit(jax.vmap(env.view))


def play_match(env, first, second, games, key, **settings):
    return match_result(arena(env).pairs(first, second, games // 2, key, **settings))


class FirstLegal:
    """Plays the first legal action and remembers the batches it saw."""

    name = "first"
    deterministic = True

    def __init__(self, env):
        self.view = views(env)
        self.seen = []

    def choose(self, key, states):
        view = self.view(states)
        self.seen.append(jax.device_get(view))
        return jnp.argmax(view.legal, axis=-1).astype(jnp.int32)


class LastLegal(FirstLegal):
    """Plays the last legal action."""

    name = "last"

    def choose(self, key, states):
        legal = self.view(states).legal
        return (legal.shape[1] - 1 - jnp.argmax(legal[:, ::-1], axis=-1)).astype(jnp.int32)


@pytest.fixture(scope="module")
def env():
    return make_env("tic_tac_toe")


@pytest.fixture(scope="module")
def perfect(env):
    return SolverPlayer(env, make_solver("tic_tac_toe"))


def test_perfect_players_always_draw(env, perfect):
    assert play_match(env, perfect, perfect, 100, jax.random.key(0)) == MatchResult(0, 100, 0)


def test_perfect_play_never_loses_to_random(env, perfect):
    result = play_match(env, perfect, random_player(env), 100, jax.random.key(1))
    assert result.losses == 0
    assert result.score > 0.85
    assert result.games == 100


def test_of_three_players_the_first_has_one_seat_and_its_opponent_the_others():
    file = Path(__file__).resolve().parents[2] / "configs" / "own_three_players.py"
    env = make_env(OwnGameConfig(name=f"{file}:ThreeInARow"))
    pairs = Arena(env).pairs(FirstLegal(env), LastLegal(env), 3, jax.random.key(0), 0)
    games = [game for pair in pairs for game in pair]
    assert {(game.first, game.second) for game in games} == {("first", "last"), ("last", "first")}
    # Alone, `first` takes 0, 1 and 2. Its opponents share 24 to 21, so that none of them has three in a row.
    assert {game.moves for game in games if game.first == "first"} == {(0, 24, 23, 1, 22, 21, 2)}
    assert {game.points for game in games if game.first == "first"} == {1.0}
    # Alone, `last` takes 24, 23 and 22.
    assert {game.moves for game in games if game.first == "last"} == {(24, 0, 1, 23, 2, 3, 22)}
    assert {game.points for game in games if game.first == "last"} == {1.0}


def test_each_ply_reports_how_many_games_are_over(env):
    """X, which plays the first legal move, wins with its fourth stone: all games end after seven plies."""
    told = []
    arena(env).pairs(FirstLegal(env), FirstLegal(env), 1, jax.random.key(2), 0, report=lambda *seen: told.append(seen))
    assert told == [(0, 2, plies) for plies in range(1, 7)] + [(2, 2, 7)]


def test_swapping_the_players_swaps_wins_and_losses(env):
    """The first legal move from the corner on: X fills 0, 2, 4 and then 6, and wins by 2 4 6 whoever is X."""
    result = play_match(env, FirstLegal(env), FirstLegal(env), 100, jax.random.key(2), opening_plies=0)
    assert result == MatchResult(50, 0, 50)


def test_random_against_random_is_even(env):
    low, high = play_match(env, random_player(env), random_player(env), 100, jax.random.key(3)).interval
    assert low < 0.5 < high


def test_a_player_sees_only_open_games_where_it_is_to_move(env):
    first, second = FirstLegal(env), random_player(env)
    play_match(env, first, second, 100, jax.random.key(4), opening_plies=2)
    for view in first.seen:
        assert view.observation.shape == (50, 3, 3, 2)
        assert not view.done.any()
    # Half of its games from each side: at its n-th call as opener it finds 2n + 2 marks, else 2n + 3.
    marks = [np.unique(view.observation.sum(axis=(1, 2, 3))) for view in first.seen[:2]]
    np.testing.assert_array_equal(marks, [[2], [3]])


def test_each_opening_is_played_from_both_sides(env):
    starts = arena(env).openings(50, 2, jax.random.key(5)).states
    boards = np.asarray(views(env)(starts).observation).reshape(50, -1)
    assert len(np.unique(boards, axis=0)) == 50
    result = play_match(env, FirstLegal(env), FirstLegal(env), 100, jax.random.key(5))
    assert result.wins == result.losses


def test_deterministic_players_do_not_play_the_same_games_again(env):
    """After two plies there are 9 * 8 boards of tic-tac-toe."""
    players = FirstLegal(env), FirstLegal(env)
    assert play_match(env, *players, 400, jax.random.key(5), opening_plies=2).games == 2 * 72
    assert play_match(env, FirstLegal(env), random_player(env), 400, jax.random.key(5), opening_plies=2).games == 400


def test_same_key_gives_the_same_match(env):
    players = random_player(env), random_player(env)
    assert play_match(env, *players, 100, jax.random.key(6)) == play_match(env, *players, 100, jax.random.key(6))


def test_rollout_search_beats_random_play(env):
    result = play_match(env, mcts_player(env, 8), random_player(env), 100, jax.random.key(7))
    assert result.interval[0] > 0.5


def test_rollout_search_takes_a_win_and_parries_a_loss(env):
    step = jax.jit(env.step)

    def after(*moves):
        state = env.init(jax.random.key(0))
        for move in moves:
            state = step(state, jnp.int32(move))
        return state

    states = jax.tree.map(lambda *leaves: jnp.stack(leaves), after(0, 3, 1, 4), after(0, 8, 1))
    result = mcts_player(env, 200).search(jax.random.key(8), states)
    np.testing.assert_array_equal(result.action, [2, 2])
    np.testing.assert_array_equal(result.visits.sum(axis=1), [200, 200])


class Turns:
    """Action 1 keeps the turn and 0 gives it away; who has moved more often after three moves wins."""

    num_actions = players = 2

    def reset(self, seed):
        self.mover, self.moves = 0, [0, 0]

    def step(self, action):
        self.moves[self.mover] += 1
        self.mover ^= 1 - action

    def legal_actions(self):
        return [0, 1]

    def observation(self):
        return np.array([self.mover, *self.moves], np.float32)

    def player(self):
        return self.mover

    def rewards(self):
        won = np.sign(self.moves[0] - self.moves[1]) if self.done() else 0
        return [float(won), float(-won)]

    def done(self):
        return sum(self.moves) == 3

    def clone(self):
        return copy.deepcopy(self)


class Always:
    deterministic = True

    def __init__(self, action):
        self.name, self.action = f"always {action}", action

    def choose(self, key, states):
        return jnp.full(states.plies.shape, self.action, jnp.int32)


def test_extra_turns_are_played_by_whoever_has_them():
    """Who keeps the turn wins 3 : 0 as opener, and 2 : 1 after the other has given it away."""
    env = HostEnv(Turns(), "turns", max_plies=5)
    keep, give = Always(1), Always(0)
    assert play_match(env, keep, give, 4, jax.random.key(0), opening_plies=0) == MatchResult(4, 0, 0)
    assert play_match(env, give, keep, 4, jax.random.key(0), opening_plies=0) == MatchResult(0, 0, 4)


def test_games_that_are_over_within_the_usual_opening_have_a_shorter_one():
    env = HostEnv(Turns(), "turns", max_plies=5)
    assert play_match(env, Always(1), Always(1), 4, jax.random.key(0)).games == 4
    assert set(np.asarray(arena(env).openings(4, 4, jax.random.key(0)).states.plies)) == {2}


def test_a_match_can_be_interrupted(env):
    with pytest.raises(Interrupted):
        play_match(env, random_player(env), random_player(env), 100, jax.random.key(0), keep_going=lambda: False)


def test_score_counts_draws_as_halves():
    result = MatchResult(wins=5, draws=4, losses=1)
    assert (result.games, result.points, result.score) == (10, 7.0, 0.7)


def test_wilson_interval_by_hand():
    # n = 10, p = 0.5, z = 2: (0.5 + 0.2 -+ 2 sqrt(0.025 + 0.01)) / 1.4 = (0.7 -+ 0.374166) / 1.4
    np.testing.assert_allclose(wilson(5, 10, z=2.0), (0.232739, 0.767261), atol=1e-6)


def test_wilson_interval_of_a_clean_score_is_not_a_point():
    low, high = wilson(400, 400)
    assert high == pytest.approx(1.0)
    assert low == pytest.approx(400 / (400 + 1.959964**2))
    assert wilson(0, 0) == (0.0, 1.0)


def test_games_hold_all_their_moves(env):
    """Both sides of an opening begin with its moves, and end when the game is over."""
    view, step = jax.jit(env.view), jax.jit(env.step)
    for pair in arena(env).pairs(random_player(env), FirstLegal(env), 3, jax.random.key(9), opening_plies=2):
        assert pair[0].moves[:2] == pair[1].moves[:2]
        assert pair[0].position == pair[1].position
        assert [(game.first, game.second) for game in pair] == [("random", "first"), ("first", "random")]
        for game in pair:
            state = env.init(jax.random.key(0))
            for move in game.moves:
                assert not view(state).done
                state = step(state, jnp.int32(move))
            assert view(state).done
            assert (game.opening_plies, game.end) == (2, "over")


def test_openings_that_are_known_are_not_played_again_by_deterministic_players(env):
    """After one ply there are nine positions."""
    players = FirstLegal(env), FirstLegal(env)
    known = [one.position for one, _ in arena(env).pairs(*players, 9, jax.random.key(1), 1)]
    assert len(set(known)) == 9
    left = arena(env).pairs(*players, 9, jax.random.key(2), 1, known=known[:5])
    assert {one.position for one, _ in left} == set(known[5:])
    assert arena(env).pairs(*players, 9, jax.random.key(2), 1, known=known) == []
