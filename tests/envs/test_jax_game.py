"""Games of one's own in JAX: found by path, checked before they are played."""

from pathlib import Path
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from random_walk import SECTION

from podzero.config import OwnGameConfig, load, parse
from podzero.core.errors import ConfigError
from podzero.core.types import Symmetry, View
from podzero.envs import make_env
from podzero.envs.jax_game import OwnGame, check_game
from podzero.envs.registry import GAMES

from .conftest import HEAVY


@pytest.mark.parametrize("name", [name for name in GAMES if name not in HEAVY])
def test_built_in_games_satisfy_the_contract(name):
    check_game(make_env(name), games=4, max_plies=32)


class Stones(NamedTuple):
    left: jax.Array
    player: jax.Array
    reward: jax.Array
    plies: jax.Array


class Countdown:
    """Seven stones; the players take one or two in turn, and the player who takes the last one wins."""

    max_plies = 7
    stones, extra_reward, over_reward, players = 7, 0.0, 0.0, 2

    def init(self, key):
        return Stones(jnp.int32(self.stones), jnp.int32(0), jnp.float32(0), jnp.int32(0))

    def step(self, state, action):
        over = state.left == 0
        left = jnp.where(over, 0, state.left - 1 - action)
        won = jnp.where(state.player == 0, 1.0, -1.0)
        reward = jnp.where((left == 0) & ~over, won, jnp.where(over, self.over_reward, self.extra_reward))
        player = jnp.where(over, state.player, 1 - state.player)
        return Stones(left, player, reward.astype(jnp.float32), state.plies + ~over)

    def legal(self, state):
        return (jnp.arange(2) < state.left) | (state.left == 0)

    def view(self, state):
        return View(
            observation=jnp.stack([state.left, state.player]).astype(jnp.float32),
            legal=self.legal(state),
            player=state.player,
            rewards=jnp.stack([state.reward, -state.reward]),
            done=state.left == 0,
            truncated=jnp.array(False),
        )


def own(game):
    return OwnGame(game, "jax/Countdown")


def test_the_spec_follows_from_what_the_game_returns():
    spec = own(Countdown()).spec
    assert (spec.observation_shape, spec.observation_dtype, spec.num_actions) == ((2,), "float32", 2)
    assert (spec.players, spec.max_plies, spec.state_bytes) == (2, 7, 16)


def test_a_game_that_keeps_the_contract_passes():
    check_game(own(Countdown()))


def test_squares_without_a_board_are_refused():
    class Owned(Countdown):
        def view(self, state):
            return super().view(state)._replace(ownership=jnp.zeros((2, 2), jnp.int8))

    with pytest.raises(ConfigError, match=r"ownership tells of 2 squares; expected those of the observation \(2,\)"):
        check_game(own(Owned()))


class Trio:
    """Tic-tac-toe's board of three squares: each move takes one, and nobody wins; squares belong to their takers."""

    max_plies, owner_of_first = 3, 1

    def init(self, key):
        return jnp.zeros(3, jnp.int32)

    def step(self, state, action):
        mark = jnp.where(jnp.sum(state != 0) % 2 == 0, 1, -1)
        return jnp.where((jnp.arange(3) == action) & (state == 0), mark, state)

    def view(self, state):
        taken = jnp.sum(state != 0, dtype=jnp.int32)
        owners = (state * self.owner_of_first).astype(jnp.int8)
        return View(
            observation=state[None, :, None], legal=(state == 0) | (taken == 3), player=taken % 2,
            rewards=jnp.zeros(2), done=taken == 3, truncated=jnp.array(False), ownership=jnp.stack([owners, -owners]),
        )  # fmt: skip


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({}, None),
        ({"owner_of_first": 2}, "ownership has numbers other than -1, 0 and 1"),
        ({"symmetries": (Symmetry(lambda x: x, np.array([3, 1, 2, 0])),)}, "the first 3 are squares, and must stay so"),
    ],
)
def test_owners_of_squares_are_checked(changes, words):
    class Passing(Trio):
        """With a pass, which is legal once the game is over."""

        def view(self, state):
            view = super().view(state)
            return view._replace(legal=jnp.append(view.legal, view.done))

    for name, value in changes.items():
        setattr(Passing, name, value)
    if words is None:
        check_game(own(Passing()))
        return
    with pytest.raises(ConfigError, match=words):
        check_game(own(Passing()))


