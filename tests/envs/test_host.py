"""Simulators as `Env`s: the contract of every game, the cache, and error messages."""

import threading
import time
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from podzero.config import SimulatorConfig, load
from podzero.core.errors import ConfigError
from podzero.envs import SimulatorError, make_env, registry, simulator_errors
from podzero.envs.host import HostEnv

HOSTED = {
    "open_spiel/connect_four": 43,
    "open_spiel/tic_tac_toe": 10,
    "open_spiel/catch": 11,
    "gymnasium_simulator/CartPole-v1": 60,
    "own_game": 13,
}
"""Games, and how many plies of each are played."""
REWARD_SCALES = {"gymnasium_simulator/CartPole-v1": 0.01}
GAMES = 6


def hosted(name, **settings):
    kind, _, game = name.partition("/")
    config = SimulatorConfig(name=kind, id=game, reward_scale=REWARD_SCALES.get(name, 1.0)) if game else load(name).env
    return make_env(config.model_copy(update=settings))


@partial(jax.jit, static_argnums=(0, 1))
def played(env, plies, key):
    """Random games of GAMES seeds: actions `[plies, GAMES]`, views `[plies + 1, GAMES, ...]`."""

    def ply(states, key):
        legal = jax.vmap(env.view)(states).legal
        actions = jax.random.categorical(key, jnp.where(legal, 0.0, -jnp.inf), axis=-1).astype(jnp.int32)
        after = jax.vmap(env.step)(states, actions)
        return after, (actions, jax.vmap(env.view)(after))

    init_key, play_key = jax.random.split(key)
    starts = jax.vmap(env.init)(jax.random.split(init_key, GAMES))
    _, (actions, views) = jax.lax.scan(ply, starts, jax.random.split(play_key, plies))
    first = jax.vmap(env.view)(starts)
    return actions, jax.tree.map(lambda one, rest: jnp.concatenate([one[None], rest]), first, views)


@pytest.fixture(scope="module", params=HOSTED)
def trace(request):
    env = hosted(request.param)
    actions, views = jax.device_get(played(env, HOSTED[request.param], jax.random.key(1)))
    return request.param, env, actions, views


def test_views_have_the_shapes_and_dtypes_of_the_spec(trace, check_views):
    _, env, _, views = trace
    check_views(env.spec, views)


def test_a_legal_action_exists_and_all_are_legal_once_the_game_is_over(trace):
    _, _, actions, views = trace
    assert views.legal.any(axis=-1).all()
    assert views.legal[views.done].all()
    assert np.take_along_axis(views.legal[:-1], actions[..., None], axis=-1).all()


def test_rewards_are_zero_sum_or_those_of_one_player(trace):
    _, env, _, views = trace
    assert set(np.unique(views.player)) <= set(range(env.spec.players))
    if env.spec.players == 1:
        np.testing.assert_array_equal(views.rewards[..., 1], 0)
    else:
        np.testing.assert_array_equal(views.rewards.sum(axis=-1), 0)


def test_games_end_and_no_longer_change(trace):
    _, _, _, views = trace
    done = views.done
    assert not done[0].any()
    assert (done[1:] >= done[:-1]).all()
    assert done[-1].all()
    for field in ("observation", "legal", "player"):
        values = getattr(views, field)
        np.testing.assert_array_equal(values[1:][done[:-1]], values[:-1][done[:-1]])
    np.testing.assert_array_equal(views.rewards[1:][done[:-1]], 0)


def test_the_cache_size_does_not_change_the_games(trace, monkeypatch):
    name, _, actions, views = trace
    monkeypatch.setattr(registry, "HostEnv", partial(HostEnv, cache_size=4))
    other = hosted(name)
    again = jax.device_get(played(other, HOSTED[name], jax.random.key(1)))
    jax.tree.map(np.testing.assert_array_equal, again, (actions, views))


