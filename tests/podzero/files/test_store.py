"""The two stores keep the same files: what is committed is complete, whatever fails and whenever the process dies."""

import logging
import threading

import pytest
from fake_bucket import Killed, contents, on_machine, save, use_fake_bucket, whole, write

from podzero.core.errors import ConfigError
from podzero.files import copies, directory_lock, store
from podzero.files.copies import Copies
from podzero.files.directory_lock import DirectoryLock, Held, TakenOver
from podzero.files.storage import StorageError
from podzero.files.store import UNFINISHED, copy_of, store_of
from podzero.files.workdir import Workdir, WorkdirError, keep_as

ADDRESS = "gs://b/runs/mine"


@pytest.fixture
def bucket(monkeypatch, tmp_path):
    return use_fake_bucket(monkeypatch, tmp_path / "here")


@pytest.fixture(params=["folder", "bucket"])
def root(request, tmp_path):
    """A run's folder: the copy of one in a bucket, or one that is none."""
    if request.param == "folder":
        return tmp_path / "run"
    request.getfixturevalue("bucket")
    return copy_of(ADDRESS, "run")


def test_a_committed_folder_replaces_the_one_before(root):
    for stamp, text in enumerate(("first", "second")):
        target = save(root, text, stamp=stamp)
        assert contents(target) == whole(text)
        assert store_of(root).list(target.parent) == ["000000007"]


def test_a_folder_gets_another_name_and_is_deleted(root):
    kept = keep_as(save(root, "first"), "lost")
    again = keep_as(save(root, "second", stamp=2), "lost")
    assert (kept.name, again.name) == ("lost-000000007", "lost-000000007-2")
    assert (contents(kept), contents(again)) == (whole("first"), whole("second"))
    store_of(root).delete(kept)
    assert store_of(root).list(kept.parent) == [again.name]
    store_of(root).get(kept)
    assert not kept.exists()


def test_a_file_that_is_replaced_is_read_anew(root):
    target = save(root, "first")
    for text in ("once", "again"):
        (target / "run.json").parent.mkdir(parents=True, exist_ok=True)
        (target / "run.json").write_text(text)
        store_of(root).put(target / "run.json")
        assert contents(target / "run.json") == {}
        assert (target / "run.json").read_text() == text


def test_another_machine_reads_what_was_committed_and_the_copies_do_not_pile_up(bucket, monkeypatch, tmp_path):
    save(copy_of(ADDRESS, "run"), "first")
    on_machine(monkeypatch, tmp_path / "there")
    root = copy_of(ADDRESS, "run")
    target = root / "checkpoints" / "000000007"
    assert root.is_relative_to(tmp_path / "there")
    assert contents(target) == whole("first")
    on_machine(monkeypatch, tmp_path / "here")
    save(copy_of(ADDRESS, "run"), "second", step=8, stamp=2)
    store_of(target).delete(copy_of(ADDRESS, "run") / "checkpoints" / "000000007")
    assert store_of(target).list(root / "checkpoints") == ["000000008"]
    assert list((root / "checkpoints").iterdir()) == []


def test_parts_that_others_complete_leave_no_copy(bucket):
    root = copy_of(ADDRESS, "run")
    part = write(root / "checkpoints" / f"{UNFINISHED}1" / "learner", "first", "state")
    store_of(part).put(part)
    assert not part.exists()
    assert "b/runs/mine/checkpoints/.unfinished-1/learner/state" in bucket.objects


