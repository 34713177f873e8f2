"""Games of chance: the rules of pgx, and draws that depend on nothing but the key and the moves."""

import sys
import warnings
from functools import partial
from itertools import combinations
from types import SimpleNamespace

import jax
import jax.numpy as jnp
import numpy as np
import pgx_record
import pytest

from podzero.config import ChanceGameConfig, OwnGameConfig
from podzero.core.errors import ConfigError
from podzero.core.types import View
from podzero.envs import GameOfChance, make_env, pack_states, unpack_states
from podzero.envs.boards.backgammon import Backgammon
from podzero.envs.boards.play_2048 import Play2048
from podzero.envs.jax_game import check_game
from podzero.envs.notation import notation_of

with warnings.catch_warnings():
    warnings.simplefilter("ignore")
    import pgx

NAMES = ("2048", "backgammon")
GAMES = 32


def named(name, **settings):
    return make_env(ChanceGameConfig(name=name, **settings))


@pytest.mark.parametrize("name", NAMES)
def test_it_keeps_the_contract_of_games(name):
    check_game(named(name), games=8, max_plies=128)


@pytest.mark.parametrize("name", NAMES)
def test_every_ply_is_that_of_recorded_games_of_pgx(name):
    """Boards, dice, legal actions, players, rewards and ends; what pgx drew is a possible outcome."""
    pair = pgx_record.paired(name)
    with np.load(pgx_record.FILE) as recorded:
        found = {key.removeprefix(f"{name}/"): recorded[key] for key in recorded if key.startswith(f"{name}/")}
    like = jax.eval_shape(pair.game.init, jax.random.key(0))
    start = type(like)(**{field: found[f"start/{field}"] for field in like._fields})

    def ply(positions, decided):
        after, possible = jax.vmap(partial(pgx_record.resolved, pair.game))(positions, *decided)
        return after, (jax.vmap(pair.ours)(after), possible)

    @jax.jit
    def play(start, actions, outcomes):
        return jax.lax.scan(ply, start, (actions, outcomes))[1]

    seen, possible = play(start, found["actions"].astype(np.int32), found["outcomes"].astype(np.int32))
    np.testing.assert_array_equal(pgx_record.digests(np.asarray(seen)), found["digests"])
    assert possible.all()


@pytest.mark.slow
@pytest.mark.parametrize("name", NAMES)
def test_every_ply_is_that_of_pgx(name):
    """As above, in new games."""
    _, _, _, theirs, ours, possible, over = pgx_record.chance_game(name, GAMES, seed=1)
    assert over[-1].mean() > 0.9
    np.testing.assert_array_equal(ours, theirs)
    assert possible.all()


FIRST = {
    # Two tiles of 2 or 4; two different dice, and either player.
    "2048": {(1, 1), (1, 2), (2, 2)},
    "backgammon": {
        (*((np.arange(6) == one) + (np.arange(6) == two)).tolist(), player)
        for one, two in combinations(range(6), 2)
        for player in range(2)
    },
}


def first_of(name, init):
    """The first positions that some keys give, by what differs between them."""
    states = jax.jit(jax.vmap(init))(jax.random.split(jax.random.key(1), 3000 if name == "2048" else 300))
    if name == "2048":
        return {tuple(sorted(board[board > 0].tolist())) for board in np.asarray(states.board)}
    seen = zip(np.asarray(states.dice), np.asarray(states.player), strict=True)
    return {(*dice.tolist(), int(player)) for dice, player in seen}


@pytest.mark.parametrize("name", NAMES)
def test_first_positions(name):
    assert first_of(name, pgx_record.paired(name).game.init) == FIRST[name]


@pytest.mark.slow
@pytest.mark.parametrize("name", NAMES)
def test_first_positions_are_those_of_pgx(name):
    theirs, converted = pgx.make(name), pgx_record.paired(name).converted
    assert first_of(name, lambda key: converted(theirs.init(key))) == FIRST[name]