def look(**changes):
    """A view that differs from that of the game in some fields."""
    return lambda self, state: Countdown.view(self, state)._replace(
        **{field: change(state) for field, change in changes.items()}
    )


VIOLATIONS = {
    "another state": ({"step": lambda self, state, action: state._replace(left=state.reward)}, "left.*float32.*int32"),
    "another structure": ({"step": lambda self, state, action: tuple(state)}, "structure|PyTreeDef"),
    "players": ({"players": 0}, "players = 0"),
    "two rewards for three": ({"players": 3}, r"rewards .*\[2\].*\[3\]"),
    "player's dtype": ({"view": look(player=lambda state: state.player.astype(jnp.int8))}, "player is int8"),
    "one reward": ({"view": look(rewards=lambda state: state.reward[None])}, r"rewards .*\[1\].*\[2\]"),
    "no legal action": ({"legal": lambda self, state: jnp.arange(2) < state.left - 1}, "no action is legal"),
    "illegal at the end": ({"legal": lambda self, state: jnp.arange(2) < state.left}, "illegal.*over"),
    "third player": ({"view": look(player=lambda state: state.player + 1)}, "player is not below 2"),
    "not zero-sum": ({"view": look(rewards=lambda state: jnp.stack([state.reward, state.reward]))}, "sum to zero"),
    "large returns": ({"extra_reward": 0.7}, r"\[-1, 1\]"),
    "reward after the end": ({"over_reward": 0.5}, "after the end"),
    "over at the start": ({"stones": 0}, "over before the first move"),
    "not finite": ({"view": look(observation=lambda state: jnp.float32([0, 1]) / state.left)}, "not finite"),
    "truncated, not done": ({"view": look(truncated=lambda state: state.left == 3)}, "truncated"),
    "symmetry": ({"symmetries": [Symmetry(lambda seen: seen, np.array([0, 0]))]}, r"symmetries\[0\].actions"),
    "state at the end": (
        {"step": lambda self, state, action: Countdown.step(self, state, action)._replace(plies=state.plies + 1)},
        "state changes",
    ),
    "a Python branch": ({"step": lambda self, state, action: state if action else None}, "TracerBool"),
}  # fmt: skip


class Each(Countdown):
    """Each of three players gets a reward of its own: the last one to move 1, the next one -0.25."""

    players = 3

    def step(self, state, action):
        after = super().step(state, action)
        return after._replace(player=jnp.where(state.left == 0, state.player, (state.player + 1) % 3))

    def view(self, state):
        last = (jnp.arange(3) == (state.player + 2) % 3) - 0.25 * (jnp.arange(3) == state.player)
        return super().view(state)._replace(rewards=jnp.abs(state.reward) * last.astype(jnp.float32))


def test_a_game_with_a_value_for_each_player_passes():
    assert own(Each()).spec.values == 3
    check_game(own(Each()))


def test_two_players_have_one_value_unless_their_game_is_not_zero_sum():
    assert own(Countdown()).spec.values == 1
    assert own(type("Shared", (Countdown,), {"zero_sum": False})()).spec.values == 2


def test_a_game_with_a_value_for_each_player_is_never_truncated():
    cut = type("Cut", (Each,), {"view": lambda self, state: Each.view(self, state)._replace(truncated=state.left == 0)})
    with pytest.raises(ConfigError, match="truncated"):
        check_game(own(cut()))


@pytest.mark.parametrize(("changes", "message"), VIOLATIONS.values(), ids=VIOLATIONS)
def test_violations_are_named(changes, message):
    with pytest.raises(ConfigError, match=message):
        check_game(own(type("Wrong", (Countdown,), changes)()))


def test_a_violation_names_the_moves_that_lead_to_it():
    wrong = type("Wrong", (Countdown,), {"view": look(player=lambda state: state.player + (state.left < 7))})
    with pytest.raises(ConfigError, match=r"moves \[\d\]"):
        check_game(own(wrong()))