def test_a_process_killed_before_any_request_leaves_a_whole_folder(bucket):
    """The only checkpoint is replaced by one of the same step; the process dies before, or after, the n-th request."""
    root = copy_of(ADDRESS, "run")
    target = save(root, "first")
    before = dict(bucket.objects)
    requests = len(bucket.requests)
    save(root, "second", stamp=2)
    fatal = len(bucket.requests) - requests
    assert fatal > 4
    for number in range(2 * fatal):
        bucket.objects, calls = dict(before), []

        def die(verb, key, number=number, calls=calls):
            if verb in ("put_file", "pipe_file", "rm"):
                calls.append(verb)
                if len(calls) == number // 2 + 1:
                    raise Killed

        setattr(bucket, "after" if number % 2 else "before", die)
        with pytest.raises(Killed):
            save(root, "second", stamp=2)
        bucket.before = bucket.after = lambda verb, key: None
        assert contents(target) in (whole("first"), whole("second")), number
        assert contents(save(root, "third", stamp=3)) == whole("third")
        names = store_of(root).list(target.parent)
        assert [name for name in names if not name.startswith(UNFINISHED)] == ["000000007"]


def again(verb, *arguments):
    """Repeats a verb until it does not fail."""
    for _ in range(20):
        try:
            return verb(*arguments)
        except StorageError:
            continue
    raise AssertionError(f"{verb} fails for ever")


@pytest.mark.parametrize("request_", ["ls", "find", "get_file", "put_file", "pipe_file", "cp_file", "rm", "modified"])
@pytest.mark.parametrize("when", ["before", "after"])
def test_a_verb_whose_requests_failed_or_lost_their_answers_may_be_repeated(bucket, request_, when):
    """Each request fails the first time."""
    root, failed = copy_of(ADDRESS, "run"), set()
    kept, folder = store_of(root), root / "checkpoints"

    def fail(requested, key):
        if requested == request_ and key not in failed:
            failed.add(key)
            raise ConnectionError("the connection was reset")

    setattr(bucket, when, fail)
    for stamp, text in enumerate(("first", "second")):
        source, target = folder / f"{UNFINISHED}{stamp}", folder / "000000007"
        again(kept.put, write(source, text, "learner/state", "run.json"))
        again(kept.commit, source, target)
    again(kept.put, write(folder / f"{UNFINISHED}3", "third", "replay/data"))
    again(kept.commit, folder / f"{UNFINISHED}3" / "replay", target / "replay")
    again(kept.get, target / "run.json")
    again(kept.get, target)
    assert failed
    assert contents(target) == {name: f"{name} second" for name in ("learner/state", "run.json")} | {
        "replay/data": "replay/data third"
    }
    for _ in range(9):  # a deletion leaves what it cannot delete
        for name in again(kept.list, folder):
            kept.delete(folder / name)
    assert again(kept.list, folder) == []


@pytest.mark.parametrize("verb", ["put_file", "pipe_file"])
def test_a_bucket_that_fails_each_time_is_named_and_keeps_what_it_has(bucket, verb):
    root = copy_of(ADDRESS, "run")
    target = save(root, "first")

    def fail(requested, key):
        if requested == verb:
            raise TimeoutError("no answer")

    bucket.before = fail
    with pytest.raises(StorageError, match="gs://b/runs/mine/checkpoints") as raised:
        save(root, "second", stamp=2)
    assert "no answer" in str(raised.value)
    assert "credentials" in str(raised.value)
    bucket.before = lambda verb, key: None
    assert contents(target) == whole("first")


def test_refused_credentials_are_named(bucket):
    def refuse(verb, key):
        raise PermissionError("the token has expired")

    bucket.before = refuse
    with pytest.raises(StorageError, match="the token has expired"):
        Workdir(ADDRESS)


def test_a_bucket_that_does_not_exist_cannot_be_locked(bucket):
    workdir = Workdir("gs://other/run", works=True)
    with pytest.raises(WorkdirError, match="bucket that exists"):
        workdir.lock()


def test_a_missing_library_is_named_with_the_command_that_installs_it(monkeypatch):
    import fsspec

    def missing(scheme, **options):
        raise ImportError("Please install gcsfs to access Google Storage")

    monkeypatch.setattr(fsspec, "filesystem", missing)
    with pytest.raises(ConfigError, match=r"gcsfs.*--extra buckets"):
        store.Bucket("gs")