def test_vmap_equals_single():
    env = hosted("open_spiel/connect_four")
    keys = jax.random.split(jax.random.key(3), 4).reshape(2, 2)
    nested, flat = jax.vmap(jax.vmap(env.init))(keys), [env.init(key) for key in keys.ravel()]
    step, step_all = jax.jit(env.step), jax.jit(jax.vmap(jax.vmap(env.step)))
    for _ in range(4):
        nested = step_all(nested, jnp.argmax(nested.view.legal, axis=-1))
        flat = [step(state, jnp.argmax(state.view.legal)) for state in flat]
    expected = jax.tree.map(lambda *leaves: jnp.stack(leaves).reshape(2, 2, *leaves[0].shape), *flat)
    jax.tree.map(np.testing.assert_array_equal, nested, expected)


def countdown_env(simulator, **options):
    return HostEnv(simulator, "countdown", **{"max_plies": 20, **options})


def after(env, actions):
    state = env.init(jax.random.key(0))
    for action in actions:
        state = env.step(state, action)
    return state


def test_a_state_is_a_complete_value(countdown):
    """Another environment, whose cache does not contain the position, continues from it."""
    state = jax.device_get(after(countdown_env(countdown()), [2, 0, 1]))
    assert state.moves[:4].tolist() == [2, 0, 1, 0]
    state = countdown_env(countdown()).step(state, 2)
    np.testing.assert_array_equal(state.view.observation, [11 - 3 - 1 - 2 - 3, 0])


@pytest.fixture
def counting(countdown):
    """The game's class, which counts the steps of all its objects."""

    class Counting(countdown):
        steps = 0

        def step(self, action):
            Counting.steps += 1
            super().step(action)

    return Counting


def test_a_cached_position_or_a_finished_game_is_not_stepped(counting):
    env = countdown_env(counting())
    state = after(env, [2, 2, 2, 1])
    assert bool(state.view.done)
    assert counting.steps == 4
    again = env.step(state, 0)
    np.testing.assert_array_equal(again.view.rewards, [0, 0])
    jax.tree.map(np.testing.assert_array_equal, again._replace(view=0), state._replace(view=0))
    after(env, [2, 2, 2, 1])
    assert counting.steps == 4


def test_a_dropped_position_is_rebuilt_from_the_nearest_cached_one(counting):
    env = countdown_env(counting(), cache_size=2)
    state = after(env, [0, 0, 0])
    assert counting.steps == 3
    env.step(state, 0)
    env.step(env.step(env.init(jax.random.key(0)), 0), 1)
    counting.steps = 0
    env.step(state, 1)  # of the two cached positions, one is an ancestor after one move: three more moves
    assert counting.steps == 3


def test_rewards_are_multiplied_by_the_scale(countdown):
    env = countdown_env(countdown(), reward_scale=0.25)
    np.testing.assert_array_equal(after(env, [2, 2, 2, 1]).view.rewards, [-0.25, 0.25])
    np.testing.assert_array_equal(after(env, [2, 2, 2]).view.rewards, [0, 0])


def test_a_game_of_max_plies_is_truncated_without_a_winner(countdown):
    env = countdown_env(countdown(), max_plies=3)
    assert not after(env, [0, 0]).view.done
    state = after(env, [0, 0, 0])
    assert bool(state.view.done)
    assert bool(state.view.truncated)
    assert int(state.view.player) == 1
    assert bool(state.view.legal.all())
    np.testing.assert_array_equal(state.view.rewards, [0, 0])
    np.testing.assert_array_equal(after(env, [2, 2, 2]).view.rewards, [0, 0])


def test_a_game_that_ends_by_its_rules_is_not_truncated(countdown):
    view = after(countdown_env(countdown(), max_plies=4), [2, 2, 2, 1]).view
    assert bool(view.done)
    assert not bool(view.truncated)


