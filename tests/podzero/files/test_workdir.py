import errno
import fcntl
import hashlib
import os
import pickle
import shutil
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from podzero.config import load
from podzero.config.section import own_code
from podzero.core.errors import ConfigError
from podzero.envs import make_env, spec_of
from podzero.files.workdir import (
    Workdir,
    WorkdirError,
    keep_as,
    read_json,
    step_folder,
    step_folders,
    sync,
    write_atomically,
)


@pytest.fixture
def experiment():
    return load("tic_tac_toe")


def test_a_new_directory_is_created_and_holds_the_resolved_experiment(tmp_path, experiment):
    workdir = Workdir(tmp_path / "deep" / "run")
    assert not workdir.is_run
    workdir.open(experiment)
    assert workdir.experiment() == experiment


def test_limits_evaluation_checkpoints_and_reserved_cpus_may_change_on_resumption(tmp_path, experiment):
    Workdir(tmp_path).open(experiment)
    changed = load(
        "tic_tac_toe", ["stop.minutes=99", "evaluation.games=2", "checkpoint.every_minutes=5", "replay.cpus=1"]
    )
    Workdir(tmp_path).open(changed)
    assert Workdir(tmp_path).experiment() == changed


def test_self_play_may_move_to_the_learners_devices_and_back(tmp_path, experiment):
    Workdir(tmp_path).open(experiment)
    moved = load("tic_tac_toe", ["actors.inference=device", "actors.moves_per_dispatch=8"])
    assert moved.search.tree == "dense"
    Workdir(tmp_path).open(moved)
    Workdir(tmp_path).open(experiment)


def test_a_check_writes_nothing(tmp_path, experiment):
    Workdir(tmp_path / "run").check(experiment)
    assert list(tmp_path.iterdir()) == []


def test_another_experiment_is_refused_with_the_settings_that_differ(tmp_path, experiment):
    Workdir(tmp_path).open(experiment)
    other = load("tic_tac_toe", ["learner.batch_size=64", "env.name=hex"])
    with pytest.raises(WorkdirError, match="holds another experiment") as caught:
        Workdir(tmp_path).open(other)
    assert "learner.batch_size: holds 256, given 64" in str(caught.value)
    assert "env.name: holds tic_tac_toe, given hex" in str(caught.value)
    assert "learner.ema" not in str(caught.value)
    assert Workdir(tmp_path).experiment() == experiment


def test_a_directory_that_cannot_be_written_is_refused(tmp_path, experiment):
    (tmp_path / "file").write_text("not a folder")  # holds for root too, unlike permissions
    with pytest.raises(WorkdirError, match=r"/file/run: Not a directory"):
        Workdir(tmp_path / "file" / "run").open(experiment)
    with pytest.raises(WorkdirError, match=r"/file/run: Not a directory"):
        Workdir(tmp_path / "file" / "run").lock()


def test_a_folder_without_an_experiment_is_not_a_working_directory(tmp_path):
    with pytest.raises(WorkdirError, match="not a working directory"):
        Workdir(tmp_path).experiment()


@pytest.mark.parametrize("text", ["env: {name", "[]", "env: {name: nothing}", ""])
def test_a_damaged_experiment_is_named(tmp_path, text):
    (tmp_path / "experiment.yaml").write_text(text)
    with pytest.raises(WorkdirError, match=r"cannot be read: .*experiment\.yaml"):
        Workdir(tmp_path).experiment()


def test_a_directory_is_locked_by_one_process_at_a_time(tmp_path):
    script = f"from podzero.files.workdir import Workdir; Workdir({str(tmp_path)!r}).lock(); print('held')"

    def other_process():
        return subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=60, check=False)

    with Workdir(tmp_path).lock():
        assert "is in use: process" in other_process().stderr
    assert other_process().stdout == "held\n"


def test_readers_do_not_keep_a_run_from_its_directory(tmp_path):
    """The lock that a reader holds while it asks for the process that trains."""
    Workdir(tmp_path).lock().close()
    with (tmp_path / ".lock").open() as reader:
        fcntl.flock(reader, fcntl.LOCK_SH)
        threading.Timer(0.15, fcntl.flock, (reader, fcntl.LOCK_UN)).start()
        Workdir(tmp_path).lock().close()


def test_a_file_system_without_locks_is_named_as_the_cause(tmp_path, monkeypatch):
    def refuse(file, operation):
        raise OSError(errno.ENOLCK, os.strerror(errno.ENOLCK))

    monkeypatch.setattr("podzero.files.directory_lock.fcntl.flock", refuse)
    with pytest.raises(WorkdirError, match="file system"):
        Workdir(tmp_path).lock()


def test_the_lock_of_a_new_directory_names_its_holder(tmp_path):
    root = tmp_path / "deep" / "run"
    with Workdir(root).lock(), pytest.raises(WorkdirError, match=f"process {os.getpid()} "):
        Workdir(root).lock()


