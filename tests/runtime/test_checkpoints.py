"""Checkpoints on disk: one is always complete, whenever the process or the machine dies. Which snapshots are kept."""

import errno
import logging
import math
import os
import shutil
import subprocess
from contextlib import suppress
from pathlib import Path

import pytest
from dying import deaths
from fake_cluster import FakeCall, FakeRemoteActor, save_shard, saves_learner
from fsyncs import check_before_renames

from podzero.files.storage import StorageError, checkpoint_of, digest_of, sealed
from podzero.files.workdir import Workdir
from podzero.runtime import checkpoints as module
from podzero.runtime.checkpoints import (
    PER_DOUBLING,
    RunFileDamaged,
    SavedShard,
    add_replay,
    checkpoints,
    delete_old,
    delete_unfinished,
    kept_snapshots,
    rated_steps,
    set_aside,
    write_learner,
)
from podzero.runtime.cluster.remote import BUILD_TIMEOUT_S
from podzero.runtime.start import Resumption


@pytest.fixture
def workdir(tmp_path):
    return Workdir(tmp_path)


def write(workdir, step, games=0.0, keep=2, replay=True, spared=-1):
    """Writes a checkpoint, with replay or of the learner alone, and deletes old ones."""

    def save_learner(folder):
        saves_learner(step)(folder)
        (folder / "learner" / "state").write_text(f"{step}")
        return step

    def save(folder):
        save_shard(folder)
        (folder / "shard.json").write_text(f"{games:g} games")
        return 100

    counters = {"games": games}
    assert write_learner(workdir, save_learner, counters, {}) == step
    if replay:
        add_replay(workdir, step, [FakeRemoteActor("replay-0", checkpoint=save)], counters, {})
    delete_old(workdir, keep, spared)
    return step


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
    assert sorted(path.name for path in checkpoint.folder.iterdir()) == ["learner", "replay-2", "run.json"]
    assert (checkpoint.shard(0)[0].folder / "shard.json").read_text() == "2 games"


def test_the_counters_and_ratings_of_a_checkpoint_can_be_replaced(workdir):
    write(workdir, 10, games=1.0)
    (before,) = checkpoints(workdir)
    module.amend(before, {"games": 2.0}, {"rounds": 7})
    (after,) = checkpoints(workdir)
    assert after == before._replace(counters={"games": 2.0}, ladder={"rounds": 7})


def replace_replay(workdir):
    for games in (2.0, 3.0):
        write(workdir, 20, games)


SAVES = {
    "of learner and replay": lambda workdir: write(workdir, 21, games=2.0, keep=1),
    "of the learner alone": lambda workdir: write(workdir, 21, games=2.0, replay=False),
    "of the same step": replace_replay,
    "of new counters": lambda workdir: module.amend(checkpoints(workdir)[0], {"games": 2.0}, {"rounds": 7}),
}


@pytest.mark.parametrize("save", SAVES)
def test_wherever_a_process_dies_while_it_saves_the_newest_complete_checkpoint_is_resumed(tmp_path, save):
    kept, workdir, seen = Workdir(tmp_path / "kept"), Workdir(tmp_path / "run"), []
    for step in (10, 20):
        write(kept, step, games=1.0)

    def begin():
        shutil.rmtree(workdir.root, ignore_errors=True)
        shutil.copytree(kept.root, workdir.root)

    for moment in deaths(begin, lambda: SAVES[save](workdir)):
        delete_unfinished(workdir)
        newest = Resumption(workdir, seen=20).newest()
        learner, (shard, *_) = newest.folder / "learner" / "state", newest.shard(0)
        games = newest.counters["games"]
        assert learner.read_text() == f"{newest.step}", moment
        assert digest_of(shard.folder / "shard.json") == shard.digest, moment
        assert (shard.folder / "shard.json").read_text() in (f"{games:g} games", "1 games"), moment
        seen.append((newest.step, games))
        SAVES[save](workdir)
        assert all(len(list(found.folder.glob("replay*"))) <= 1 for found in checkpoints(workdir)), moment
        write(workdir, 30, keep=1)
        assert [path.name for path in workdir.checkpoints.iterdir()] == ["000000030"], moment
        assert len(list(checkpoints(workdir)[0].folder.iterdir())) == 3, moment
    assert len(seen) > 2
    assert seen[0] == (20, 1.0)
    assert seen == sorted(seen), "the later it dies, the newer is what is resumed"


PAGE = 4096
"""Bytes of a file that a file system in memory takes at least."""


@pytest.fixture
def small_disk(tmp_path):
    """A file system of 40 pages."""
    folder = tmp_path / "disk"
    folder.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", f"size={40 * PAGE}", "none", folder]
    if os.getuid() or not shutil.which("mount") or subprocess.run(mount, check=False).returncode:
        pytest.skip("file systems cannot be mounted here")
    yield folder
    subprocess.run(["umount", "--lazy", folder], check=True)