def test_a_limit_of_the_game_itself_truncates(countdown):
    class Limited(countdown):
        def done(self):
            return super().done() or self.truncated()

        def truncated(self):
            return self.stones[0] <= 5

    assert bool(after(countdown_env(Limited()), [2, 2]).view.truncated)


def error_of(env, actions):
    """The error that a compiled step raises."""
    state = after(env, actions[:-1])
    with pytest.raises(SimulatorError) as caught, simulator_errors():
        jax.block_until_ready(jax.jit(env.step)(state, actions[-1]))
    return caught.value


def test_an_illegal_action(countdown):
    message = str(error_of(countdown_env(countdown()), [2, 2, 2, 2]))
    assert message.startswith("countdown: action 2 is illegal in this position (seed ")
    assert message.endswith(", moves so far [2, 2, 2])")


@pytest.mark.parametrize(
    ("method", "found", "message"),
    [
        (
            "rewards",
            [float("nan"), 0.0],
            r"countdown: rewards\(\) contains NaN or infinity \(seed .* so far \[0\]\)",
        ),
        ("observation", np.array([np.inf, 0.0], np.float32), r"countdown: observation\(\) contains NaN or infinity"),
        ("observation", np.zeros(3), r"observation\(\) is float64 of shape \[3\], and was float32 of shape \[2\]"),
        ("rewards", [1.0], r"rewards\(\) = \[1.0\]: expected 2 numbers"),
        ("rewards", [1.0, 0.0], r"rewards\(\) = \[1.0, 0.0\]: two players' must sum to 0"),
        ("player", 2, r"player\(\) = 2: expected a number below 2"),
        ("legal_actions", [], r"legal_actions\(\) is empty, but done\(\) is false"),
        ("legal_actions", [7], r"legal_actions\(\) = \[7\]: expected numbers below 3"),
        ("legal_actions", [0, -1], r"legal_actions\(\) = \[0, -1\]: expected numbers below 3"),
    ],
)
def test_a_game_whose_later_positions_are_invalid(countdown, method, found, message):
    def wrong(self):
        return getattr(countdown, method)(self) if self.stones[0] == 11 else found

    with pytest.raises(SimulatorError, match=message), simulator_errors():
        jax.block_until_ready(after(countdown_env(type("Wrong", (countdown,), {method: wrong})()), [0]))


def test_after_a_game_that_hangs_other_positions_can_be_played(countdown):
    class Hanging(countdown):
        def step(self, action):
            if self.stones[0] < 7:
                time.sleep(20)
            super().step(action)

    env = countdown_env(Hanging(), step_timeout_s=0.5)
    assert str(error_of(env, [2, 1, 0])) == "countdown: no answer within 0.5 s (env.step_timeout_s)"
    assert not after(env, [2, 1]).view.done


def test_more_actions_than_int16_can_number_are_refused(countdown):
    with pytest.raises(ConfigError, match=r"40000 actions; .*32768"):
        countdown_env(type("Wide", (countdown,), {"num_actions": 40_000})())


def test_threads_that_search_at_the_same_time_do_not_deadlock(countdown):
    """Each callback receives 2 MiB of moves, between matrix products that keep all compute threads busy."""
    env = countdown_env(countdown(), max_plies=1024)

    @jax.jit
    def run(key):
        def body(_, carry):
            states, x = carry
            x = jnp.tanh(x @ x)
            actions = jnp.argmax(states.view.legal, axis=-1) + (x[0, 0] > 2)
            return jax.vmap(env.step)(states, actions), x

        starts = jax.vmap(env.init)(jax.random.split(key, 1024))
        states, x = jax.lax.fori_loop(0, 12, body, (starts, jnp.ones((256, 256))))
        return states.view.done, x

    done = [None, None]

    def work(i):
        done[i] = np.asarray(run(jax.random.key(i))[0]).all()

    threads = [threading.Thread(target=work, args=(i,), daemon=True) for i in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert done == [True, True]
