"""A run's own copy of its teacher, and a whole run with one."""

import json
import shutil

import jax
import numpy as np
import pytest

from podzero.config import load
from podzero.core.errors import ConfigError
from podzero.envs import make_env
from podzero.files.players import keep_teacher, with_own_teacher, zoo_workdir
from podzero.files.workdir import Workdir, WorkdirError
from podzero.learner.trained_agents import read_teacher
from podzero.runtime.checkpoints import checkpoints
from podzero.runtime.train import train


@pytest.fixture
def agent(tmp_path):
    """A copy of the zoo's agent of tic-tac-toe."""
    return Workdir(shutil.copytree(zoo_workdir("tic_tac_toe").root, tmp_path / "agent"))


def test_a_run_keeps_the_teacher_that_it_started_with(tmp_path, agent):
    run, experiment = Workdir(tmp_path / "run"), load("tic_tac_toe", [f"teacher={agent.root}"])
    spec = make_env(experiment.env).spec
    given = read_teacher(experiment, spec)
    keep_teacher(load("tic_tac_toe", ["teacher=zoo:connect_four"]), run)  # of a start that failed
    keep_teacher(experiment, run)
    run.open(experiment)
    shutil.rmtree(agent.root)
    keep_teacher(experiment, run)
    kept = read_teacher(with_own_teacher(experiment, run), spec)
    jax.tree.map(np.testing.assert_array_equal, kept[1], given[1])


def test_a_teacher_that_is_not_there_is_named(tmp_path):
    experiment, run = load("tic_tac_toe", ["teacher=runs/nowhere"]), Workdir(tmp_path / "run")
    with pytest.raises(ConfigError, match="nowhere"):
        keep_teacher(experiment, run)
    with pytest.raises(WorkdirError, match="run/teacher is missing"):
        with_own_teacher(experiment, run)


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_a_resumed_run_learns_from_its_copy(tmp_path, tiny, watch, agent):
    workdir = Workdir(tmp_path / "run")
    settings = (f"teacher={agent.root}", "learner.teacher_steps=100", "stop.minutes=12")
    train(tiny(*settings, "stop.steps=40"), workdir.root, None, watch())
    shutil.rmtree(agent.root)
    watcher = watch()
    train(tiny(*settings, "stop.steps=80"), workdir.root, None, watcher)
    assert watcher.statuses[0].step == 40
    assert watcher.statuses[-1].teacher_policy_loss > 0
    assert checkpoints(workdir)[0].step == 80
    lines = [json.loads(line) for line in workdir.metrics_file.read_text().splitlines()]
    assert any("learner/teacher_value_loss" in line["metrics"] for line in lines)
