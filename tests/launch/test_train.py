"""Experiments that cannot be trained are refused before Ray starts."""

import multiprocessing
import re
import shutil
import sys

import pytest

from podzero.config import environments, load
from podzero.core.errors import ConfigError
from podzero.evaluation.solvers import make_solver
from podzero.files.players import keep_teacher
from podzero.files.storage import sealed
from podzero.files.workdir import Workdir, WorkdirError, step_folder
from podzero.launch import train
from podzero.launch.train import check_startable, find_start
from podzero.runtime.monitoring.status import RunStatus, write_status


@pytest.fixture
def ended(tmp_path):
    """A working directory with a checkpoint of step 100, after 2 minutes and 50 games."""
    workdir = Workdir(tmp_path)
    workdir.open(load("tic_tac_toe"))
    folder = step_folder(workdir.checkpoints, 100)
    folder.mkdir(parents=True)
    (folder / "run.json").write_text(
        sealed({"counters": {"elapsed_s": 120.0, "games": 50.0}, "ladder": {}, "samples": []})
    )
    return workdir


@pytest.mark.parametrize("limit", ["stop.minutes=9", "stop.minutes=2"])
def test_a_run_in_use_is_refused_before_anything_is_said_about_it(ended, command, limit):
    """Whether or not its checkpoint has reached a limit."""
    with ended.lock():
        code, out, error = command("train", str(ended.root), limit)
        assert command("train", str(ended.root), "stop.minutes=9", "--check")[0] == 0
    assert (code, out) == (4, "")
    assert "is in use" in error


@pytest.mark.parametrize("limit", ["stop.steps=100", "stop.minutes=2", "stop.games=50"])
def test_a_run_at_its_stop_limit_is_refused(ended, limit):
    with pytest.raises(ConfigError, match=rf"already reached {limit}, .*raise"):
        check_startable(load("tic_tac_toe", ["stop.minutes=", limit]), ended)


@pytest.mark.parametrize("limit", ["stop.hours=6", "stop.cost=60"])
def test_a_budget_that_is_spent_is_refused_also_before_the_first_checkpoint(ended, tmp_path, limit):
    priced = ["stop.minutes=", "cluster.price_per_hour=10"]
    write_status(ended, RunStatus("tic_tac_toe", "ended", elapsed_s=0.0, hours=6.0))
    for _ in range(2):
        with pytest.raises(ConfigError, match=rf"already reached {limit}, .*6\.0 hours.*stop.*=1"):
            check_startable(load("tic_tac_toe", [*priced, limit]), ended)
        check_startable(load("tic_tac_toe", [*priced, f"{limit}1"]), ended)
        shutil.rmtree(ended.checkpoints)
        ended.checkpoints.mkdir()


def test_a_run_below_its_stop_limits_is_resumed(ended):
    check_startable(load("tic_tac_toe", ["stop.minutes=3", "stop.steps=101", "stop.games=51"]), ended)


@pytest.mark.usefixtures("made_here")
@pytest.mark.parametrize(
    ("config", "overrides", "message"),
    [
        ("cartpole", ["env.id=Nope-v1"], "unknown gymnasium id 'Nope-v1'"),
        ("cartpole", ["env.vectorization=sync", "env.wrappers=[{name: TimeLimt}]"], "did you mean 'TimeLimit'"),
        ("cartpole", ["network={name: muzero_resnet}"], "network.name = 'muzero_resnet'"),
        ("own_game", ["env.id=nothere.py:Game"], "nothere.py cannot be imported"),
        ("connect_four", ["env={name: '2048'}", "network={name: nested}"], "zero-sum game for two"),
    ],
)
def test_an_environment_that_cannot_be_made_is_refused(tmp_path, config, overrides, message):
    with pytest.raises(ConfigError, match=message):
        check_startable(load(config, overrides), Workdir(tmp_path / "run"))


def test_an_own_network_that_violates_the_contract_is_refused(tmp_path):
    (tmp_path / "mine.py").write_text(
        "def net(num_actions):\n"
        "    apply = lambda params, observation: (observation[:, 0, 0, :1] + params['bias'], observation[:, 0, 0])\n"
        "    return (lambda key, observation: {'bias': observation[0, 0, 0, :1]}), apply\n"
    )
    experiment = load("tic_tac_toe", [f"network={{name: '{tmp_path}/mine.py:net'}}"])
    with pytest.raises(ConfigError, match=r"mine.py:net' violates.*\n.*\n.*values .* \[6, 2\]; expected \[6\]"):
        check_startable(experiment, Workdir(tmp_path / "run"))


