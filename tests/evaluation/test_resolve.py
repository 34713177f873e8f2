import shutil

import jax
import numpy as np
import pytest
from random_parameters import random_parameters

from podzero.config import load
from podzero.core.errors import ConfigError
from podzero.envs import make_env
from podzero.evaluation.resolve import resolve
from podzero.files.workdir import Workdir
from podzero.networks import make_network
from podzero.networks.snapshots import SnapshotError, save_snapshot


@pytest.fixture(scope="module")
def env():
    return make_env("tic_tac_toe")


def test_a_working_directory_is_its_newest_snapshot(env, workdir):
    assert resolve(str(workdir.root), env).name == f"{workdir.root}@20"


def test_a_step_is_chosen_by_at(env, workdir):
    assert resolve(f"{workdir.root}@10", env).name == f"{workdir.root}@10"


def test_an_agent_that_comes_with_podzero_has_no_path_in_its_name(env):
    assert resolve("zoo:tic_tac_toe", env).name == "zoo:tic_tac_toe"


def test_a_folder_whose_name_holds_an_at(env, workdir, tmp_path):
    moved = shutil.copytree(workdir.root, tmp_path / "run@3")
    assert resolve(str(moved), env).name == f"{moved}@20"
    assert resolve(f"{moved}@10", env).name == f"{moved}@10"


def test_snapshots_play_deterministically_and_differ(env, workdir):
    states = jax.vmap(env.init)(jax.random.split(jax.random.key(0), 3))
    results = [
        resolve(f"{workdir.root}@{step}", env).search(jax.random.key(seed), states)
        for step, seed in ((20, 1), (20, 2), (10, 1))
    ]
    np.testing.assert_array_equal(results[0].action, results[1].action)
    assert (results[0].policy != results[2].policy).any()
    np.testing.assert_array_equal(results[0].visits.sum(axis=1), 8)  # as many simulations as in training


def test_simulations_can_be_given(env, workdir):
    states = jax.vmap(env.init)(jax.random.split(jax.random.key(0), 1))
    assert int(resolve(str(workdir.root), env, 3).search(jax.random.key(0), states).visits.sum()) == 3


@pytest.mark.parametrize("who", ["random", "mcts:3", "solver"])
def test_named_players(env, who):
    player = resolve(who, env)
    assert player.name == who
    states = jax.vmap(env.init)(jax.random.split(jax.random.key(0), 2))
    actions = np.asarray(player.choose(jax.random.key(1), states))
    assert actions.shape == (2,)
    assert ((actions >= 0) & (actions < 9)).all()


def test_a_step_that_is_not_there(env, workdir):
    with pytest.raises(ConfigError, match=r"step 11; .* 10, 20"):
        resolve(f"{workdir.root}@11", env)


def test_a_directory_of_another_game(workdir):
    with pytest.raises(ConfigError, match=r"tic_tac_toe .*cannot play connect_four"):
        resolve(str(workdir.root), make_env("connect_four"))


def test_networks_with_and_without_komi_play_the_same_game(tmp_path):
    """Each observes the states as in its training."""
    env = make_env("go_7x7")
    states = jax.vmap(env.init)(jax.random.split(jax.random.key(0), 2))
    for komi in ("null", "[0.5, 9.5]"):
        experiment = load("go_9x9", ["env.name=go_7x7", f"env.komi={komi}", "network.channels=4", "network.blocks=1"])
        workdir = Workdir(tmp_path / komi)
        workdir.open(experiment)
        network = make_network(experiment.network, make_env(experiment.env).spec)
        save_snapshot(workdir.snapshots, 1, random_parameters(network), experiment)
        player = resolve(str(workdir.root), env, 2)
        assert int(player.search(jax.random.key(0), states).visits.sum()) == 4


def test_a_game_without_solver():
    with pytest.raises(ConfigError, match="no solver for 'hex_11x11'"):
        resolve("solver", make_env("hex"))


def test_parameters_of_another_network(env, workdir, experiment, tmp_path):
    copy = Workdir(shutil.copytree(workdir.root, tmp_path / "run"))
    other = make_network(experiment.network.model_copy(update={"channels": 16}), env.spec)
    save_snapshot(copy.snapshots, 30, random_parameters(other), experiment)
    with pytest.raises(SnapshotError, match="another network"):
        resolve(str(copy.root), env)