@pytest.mark.parametrize("name", NAMES)
def test_the_key_and_the_moves_decide_the_game(name):
    env = named(name)

    @jax.jit
    def play(key, draws):
        def ply(state, number):
            action = jnp.argmax(env.view(state).legal).astype(jnp.int32)
            return env.step(state, action), env.view(state).observation

        start = env.init(key)
        return jax.lax.scan(ply, env.redrawn(start, draws), jnp.arange(40))[1]

    one, other = jax.random.split(jax.random.key(0))
    np.testing.assert_array_equal(play(one, one), play(one, one))
    assert (play(one, one) != play(one, other)).any()


@pytest.mark.parametrize("name", NAMES)
def test_outcomes_are_drawn_by_their_probabilities(name):
    env = named(name)
    start, step = jax.jit(env.init)(jax.random.key(3)), jax.jit(env.step)

    @jax.jit
    def first_legal(state):
        action = jnp.argmax(env.view(state).legal).astype(jnp.int32)
        after = env.afterstate(state, action)
        return action, after, env.chance(after)

    while not np.any((found := first_legal(start))[2]):
        start = step(start, found[0])
    action, after, expected = found
    resolved = jax.vmap(lambda outcome: env.view(env.resolve(after, outcome)).observation)
    results = np.asarray(jax.jit(resolved)(np.arange(env.outcomes)))
    keys = jax.random.split(jax.random.key(0), 4000)
    drawn = jax.jit(jax.vmap(lambda key: env.view(env.step(env.redrawn(start, key), action)).observation))(keys)
    same = (np.asarray(drawn)[:, None] == results[None]).reshape(len(keys), env.outcomes, -1).all(axis=-1)
    expected = np.asarray(expected)
    share = same.mean(axis=0)[expected > 0]
    np.testing.assert_allclose(share, expected[expected > 0], atol=4 * np.sqrt(0.25 / len(keys)))


def test_equal_tiles_merge_once_and_are_rewarded():
    game = Play2048(0.5)
    state = jax.jit(game.init)(jax.random.key(0))._replace(
        board=np.array([[1, 1, 1, 1], [2, 0, 2, 3], [0, 0, 0, 1], [1, 2, 1, 2]], np.int8)
    )
    after = jax.jit(game.step)(state, np.int32(0))
    expected = [[2, 2, 0, 0], [3, 3, 0, 0], [1, 0, 0, 0], [1, 2, 1, 2]]
    np.testing.assert_array_equal(after.board, expected)
    assert float(jax.jit(game.view)(after).rewards[0]) == 0.5 * (4 + 4 + 8)


def test_symmetries_of_2048_keep_the_rules():
    game = Play2048(1.0)
    step = jax.jit(game.step)
    board = np.array([[1, 1, 0, 3], [2, 0, 2, 3], [0, 0, 0, 1], [1, 2, 1, 2]], np.int8)
    state = jax.jit(game.init)(jax.random.key(0))._replace(board=board)
    assert len(game.symmetries) == 7
    turn = jax.jit(lambda board: [symmetry.observation(board) for symmetry in game.symmetries])
    after = [turn(step(state, np.int32(action)).board) for action in range(4)]
    for number, symmetry in enumerate(game.symmetries):
        turned = state._replace(board=turn(board)[number])
        for action, original in enumerate(symmetry.actions.tolist()):
            np.testing.assert_array_equal(step(turned, np.int32(action)).board, after[original][number])


