"""Checkpoints on disk: one is always complete, whenever the process or the machine dies. Which snapshots are kept."""

import errno
import logging
import math
import os
from pathlib import Path

import pytest
from fake_cluster import FakeCall, FakeRemoteActor, save_shard, saves_learner
from fsyncs import check_before_renames

from podzero.files.storage import StorageError, sealed
from podzero.files.workdir import Workdir
from podzero.runtime import checkpoints as module
from podzero.runtime.checkpoints import (
    PER_DOUBLING,
    RunFileDamaged,
    checkpoints,
    kept_snapshots,
    rated_steps,
    set_aside,
    write_checkpoint,
)
from podzero.runtime.cluster.remote import BUILD_TIMEOUT_S


class Killed(BaseException):
    """The end of the process."""


@pytest.fixture
def workdir(tmp_path):
    return Workdir(tmp_path)


def write(workdir, step, games=0.0, keep=2):
    def save_learner(folder):
        saves_learner(step)(folder)
        (folder / "learner" / "state").write_text(f"{games:g}")
        return step

    shard = FakeRemoteActor("replay-0", checkpoint=save_shard)
    return write_checkpoint(workdir, save_learner, [shard], {"games": games}, {}, keep)


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


def test_the_counters_and_ratings_of_a_checkpoint_can_be_replaced(workdir):
    write(workdir, 10, games=1.0)
    (before,) = checkpoints(workdir)
    module.amend(before, {"games": 2.0}, {"rounds": 7})
    (after,) = checkpoints(workdir)
    assert after == before._replace(counters={"games": 2.0}, ladder={"rounds": 7})


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


def test_a_failed_write_leaves_the_checkpoints_before_it_and_nothing_else(workdir):
    write(workdir, 10)

    def fail(folder):
        raise OSError(28, "No space left on device")

    with pytest.raises(OSError, match="No space left"):
        write_checkpoint(workdir, fail, [], {}, {}, 1)
    assert [path.name for path in workdir.checkpoints.iterdir()] == ["000000010"]


def test_a_shard_may_take_as_long_to_write_as_to_restore(workdir):
    """The learner takes ten minutes, so that twenty of the thirty are left."""
    waits = []

    class Slow(FakeCall):
        def result(self, timeout_s):
            waits.append(timeout_s)
            return super().result(timeout_s)

    shard = FakeRemoteActor("replay-0", checkpoint=save_shard)
    shard.begin = lambda method, *args: Slow(method, args, save_shard)
    write_checkpoint(workdir, saves_learner(10), [shard], {}, {}, 2)
    (wait,) = waits
    assert BUILD_TIMEOUT_S - 60 < wait <= BUILD_TIMEOUT_S


def test_a_shard_takes_its_contents_from_a_checkpoint_or_those_before_it(workdir):
    for step in (10, 20, 30):
        write(workdir, step, keep=3)
    newest, middle, _ = checkpoints(workdir)
    assert [content.folder.parts[-3] for content in middle.shard(0)] == ["000000020", "000000010"]
    assert [content.samples for content in newest.shard(0)] == [100, 100, 100]
    (newest.folder / "run.json").write_text("{")
    assert [content.samples for content in checkpoints(workdir)[0].shard(0)] == [0, 100, 100]


@pytest.mark.parametrize("fatal", [1, 2, 3])
def test_a_process_killed_while_it_deletes_an_old_checkpoint_leaves_no_half_of_one(workdir, monkeypatch, fatal):
    write(workdir, 10)
    rename, rmtree, calls = Path.rename, module.shutil.rmtree, []

    def change(path, *args, **options):
        calls.append(path)
        if len(calls) == fatal:
            raise Killed
        return (rename if args else rmtree)(path, *args, **options)

    with monkeypatch.context() as patch:
        patch.setattr(Path, "rename", change)
        patch.setattr(module.shutil, "rmtree", change)
        with pytest.raises(Killed):
            write(workdir, 20, keep=1)
    assert all((found.folder / "replay").is_dir() and found.fault is None for found in checkpoints(workdir))
    write(workdir, 30, keep=1)
    assert [path.name for path in workdir.checkpoints.iterdir()] == ["000000030"]


def test_a_damaged_checkpoint_is_kept_under_another_name(workdir, caplog):
    caplog.set_level(logging.WARNING, logger="podzero")
    write(workdir, 10)
    (checkpoint,) = checkpoints(workdir)
    set_aside(checkpoint, ValueError("a byte is wrong"))
    assert checkpoints(workdir) == []
    (folder,) = workdir.checkpoints.iterdir()
    assert (folder / "learner" / "state").exists()
    assert str(folder) in caplog.messages[0]


