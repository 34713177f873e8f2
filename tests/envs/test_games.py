"""One contract for all pgx games, and their symmetries: the tests play every game of `GAMES`, and transformed games."""

import warnings
from itertools import product
from types import SimpleNamespace

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from podzero.config import BUILTIN_GAMES
from podzero.core.errors import ConfigError
from podzero.envs import make_env
from podzero.envs.boards import BOARD_GAMES
from podzero.envs.boards.bits import Bits
from podzero.envs.boards.chess import position_hash
from podzero.envs.registry import GAMES

from .conftest import HEAVY

with warnings.catch_warnings():
    warnings.simplefilter("ignore")
    import pgx

LEADERS = 4
"""Number of games with random moves. For each symmetry, one more game plays the transformed moves of the first; if the
game has only one symmetry, one more for each of these games."""

WHOLE = {"tic_tac_toe": 12, "connect_four": 45, "hex": 125, "othello": 130, "animal_shogi": 260, "go_7x7": 100,
         "go_9x9": 165, "gardner_chess": 260, "go_19x19": 725, "chess": 515, "shogi": 515}  # fmt: skip
"""More plies than any of the random games lasts."""


class Trace:
    """B games, LEADERS and their followers, which are played when something of `play_trace` is first asked for."""

    def __init__(self, name, plies):
        self.name, self.plies, self.env = name, plies, make_env(name)
        symmetries = self.env.symmetries
        leaders = range(LEADERS if len(symmetries) == 1 else 1)
        self.followers = [
            SimpleNamespace(row=row, leader=leader, symmetry=symmetry)
            for row, (symmetry, leader) in enumerate(product(symmetries, leaders), start=LEADERS)
        ]

    def __getattr__(self, field):
        if "views" not in self.__dict__:
            self.__dict__.update(play_trace(self.name, self.env, self.followers, self.plies))
            return getattr(self, field)
        raise AttributeError(field)


