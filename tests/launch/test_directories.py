"""Each experiment has a working directory of its own, and the same command finds it again."""

import shlex

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from podzero.config import load
from podzero.core.errors import ConfigError
from podzero.files.storage import sealed
from podzero.files.workdir import NEUTRAL, Workdir, WorkdirError, differences, step_folder
from podzero.launch.train import check_startable, continuation, find_start, place

STANDING = load("cartpole")
NEUTRAL_OVERRIDES = ["stop.minutes=99", "actors.count=3", "replay.cpus=7", "evaluation.games=2"]
OVERRIDES = [
    "seed=0", "seed=1", "seed=12", "learner.augment=false", "learner.optimizer.learning_rate=1e-4",
    "learner.batch_size=256", "network.latent=32", "network.layers=2", "env.id=Acrobot-v1", "name=mine",
    *NEUTRAL_OVERRIDES,
]  # fmt: skip


@pytest.fixture
def runs(tmp_path, monkeypatch):
    """The folder of working directories, below the present one."""
    monkeypatch.chdir(tmp_path)
    return tmp_path / "runs"


def start(*words, workdir=None):
    """Finds the start of a command and opens its directory, as a run does."""
    config, *overrides = words
    found = find_start(config, overrides, workdir)
    Workdir(found.root).open(found.experiment)
    return found


@pytest.mark.parametrize(
    ("overrides", "name"),
    [
        ([], "cartpole"),
        (NEUTRAL_OVERRIDES, "cartpole"),
        (["seed=0"], "cartpole"),
        (["seed=1"], "cartpole-seed1"),
        (["seed=1", "stop.steps=5"], "cartpole-seed1"),
        (["learner.optimizer.learning_rate=5e-5"], "cartpole-learning_rate5e-05"),
        (["learner.augment=false", "seed=2"], "cartpole-augmentfalse-seed2"),
        (["name=mine", "seed=2"], "mine-seed2"),
        (["env.vectorization=sync", "env.wrappers=[{name: TimeLimit, kwargs: {max_episode_steps: 9}}]"], "cartpole"),
    ],
)
def test_a_directory_is_named_after_the_settings_that_differ_from_the_experiment_as_it_stands(overrides, name):
    """Wherever nothing is there yet, the name follows from the command alone, so several may start at once."""
    assert place(load("cartpole", overrides), STANDING, {})[0].name == name


def test_another_experiment_in_the_directory_gives_a_number():
    other = load("cartpole", ["learner.batch_size=64"])
    folder, reason = place(STANDING, STANDING, {"cartpole": other, "cartpole-2": other})
    assert folder.name == "cartpole-3"
    assert "cartpole holds another experiment (learner.batch_size: holds 64, given" in reason


@settings(deadline=None, max_examples=40)
@given(st.lists(st.lists(st.sampled_from(OVERRIDES), max_size=5), min_size=1, max_size=6))
def test_every_experiment_gets_one_directory_in_whatever_order_they_are_started(commands):
    held = {}
    given = [load("cartpole", overrides) for overrides in commands]
    for experiment in given * 2:
        mine = {name: other for name, other in held.items() if name.startswith(experiment.name)}
        name = place(experiment, STANDING, mine)[0].name
        assert differences(held.get(name, experiment), experiment, NEUTRAL) == []
        held[name] = experiment
    distinct = []
    for experiment in given:
        if not any(differences(other, experiment, NEUTRAL) == [] for other in distinct):
            distinct.append(experiment)
    assert len(held) == len(distinct)


def test_the_same_commands_resume_the_same_directories(runs):
    commands = [("cartpole", "seed=0"), ("cartpole", "seed=1"), ("cartpole", "learner.batch_size=64")]
    first = [start(*command) for command in commands]
    again = [find_start(command[0], command[1:], None) for command in commands]
    assert [found.root for found in again] == [found.root for found in first]
    assert sorted(path.name for path in runs.iterdir()) == ["cartpole", "cartpole-batch_size64", "cartpole-seed1"]
    assert [found.reason.split(" run in ")[0] for found in first + again] == ["New"] * 3 + ["Resuming the"] * 3


def test_a_run_that_is_in_a_directory_of_another_name_is_resumed(runs):
    start("cartpole", "seed=1", workdir=runs / "cartpole")
    assert find_start("cartpole", ["seed=1"], None).root.name == "cartpole"
    assert find_start("cartpole", [], None).root.name == "cartpole-2"


def test_a_run_whose_experiment_cannot_be_read_is_not_started_anew_elsewhere(runs):
    start("cartpole")
    (runs / "cartpole/experiment.yaml").write_text("env: {name")
    with pytest.raises(WorkdirError, match=r"cartpole cannot be read: .*experiment\.yaml"):
        find_start("cartpole", [], None)


def test_another_learning_rate_does_not_change_a_run_that_was_not_named(runs):
    start("cartpole")
    assert find_start("cartpole", ["learner.optimizer.learning_rate=1e-4"], None).root.name != "cartpole"


def test_a_chosen_directory_with_another_experiment_is_refused_with_the_command_that_resumes_it(runs):
    root = start("cartpole", workdir=runs / "x y").root
    with pytest.raises(WorkdirError, match="holds another experiment") as caught:
        find_start("cartpole", ["seed=1", "learner.optimizer.name=lion"], root)
    message = str(caught.value)
    assert "seed: holds 0, given 1" in message
    assert "learner.optimizer.name: holds adamw, given lion" in message
    assert find_start(*given_by(message), None).root == root


