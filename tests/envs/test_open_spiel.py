"""OpenSpiel games: they equal pgx's, their boards are converted correctly, and the seed determines chance."""

import jax
import jax.numpy as jnp
import numpy as np
import pyspiel
import pytest

from podzero.config import SimulatorConfig
from podzero.core.errors import ConfigError
from podzero.envs import make_env
from podzero.envs.simulator_libraries import OpenSpielGame


@pytest.mark.parametrize("name", ["connect_four", "tic_tac_toe"])
def test_the_same_game_as_in_jax(name):
    """In random games, the same moves are legal, the games end at the same time and with the same winner."""
    ours, theirs = make_env(name), make_env(SimulatorConfig(name="open_spiel", id=name))

    def ply(states, key):
        legal = jax.vmap(ours.view)(states[0]).legal
        actions = jax.random.categorical(key, jnp.where(legal, 0.0, -jnp.inf), axis=-1).astype(jnp.int32)
        after = tuple(jax.vmap(env.step)(state, actions) for env, state in zip((ours, theirs), states, strict=True))
        return after, tuple(jax.vmap(env.view)(state) for env, state in zip((ours, theirs), after, strict=True))

    keys = jax.random.split(jax.random.key(0), 16)
    starts = jax.jit(lambda keys: (jax.vmap(ours.init)(keys), jax.vmap(theirs.init)(keys)))(keys)
    first = np.asarray(jax.jit(jax.vmap(ours.view))(starts[0]).player)
    _, (a, b) = jax.device_get(jax.jit(lambda s, k: jax.lax.scan(ply, s, k))(starts, jax.random.split(keys[0], 43)))
    np.testing.assert_array_equal(a.legal, b.legal)
    np.testing.assert_array_equal(a.done, b.done)
    opener = np.broadcast_to(first[None, :, None], (43, 16, 1))  # in pgx a random player begins, in OpenSpiel player 0
    np.testing.assert_array_equal(np.take_along_axis(a.rewards, opener, axis=2)[..., 0], b.rewards[..., 0])
    assert b.done[-1].all()
    assert {-1.0, 1.0} <= set(np.unique(b.rewards))


def test_boards_are_transposed_and_have_a_plane_for_the_player_to_move():
    game = OpenSpielGame("connect_four", {})
    for action in (3, 3, 2):
        game.step(action)
    board = game.observation()
    assert board.shape == (6, 7, 4)
    state = pyspiel.load_game("connect_four").new_initial_state()
    for action in (3, 3, 2):
        state.apply_action(action)
    planes = np.array(state.observation_tensor(1), np.float32).reshape(3, 6, 7)
    for plane in range(3):
        np.testing.assert_array_equal(board[..., plane], planes[plane])
    assert (board[..., 3] == 1).all()


def test_observations_that_differ_between_players_get_no_further_plane():
    assert OpenSpielGame("connect_four", {"egocentric_obs_tensor": True}).observation().shape == (6, 7, 3)
    assert OpenSpielGame("othello", {}).observation().shape == (8, 8, 3)


def test_tensors_that_are_no_boards_become_vectors():
    game = OpenSpielGame("mancala", {})
    assert game.observation().shape == (17,)


def test_max_plies_is_limited_by_the_longest_game():
    assert make_env(SimulatorConfig(name="open_spiel", id="tic_tac_toe")).init(jax.random.key(0)).moves.shape == (9,)
    config = SimulatorConfig(name="open_spiel", id="go(board_size=9)", max_plies=100)
    assert make_env(config).init(jax.random.key(0)).moves.shape == (100,)


def test_the_seed_determines_chance_at_the_start():
    """In Catch the column where the ball starts is drawn."""

    def start(seed):
        game = OpenSpielGame("catch", {})
        game.reset(seed)
        return game.observation().tobytes()

    assert start(1) == start(1)
    assert len({start(seed) for seed in range(40)}) == 5


@pytest.mark.parametrize("game", ["pig", "2048", "backgammon"])
def test_games_with_dice_are_refused(game):
    with pytest.raises(ConfigError, match="chance events"):
        OpenSpielGame(game, {})


def test_rewards_are_those_of_the_last_step():
    game = OpenSpielGame("cliff_walking", {})
    rewards = []
    for _ in range(3):
        game.step(1)  # up, away from the cliff
        rewards += game.rewards()
    assert rewards == [-1.0, -1.0, -1.0]


@pytest.mark.parametrize(
    ("name", "kwargs", "message"),
    [
        ("conect_four", {}, r"OpenSpiel has no game 'conect_four' \(did you mean 'connect_four'\?\)"),
        ("kuhn_poker", {}, "tree search cannot play OpenSpiel's kuhn_poker: it has hidden information"),
        ("matrix_rps", {}, "its players move at the same time"),
        ("first_sealed_auction", {}, "it is not zero-sum"),
        ("chinese_checkers(players=3)", {}, r"it has 3 players \(1 or 2 are supported\)"),
        (
            "connect_four",
            {"rowz": 4},
            r"cannot load 'connect_four' with the parameters \{'rowz': 4\}: Unknown",
        ),
        ("go(board_size=9)", {"komi": 6.5}, "both env.id = .* and env.kwargs set parameters"),
    ],
)
def test_games_that_search_cannot_play_are_refused(name, kwargs, message):
    with pytest.raises(ConfigError, match=message):
        make_env(SimulatorConfig(name="open_spiel", id=name, kwargs=kwargs))
