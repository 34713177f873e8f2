"""Fixtures: traces of random games, vectors of gymnasium environments, and a small simulator."""

import warnings
from itertools import product
from pathlib import Path
from types import SimpleNamespace

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from podzero.config import GymnasiumConfig
from podzero.envs import GAMES, make_env, make_vector_env
from podzero.envs.boards import BOARD_GAMES
from podzero.envs.boards.bits import Bits
from podzero.envs.boards.chess import position_hash

with warnings.catch_warnings():
    warnings.simplefilter("ignore")
    import pgx

LEADERS = 4
"""Number of games with random moves. For each symmetry, one more game plays the transformed moves of the first; if the
game has only one symmetry, one more for each of these games."""

WHOLE = {"tic_tac_toe": 12, "connect_four": 45, "hex": 125, "othello": 130, "animal_shogi": 260, "go_7x7": 100,
         "go_9x9": 165, "gardner_chess": 260, "go_19x19": 725, "chess": 515, "shogi": 515}  # fmt: skip
"""More plies than any of the random games lasts."""
HEAVY = ("animal_shogi", "chess", "gardner_chess", "go_19x19", "shogi")
"""Games whose step takes long to compile: only the slow tests step them."""


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


class Countdown:
    """Eleven stones; the players take one to three in turn, and the player who takes the last one wins."""

    num_actions = 3
    players = 2

    def reset(self, seed):
        self.stones, self.mover = [11], 0

    def step(self, action):
        self.stones[0] -= action + 1
        self.mover = 1 - self.mover

    def legal_actions(self):
        return list(range(min(3, self.stones[0])))

    def observation(self):
        return np.array([self.stones[0], self.mover], np.float32)

    def player(self):
        return self.mover

    def rewards(self):
        return [0.0, 0.0] if self.stones[0] else [2.0 * self.mover - 1.0, 1.0 - 2.0 * self.mover]

    def done(self):
        return self.stones[0] == 0

    def clone(self):
        twin = type(self)()
        twin.stones, twin.mover = self.stones.copy(), self.mover
        return twin


@pytest.fixture(scope="session")
def countdown():
    """The class of a small game; tests derive games from it that violate the contract."""
    return Countdown


@pytest.fixture(scope="session")
def check_views():
    """Checks the shapes and dtypes of views against those of a spec."""

    def check(spec, views):
        lead = views.done.shape
        assert views.observation.shape == (*lead, *spec.observation_shape)
        assert views.observation.dtype == np.dtype(spec.observation_dtype)
        assert (views.legal.shape, views.legal.dtype) == ((*lead, spec.num_actions), np.bool_)
        assert (views.player.shape, views.player.dtype) == (lead, np.int32)
        assert (views.rewards.shape, views.rewards.dtype) == ((*lead, 2), np.float32)
        assert views.done.dtype == np.bool_

    return check


@pytest.fixture
def toys(monkeypatch):
    """Makes `gymnasium_toys` importable, also in subprocesses."""
    monkeypatch.syspath_prepend(Path(__file__).parent)


@pytest.fixture
def make_vector(toys):
    """Makes vector environments, which are closed after the test."""
    made = []

    def make(count=3, seed=0, **config):
        made.append(make_vector_env(GymnasiumConfig(name="gymnasium", **config), count, seed))
        return made[-1]

    yield make
    for vector in made:
        vector.close()