@pytest.mark.parametrize("name", ["../../outside", "a/../../../outside"])
def test_no_name_in_a_bucket_leads_out_of_its_copy(bucket, name):
    target = save(copy_of(ADDRESS, "run"), "first")
    bucket.objects[f"b/runs/mine/checkpoints/{UNFINISHED}1/{name}"] = (b"x", 0.0)
    with pytest.raises(StorageError, match="leads out of"):
        store_of(target).get(target)


@pytest.mark.parametrize("address", ["gs://b/runs/mine", "gs:/b/runs/mine", "gs://b/runs/mine/"])
def test_an_address_and_the_path_of_its_copy_mean_the_same_run(bucket, address):
    assert copy_of(address, "run") == copy_of(copy_of(address, "read"), "run") == copy_of(ADDRESS, "run")


@pytest.mark.parametrize("path", ["runs/mine", "/shared/gs/b", "gs:mine", "a:/b", "file:///b"])
def test_other_paths_are_folders(path):
    assert copy_of(path, "run") is None
    assert type(store_of(path)) is store.Store


@pytest.fixture
def quick(monkeypatch):
    monkeypatch.setattr(directory_lock, "BEAT_S", 0.02)
    monkeypatch.setattr(directory_lock, "GONE_AFTER_S", 0.3)


def elsewhere(monkeypatch, tmp_path):
    """From now on this is another process on another machine."""
    on_machine(monkeypatch, tmp_path / "there")
    monkeypatch.setattr(directory_lock.socket, "gethostname", lambda: "elsewhere")


def test_a_run_in_a_bucket_has_one_driver(bucket, quick, monkeypatch, tmp_path):
    first = Workdir(ADDRESS, works=True)
    with first.lock():
        elsewhere(monkeypatch, tmp_path)
        assert Workdir(ADDRESS).holder() is not None
        with pytest.raises(Exception, match="is in use"):
            Workdir(ADDRESS, works=True).lock()
    assert Workdir(ADDRESS).holder() is None
    Workdir(ADDRESS, works=True).lock().close()


def test_a_driver_that_stood_still_is_told_that_another_has_taken_over(bucket, quick, monkeypatch, tmp_path):
    still = threading.Event()
    monkeypatch.setattr(DirectoryLock, "_beat", lambda self: still.wait(10.0) and None)
    lock = Workdir(ADDRESS, works=True).lock()
    monkeypatch.undo()
    files = use_fake_bucket(monkeypatch, tmp_path / "there")
    files.objects = bucket.objects
    monkeypatch.setattr(directory_lock, "GONE_AFTER_S", 0.05)
    elsewhere(monkeypatch, tmp_path)
    with Workdir(ADDRESS, works=True).lock():
        lock._look()
        with pytest.raises(TakenOver, match="elsewhere"):
            lock.check()
        still.set()


def test_of_two_processes_that_find_the_lock_free_one_gets_it(bucket, quick, monkeypatch, tmp_path):
    """The other one takes it just before this one does."""
    taken = []

    def race(verb, key):
        if verb == "pipe_file" and not taken:
            taken.append(key)
            bucket.objects[key] = (b"7 elsewhere 000000000001", 0.0)

    bucket.before = race
    path = copy_of(ADDRESS, "run") / ".lock"
    path.parent.mkdir(parents=True)
    create = bucket.pipe_file

    def pipe_file(key, value, mode="overwrite"):
        race("pipe_file", key)
        create(key, value, mode)

    bucket.pipe_file = pipe_file
    with pytest.raises(Held) as raised:
        DirectoryLock(path)
    assert raised.value.holder == (7, "elsewhere")


def test_a_lock_whose_answer_was_lost_is_held(bucket, quick):
    lost = []

    def lose(verb, key):
        if verb == "pipe_file" and not lost:
            lost.append(key)
            raise FileExistsError(key)  # the library has repeated the request

    bucket.after = lose
    Workdir(ADDRESS, works=True).lock().close()
    assert lost