@pytest.mark.usefixtures("made_here")
@pytest.mark.parametrize(("who", "message"), [("mcts:8", "no parameters"), ("zoo:cartpole", "none of its parameters")])
def test_an_agent_whose_parameters_cannot_be_taken_is_refused(tmp_path, who, message):
    with pytest.raises(ConfigError, match=message):
        check_startable(load("connect_four", [f"init_from={who}"]), Workdir(tmp_path / "run"))


def test_a_resumed_run_needs_no_agent_to_start_from(ended):
    check_startable(load("tic_tac_toe", ["stop.minutes=3", "init_from=nowhere"]), ended)


@pytest.mark.usefixtures("made_here")
def test_a_teacher_that_cannot_play_the_game_is_refused(tmp_path):
    with pytest.raises(ConfigError, match="teacher = 'zoo:tic_tac_toe' plays tic_tac_toe"):
        check_startable(load("connect_four", ["teacher=zoo:tic_tac_toe"]), Workdir(tmp_path / "run"))


@pytest.mark.usefixtures("made_here")
def test_a_resumed_run_needs_its_copy_of_the_teacher_and_no_other(tmp_path):
    taught, workdir = load("tic_tac_toe", ["teacher=zoo:tic_tac_toe"]), Workdir(tmp_path / "run")
    keep_teacher(taught, workdir)
    moved = taught.model_copy(update={"teacher": "moved"})
    workdir.open(moved)
    check_startable(moved, workdir)
    workdir.teacher.rename(tmp_path / "lost")
    with pytest.raises(WorkdirError, match="teacher is missing"):
        check_startable(moved, workdir)


def test_a_module_that_ends_its_process_is_refused(tmp_path):
    (tmp_path / "fatal.py").write_text("import os\nos._exit(1)\n")
    experiment = load("own_game", [f"env.id={tmp_path}/fatal.py:Game"])
    with pytest.raises(ConfigError, match="simulator/Game cannot be made: its process died"):
        check_startable(experiment, Workdir(tmp_path / "run"))


def test_a_module_that_blocks_its_process_is_refused_and_the_process_ended(tmp_path, monkeypatch):
    monkeypatch.setattr(train, "IMPORT_TIMEOUT_S", 0.0)
    monkeypatch.setattr(environments, "BUILD_TIMEOUT_S", 0.1)
    (tmp_path / "endless.py").write_text("import time\ntime.sleep(600)\n")
    with pytest.raises(ConfigError, match=r"no answer within 0\.1 s"):
        check_startable(load("own_game", [f"env.id={tmp_path}/endless.py:Game"]), Workdir(tmp_path / "run"))
    assert multiprocessing.active_children() == []


def test_nothing_is_made_where_only_the_nodes_have_the_packages(tmp_path):
    check_startable(load("cartpole", ["env.id=Nope-v1", "cluster.install_environment=true"]), Workdir(tmp_path / "run"))


@pytest.mark.parametrize("setting", ["evaluation.opponents=[solver]", "evaluation.positions=1001"])
def test_an_evaluation_that_needs_the_solver_is_refused_with_its_extra(tmp_path, monkeypatch, setting):
    monkeypatch.setitem(sys.modules, "bitbully", None)
    make_solver.cache_clear()
    workdir = Workdir(tmp_path / "run")
    with pytest.raises(ConfigError, match=r"evaluation\.(opponents|positions).* --extra solver"):
        check_startable(load("connect_four", [setting]), workdir)
    check_startable(load("connect_four", [setting]), workdir, joins=True)  # another node may have it
    check_startable(load("connect_four", ["evaluation.positions=1000"]), workdir)
    check_startable(load("tic_tac_toe", ["evaluation.opponents=[solver]"]), workdir)