@pytest.mark.parametrize(
    ("learner", "shard", "named"),
    [
        (lambda folder: 10, save_shard, r"^the learner wrote .*learner/manifest\.json"),
        (saves_learner(10), 100, r"^replay-0 on node far wrote .*replay/shard-0/shard\.json"),
    ],
)
def test_parts_that_the_driver_does_not_see_make_no_checkpoint(workdir, monkeypatch, learner, shard, named):
    """A worker wrote its part on its own disk."""
    monkeypatch.setattr(module, "VISIBLE_TIMEOUT_S", 0.0)
    write(workdir, 8)
    with pytest.raises(StorageError, match=named) as raised:
        write_checkpoint(workdir, learner, [FakeRemoteActor("replay-0", "far", checkpoint=shard)], {}, {}, 2)
    assert "storage that all nodes share" in str(raised.value)
    assert [checkpoint.step for checkpoint in checkpoints(workdir)] == [8]


def test_parts_that_the_driver_sees_late_make_a_checkpoint(workdir, monkeypatch):
    looks = []

    def look(_):
        looks.append(1)
        (unfinished,) = workdir.checkpoints.iterdir()
        if len(looks) == 2:
            save_shard(unfinished / "replay" / "shard-0")

    monkeypatch.setattr(module.time, "sleep", look)
    write_checkpoint(workdir, saves_learner(10), [FakeRemoteActor("replay-0", checkpoint=100)], {}, {}, 2)
    assert [checkpoint.step for checkpoint in checkpoints(workdir)] == [10]


@pytest.mark.parametrize(
    "content",
    [
        None,
        "",
        "{",
        "[]",
        "{}",
        '{"counters": {}, "ladder": {}, "samples": []}',
        sealed({"counters": {"games": "many"}}),
    ],
)
def test_an_unreadable_run_file_is_a_fault_of_its_checkpoint_and_not_an_empty_one(workdir, content):
    write(workdir, 10, games=1.0)
    write(workdir, 20, games=2.0)
    file = checkpoints(workdir)[0].folder / "run.json"
    file.unlink() if content is None else file.write_text(content)
    assert [type(checkpoint.fault) for checkpoint in checkpoints(workdir)] == [RunFileDamaged, type(None)]


def test_every_digit_of_a_run_file_counts(workdir):
    """Another number of games, or a result in the ladder, would be another run."""
    write(workdir, 10, games=16.0)
    file = checkpoints(workdir)[0].folder / "run.json"
    text = file.read_text()
    for place in (index for index, letter in enumerate(text) if letter.isdigit()):
        file.write_text(text[:place] + str((int(text[place]) + 1) % 10) + text[place + 1 :])
        assert isinstance(checkpoints(workdir)[0].fault, RunFileDamaged)


def test_a_run_file_that_cannot_be_read_now_is_no_damage(workdir, monkeypatch):
    write(workdir, 10)

    def fail(path, **options):
        raise OSError(errno.EIO, "Input/output error")

    monkeypatch.setattr(Path, "read_text", fail)
    (checkpoint,) = checkpoints(workdir)
    assert isinstance(checkpoint.fault, StorageError)


def test_the_newest_are_kept():
    assert kept_snapshots(range(0, 1000, 10), newest=3, rated=()) == {970, 980, 990}


def test_few_are_all_kept():
    assert kept_snapshots([5, 10], newest=20, rated=()) == {5, 10}


def test_a_long_run_keeps_few_and_the_evaluator_finds_the_opponents_that_it_asks_for():
    """The evaluator plays the last rated snapshot, and the one nearest to half of the present step."""
    kept = set()
    for step in range(100, 200_000, 100):
        rated = {other for other in kept if other % 300 == 0}
        kept = kept_snapshots({*kept, step}, newest=5, rated=rated)
        assert len(kept) <= 6 + PER_DOUBLING * math.log2(step)
        if step > 5000:
            assert max(rated) in kept
            nearest = min(rated & kept, key=lambda other: abs(other - step / 2))
            assert abs(nearest - step / 2) < 0.15 * step


def test_the_last_rated_snapshot_is_kept_however_old_it_is():
    assert 15 in kept_snapshots(range(0, 1000, 5), newest=2, rated=[10, 11, 12, 13, 14, 15])


def test_rated_steps_are_the_snapshots_of_the_ladder():
    ladder = {"results": [{"first": "@120", "second": "random"}, {"first": "@120", "second": "@40"}], "ratings": {}}
    assert rated_steps(ladder) == {40, 120}
    assert rated_steps({}) == set()