@pytest.fixture
def often(monkeypatch):
    monkeypatch.setattr(copies, "EVERY_S", 0.01)


def test_what_the_driver_writes_is_copied_until_the_end(bucket, often):
    root = write(copy_of(ADDRESS, "run"), "1", "status.json", "train.log", ".hidden")
    running = Copies(root, lambda: None)
    running.close()
    write(root, "2", "status.json")
    assert bucket.objects["b/runs/mine/status.json"][0] == b"status.json 1"
    running = Copies(root, lambda: None)
    write(root, "3", "status.json")
    running.close()
    assert bucket.objects["b/runs/mine/status.json"][0] == b"status.json 3"
    assert not any("hidden" in key for key in bucket.objects)


def test_a_bucket_that_fails_does_not_end_the_copies(bucket, often, caplog):
    root, failed, enough = write(copy_of(ADDRESS, "run"), "1", "status.json"), [], threading.Event()

    def fail(verb, key):
        failed.append(key)
        if len(failed) > 2:
            enough.set()
        else:
            raise OSError("unreachable")

    bucket.before = fail
    running = Copies(root, lambda: None)
    assert enough.wait(10)
    running.close()
    assert bucket.objects["b/runs/mine/status.json"][0] == b"status.json 1"
    assert sum("unreachable" in record.getMessage() for record in caplog.records) == 1


def test_a_bucket_that_does_not_answer_does_not_keep_the_run_from_its_end(bucket, often, monkeypatch, caplog):
    root, ended, begun = write(copy_of(ADDRESS, "run"), "1", "status.json"), threading.Event(), threading.Event()

    def hang(verb, key):
        begun.set()
        ended.wait(30)

    bucket.before = hang
    monkeypatch.setattr(copies, "LAST_S", 0.05)
    running = Copies(root, lambda: None)
    assert begun.wait(10)
    with caplog.at_level(logging.ERROR):
        running.close()
    ended.set()
    assert "did not take" in caplog.text


def test_nothing_is_copied_once_another_process_works_there(bucket, often):
    def taken():
        raise TakenOver("elsewhere works there")

    Copies(write(copy_of(ADDRESS, "run"), "1", "status.json"), taken).close()
    assert bucket.objects == {}


def test_a_reader_sees_the_newest_files_and_none_that_are_gone(bucket, monkeypatch, tmp_path):
    root = write(copy_of(ADDRESS, "run"), "1", "status.json", "experiment.yaml", "metrics.jsonl")
    for name in ("status.json", "experiment.yaml", "metrics.jsonl"):
        store_of(root).put(root / name)
    on_machine(monkeypatch, tmp_path / "there")
    reader = Workdir(ADDRESS)
    assert reader.status_file.read_text() == "status.json 1"
    assert not reader.metrics_file.exists()
    changed = bucket.objects["b/runs/mine/status.json"][1]
    assert reader.status_file.stat().st_mtime == pytest.approx(changed, abs=1e-3), "its age is that of the object"
    reader.refresh(long=True)
    assert reader.metrics_file.exists()
    bucket.pipe_file("b/runs/mine/status.json", b"new")
    bucket.rm("b/runs/mine/experiment.yaml")
    reader.refresh()
    assert reader.status_file.read_text() == "new"
    assert not reader.is_run


def test_a_directory_that_is_not_in_the_bucket_is_none(bucket):
    assert not Workdir("gs://b/runs/none").root.exists()


def test_a_driver_goes_on_with_what_the_bucket_holds(bucket, quick):
    stale = write(copy_of(ADDRESS, "run"), "stale", "metrics.jsonl", "old.json", "checkpoints/000000009/run.json")
    bucket.pipe_file("b/runs/mine/metrics.jsonl", b"newer")
    workdir = Workdir(ADDRESS, works=True)
    with workdir.lock():
        workdir.replace_copy()
    assert sorted(path.name for path in stale.iterdir()) == [".lock", "metrics.jsonl"]
    assert workdir.metrics_file.read_text() == "newer"