@pytest.mark.parametrize("setting", ["actors.inference=int8", "learner.cpu_convolutions=openvino"])
def test_a_setting_that_needs_openvino_is_refused_with_its_extra(tmp_path, monkeypatch, setting):
    monkeypatch.setitem(sys.modules, "openvino", None)
    with pytest.raises(ConfigError, match="uv sync --inexact --extra openvino"):
        check_startable(load("connect_four", [setting]), Workdir(tmp_path / "run"))


@pytest.mark.parametrize("joins", [False, True])
def test_an_engine_that_does_not_play_the_game_is_refused(tmp_path, joins):
    experiment = load("connect_four", ["evaluation.opponents=[random, gnugo:1]"])
    with pytest.raises(ConfigError, match=r"evaluation\.opponents: .*'gnugo:1'.* go_9x9 "):
        check_startable(experiment, Workdir(tmp_path / "run"), joins=joins)


def test_an_engine_that_is_missing_is_refused_unless_the_evaluator_may_run_on_another_machine(tmp_path, monkeypatch):
    monkeypatch.setattr("podzero.files.players.shutil.which", lambda program, path: None)
    experiment = load("go_9x9", ["evaluation.opponents=[gnugo:1]"])
    with pytest.raises(ConfigError, match=r"evaluation\.opponents: .*gnugo is not installed.*apt-get install gnugo"):
        check_startable(experiment, Workdir(tmp_path / "run"))
    check_startable(experiment, Workdir(tmp_path / "run"), joins=True)


@pytest.fixture
def machine(monkeypatch, tmp_path):
    """Makes this machine one with or without a GPU and int8 instructions."""
    monkeypatch.chdir(tmp_path)

    def make(gpu, int8):
        monkeypatch.setattr(train, "nvidia_driver", lambda: gpu)
        monkeypatch.setattr(train, "has_int8_instructions", lambda: int8)

    return make


@pytest.mark.parametrize(
    ("config", "settings", "int8", "chosen"),
    [
        ("connect_four", [], True, "int8"),
        ("connect_four", [], False, "local"),
        ("connect_four", ["actors.inference=local"], True, "local"),
        ("connect_four", ["network={name: mlp}"], True, "local"),  # int8 is of resnet
        ("connect_four_gpu", [], True, "device"),
        ("cartpole", [], True, "local"),
    ],
)
def test_a_new_run_plays_in_int8_if_nothing_says_where(machine, monkeypatch, config, settings, int8, chosen):
    machine(None, int8)
    assert find_start(config, settings, None).experiment.actors.inference == chosen
    otherwise = "device" if chosen == "device" else "local"
    assert find_start(config, settings, None, joins=True).experiment.actors.inference == otherwise
    monkeypatch.setattr(train, "find_spec", lambda name: None)  # without OpenVINO
    assert find_start(config, settings, None).experiment.actors.inference == otherwise


def test_a_run_keeps_its_placement_on_another_machine(machine):
    machine(None, True)
    started = find_start("connect_four", [], None)
    Workdir(started.root).open(started.experiment)
    machine(None, False)
    for again in (find_start("connect_four", [], None), find_start(str(started.root), [], None)):
        assert (again.root, again.experiment.actors.inference) == (started.root, "int8")
        assert "changed" not in again.reason
    changed = find_start("connect_four", ["actors.inference=local"], None)
    assert (changed.root, changed.experiment.actors.inference) == (started.root, "local")
    assert "actors.inference: holds int8, given local" in changed.reason


@pytest.mark.parametrize(
    ("config", "settings", "gpu", "int8", "said"),
    [
        ("connect_four", [], "580.65", True, "in int8.*\n.*has a GPU: .*inference=device actors.games=4096 .*gpu.md"),
        ("connect_four", [], "580.65", False, "^This machine has a GPU"),
        ("connect_four", [], None, True, "in int8, which is faster here; actors.inference=local"),
        ("connect_four", [], None, False, None),
        ("connect_four", ["actors.inference=int8"], "580.65", True, None),
        ("connect_four", ["network={name: mlp}"], "", True, "^This machine .*actors.inference=device"),
        ("cartpole", [], "580.65", True, None),  # steps in Python
    ],
)
def test_a_new_run_says_where_it_plays_and_what_it_leaves_unused(machine, config, settings, gpu, int8, said):
    machine(gpu, int8)
    start = find_start(config, settings, None)
    found = train.placement_note(start.experiment, start.layers)
    assert found is None if said is None else re.search(said, found)
