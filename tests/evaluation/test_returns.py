"""Judgement by returns: snapshots that act alone, in gymnasium environments and in simulators for one."""

import json
from types import SimpleNamespace

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from podzero.config import load
from podzero.envs import spec_of
from podzero.errors import ConfigError
from podzero.evaluation.arena import Interrupted
from podzero.evaluation.episodes import EpisodeRounds, play_alone
from podzero.evaluation.evaluate import evaluate
from podzero.evaluation.evaluator import Evaluator, make_rounds
from podzero.networks import make_model_network
from podzero.networks.snapshots import save_snapshot
from podzero.types import View
from podzero.workdir import Workdir


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
    params = jax.device_get(jax.jit(network.init)(jax.random.key(0)))
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
    assert evaluate("greedy", games=4, game="cartpole")["mean_return"] < 100


@pytest.mark.parametrize("who", ["solver", "mcts:4"])
def test_players_of_games_do_not_act(cartpole, who):
    with pytest.raises(ConfigError, match=f"'{who}' cannot act in gymnasium/CartPole-v1"):
        evaluate(who, games=2, game="cartpole")


def test_nobody_is_played_in_an_environment_for_one(cartpole):
    with pytest.raises(ConfigError, match="CartPole-v1 has a single agent: remove --opponent random"):
        evaluate(str(cartpole.workdir.root), "random")


def test_greedy_is_refused_for_games():
    with pytest.raises(ConfigError, match="'greedy' acts only in gymnasium environments, not in tic_tac_toe"):
        evaluate("greedy", "random", game="tic_tac_toe")


def test_a_round_reports_returns_and_is_not_repeated(cartpole):
    reports = []
    rounds = make_rounds(cartpole.experiment, cartpole.workdir.snapshots, cartpole.workdir.games, {})
    assert isinstance(rounds, EpisodeRounds)
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
    rounds = EpisodeRounds(cartpole.experiment)
    with pytest.raises(Interrupted):
        rounds.judge(7, cartpole.params, lambda: False)
    assert rounds.rated == -1


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
    np.testing.assert_array_equal(play_alone(env, player, 6, key), lengths)
