"""Games of chance: the rules of pgx, and draws that depend on nothing but the key and the moves."""

import sys
import warnings
from types import SimpleNamespace

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from podzero.config import ChanceGameConfig, OwnGameConfig
from podzero.core.errors import ConfigError
from podzero.core.types import View
from podzero.envs import GameOfChance, check_game, make_env, pack_states, unpack_states
from podzero.envs.boards.backgammon import Backgammon
from podzero.envs.boards.play_2048 import Play2048
from podzero.envs.notation import notation_of

with warnings.catch_warnings():
    warnings.simplefilter("ignore")
    import pgx

NAMES = ("2048", "backgammon")
GAMES = 32


def named(name, **settings):
    return make_env(ChanceGameConfig(name=name, **settings))


def random_action(key, legal):
    return jax.random.categorical(key, jnp.where(legal, 0.0, -jnp.inf)).astype(jnp.int32)


@pytest.mark.parametrize("name", NAMES)
def test_it_keeps_the_contract_of_games(name):
    check_game(named(name), games=8, max_plies=128)


def dice_of(observation):
    """The dice that pgx shows as counts."""
    return observation[..., -6:].astype(jnp.int8)


def as_pgx_backgammon():
    """Ours from a state of pgx, and whether both show the same."""
    game = Backgammon(1.0)

    def converted(state):
        like = game.init(jax.random.key(0))
        return like._replace(
            board=state.observation[:28].astype(jnp.int8), dice=dice_of(state.observation), player=state.current_player
        )

    def drawn(after, state):
        counts = jax.vmap(lambda roll: game.resolve(after, roll).dice)(jnp.arange(game.outcomes))
        return jnp.argmax(jnp.all(counts == dice_of(state.observation), axis=-1))

    def same(ours, state):
        return jnp.all(ours.board == state.observation[:28]) & jnp.all(ours.dice == dice_of(state.observation))

    return game, converted, drawn, same


def as_pgx_2048():
    game = Play2048(1.0)

    def levels(state):
        return jnp.argmax(state.observation, axis=-1).astype(jnp.int8)

    def converted(state):
        return game.init(jax.random.key(0))._replace(board=levels(state))

    def drawn(after, state):
        boards = jax.vmap(lambda tile: game.resolve(after, tile).board)(jnp.arange(game.outcomes))
        fits = jnp.all(boards == levels(state), axis=(1, 2)) & (game.chance(after) > 0)
        return jnp.argmax(fits)

    def same(ours, state):
        return jnp.all(ours.board == levels(state))

    return game, converted, drawn, same


@pytest.mark.parametrize(
    ("name", "paired", "plies"), [("backgammon", as_pgx_backgammon, 1500), ("2048", as_pgx_2048, 400)]
)
def test_every_ply_is_that_of_pgx(name, paired, plies):
    """Random games until their ends: boards, dice, legal actions, players, rewards; what pgx draws is an outcome."""
    game, converted, drawn, same = paired()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        theirs = pgx.make(name)

    def compared(ours, state):
        seen, over = game.view(ours), state.terminated
        legal = jnp.where(over, True, state.legal_action_mask)
        rewards = jnp.append(state.rewards, 0.0)[:2]
        facts = [
            over | same(ours, state),
            jnp.all(seen.legal == legal),
            seen.player == state.current_player,
            jnp.all(seen.rewards == rewards),
            seen.done == over,
        ]
        return jnp.stack(facts)

    def ply(carry, key):
        ours, state = carry
        choose_key, draw_key = jax.random.split(key)
        action = random_action(choose_key, game.view(ours).legal)
        state = theirs.step(state, action, draw_key)
        after = game.step(ours, action)
        probabilities = game.chance(after)
        waits, outcome = jnp.any(probabilities > 0), drawn(after, state)
        resolved = jax.tree.map(lambda one, other: jnp.where(waits, one, other), game.resolve(after, outcome), after)
        possible = ~waits | (probabilities[outcome] > 0)
        return (resolved, state), (compared(resolved, state), possible, state.terminated)

    @jax.jit
    @jax.vmap
    def play(key):
        start, *_ = keys = jax.random.split(key, plies + 1)
        state = theirs.init(start)
        return jax.lax.scan(ply, (converted(state), state), keys[1:])[1]

    facts, possible, over = play(jax.random.split(jax.random.key(0), GAMES))
    assert over[:, -1].mean() > 0.9
    np.testing.assert_array_equal(np.argwhere(~np.asarray(facts)), np.zeros((0, 3)))
    assert possible.all()


