"""Checkpoints on disk: one is always complete, whenever the process or the machine dies."""

import logging
import os
from pathlib import Path

import pytest
from fake_cluster import FakeRemoteActor
from fsyncs import check_before_renames

from podzero.driver import checkpoints as module
from podzero.driver.checkpoints import checkpoints, set_aside, write_checkpoint
from podzero.workdir import Workdir


class Killed(BaseException):
    """The end of the process."""


@pytest.fixture
def workdir(tmp_path):
    return Workdir(tmp_path)


def write(workdir, step, games=0.0, keep=2):
    def save_learner(folder):
        (folder / "learner").mkdir()
        (folder / "learner" / "state").write_text(f"{games:g}")
        return step

    return write_checkpoint(workdir, save_learner, [FakeRemoteActor("replay-0")], {"games": games}, {}, keep)


def test_the_newest_checkpoints_are_kept(workdir):
    for step in (10, 20, 30):
        assert write(workdir, step) == step
    assert [checkpoint.step for checkpoint in checkpoints(workdir)] == [30, 20]


def test_a_checkpoint_of_the_same_step_replaces_the_one_before(workdir):
    write(workdir, 10, games=1.0)
    write(workdir, 10, games=2.0)
    (checkpoint,) = checkpoints(workdir)
    assert checkpoint.counters == {"games": 2.0}
    assert [path.name for path in workdir.checkpoints.iterdir()] == [checkpoint.folder.name]


@pytest.mark.parametrize("fatal", [1, 2, 3, 4])
def test_a_process_killed_at_any_rename_leaves_a_complete_checkpoint(workdir, monkeypatch, fatal):
    """The only checkpoint is replaced by one of the same step; the process dies at the n-th change."""
    write(workdir, 10, games=1.0)
    rename, rmtree, calls = Path.rename, module.shutil.rmtree, []

    def counted(change):
        def call(*args, **options):
            calls.append(change)
            if len(calls) == fatal:
                raise Killed
            return change(*args, **options)

        return call

    with monkeypatch.context() as patch:
        patch.setattr(Path, "rename", counted(rename))
        patch.setattr(module.shutil, "rmtree", counted(rmtree))
        with pytest.raises(Killed):
            write(workdir, 10, games=2.0)
    (checkpoint,) = checkpoints(workdir)
    games = checkpoint.counters["games"]
    assert (checkpoint.folder / "learner" / "state").read_text() == f"{games:g}"
    write(workdir, 10, games=3.0)
    (checkpoint,) = checkpoints(workdir)
    assert checkpoint.counters == {"games": 3.0}
    assert len(list(workdir.checkpoints.iterdir())) == 1


def test_everything_is_on_disk_before_the_checkpoint_gets_its_name(workdir, monkeypatch):
    synced = check_before_renames(monkeypatch)
    write(workdir, 10)
    assert os.stat(workdir.checkpoints).st_ino in synced


def test_a_failed_write_leaves_the_checkpoints_before_it(workdir):
    write(workdir, 10)

    def fail(folder):
        raise OSError(28, "No space left on device")

    with pytest.raises(OSError, match="No space left"):
        write_checkpoint(workdir, fail, [], {}, {}, 1)
    assert [checkpoint.step for checkpoint in checkpoints(workdir)] == [10]


def test_a_damaged_checkpoint_is_kept_under_another_name(workdir, caplog):
    caplog.set_level(logging.WARNING, logger="podzero")
    write(workdir, 10)
    (checkpoint,) = checkpoints(workdir)
    set_aside(checkpoint, ValueError("a byte is wrong"))
    assert checkpoints(workdir) == []
    (folder,) = workdir.checkpoints.iterdir()
    assert (folder / "learner" / "state").exists()
    assert str(folder) in caplog.messages[0]
