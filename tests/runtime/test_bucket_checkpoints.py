"""Checkpoints and snapshots of a run in a bucket: parts come from several nodes, and the driver completes them."""

import time

import numpy as np
import pytest
from fake_bucket import Killed, on_machine, use_fake_bucket
from fake_cluster import FakeRemoteActor, save_shard, saves_learner

from podzero.config import load
from podzero.files.storage import LEARNER_FOLDER, LEARNER_MANIFEST, StorageError
from podzero.files.store import store_of
from podzero.files.workdir import Workdir, step_folders
from podzero.networks.snapshots import load_snapshot, save_snapshot
from podzero.runtime import checkpoints as module
from podzero.runtime.checkpoints import (
    add_replay,
    amend,
    checkpoints,
    delete_old,
    delete_old_snapshots,
    delete_unfinished,
    set_aside,
    write_learner,
)
from podzero.runtime.start import Resumption


@pytest.fixture
def bucket(monkeypatch, tmp_path):
    return use_fake_bucket(monkeypatch, tmp_path / "here")


@pytest.fixture
def workdir(bucket):
    return Workdir("gs://b/run", works=True)


def write(workdir, step, games=0.0, learner_puts=True):
    """A checkpoint whose learner and shard put their parts, as their processes do on their nodes."""

    def save_learner(folder):
        saves_learner(step)(folder)
        (folder / LEARNER_FOLDER / "state").write_text(f"{games:g}")
        if learner_puts:
            store_of(folder).put(folder / LEARNER_FOLDER)
        return step

    def save_replay(folder):
        samples = save_shard(folder)
        (folder / "data").write_text(f"{games:g}")
        store_of(folder).put(folder)
        return samples

    write_learner(workdir, save_learner, {"games": games}, {})
    add_replay(workdir, step, [FakeRemoteActor("replay-0", checkpoint=save_replay)], {"games": games}, {})
    delete_old(workdir, 2)


def state(checkpoint):
    """What the learner and the shard of a checkpoint have saved."""
    checkpoint.check()
    learner, shard = checkpoint.folder / LEARNER_FOLDER / "state", checkpoint.shard(0)[0].folder / "data"
    for file in (learner, shard):
        store_of(file).get(file.parent)
    return learner.read_text(), shard.read_text()


def test_a_run_goes_on_from_its_newest_checkpoint_on_another_machine(workdir, monkeypatch, tmp_path):
    for step in (10, 20, 30):
        write(workdir, step, games=step)
    on_machine(monkeypatch, tmp_path / "there")
    found = checkpoints(Workdir("gs://b/run", works=True))
    assert [(one.step, *state(one)) for one in found] == [(30, "30", "30"), (20, "20", "20")]
    assert [one.shards[0].samples for one in found] == [100, 100]


def test_a_learner_that_restarts_alone_takes_its_newest_whole_checkpoint_from_the_bucket(workdir, bucket):
    for step in (10, 20):
        write(workdir, step, games=step)
    found = Resumption(workdir, seen=20).newest()
    assert (found.step, *state(found)) == (20, "20", "20")
    (manifest,) = [name for name in bucket.objects if name.endswith(LEARNER_MANIFEST) and in_newest(bucket, name)]
    bucket.objects[manifest] = b"of another learner", time.time()
    resumption = Resumption(workdir, seen=20)
    found = resumption.newest()
    assert (found.step, *state(found)) == (10, "10", "10")
    resumption.settle(found)
    assert [checkpoint.step for checkpoint in checkpoints(workdir)] == [10]


def in_newest(bucket, name):
    """Whether an object is of the checkpoint of step 20."""
    (pointer,) = [one for one in bucket.objects if "/000000020@" in one]
    return pointer.partition("@")[2].removesuffix(".complete") in name


