"""Agents of gymnasium environments in Python."""

import json

import numpy as np
import pytest
from random_parameters import random_parameters

import podzero
from podzero.config import load
from podzero.core.errors import ConfigError
from podzero.envs import spec_of
from podzero.files.workdir import Workdir
from podzero.networks import make_model_network
from podzero.networks.snapshots import save_snapshot


def untrained(folder, config, *settings):
    """The working directory of an agent with random parameters at step 3."""
    experiment = load(config, ["network.width=8", "network.latent=4", "search.simulations=2", *settings])
    workdir = Workdir(folder)
    workdir.open(experiment)
    network = make_model_network(experiment.network, spec_of(experiment.env))
    save_snapshot(workdir.snapshots, 3, random_parameters(network), experiment)
    return workdir.root


@pytest.fixture(scope="module")
def cartpole(tmp_path_factory):
    return podzero.load(untrained(tmp_path_factory.mktemp("cartpole"), "cartpole"))


def test_an_agent_acts_in_the_environment_that_it_makes(cartpole):
    env = cartpole.make()
    observation, info = env.reset(seed=0)
    total, ended = 0.0, False
    while not ended:
        observation, reward, terminated, truncated, info = env.step(cartpole.act(observation, info))
        total, ended = total + reward, terminated or truncated
    assert total >= 8
    assert cartpole.plays == "gymnasium/CartPole-v1"
    assert cartpole.name.endswith("@3")
    assert repr(cartpole) == f"<{cartpole.name}, an agent of gymnasium/CartPole-v1>"


def test_an_episode_is_that_of_the_command(cartpole, command):
    played = cartpole.rollout(seed=5, episodes=2)
    assert played.returns.tolist() == played.lengths.tolist()
    _, out, _ = command("evaluate", cartpole.name, "--games", "2", "--seed", "5", "--json")
    assert json.loads(out)["mean_return"] == played.returns.mean()


@pytest.mark.parametrize(
    ("observation", "words"),
    [
        (np.zeros(3, np.float32), "CartPole-v1: .*shape"),
        (np.full(4, "a"), "CartPole-v1"),
        ("left", "CartPole-v1"),
    ],
)
def test_an_observation_of_another_environment_is_refused(cartpole, observation, words):
    with pytest.raises(ConfigError, match=words):
        cartpole.act(observation)


def test_continuous_actions_are_within_the_bounds_of_the_environment(tmp_path):
    agent = podzero.load(untrained(tmp_path, "pendulum"))
    env = agent.make()
    action = agent.act(env.reset(seed=0)[0])
    assert env.action_space.contains(action)


def test_masked_actions_are_never_taken_and_their_mask_is_required(tmp_path):
    agent = podzero.load(untrained(tmp_path, "taxi"))
    env = agent.make()
    observation, info = env.reset(seed=0)
    for seed in range(10):
        observation, info = env.reset(seed=seed)
        assert info["action_mask"][agent.act(observation, info)]
    with pytest.raises(ConfigError, match="there is no info\\['action_mask'\\]"):
        agent.act(observation)
