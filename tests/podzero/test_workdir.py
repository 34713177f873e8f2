import os
import subprocess
import sys

import pytest

from podzero.config import load
from podzero.workdir import Workdir, WorkdirError, read_json, step_folder, step_folders, write_atomically


@pytest.fixture
def experiment():
    return load("tic_tac_toe")


def test_a_new_directory_is_made_and_holds_the_resolved_experiment(tmp_path, experiment):
    workdir = Workdir(tmp_path / "deep" / "run")
    assert not workdir.is_run
    assert workdir.open(experiment) is False
    assert workdir.experiment() == experiment


def test_the_same_experiment_is_a_resumption(tmp_path, experiment):
    workdir = Workdir(tmp_path)
    workdir.open(experiment)
    assert workdir.open(experiment) is True


def test_limits_evaluation_checkpoints_and_reserved_cpus_may_change_on_resumption(tmp_path, experiment):
    Workdir(tmp_path).open(experiment)
    changed = load("tic_tac_toe", ["stop.minutes=99", "evaluation.games=2", "checkpoint.keep=5", "replay.cpus=1"])
    assert Workdir(tmp_path).open(changed) is True
    assert Workdir(tmp_path).experiment() == changed


def test_another_experiment_is_refused_field_by_field_and_nothing_changes(tmp_path, experiment):
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
    with pytest.raises(WorkdirError, match=r"cannot write the working directory .*/file/run: Not a directory"):
        Workdir(tmp_path / "file" / "run").open(experiment)


def test_a_folder_without_an_experiment_is_no_working_directory(tmp_path):
    with pytest.raises(WorkdirError, match="is no working directory"):
        Workdir(tmp_path).experiment()


@pytest.mark.parametrize("text", ["env: {name", "[]", "env: {name: nothing}", ""])
def test_a_damaged_experiment_is_told_as_such(tmp_path, text):
    (tmp_path / "experiment.yaml").write_text(text)
    with pytest.raises(WorkdirError, match=r"experiment\.yaml cannot be read"):
        Workdir(tmp_path).experiment()


def test_a_directory_is_held_by_one_process_until_it_lets_go(tmp_path, experiment):
    Workdir(tmp_path).open(experiment)
    script = f"from podzero.workdir import Workdir; Workdir({str(tmp_path)!r}).lock(); print('held')"

    def other_process():
        return subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=60, check=False)

    with Workdir(tmp_path).lock() as held:
        assert held.name
        assert "is in use: process" in other_process().stderr
    assert other_process().stdout == "held\n"


def test_the_lock_names_its_holder(tmp_path, experiment):
    Workdir(tmp_path).open(experiment)
    with Workdir(tmp_path).lock(), pytest.raises(WorkdirError, match=f"process {os.getpid()} trains there"):
        Workdir(tmp_path).lock()


def test_a_file_is_replaced_as_a_whole_or_not_at_all(tmp_path, monkeypatch):
    path = tmp_path / "status.json"
    write_atomically(path, "old")

    def fail(*_):
        raise OSError("disk full")

    with monkeypatch.context() as patch:
        patch.setattr("podzero.workdir.os.replace", fail)
        with pytest.raises(OSError, match="disk full"):
            write_atomically(path, "new")
    assert path.read_text() == "old"
    write_atomically(path, "new")
    assert path.read_text() == "new"


@pytest.mark.parametrize("text", [None, "", '{"a": 1', "[1]", "3"])
def test_json_that_is_missing_or_damaged_reads_as_empty(tmp_path, text):
    path = tmp_path / "a.json"
    if text is not None:
        path.write_text(text)
    assert read_json(path) == {}


def test_step_folders_sort_as_numbers_and_leave_out_what_is_none(tmp_path):
    for step in (20, 3, 100):
        step_folder(tmp_path, step).mkdir()
    (tmp_path / "000000007.tmp").mkdir()
    (tmp_path / "5").write_text("a file")
    assert step_folders(tmp_path) == [3, 20, 100]
    assert sorted(step_folder(tmp_path, step).name for step in (20, 3, 100))[0] == step_folder(tmp_path, 3).name
    assert step_folders(tmp_path / "missing") == []