def test_a_backgammon_is_worth_three_points():
    game = Backgammon(1 / 3)
    board = np.zeros(28, np.int8)
    board[[23, 26, 20, 0, 27]] = [1, 14, -2, -13, 0]
    start = jax.jit(game.init)(jax.random.key(0))
    dice = np.int8([1, 0, 0, 0, 0, 0])
    bear_off = jax.jit(lambda state: game.view(game.step(state, np.int32(6 * 25 + 0))))
    for change, points in (({}, 3), ({20: 0, 0: -15}, 2), ({0: -12, 27: -1}, 1)):
        changed = board.copy()
        changed[[*change]] = [*change.values()]
        won = bear_off(start._replace(board=changed, dice=dice, player=np.int32(1)))
        assert bool(won.done)
        np.testing.assert_allclose(won.rewards, [-points / 3, points / 3], rtol=1e-6)


@pytest.mark.parametrize("name", NAMES)
def test_packed_states_keep_what_will_be_drawn(name):
    env = named(name)
    states = jax.jit(jax.vmap(env.init))(jax.random.split(jax.random.key(0), 3))
    like = jax.eval_shape(env.init, jax.random.key(0))
    rows = np.asarray(jax.jit(pack_states)(states))
    back = jax.jit(lambda packed: unpack_states(packed, like))(rows)
    jax.tree.map(np.testing.assert_array_equal, back, states)


class Coins:
    """A player bets on head or tail until a coin has fallen twice."""

    outcomes, players = 2, 1

    def init(self, key):
        return jnp.zeros(4, jnp.float32)  # coins, the bet, whether the coin is in the air, reward

    def step(self, state, action):
        over = state[0] >= 2
        return jnp.where(over, state.at[3].set(0), jnp.stack([state[0], action.astype(jnp.float32), 1.0, 0.0]))

    def chance(self, state):
        return jnp.where(state[2] > 0, self.odds, 0).astype(jnp.float32)

    odds = np.array([0.75, 0.25], np.float32)

    def resolve(self, state, outcome):
        return jnp.stack([state[0] + 1, state[1], 0.0 * state[2], jnp.where(state[1] == outcome, 0.5, 0.0)])

    def view(self, state):
        return View(
            observation=state[:1],
            legal=jnp.ones(2, bool),
            player=jnp.int32(0),
            rewards=jnp.stack([state[3], jnp.zeros_like(state[3])]),
            done=state[0] >= 2,
            truncated=jnp.array(False),
        )


def test_an_own_game_of_chance_is_found_by_its_method(tmp_path, monkeypatch):
    (tmp_path / "coins.py").write_text("from tests_of_chance import Coins\n")
    monkeypatch.setitem(sys.modules, "tests_of_chance", SimpleNamespace(Coins=Coins))
    monkeypatch.chdir(tmp_path)
    env = make_env(OwnGameConfig(name=f"{tmp_path}/coins.py:Coins"))
    assert isinstance(env, GameOfChance)
    assert (env.spec.num_actions, env.outcomes, env.spec.players) == (2, 2, 1)


class Lopsided(Coins):
    odds = np.array([0.75, 0.5], np.float32)


class Twice(Coins):
    def resolve(self, state, outcome):
        return Coins.resolve(self, state, outcome).at[2].set(1.0)


class Shapeless(Coins):
    def chance(self, state):
        return jnp.zeros(3, jnp.float32)


@pytest.mark.parametrize(
    ("game", "fault"), [(Lopsided, "sum to one"), (Twice, "chance decides"), (Shapeless, r"\[3\].*\[2\]")]
)
def test_probabilities_that_are_none_are_refused(game, fault):
    with pytest.raises(ConfigError, match=fault):
        check_game(GameOfChance(game(), "jax/Coins"))


def test_moves_of_backgammon_are_named_by_their_points():
    notation = notation_of(named("backgammon").spec)
    assert len({notation.name(None, action) for action in range(156)}) == 156
    # From the bar by a five, from the farthest point by a six, and borne off by the exact distance and by more.
    places = {"pass": 0, "bar/20": 6 + 4, "24/18": 12 + 5, "3/off": 12 + 6 * 21 + 2, "3/off(6)": 12 + 6 * 21 + 5}
    assert {name: notation.action(None, name) for name in places} == places