def test_a_file_is_replaced_completely_or_not_at_all(tmp_path, monkeypatch):
    path = tmp_path / "status.json"
    write_atomically(path, "old")

    def fail(*_):
        raise OSError("disk full")

    with monkeypatch.context() as patch:
        patch.setattr("podzero.files.workdir.os.replace", fail)
        with pytest.raises(OSError, match="disk full"):
            write_atomically(path, "new")
    assert path.read_text() == "old"
    write_atomically(path, "new")
    assert path.read_text() == "new"


def test_a_replaced_file_survives_a_power_failure(tmp_path, monkeypatch):
    """Its contents are on disk before it gets its name, and the name before the call returns."""
    path, calls, fsync, replace = tmp_path / "status.json", [], os.fsync, os.replace

    def record_sync(descriptor):
        calls.append(os.stat(descriptor).st_ino)
        fsync(descriptor)

    def record_replace(source, target):
        calls.append("replace")
        replace(source, target)

    monkeypatch.setattr(os, "fsync", record_sync)
    monkeypatch.setattr(os, "replace", record_replace)
    write_atomically(path, "text")
    assert calls == [path.stat().st_ino, "replace", tmp_path.stat().st_ino]


def test_a_file_system_that_cannot_sync_folders_is_no_error_and_a_failed_disk_is(tmp_path, monkeypatch):
    def fail(code):
        def fsync(_):
            raise OSError(code, os.strerror(code))

        return fsync

    monkeypatch.setattr(os, "fsync", fail(errno.EINVAL))
    sync(tmp_path)
    monkeypatch.setattr(os, "fsync", fail(errno.EIO))
    with pytest.raises(OSError, match=os.strerror(errno.EIO)):
        sync(tmp_path)


@pytest.mark.parametrize("text", [None, "", '{"a": 1', "[1]", "3"])
def test_json_that_is_missing_or_damaged_reads_as_empty(tmp_path, text):
    path = tmp_path / "a.json"
    if text is not None:
        path.write_text(text)
    assert read_json(path) == {}


def test_step_folders_are_sorted_by_step_without_other_names(tmp_path):
    for step in (20, 3, 100):
        step_folder(tmp_path, step).mkdir()
    (tmp_path / "000000007.tmp").mkdir()
    (tmp_path / "5").write_text("a file")
    assert step_folders(tmp_path) == [3, 20, 100]
    assert sorted(step_folder(tmp_path, step).name for step in (20, 3, 100))[0] == step_folder(tmp_path, 3).name
    assert step_folders(tmp_path / "missing") == []


def test_what_is_changed_at_a_resumption_is_kept_with_its_step(tmp_path, experiment):
    workdir = Workdir(tmp_path)
    workdir.open(experiment)
    workdir.open(experiment, step=100)
    assert workdir.changes() == []
    workdir.open(load("tic_tac_toe", ["learner.optimizer.learning_rate=1e-4"]), step=200)
    workdir.open(load("tic_tac_toe", ["learner.optimizer.learning_rate=1e-4", "replay.cpus=9"]), step=300)
    old = experiment.learner.optimizer.learning_rate
    assert [(record.step, *record.change) for record in workdir.changes()] == [
        (200, "learner.optimizer.learning_rate", old, 1e-4),
        (300, "replay.cpus", experiment.replay.cpus, 9.0),
    ]


def test_another_optimizer_is_another_experiment(tmp_path, experiment):
    Workdir(tmp_path).open(experiment)
    with pytest.raises(WorkdirError, match=r"learner\.optimizer\.name: .*adamw.* lion"):
        Workdir(tmp_path).check(load("tic_tac_toe", ["learner.optimizer.name=lion"]))


@pytest.mark.parametrize("path", ["az://bucket/run", Path("az://bucket/run"), "gs://", "file:///tmp/x", "hdfs:/x"])
def test_an_address_is_no_working_directory(path):
    with pytest.raises(WorkdirError, match=r"[a-z0-9]+://.*not a folder.*runs/NAME.*/shared/NAME"):
        Workdir(path)


@pytest.mark.parametrize("name", ["a:b", "C:/x", "x@3", "2024:/x"])
def test_folders_with_unusual_names_are_working_directories(tmp_path, monkeypatch, name):
    monkeypatch.chdir(tmp_path)
    assert Workdir(name).root == tmp_path / name


def test_a_folder_that_is_kept_under_another_name_replaces_none(tmp_path):
    for text in ("first", "second", "third"):
        (tmp_path / "7").mkdir()
        (tmp_path / "7" / "x").write_text(text)
        keep_as(tmp_path / "7", "lost")
    kept = {path.name: (path / "x").read_text() for path in tmp_path.iterdir()}
    assert kept == {"lost-7": "first", "lost-7-2": "second", "lost-7-3": "third"}


SCALE = "import optax\n\n\ndef make(factor):\n    return optax.scale(-factor)\n"


