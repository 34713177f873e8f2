"""Who owns the squares of a board when a game is over."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from podzero.envs import make_env
from podzero.envs.boards.go import Go

PASS = 49


def after(env, actions):
    """The state after some actions, and the player who began."""
    state, step = jax.jit(env.init)(jax.random.key(0)), jax.jit(env.step)
    first = int(state.player)
    for action in actions:
        state = step(state, np.int32(action))
    return state, first


def owners_of(env, actions, shape):
    """The owners at the end of a game, 1 where it is the player who began."""
    state, first = after(env, actions)
    assert bool(state.done)
    view = jax.jit(env.view)(state)
    return np.asarray(view.ownership[first]).reshape(shape), view, first


@pytest.mark.parametrize("actions_of_second", [[], [PASS]])
def test_in_go_squares_belong_to_the_area_that_alone_reaches_them(actions_of_second):
    """Black's wall stands in the fourth row, White's in the fifth; whoever is to move at the end."""
    walls = [row * 7 + column for column in range(7) for row in (3, 4)]
    owners, *_ = owners_of(make_env("go_7x7"), [*actions_of_second, *walls, PASS, PASS], (7, 7))
    black_is_first = 1 if not actions_of_second else -1
    np.testing.assert_array_equal(owners, black_is_first * np.repeat([1, 1, 1, 1, -1, -1, -1], 7).reshape(7, 7))


def test_in_go_nobody_owns_what_both_reach():
    owners, *_ = owners_of(make_env("go_7x7"), [0, 48, PASS, PASS], (7, 7))
    assert (owners[0, 0], owners[6, 6], np.count_nonzero(owners)) == (1, -1, 2)


def test_in_hex_the_winner_owns_the_chain_that_joins_the_edges():
    """The first player joins top and bottom in the first column; the stone in the last column is not in that chain."""
    # The second player, who sees the board transposed, fills the sixth column.
    chain, others = [11 * row for row in range(11)], [11 * 5 + row for row in range(11)]
    first = [chain[0], 10, *chain[1:]]
    actions = [action for pair in zip(first, [*others, 11 * 10 + 6], strict=True) for action in pair][:-1]
    owners, view, beginner = owners_of(make_env("hex"), actions, (11, 11))
    expected = np.zeros((11, 11))
    expected[:, 0] = 1
    np.testing.assert_array_equal(owners, expected)
    np.testing.assert_array_equal(np.asarray(view.ownership[1 - beginner]).reshape(11, 11), -expected.T)
    assert view.rewards[beginner] == 1


@pytest.mark.parametrize(("name", "komi"), [("othello", 0.0), ("go_7x7", 7.5)])
def test_whoever_owns_more_has_won(name, komi):
    """In random games; in Go, the second player has the komi, and the repetition of a position loses."""
    env = make_env(name)
    states = jax.jit(jax.vmap(env.init))(jax.random.split(jax.random.key(1), 8))
    first = np.asarray(states.player)

    @jax.jit
    def play(states, key):
        legal = jax.vmap(env.view)(states).legal
        action = jax.random.categorical(key, jnp.where(legal, 0.0, -jnp.inf))
        return jax.vmap(env.step)(states, action.astype(np.int32))

    rewards = np.zeros(8)
    for key in jax.random.split(jax.random.key(2), env.spec.max_plies):
        states = play(states, key)
        rewards += np.asarray(states.reward)
    view = jax.jit(jax.vmap(env.view))(states)
    assert np.asarray(view.done).all()
    lead = np.asarray(view.ownership)[:, 0].sum(axis=1) - np.where(first == 0, komi, -komi)
    repeated = np.zeros(8, bool) if name == "othello" else lead * rewards < 0
    np.testing.assert_array_equal(np.sign(lead)[~repeated], rewards[~repeated])
    assert repeated.sum() <= 2


def test_the_squares_of_a_game_are_known_before_it_is_played():
    assert [make_env(name).spec.squares for name in ("go_9x9", "othello", "hex", "connect_four")] == [81, 64, 121, 0]
    assert Go(9, (0.5, 7.5)).spec.squares == 81
