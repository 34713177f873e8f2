"""Go's komi, which pgx does not vary."""

import jax
import numpy as np
import pytest

from podzero.config import GameConfig, in_matches
from podzero.envs import make_env
from podzero.envs.boards.go import Go, check_komi, with_komi

PASS = 49
_BITS = 2 ** np.arange(7)


def drawn(komi, games=300):
    env = Go(7, komi)
    return env, jax.jit(jax.vmap(env.init))(jax.random.split(jax.random.key(0), games))


def test_each_game_draws_one_of_the_half_points():
    _, states = drawn((5.5, 7.0))
    assert set(np.asarray(states.board.komi).tolist()) == {11, 12, 13, 14}
    assert set(np.asarray(states.player).tolist()) == {0, 1}


def test_without_komi_all_games_have_7_5_and_the_network_does_not_see_it():
    env, states = drawn(None)
    assert np.unique(states.board.komi).tolist() == [15]
    assert env.spec.observation_shape == (7, 7, 17)


def test_the_observation_shows_the_half_points_for_the_player_to_move():
    env, states = drawn((-3.0, 4.5))
    before = jax.jit(jax.vmap(env.view))(states).observation
    after = jax.jit(jax.vmap(lambda state: env.view(env.step(state, np.int32(PASS)))))(states).observation
    assert before.shape[1:] == (7, 7, 24)
    for seen, sign in ((before, -1), (after, 1)):
        planes = np.asarray(seen[..., 17:])
        # Every square of a plane shows the same bit.
        assert (planes == planes[:, :1, :1]).all()
        np.testing.assert_array_equal(planes[:, 0, 0] @ _BITS - 64, sign * np.asarray(states.board.komi, int))


def test_the_other_planes_are_those_of_the_game_without_komi():
    plain, shown = make_env("go_7x7"), Go(7, (7.5, 7.5))
    state = jax.jit(lambda key: plain.step(plain.init(key), np.int32(24)))(jax.random.key(0))
    seen, expected = jax.jit(shown.view)(state).observation, jax.jit(plain.view)(state).observation
    np.testing.assert_array_equal(np.asarray(seen)[..., :17], expected)


@pytest.mark.parametrize(("komi", "result"), [(6.5, 1), (7, 0), (7.5, -1)])
def test_the_first_player_wins_by_more_than_the_komi(komi, result):
    """Black has four rows of the board, White three: 28 points to 21."""
    env = Go(7, (0, 31))
    state, step = with_komi(jax.jit(env.init)(jax.random.key(0)), np.asarray(komi)), jax.jit(env.step)
    first = int(state.player)
    walls = [row * 7 + column for column in range(7) for row in (3, 4)]
    for action in [*walls, PASS, PASS]:
        state = step(state, np.int32(action))
    assert bool(state.done)
    assert np.asarray(jax.jit(env.view)(state).rewards)[first] == result


@pytest.mark.parametrize("komi", [7.25, 31.5, -100, float("inf"), float("nan"), 10**400])
def test_a_komi_that_no_game_has_is_refused(komi):
    with pytest.raises(ValueError, match=r"komi .* 0\.5"):
        check_komi(komi)


def test_matches_begin_with_7_5_and_show_it():
    made = make_env(in_matches(GameConfig(name="go_7x7", komi=(0.5, 3))))
    assert made.shows_komi
    assert np.unique(jax.vmap(made.init)(jax.random.split(jax.random.key(0), 20)).board.komi).tolist() == [15]
    plain = GameConfig(name="go_7x7")
    assert in_matches(plain) is plain


def test_networks_with_and_without_komi_observe_the_same_states():
    """Of each view there is one object, so that players share what is compiled for it."""
    shown = Go(9, (0.5, 20))
    plain = shown.observed(shows_komi=False)
    assert shown.observed(shows_komi=True) is shown
    assert plain is Go(9, (7, 7)).observed(shows_komi=False)
    assert (plain.shows_komi, plain.observed(shows_komi=True).shows_komi) == (False, True)
    state = with_komi(jax.jit(shown.init)(jax.random.key(0)), np.asarray(20.0))
    assert jax.eval_shape(plain.view, state).observation.shape == (9, 9, 17)