FILE = f"{Path(__file__).parents[2] / 'configs' / 'own_jax_game.py'}:Domineering"


def test_a_game_is_made_from_its_file():
    env = make_env(OwnGameConfig(name=FILE))
    assert (env.spec.name, env.spec.num_actions, env.spec.max_plies) == ("jax/Domineering", 25, 12)


def test_the_rules_in_jax_are_those_in_python():
    """Random games of `configs/own_jax_game.py` beside those of `configs/own_game.py`."""
    from podzero.core.importing import import_class

    env, other = make_env(OwnGameConfig(name=FILE)), import_class(FILE.replace("own_jax", "own"), "env.id")()
    step, view, random = jax.jit(env.step), jax.jit(env.view), np.random.default_rng(0)
    for _ in range(5):
        state = env.init(jax.random.key(0))
        other.reset(0)
        while not other.done():
            seen = view(state)
            assert np.flatnonzero(seen.legal).tolist() == other.legal_actions().tolist()
            np.testing.assert_array_equal(seen.observation, other.observation())
            action = random.choice(other.legal_actions())
            state = step(state, jnp.int32(action))
            other.step(action)
        assert view(state).done
        assert tuple(view(state).rewards) == other.rewards()


def test_an_experiment_names_its_game_by_path():
    experiment = parse({"name": "x", "env": {"name": FILE}, "actors": {"inference": "device"}}, "x")
    assert experiment.env == OwnGameConfig(name=FILE)
    assert experiment.env.title == "jax/Domineering"


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("nowhere.py:Game", "nowhere.py"),
        (FILE.replace("Domineering", "Dominering"), "Dominering.*Domineering"),
        ("podzero.core.types:View", "View"),
        ("collections:Counter", "lacks init, step, view"),
    ],
)
def test_a_name_that_is_no_game_is_refused(name, message):
    with pytest.raises(ConfigError, match=message):
        make_env(OwnGameConfig(name=name))


def test_an_unknown_name_is_refused_with_the_known_ones():
    with pytest.raises(ConfigError, match=r"conect_four.*connect_four"):
        parse({"name": "x", "env": {"name": "conect_four"}}, "x")


def test_a_file_that_changed_after_the_start_is_refused(tmp_path):
    own_game = Path(FILE.rpartition(":")[0]).read_text()
    (tmp_path / "game.py").write_text(own_game)
    (tmp_path / "mine.yaml").write_text('env: {name: "game.py:Domineering"}\n')
    started = load(str(tmp_path / "mine.yaml"))
    make_env(started.env)
    # Another file, because a process imports a file once and keeps its digest.
    (tmp_path / "other.py").write_text(f"{own_game}\nCHANGED = True\n")
    changed = started.env.model_copy(update={"name": f"{tmp_path / 'other.py'}:Domineering"})
    with pytest.raises(ConfigError, match=rf"not the one .*{started.env.sha256}.*restore the file"):
        make_env(changed)


def test_a_simulator_of_ones_own_draws_from_the_key_that_its_state_holds():
    """The same key and actions give the same episode, another key another one; a state that is over stays as it is."""
    env = make_env(OwnGameConfig(**SECTION))
    assert env.spec.players == 1

    @jax.jit
    def episode(key):
        _, views = jax.lax.scan(lambda state, _: (env.step(state, 1),) * 2, env.init(key), length=40)
        return jax.vmap(env.view)(views)

    first, same, other = (episode(jax.random.key(seed)) for seed in (3, 3, 4))
    np.testing.assert_array_equal(first.rewards, same.rewards)
    assert not np.array_equal(first.rewards, other.rewards)
    assert first.done[-1]
    over = np.asarray(first.done)
    assert (first.rewards[1:][over[:-1]] == 0).all()


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"model": "rules"}, r"takes a key.*foresee.*env\.model=learned"),
        ({"kwargs": {"players": 2}}, "one player.* has 2"),
    ],
)
def test_a_simulator_with_chance_is_refused_where_a_search_would_foresee_it_or_several_play(changes, words):
    with pytest.raises(ConfigError, match=words):
        make_env(OwnGameConfig(**SECTION | changes))