def given_by(message):
    """Config and overrides of the first command `podzero train` in a message."""
    line = next(line for line in message.splitlines() if "podzero train " in line)
    config, *overrides = shlex.split(line.partition("podzero train ")[2])
    return config, overrides


def test_a_run_with_settings_of_before_0_2_is_refused_by_their_names_and_resumed_without_them(runs):
    held = Workdir(start("cartpole").root)
    text = held.experiment_file.read_text()
    held.experiment_file.write_text(text + "restarts: {max_failures: 50}\n")
    with pytest.raises(WorkdirError, match=r"experiment\.yaml(.*\n)+.*restarts: no such field \(CHANGELOG\.md lists"):
        start(str(held.root), "stop.minutes=99")
    held.experiment_file.write_text(text)
    assert start(str(held.root), "stop.minutes=99").experiment.stop.minutes == 99


def test_a_directory_resumes_with_its_own_experiment_and_changes(runs):
    held = start("cartpole", "seed=3", "learner.batch_size=64").experiment
    name = next(runs.iterdir())
    found = find_start(str(name), ["learner.optimizer.learning_rate=1e-4", "stop.minutes=77"], None)
    assert [change.setting for change in differences(held, found.experiment)] == [
        "learner.optimizer.learning_rate", "stop.minutes",
    ]  # fmt: skip
    assert "stop.minutes: holds 8.0, given 77.0" in found.reason
    assert (found.root, found.step) == (name, None)
    with pytest.raises(WorkdirError, match=r"network\.latent: .*64.* 32"):
        find_start(str(name), ["network.latent=32"], None)


def test_what_may_not_change_in_a_run_may_begin_a_new_one_by_the_command_of_its_refusal(runs):
    root = start("cartpole", workdir=runs / "x y").root
    with pytest.raises(WorkdirError, match="holds another experiment") as caught:
        find_start(str(root), ["network.latent=32", "env={name: gymnasium, id: Acrobot-v1}"], None)
    *_, config, latent, env, option, folder = shlex.split(str(caught.value).splitlines()[-1])
    assert option == "--workdir"
    found = find_start(config, [latent, env], Workdir(folder).root)
    assert (found.root.name, found.experiment.network.latent) == ("x y-2", 32)


def test_a_step_names_a_checkpoint_that_exists(runs):
    root = start("cartpole").root
    with pytest.raises(ConfigError, match=r"step 7; .*: none"):
        find_start(f"{root}@7", [], None)
    for step in (100, 2000):
        step_folder(Workdir(root).checkpoints, step).mkdir(parents=True)
    assert find_start(f"{root}@100", [], None).step == 100
    with pytest.raises(ConfigError, match=r"step 7; .*: 100, 2000") as caught:
        find_start(f"{root}@7", [], None)
    assert find_start(*given_by(str(caught.value)), None).step == 2000
    with pytest.raises(ConfigError, match=r"learner step .*@1200"):
        find_start(f"{root}@last", [], None)


def test_a_directory_that_is_no_run_is_refused(runs):
    runs.mkdir()
    with pytest.raises(WorkdirError, match="not the working directory"):
        find_start(str(runs), [], None)


def test_a_directory_and_another_workdir_exclude_each_other(runs):
    root = start("cartpole").root
    assert find_start(str(root), [], root).root == root
    with pytest.raises(ConfigError, match="leave out --workdir"):
        find_start(str(root), [], runs / "other")


@pytest.mark.parametrize(
    ("config", "workdir"), [("cartpole", "az://bucket/x"), ("az://bucket/x", None), ("hdfs:/a", None)]
)
def test_an_address_of_another_kind_is_refused(runs, config, workdir):
    with pytest.raises(WorkdirError, match=r"://.* not a folder.*runs/NAME"):
        find_start(config, [], workdir)


@pytest.mark.parametrize("limits", [["stop.minutes=2"], ["stop.minutes=", "stop.steps=90", "stop.games=500"]])
def test_a_run_that_has_ended_goes_on_by_the_command_of_its_refusal(runs, limits):
    found = start("tic_tac_toe", *limits)
    folder = step_folder(Workdir(found.root).checkpoints, 100)
    folder.mkdir(parents=True)
    (folder / "run.json").write_text(
        sealed({"counters": {"elapsed_s": 120.0, "games": 50.0}, "ladder": {}, "samples": []})
    )
    with pytest.raises(ConfigError, match="has already reached") as caught:
        check_startable(found.experiment, Workdir(found.root))
    again = find_start(*given_by(str(caught.value)), None)
    check_startable(again.experiment, Workdir(again.root))


def test_a_run_that_was_stopped_goes_on_with_its_limits(runs):
    found = start("tic_tac_toe", "stop.steps=90")
    assert continuation(found.experiment, found.root, None) == "runs/tic_tac_toe"
    assert "stop.steps=180" in continuation(found.experiment, found.root, {})
    stopped = load("tic_tac_toe", ["stop.score=0.9"])
    assert continuation(stopped, found.root, {"score": 0.9}).endswith(" stop.score=null")
    assert "stop.score" not in continuation(stopped, found.root, {"score": 0.8})
    assert "stop.score" not in continuation(stopped, found.root, {})