@pytest.mark.parametrize("when", ["before", "after"])
def test_a_process_killed_at_any_request_of_a_save_leaves_a_whole_checkpoint(workdir, bucket, when):
    """The learner of step 20 and its replay are saved, and replay once more; the process dies at the n-th request."""
    write(workdir, 10, games=1.0)
    before, done = dict(bucket.objects), len(bucket.requests)

    def save():
        write(workdir, 20, games=2.0)
        write(workdir, 20, games=3.0)

    save()
    for fatal in range(len(bucket.requests) - done):
        bucket.objects, calls = dict(before), []

        def die(verb, key, fatal=fatal, calls=calls):
            if verb in ("put_file", "pipe_file", "cp_file", "rm"):
                calls.append(key)
                if len(calls) > fatal:
                    raise Killed

        setattr(bucket, when, die)
        with pytest.raises(Killed):
            save()
        bucket.before = bucket.after = lambda verb, key: None
        newest = checkpoints(workdir)[0]
        learner, replay = state(newest)
        assert (newest.step, learner) in ((10, "1"), (20, "2"))
        assert replay in {10: "1", 20: "123"}[newest.step]
        write(workdir, 30, games=4.0)
        assert state(checkpoints(workdir)[0]) == ("4", "4")
        delete_unfinished(workdir)
        assert not any(".unfinished" in name for name in store_of(workdir.root).list(workdir.checkpoints))


def test_an_answer_that_is_lost_for_good_leaves_no_half_of_a_checkpoint(workdir, bucket):
    write(workdir, 10, games=1.0)

    def lose(verb, key):
        if verb == "pipe_file" and "20@" in key:
            raise TimeoutError("no answer")

    bucket.after = lose
    with pytest.raises(StorageError, match="no answer"):
        write(workdir, 20, games=2.0)
    bucket.after = lambda verb, key: None
    assert [state(one) for one in checkpoints(workdir)] == [("2", "1"), ("1", "1")]


def test_a_part_that_did_not_reach_the_bucket_completes_no_checkpoint(workdir, bucket, monkeypatch):
    monkeypatch.setattr(module, "VISIBLE_TIMEOUT_S", 0.0)
    write(workdir, 10)
    with pytest.raises(StorageError, match="the learner wrote"):
        write(workdir, 20, learner_puts=False)
    assert [one.step for one in checkpoints(workdir)] == [10]


def test_a_bucket_that_fails_during_a_save_costs_nothing_but_this_save(workdir, bucket):
    write(workdir, 10, games=1.0)

    def fail(verb, key):
        if verb == "put_file":
            raise TimeoutError("no answer")

    bucket.before = fail
    with pytest.raises(StorageError, match="no answer"):
        write(workdir, 20)
    bucket.before = lambda verb, key: None
    assert [one.counters for one in checkpoints(workdir)] == [{"games": 1.0}]
    write(workdir, 20)
    assert [one.step for one in checkpoints(workdir)] == [20, 10]


def test_counters_are_replaced_and_a_damaged_checkpoint_is_set_aside(workdir, monkeypatch, tmp_path):
    write(workdir, 10)
    write(workdir, 20)
    amend(checkpoints(workdir)[0], {"games": 7.0}, {})
    set_aside(checkpoints(workdir)[1], ValueError("damaged"))
    on_machine(monkeypatch, tmp_path / "there")
    again = Workdir("gs://b/run", works=True)
    assert [(one.step, one.counters) for one in checkpoints(again)] == [(20, {"games": 7.0})]
    assert store_of(again.root).list(again.checkpoints) == ["000000020", "damaged-000000010"]


def test_snapshots_are_read_on_another_machine_as_long_as_they_are_kept(workdir, monkeypatch, tmp_path):
    experiment = load("tic_tac_toe")
    for step in (1, 2, 3):
        save_snapshot(workdir.snapshots, step, {"w": np.full(2, float(step))}, experiment)
    on_machine(monkeypatch, tmp_path / "there")
    reader = Workdir("gs://b/run").snapshots
    assert load_snapshot(reader).params["w"].tolist() == [3.0, 3.0]
    assert load_snapshot(reader, 1).params["w"].tolist() == [1.0, 1.0]
    delete_old_snapshots(workdir.snapshots, 1, {}, best=1)
    assert step_folders(reader) == [1, 3]
    delete_old_snapshots(workdir.snapshots, 1, {})
    assert step_folders(reader) == [3]
    assert [path.name for path in reader.iterdir() if not path.name.startswith(".")] == ["000000003"]
