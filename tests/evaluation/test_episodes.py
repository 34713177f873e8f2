"""Judgement by returns: snapshots that act alone, in gymnasium environments and in simulators for one."""

import json
from pathlib import Path
from types import SimpleNamespace

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from random_parameters import random_parameters

from podzero.config import GymnasiumConfig, JaxLibraryConfig, load
from podzero.core.errors import ConfigError
from podzero.core.types import EnvSpec, View
from podzero.envs import VectorEnv, make_env, spec_of
from podzero.evaluation.arena import Arena, Interrupted
from podzero.evaluation.episodes import (
    ReturnRounds,
    play_episodes,
    random_policy,
    reward_scale,
    summary,
)
from podzero.evaluation.evaluate import evaluate
from podzero.evaluation.evaluator import Evaluator, make_rounds
from podzero.files.workdir import Workdir
from podzero.networks import make_model_network
from podzero.networks.snapshots import save_snapshot

KEY = jax.random.key(0)


@pytest.fixture(autouse=True, scope="module")
def _toys():
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(Path(__file__).parents[1] / "envs")
        yield


@pytest.fixture
def make():
    made = []

    def make(count, **config):
        made.append(VectorEnv(GymnasiumConfig(name="gymnasium", **config), count, seed=0))
        return made[-1]

    yield make
    for vector in made:
        vector.close()


def toy(**config):
    return {"id": "toys/Toy-v0", "module": "gymnasium_toys", **config}


def always(action):
    return lambda key, step: (np.full(len(step.reward), action, np.int32), None)


def newest(count, legal=None):
    """The newest step of `count` environments, as far as a random policy reads it."""
    return SimpleNamespace(observation=np.zeros((count, 1)), legal=legal)


def test_an_episode_without_an_end_is_cut_off(make, monkeypatch):
    monkeypatch.setattr("podzero.evaluation.episodes.MAX_STEPS", 7)
    result = play_episodes(make(2, **toy(kwargs={"length": 10**6})), always(1), 4, KEY)
    assert result.lengths.tolist() == [7] * 4
    assert result.returns.tolist() == [7.0] * 4


def test_each_environment_plays_its_share_however_long_its_episodes_are(make):
    """Three environments whose episodes last 2, 3 and 4 steps of reward 1: shares of 4, 3 and 3 of ten episodes."""
    result = play_episodes(make(3, **toy(vectorization="own")), always(1), 10, KEY)
    assert sorted(result.returns) == [2] * 4 + [3] * 3 + [4] * 3
    assert sorted(result.lengths) == [2] * 4 + [3] * 3 + [4] * 3
    assert result.failures == 0
    found = summary(result.returns)
    assert (found["episodes"], found["mean_return"]) == (10, 2.9)
    assert found["std_return"] == pytest.approx(np.sqrt(6.9 / 9))
    half = 2.262157 * np.sqrt(6.9 / 9 / 10)  # the quantile of Student's distribution with 9 degrees of freedom
    assert found["interval"] == pytest.approx((2.9 - half, 2.9 + half), abs=1e-6)


def test_fewer_episodes_than_environments(make):
    result = play_episodes(make(3, **toy(vectorization="own")), always(1), 2, KEY)
    assert sorted(result.returns) == [2, 3]


def test_a_failed_episode_is_played_again_and_counted(make):
    """The third action is a fault in environment 0 only: what it had earned until then is forgotten."""
    calls = []

    def choose(key, observation):
        calls.append(observation)
        return np.array([2 if len(calls) == 3 else 1, 1], np.int32), None

    result = play_episodes(make(2, **toy(kwargs={"length": 4})), choose, 4, KEY)
    assert result.returns.tolist() == [4, 4, 4, 4]
    assert result.lengths.tolist() == [4, 4, 4, 4]
    assert result.failures == 1


def test_a_time_limit_ends_an_episode_as_well(make):
    result = play_episodes(make(2, **toy(id="toys/Limited-v0", kwargs={"length": 50})), always(1), 3, KEY)
    assert result.returns.tolist() == [3, 3, 3]


def test_one_episode_says_nothing_of_the_spread():
    found = summary(np.array([7.0]))
    assert (found["mean_return"], found["std_return"], found["interval"]) == (7.0, 0.0, None)


def test_it_stops_when_asked_to(make):
    answers = iter([True, True, False])
    with pytest.raises(Interrupted):
        play_episodes(make(1, **toy()), always(1), 100, KEY, keep_going=lambda: next(answers))
    with pytest.raises(ValueError, match="episodes must be positive, got 0"):
        play_episodes(make(1, **toy()), always(1), 0, KEY)


def test_random_actions_are_uniform_and_come_from_the_key():
    counted = random_policy(EnvSpec("counted", (1,), "float32", 3, players=1))
    actions, _ = counted(KEY, newest(3000))
    assert actions.dtype == np.int32
    assert np.abs(np.bincount(actions, minlength=3) - 1000).max() < 120
    np.testing.assert_array_equal(actions, counted(KEY, newest(3000))[0])
    assert (actions != counted(jax.random.key(1), newest(3000))[0]).any()

    floats = random_policy(EnvSpec("floats", (1,), "float32", 0, 1, ((0.0, 0.0), (9.0, 9.0))))(KEY, newest(3000))[0]
    assert floats.shape == (3000, 2)
    assert floats.dtype == np.float32
    assert -1 <= floats.min() < -0.99
    assert abs(floats.mean()) < 0.05