@pytest.fixture
def own(tmp_path):
    """The file of an optimizer, and a loader of an experiment that names it."""
    file = tmp_path / "my_optimizer.py"
    file.write_text(SCALE)
    setting = f"learner.optimizer={{name: '{file}:make', factor: 0.5}}"
    return file, lambda: load("tic_tac_toe", [setting])


def test_a_run_keeps_the_files_that_its_experiment_names(tmp_path, own):
    file, read = own
    workdir = Workdir(tmp_path / "run")
    kept = workdir.keep_code(read())
    workdir.open(kept)
    file.write_text("raise SystemExit")
    moved = Workdir((tmp_path / "run").rename(tmp_path / "moved"))
    for experiment in (moved.experiment(), pickle.loads(pickle.dumps(moved.experiment()))):
        optimizer = experiment.learner.optimizer
        place = Path(optimizer.place.rpartition(":")[0])
        assert (optimizer.name, place.name, place.read_text()) == (f"{file}:make", file.name, SCALE)
        assert place.is_relative_to(moved.code)
        code = own_code(optimizer, "learner.optimizer", offered=())
        assert callable(code.make({}).update)


def test_a_copy_is_made_once_and_the_same_experiment_resumes(tmp_path, own):
    _, read = own
    workdir = Workdir(tmp_path / "run")
    workdir.open(workdir.keep_code(read()))
    before = [(file, file.stat().st_mtime_ns) for file in workdir.code.rglob("*.py")]
    workdir.check(read())
    workdir.keep_code(read())
    assert [(file, file.stat().st_mtime_ns) for file in workdir.code.rglob("*") if file.is_file()] == before
    assert workdir.changes() == []


def test_a_file_that_changes_before_the_start_is_refused(tmp_path, own):
    file, read = own
    experiment = read()
    file.write_text(SCALE + "# later\n")
    with pytest.raises(WorkdirError, match=r"learner\.optimizer.*has changed"):
        Workdir(tmp_path / "run").keep_code(experiment)
    file.unlink()
    with pytest.raises(WorkdirError, match="cannot copy"):
        Workdir(tmp_path / "run").keep_code(experiment)


def test_a_simulator_is_kept_too(tmp_path):
    file = shutil.copy(Path(__file__).parents[3] / "configs" / "own_game.py", tmp_path)
    experiment = load("own_game", [f"env.id={file}:Domineering"])
    workdir = Workdir(tmp_path / "run")
    workdir.open(workdir.keep_code(experiment))
    Path(file).unlink()
    assert make_env(workdir.experiment().env).spec.num_actions == 25


REGISTERS = """
import gymnasium


def make(**kwargs):
    return gymnasium.make("CartPole-v1", **kwargs).unwrapped


gymnasium.register("OwnPole-v0", entry_point=make)
"""


@pytest.mark.parametrize(
    "experiment",
    [
        "extends: taxi\nenv: {id: OwnPole-v0, module: pole.py}",
        "env: {name: gymnasium_simulator, id: OwnPole-v0, module: pole.py, reward_scale: 0.001}\n"
        "evaluation: {opponents: []}",
    ],
)
def test_the_file_that_registers_a_gymnasium_id_is_kept_too(tmp_path, experiment):
    (tmp_path / "pole.py").write_text(REGISTERS)
    config = tmp_path / "own_pole.yaml"
    config.write_text(experiment)
    experiment = load(str(config))
    assert experiment.env.sha256 == hashlib.sha256(REGISTERS.encode()).hexdigest()
    workdir = Workdir(tmp_path / "run")
    workdir.open(workdir.keep_code(experiment))
    (tmp_path / "pole.py").unlink()
    assert spec_of(workdir.experiment().env).num_actions == 2
    assert workdir.experiment().import_paths == [f"{workdir.code}/{str(experiment.env.sha256)[:12]}/pole.py"]


def test_another_file_that_registers_the_id_is_refused(tmp_path):
    file = tmp_path / "pole.py"
    file.write_text(REGISTERS)
    experiment = load("taxi", ["env.id=OwnPole-v0", f"env.module={file}"])
    file.write_text(REGISTERS + "# later\n")
    with pytest.raises(ConfigError, match=r"env\.module = '.*pole\.py'.*env\.sha256"):
        spec_of(experiment.env)


def test_a_run_from_before_digests_were_recorded_is_resumed(tmp_path):
    experiment = load("own_game")
    assert experiment.env.sha256 is not None
    workdir = Workdir(tmp_path / "run")
    older = experiment.with_sections({"env": experiment.env.model_copy(update={"sha256": None})})
    workdir.open(older)
    workdir.check(experiment)


def test_libraries_have_no_files_to_keep(tmp_path):
    experiment = load("tic_tac_toe", ["learner.optimizer={name: 'optax:adamax'}"])
    workdir = Workdir(tmp_path / "run")
    assert workdir.keep_code(experiment) == experiment
    assert not workdir.code.exists()