@pytest.mark.parametrize("name", NAMES)
def test_first_positions_are_those_of_pgx(name):
    """Which ones are possible: those that 300 keys give are the same sets."""
    game, converted, _, _ = {"2048": as_pgx_2048, "backgammon": as_pgx_backgammon}[name]()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        theirs = pgx.make(name)
    keys = jax.random.split(jax.random.key(1), 3000 if name == "2048" else 300)
    ours, others = jax.jit(jax.vmap(game.init))(keys), jax.jit(jax.vmap(lambda key: converted(theirs.init(key))))(keys)

    def kinds(states):
        if name == "2048":
            return {tuple(sorted(board[board > 0].tolist())) for board in np.asarray(states.board)}
        seen = zip(np.asarray(states.dice), np.asarray(states.player), strict=True)
        return {(*dice.tolist(), int(player)) for dice, player in seen}

    assert kinds(ours) == kinds(others)
    assert len(kinds(ours)) == (3 if name == "2048" else 30)


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
    start = env.init(jax.random.key(3))
    action = jnp.argmax(env.view(start).legal).astype(jnp.int32)
    while not env.chance(env.afterstate(start, action)).any():
        start = env.step(start, action)
        action = jnp.argmax(env.view(start).legal).astype(jnp.int32)
    after = env.afterstate(start, action)
    results = jax.vmap(lambda outcome: env.view(env.resolve(after, outcome)).observation)(jnp.arange(env.outcomes))
    keys = jax.random.split(jax.random.key(0), 4000)
    drawn = jax.jit(jax.vmap(lambda key: env.view(env.step(env.redrawn(start, key), action)).observation))(keys)
    same = (drawn[:, None] == results[None]).reshape(len(keys), env.outcomes, -1).all(axis=-1)
    expected = np.asarray(env.chance(after))
    share = np.asarray(same).mean(axis=0)[expected > 0]
    np.testing.assert_allclose(share, expected[expected > 0], atol=4 * np.sqrt(0.25 / len(keys)))


def test_equal_tiles_merge_once_and_are_rewarded():
    game = Play2048(0.5)
    state = game.init(jax.random.key(0))._replace(
        board=jnp.array([[1, 1, 1, 1], [2, 0, 2, 3], [0, 0, 0, 1], [1, 2, 1, 2]], jnp.int8)
    )
    after = game.step(state, jnp.int32(0))
    expected = [[2, 2, 0, 0], [3, 3, 0, 0], [1, 0, 0, 0], [1, 2, 1, 2]]
    np.testing.assert_array_equal(after.board, expected)
    assert float(game.view(after).rewards[0]) == 0.5 * (4 + 4 + 8)


def test_symmetries_of_2048_keep_the_rules():
    game = Play2048(1.0)
    board = jnp.array([[1, 1, 0, 3], [2, 0, 2, 3], [0, 0, 0, 1], [1, 2, 1, 2]], jnp.int8)
    state = game.init(jax.random.key(0))._replace(board=board)
    assert len(game.symmetries) == 7
    for symmetry in game.symmetries:
        turned = state._replace(board=symmetry.observation(board))
        for action, original in enumerate(symmetry.actions.tolist()):
            found = game.step(turned, jnp.int32(action)).board
            np.testing.assert_array_equal(found, symmetry.observation(game.step(state, jnp.int32(original)).board))


def test_a_backgammon_is_worth_three_points():
    game = Backgammon(1 / 3)
    board = np.zeros(28, np.int8)
    board[[23, 26, 20, 0, 27]] = [1, 14, -2, -13, 0]
    start = game.init(jax.random.key(0))
    dice = jnp.zeros(6, jnp.int8).at[0].set(1)
    for change, points in (({}, 3), ({20: 0, 0: -15}, 2), ({0: -12, 27: -1}, 1)):
        changed = board.copy()
        changed[[*change]] = [*change.values()]
        state = start._replace(board=jnp.asarray(changed), dice=dice, player=jnp.int32(1))
        won = game.view(game.step(state, jnp.int32(6 * 25 + 0)))
        assert bool(won.done)
        np.testing.assert_allclose(won.rewards, [-points / 3, points / 3], rtol=1e-6)


@pytest.mark.parametrize("name", NAMES)
def test_packed_states_keep_what_will_be_drawn(name):
    env = named(name)
    states = jax.vmap(env.init)(jax.random.split(jax.random.key(0), 3))
    like = jax.eval_shape(env.init, jax.random.key(0))
    back = unpack_states(pack_states(states), like)
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