def test_random_actions_are_legal():
    choose = random_policy(EnvSpec("masked", (1,), "float32", 3, 1, masked=True))
    step = newest(300, np.tile([False, True, True], (300, 1)))
    assert np.bincount(choose(KEY, step)[0], minlength=3) == pytest.approx([0, 150, 150], abs=40)


@pytest.fixture(scope="module")
def cartpole(tmp_path_factory):
    """A working directory with an untrained agent."""
    experiment = load(
        "cartpole",
        ["network.width=8", "network.latent=4", "search.simulations=2", "evaluation.games=3",
         "evaluation.simulations=2", "evaluation.every_minutes=0.001"],
    )  # fmt: skip
    workdir = Workdir(tmp_path_factory.mktemp("cartpole"))
    workdir.open(experiment)
    network = make_model_network(experiment.network, spec_of(experiment.env))
    params = random_parameters(network)
    save_snapshot(workdir.snapshots, 7, params, experiment)
    return SimpleNamespace(workdir=workdir, experiment=experiment, params=params)


def test_an_agent_is_judged_by_whole_episodes(cartpole):
    result = evaluate(str(cartpole.workdir.root), games=5)
    assert result["game"] == "gymnasium/CartPole-v1"
    assert result["player"].endswith("@7")
    assert result["episodes"] == 5
    assert 8 <= result["mean_return"] <= 500
    assert result["mean_return"] == result["mean_length"]
    assert result["interval"][0] <= result["mean_return"] <= result["interval"][1]
    json.dumps(result)


def test_named_players_act_where_an_experiment_says(cartpole):
    result = evaluate("random", games=20, game="cartpole")
    assert (result["player"], result["episodes"]) == ("random", 20)
    assert 10 < result["mean_return"] < 40  # random balancing lasts some twenty steps


@pytest.mark.parametrize("who", ["solver", "mcts:4"])
def test_players_of_games_do_not_act(cartpole, who):
    with pytest.raises(ConfigError, match=f"'{who}' cannot act.*CartPole-v1"):
        evaluate(who, games=2, game="cartpole")


def test_nobody_is_played_in_an_environment_for_one(cartpole):
    with pytest.raises(ConfigError, match=r"CartPole-v1 .*--opponent random"):
        evaluate(str(cartpole.workdir.root), "random")


def test_a_round_reports_returns_and_is_not_repeated(cartpole):
    reports = []
    rounds = make_rounds(cartpole.experiment, cartpole.workdir.snapshots, cartpole.workdir.games, {})
    assert isinstance(rounds, ReturnRounds)
    evaluator = Evaluator(rounds, 0.001, cartpole.workdir.snapshots, lambda role, f: reports.append((role, f)))
    assert rounds.rated == -1
    evaluator.judge_newest()
    ((role, metrics),) = reports
    assert role == "evaluator"
    assert set(metrics) == {
        "evaluation/step", "evaluation/mean_return", "evaluation/std_return", "evaluation/episodes"
    }  # fmt: skip
    assert (metrics["evaluation/step"], metrics["evaluation/episodes"], rounds.rated) == (7, 3, 7)
    assert evaluator.ladder() == {}


def test_a_round_that_is_interrupted_counts_for_nothing(cartpole):
    rounds = make_rounds(cartpole.experiment, cartpole.workdir.snapshots, cartpole.workdir.games, {})
    with pytest.raises(Interrupted):
        rounds.judge(7, cartpole.params, lambda: False)
    assert rounds.rated == -1


@pytest.mark.slow
def test_random_rollouts_get_many_times_the_score_of_random_moves_in_2048():
    """Random moves get about 1,100 points."""
    found = {who: evaluate(who, games=2, game="2048")["mean_return"] for who in ("random", "mcts:100")}
    assert found["mcts:100"] > 6 * found["random"]


class Countdown:
    """A game for one that pays 1 a move and lasts as many moves as its key says."""

    spec = SimpleNamespace(name="countdown", players=1)

    def init(self, key):
        return jnp.array([jax.random.randint(key, (), 1, 5), 0])

    def step(self, state, action):
        left, _ = state
        return jnp.where(left > 0, jnp.array([left - 1, 1]), jnp.array([0, 0]))

    def view(self, state):
        left, paid = state
        return View(
            observation=state, legal=jnp.ones(1, bool), player=jnp.int32(0),
            rewards=jnp.array([paid, 0], jnp.float32), done=left == 0, truncated=jnp.bool_(False),
        )  # fmt: skip


def test_games_for_one_are_played_to_their_ends():
    env, key = Countdown(), jax.random.key(3)
    player = SimpleNamespace(choose=lambda key, states: jnp.zeros(len(states), jnp.int32))
    lengths = jax.vmap(env.init)(jax.random.split(jax.random.split(key)[0], 6))[:, 0]
    assert len(set(lengths.tolist())) > 1
    np.testing.assert_array_equal(Arena(env).alone(player, 6, key), lengths)


def test_returns_of_scaled_rewards_are_those_of_the_library():
    """Rewards are scaled in float32; divided by the scale, eight steps of reward 1 are a return of 8 again."""
    pytest.importorskip("gymnax")
    config = JaxLibraryConfig(name="gymnax", id="CartPole-v1", reward_scale=0.002, kwargs={"max_steps_in_episode": 8})
    player = SimpleNamespace(choose=lambda key, states: jnp.zeros(len(states.done), jnp.int32))
    returns = Arena(make_env(config)).alone(player, 3, KEY) / reward_scale(config)
    np.testing.assert_array_equal(returns, [8, 8, 8])