@pytest.mark.parametrize("replay", [True, False])
def test_wherever_a_disk_is_full_the_newest_complete_checkpoint_is_resumed_and_later_ones_are_written(
    small_disk, replay
):
    workdir, filler, ended = Workdir(small_disk), small_disk / "filler", []
    for free in range(10):
        shutil.rmtree(workdir.checkpoints, ignore_errors=True)
        write(workdir, 10, games=1.0)
        filler.write_bytes(bytes(shutil.disk_usage(small_disk).free - free * PAGE))
        ended.append(10)
        with suppress(OSError):  # no space left
            ended[-1] = write(workdir, 20, games=2.0, replay=replay)
        newest = Resumption(workdir, seen=10).newest()
        learner, (shard, *_) = newest.folder / "learner" / "state", newest.shard(0)
        assert learner.read_text() == f"{newest.step}"
        assert digest_of(shard.folder / "shard.json") == shard.digest
        filler.unlink()
        write(workdir, 30, keep=1)
        assert [path.name for path in workdir.checkpoints.iterdir()] == ["000000030"]
        assert len(list(checkpoints(workdir)[0].folder.iterdir())) == 3
    assert set(ended) == {10, 20}
    assert ended == sorted(ended), "the more is free, the more is written"


def test_everything_is_on_disk_before_the_checkpoint_gets_its_name(workdir, monkeypatch):
    synced = check_before_renames(monkeypatch)
    write(workdir, 10)
    assert os.stat(workdir.checkpoints).st_ino in synced


def test_a_failed_write_leaves_the_checkpoints_before_it_and_nothing_else(workdir):
    write(workdir, 10)

    def fail(folder):
        raise OSError(28, "No space left on device")

    with pytest.raises(OSError, match="No space left"):
        write_learner(workdir, fail, {}, {})
    assert [path.name for path in workdir.checkpoints.iterdir()] == ["000000010"]


def test_a_shard_may_take_as_long_to_write_as_to_restore(workdir):
    waits = []

    class Slow(FakeCall):
        def result(self, timeout_s):
            waits.append(timeout_s)
            return super().result(timeout_s)

    shard = FakeRemoteActor("replay-0", checkpoint=save_shard)
    shard.begin = lambda method, *args: Slow(method, args, save_shard)
    write(workdir, 10, replay=False)
    add_replay(workdir, 10, [shard], {}, {})
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


def test_checkpoints_of_the_learner_name_the_newest_replay_which_stays_as_long_as_they_do(workdir):
    for step in (10, 20, 30):
        write(workdir, step)
    for step in (31, 32, 33):
        write(workdir, step, replay=False)
    assert [(found.step, found.whole) for found in checkpoints(workdir)] == [
        (33, False), (32, False), (30, True), (20, True),
    ]  # fmt: skip
    newest = checkpoints(workdir)[0]
    assert not (newest.folder / "replay").exists()
    assert [checkpoint_of(shard.folder).name for shard in newest.shard(0)] == ["000000030", "000000020"]
    write(workdir, 40, keep=1)
    write(workdir, 41, keep=1, replay=False)
    assert [found.step for found in checkpoints(workdir)] == [41, 40]


def test_replay_that_is_added_late_belongs_to_the_learners_after_it_too(workdir):
    """It takes longer to write than the learner, which is saved again meanwhile."""
    write(workdir, 10, games=1.0)
    for step in (20, 30, 40, 50):
        write(workdir, step, games=9.0, replay=False, spared=20)
    write(workdir, 20, games=5.0)
    newest = checkpoints(workdir)[0]
    assert [checkpoint_of(shard.folder).name for shard in newest.shard(0)] == ["000000020", "000000010"]


def test_checkpoints_before_the_first_save_of_replay_have_none(workdir):
    write(workdir, 10, games=3.0, replay=False)
    (checkpoint,) = checkpoints(workdir)
    assert (checkpoint.shard(0), checkpoint.whole) == ([], False)


def test_a_run_without_replay_keeps_its_newest_checkpoints(workdir):
    for step in (10, 20, 30):
        write_learner(workdir, saves_learner(step), {}, {}, has_replay=False)
        delete_old(workdir, 2)
    assert [found.step for found in checkpoints(workdir)] == [30, 20]


def test_a_learner_of_another_checkpoint_is_refused(workdir):
    write(workdir, 10)
    (checkpoint,) = checkpoints(workdir)
    checkpoint.check()
    manifest = checkpoint.folder / "learner" / "manifest.json"
    manifest.write_text("that of another run")
    with pytest.raises(RunFileDamaged, match=str(manifest)):
        checkpoint.check()


def test_checkpoints_of_earlier_versions_are_read(workdir):
    write(workdir, 10)
    file = checkpoints(workdir)[0].folder / "run.json"
    file.write_text(sealed({"counters": {"games": 3.0}, "ladder": {}, "samples": [7]}))
    (checkpoint,) = checkpoints(workdir)
    checkpoint.check()
    assert (checkpoint.whole, checkpoint.shard(0)) == (True, [SavedShard(file.parent / "replay" / "shard-0", 7)])


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

    def save():
        write_learner(workdir, learner, {}, {})
        add_replay(workdir, 10, [FakeRemoteActor("replay-0", "far", checkpoint=shard)], {}, {})

    with pytest.raises(StorageError, match=named) as raised:
        save()
    assert "storage that all nodes share" in str(raised.value)
    assert [checkpoint.step for checkpoint in checkpoints(workdir) if checkpoint.whole] == [8]


def test_parts_that_the_driver_sees_late_make_a_checkpoint(workdir, monkeypatch):
    looks = []

    def look(_):
        looks.append(1)
        (unfinished,) = workdir.checkpoints.glob(".unfinished*")
        if len(looks) == 2:
            save_shard(unfinished / "replay" / "shard-0")

    monkeypatch.setattr(module.time, "sleep", look)
    write(workdir, 10, replay=False)
    add_replay(workdir, 10, [FakeRemoteActor("replay-0", checkpoint=100)], {}, {})
    assert [checkpoint.whole for checkpoint in checkpoints(workdir)] == [True]


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
