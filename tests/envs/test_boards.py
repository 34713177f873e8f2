"""The rules for vector units beside those of pgx, ply by ply."""

import jax
import jax.numpy as jnp
import numpy as np
import pgx_record
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pgx_record import pgx_game

from podzero.envs.boards import BOARD_GAMES
from podzero.envs.boards.bits import Bits, constant, single
from podzero.envs.jax_game import OwnGame

LONGEST = {
    "connect_four": 42,
    "othello": 80,
    "hex": 122,
    "go_7x7": 98,
    "go_9x9": 162,
    "go_19x19": 722,
    "chess": 512,
    "gardner_chess": 256,
}


class HexOfPgx:
    """Hex without the view of the second player: as pgx has it, a plane says who moves instead."""

    def __init__(self):
        self.game = BOARD_GAMES["hex"]()
        self.init = self.game.init
        self.spec = self.game.spec._replace(name="hex", observation_shape=(11, 11, 4))

    def step(self, state, action):
        transposed = action % 11 * 11 + action // 11
        return self.game.step(state, jnp.where((state.board.plies % 2 == 1) & (action < 121), transposed, action))

    def view(self, state):
        view, second = self.game.view(state), state.board.plies % 2 == 1
        planes = jnp.where(second, view.observation.swapaxes(0, 1), view.observation)
        mover = jnp.broadcast_to(second, (11, 11, 1))
        squares, swap = view.legal[:121].reshape(11, 11), view.legal[121]
        return view._replace(
            observation=jnp.concatenate([planes[..., :2], mover, planes[..., 2:]], axis=-1),
            legal=jnp.append(jnp.where(second, squares.T, squares), swap),
        )


OURS = {**BOARD_GAMES, "hex": HexOfPgx}
GAMES = {"go_19x19": 20, "go_9x9": 24, "go_7x7": 40, "chess": 16, "gardner_chess": 200}


def as_int(bits):
    return int(bits.low) | int(bits.high) << 32


@pytest.mark.parametrize("name", pgx_record.PLIES)
def test_every_ply_is_that_of_recorded_games_of_pgx(name):
    """Observations, legal actions, players, rewards and ends, also after the end; `pgx_record.py` recorded them."""
    ours = OURS[name]()
    with np.load(pgx_record.FILE) as recorded:
        actions, expected = recorded[f"{name}/actions"], recorded[f"{name}/digests"]

    def seen(states):
        return jax.vmap(lambda state: pgx_record.shown(ours.view(state)))(states)

    def ply(states, action):
        states = jax.vmap(ours.step)(states, action)
        return states, seen(states)

    @jax.jit
    def play(actions):
        start = pgx_record.starts(ours)
        return jnp.concatenate([seen(start)[None], jax.lax.scan(ply, start, actions)[1]])

    found = pgx_record.digests(jax.device_get(play(actions.astype(np.int32))))
    np.testing.assert_array_equal(found, expected)


@pytest.mark.slow
@pytest.mark.parametrize("name", BOARD_GAMES)
def test_every_ply_is_that_of_pgx(name):
    """As above, in new random games of all games; pgx takes minutes for chess, Gardner chess and Go on 19 x 19."""
    ours, theirs = OURS[name](), pgx_game(name)
    keys = jax.random.split(jax.random.key(0), GAMES.get(name, 300))

    def seen(view):
        return view._replace(legal=view.legal | view.done[:, None])

    @jax.jit
    def ply(states, key):
        mine, other = states
        legal = jax.vmap(theirs.view)(other).legal
        action = jax.random.categorical(key, jnp.where(legal, 0.0, -jnp.inf)).astype(jnp.int32)
        mine, other = jax.vmap(ours.step)(mine, action), jax.vmap(theirs.step)(other, action)
        found, expected = seen(jax.vmap(ours.view)(mine)), seen(jax.vmap(theirs.view)(other))
        same = jax.tree.map(lambda one, two: jnp.all(one == two), found, expected)
        return (mine, other), (same, jnp.mean(expected.done))

    @jax.jit
    def begin(keys):
        states = jax.vmap(ours.init)(keys), jax.vmap(theirs.init)(keys)
        return states, jax.vmap(ours.view)(states[0]), jax.vmap(theirs.view)(states[1])

    states, mine, other = begin(keys)
    assert all(jax.tree.map(np.array_equal, mine, other))
    for number in range(LONGEST[name]):
        states, (same, done) = ply(states, jax.random.key(number))
        assert all(same), (number, same)
    assert done == 1.0


@pytest.mark.parametrize("name", BOARD_GAMES)
def test_its_specification_is_that_of_pgx_with_smaller_states(name):
    ours, theirs = OURS[name]().spec, OwnGame(pgx_game(name), name).spec
    assert ours._replace(state_bytes=0, max_plies=None, squares=0) == theirs._replace(state_bytes=0)
    assert ours.state_bytes < theirs.state_bytes


@given(st.integers(0, 2**64 - 1), st.integers(0, 63))
def test_bits_are_shifted_like_integers(squares, by):
    assert as_int(constant(squares).up(by)) == (squares << by) % 2**64
    assert as_int(constant(squares).down(by)) == squares >> by


@given(st.integers(0, 2**64 - 1))
def test_each_set_is_shifted_by_its_own_distance(squares):
    by = np.array([0, 1, 31, 32, 33, 63])
    up, down = constant(squares).up(by), constant(squares).down(by)
    found = [Bits(moved.low[i], moved.high[i]) for moved in (up, down) for i in range(len(by))]
    assert [*map(as_int, found)] == [squares * 2**n % 2**64 for n in by.tolist()] + [squares >> n for n in by.tolist()]


@given(st.integers(0, 2**64 - 1), st.integers(-1, 64))
def test_members_counts_and_single_squares(squares, square):
    found = Bits(*map(jnp.uint32, constant(squares)))
    assert int(found.size()) == squares.bit_count()
    np.testing.assert_array_equal(found.members(np.arange(64)), [squares >> i & 1 for i in range(64)])
    assert as_int(single(jnp.int32(square))) == (1 << square if 0 <= square < 64 else 0)