def play_trace(name, env, followers, plies):
    """Plays B games; views and pgx's observations lead with `[T + 1, B]`."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        reference = None if name in BOARD_GAMES else pgx.make(name)
    identity = [np.arange(env.spec.num_actions)] * LEADERS
    actions_of = np.stack(identity + [np.argsort(follower.symmetry.actions) for follower in followers])
    leader_of = np.array([*range(LEADERS), *(follower.leader for follower in followers)])

    def look(states):
        views = jax.vmap(env.view)(states)
        return views, None if reference is None else jax.vmap(reference.observe)(states)

    def ply(states, key):
        legal = jax.vmap(env.view)(states).legal[:LEADERS]
        chosen = jax.random.categorical(key, jnp.where(legal, 0.0, -jnp.inf), axis=-1)
        actions = jnp.take_along_axis(jnp.asarray(actions_of), chosen[leader_of][:, None], axis=1)[:, 0]
        after = jax.vmap(env.step)(states, actions.astype(jnp.int32))
        return after, (actions, look(after))

    @jax.jit
    def play(starts, key):
        if plies == 0:  # a step is not compiled for nothing
            return jnp.zeros((0, len(leader_of)), jnp.int32), jax.tree.map(lambda leaf: leaf[None], look(starts))
        _, (actions, looks) = jax.lax.scan(ply, starts, jax.random.split(key, plies))
        return actions, jax.tree.map(lambda first, rest: jnp.concatenate([first[None], rest]), look(starts), looks)

    keys = jax.random.split(jax.random.key(7), LEADERS)
    symmetries = np.stack(identity + [follower.symmetry.actions for follower in followers])

    @jax.jit
    def begin(keys):
        starts = jax.tree.map(lambda leaf: leaf[leader_of], jax.vmap(env.init)(keys))
        return transformed_set_up(name, symmetries, starts)

    starts = begin(keys)
    actions, (views, reference_observation) = jax.device_get(play(starts, jax.random.key(8)))
    again, _ = jax.device_get(play(starts, jax.random.key(8)))
    return {
        "starts": starts, "actions": actions, "again": again, "views": views,
        "reference_observation": reference_observation,
    }  # fmt: skip


def transformed_set_up(name, actions, starts):
    """The initial set-ups of Othello and Gardner chess are not symmetric: the followers start from transformed ones."""
    if name == "othello":
        moved = jnp.asarray(actions[:, :64])
        sides = [jnp.take_along_axis(side.members(np.arange(64)), moved, axis=1) for side in starts.board[:2]]
        mine, theirs = map(as_bits, sides)
        return starts._replace(board=starts.board._replace(mine=mine, theirs=theirs))
    if name == "gardner_chess":
        history = starts.board.history.members(np.arange(64)).reshape(-1, 8, 4, 8, 8)
        mirrored = jnp.concatenate([history[LEADERS:, :, :, 4::-1], history[LEADERS:, :, :, 5:]], axis=3)
        history = as_bits(jnp.concatenate([history[:LEADERS], mirrored]).reshape(-1, 8, 4, 64))
        board = starts.board._replace(history=history)
        hashes = board.hashes.at[:, 0].set(jax.vmap(position_hash)(board))
        return starts._replace(board=board._replace(hashes=hashes))
    return starts


def as_bits(members):
    """Sets of squares given by `[..., 64]` bool."""
    words = members.reshape(*members.shape[:-1], 2, 32) * (jnp.uint32(1) << jnp.arange(32, dtype=jnp.uint32))
    low, high = jnp.moveaxis(jnp.sum(words, axis=-1, dtype=jnp.uint32), -1, 0)
    return Bits(low, high)


def _lengths():
    for name in GAMES:
        if name in HEAVY and name != "shogi":  # even shogi's `init` compiles for half a minute
            yield pytest.param((name, 0), id=f"{name}-start")
        whole = [pytest.mark.slow, pytest.mark.timeout(900)] if name in HEAVY else []
        yield pytest.param((name, WHOLE[name]), id=name, marks=whole)


@pytest.fixture(scope="session", params=_lengths())
def trace(request):
    return Trace(*request.param)


def test_views_have_the_shapes_and_dtypes_of_the_spec(trace, check_views):
    assert trace.env.spec.name == BUILTIN_GAMES[trace.name].title
    check_views(trace.env.spec, trace.views)


@pytest.mark.parametrize("name", [name for name in GAMES if name not in BOARD_GAMES])
def test_states_have_no_cached_observation(name):
    env = make_env(name)
    assert jax.eval_shape(env.init, jax.random.key(0)).observation.size == 0


def test_observations_are_those_of_pgx(trace):
    if trace.name in BOARD_GAMES:
        pytest.skip("tests/envs/test_boards.py compares all of each ply")
    np.testing.assert_array_equal(trace.views.observation, trace.reference_observation)


def test_every_position_has_a_legal_action(trace):
    assert trace.views.legal.any(axis=-1).all()


def test_all_actions_are_legal_once_the_game_is_over(trace):
    assert trace.views.legal[trace.views.done].all()


def test_games_are_played_with_legal_actions(trace):
    """Including the transformed actions of the followers: pgx ends a game after an illegal action."""
    played = np.take_along_axis(trace.views.legal[:-1], trace.actions[..., None], axis=-1)
    assert played.all()


def test_players_alternate_while_the_game_lasts(trace):
    before, after = trace.views.player[:-1], trace.views.player[1:]
    going_on = ~trace.views.done[1:]
    assert (after == 1 - before)[going_on].all()


def test_players_are_zero_and_one(trace):
    assert set(np.unique(trace.views.player)) <= {0, 1}


def test_rewards_are_zero_sum(trace):
    np.testing.assert_array_equal(trace.views.rewards.sum(axis=-1), 0)


def test_only_the_last_move_is_rewarded(trace):
    done = trace.views.done
    before = np.concatenate([np.zeros_like(done[:1]), done[:-1]])
    last_move = done & ~before
    assert (trace.views.rewards[~last_move] == 0).all()
    assert np.isin(trace.views.rewards, [-1, 0, 1]).all()


def test_games_end_and_remain_over(trace):
    done = trace.views.done
    assert not done[0].any()
    assert (done[1:] >= done[:-1]).all()
    if trace.plies:
        assert done[-1].all()


def test_steps_do_not_change_a_state_that_is_over(trace):
    before = trace.views.done[:-1]
    for field in ("observation", "legal", "player"):
        values = getattr(trace.views, field)
        np.testing.assert_array_equal(values[1:][before], values[:-1][before])


def test_same_keys_give_the_same_games(trace):
    np.testing.assert_array_equal(trace.actions, trace.again)


def followers_of(trace):
    if not trace.followers:
        pytest.skip("the game has no symmetry but the identity")
    return trace.followers


def test_transformed_games_have_transformed_observations(trace):
    for follower in followers_of(trace):
        leading, following = trace.views.observation[:, follower.leader], trace.views.observation[:, follower.row]
        np.testing.assert_array_equal(jax.vmap(follower.symmetry.observation)(leading), following)


def test_transformed_games_have_transformed_legal_moves(trace):
    for follower in followers_of(trace):
        leading, following = trace.views.legal[:, follower.leader], trace.views.legal[:, follower.row]
        np.testing.assert_array_equal(leading[:, follower.symmetry.actions], following)


@pytest.mark.parametrize("field", ["rewards", "done", "player"])
def test_transformed_games_have_the_same_result(trace, field):
    for follower in followers_of(trace):
        values = getattr(trace.views, field)
        np.testing.assert_array_equal(values[:, follower.row], values[:, follower.leader])


@pytest.mark.parametrize("name", ["tic_tac_toe", "connect_four", "othello", "hex"])
def test_vmap_equals_single(name):
    env = make_env(name)
    keys = jax.random.split(jax.random.key(3), 3)
    batched, init, step, view = jax.jit(jax.vmap(env.init))(keys), *map(jax.jit, (env.init, env.step, env.view))
    single = [init(key) for key in keys]
    step_all, view_all = jax.jit(jax.vmap(env.step)), jax.jit(jax.vmap(env.view))
    for _ in range(6):
        actions = np.argmax(view_all(batched).legal, axis=-1).astype(np.int32)
        batched = step_all(batched, actions)
        single = [step(state, action) for state, action in zip(single, actions, strict=True)]
        expected = jax.tree.map(lambda *leaves: np.stack(leaves), *map(view, single))
        jax.tree.map(np.testing.assert_array_equal, view_all(batched), expected)


@pytest.mark.parametrize("name", ["tic_tac_toe", "go_9x9", "hex"])
def test_the_key_decides_who_begins(name):
    env = make_env(name)
    player = jax.jit(jax.vmap(lambda key: env.view(env.init(key)).player))
    players = player(jax.random.split(jax.random.key(0), 64))
    assert 16 < int(players.sum()) < 48


def test_an_unknown_game_is_refused_with_the_closest_name():
    with pytest.raises(ConfigError, match=r"'conect_four'.*'connect_four'"):
        make_env("conect_four")


def test_gardner_chess_shows_the_board_from_the_side_of_white():
    """White's pieces start in the lowest row of the observation: rook, knight, bishop, queen, king."""
    env = make_env("gardner_chess")
    seen = np.asarray(jax.jit(lambda key: env.view(env.init(key)).observation)(jax.random.key(0)))
    pieces = {"pawn": 0, "knight": 1, "bishop": 2, "rook": 3, "queen": 4, "king": 5}
    row = [next(name for name, plane in pieces.items() if seen[4, column, plane]) for column in range(5)]
    assert row == ["rook", "knight", "bishop", "queen", "king"]
    assert seen[3, :, pieces["pawn"]].all()
