"""The store against the protocols of S3 (moto) and Google Cloud Storage (gcp-storage-emulator), as real servers.

Both are installed by `uv pip install "moto[server,s3]" gcp-storage-emulator`, beside the extra `buckets`.
"""

import importlib.util
import socket
import subprocess
import sys
import time

import fsspec
import pytest
from fake_bucket import contents, on_machine, save, whole

from podzero.files import directory_lock, store
from podzero.files.directory_lock import DirectoryLock, Held
from podzero.files.store import copy_of, store_of
from podzero.files.workdir import Workdir, keep_as

SERVERS = {
    "s3": ("s3fs", "moto", "import sys; from moto.server import main; main(['-p', sys.argv[1]])"),
    "gs": (
        "gcsfs",
        "gcp_storage_emulator",
        "import sys; from gcp_storage_emulator.server import create_server\n"
        "create_server('127.0.0.1', int(sys.argv[1]), in_memory=True, default_bucket='bucket').run()",
    ),
}
pytestmark = pytest.mark.slow


@pytest.fixture(params=SERVERS)
def address(request, monkeypatch, tmp_path):
    """The address of a run in the bucket of a server, to which the environment of this process leads."""
    *modules, script = SERVERS[request.param]
    if not all(map(importlib.util.find_spec, modules)):
        pytest.skip(f"{' or '.join(modules)} is not installed")
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    server = subprocess.Popen([sys.executable, "-c", script, str(port)], stderr=subprocess.DEVNULL)
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
        monkeypatch.setenv(name, "test")
    monkeypatch.setenv("AWS_DEFAULT_REGION", "us-east-1")
    monkeypatch.setenv("AWS_ENDPOINT_URL", f"http://127.0.0.1:{port}")
    monkeypatch.setenv("STORAGE_EMULATOR_HOST", f"http://127.0.0.1:{port}")
    monkeypatch.setitem(fsspec.config.conf, "gs", {"token": "anon"})
    on_machine(monkeypatch, tmp_path / "here")
    store._bucket.cache_clear()
    fsspec.get_filesystem_class(request.param).clear_instance_cache()
    while True:
        try:
            socket.create_connection(("127.0.0.1", port), 1.0).close()
            break
        except OSError:
            assert server.poll() is None
            time.sleep(0.1)
    if request.param == "s3":
        store_of(copy_of("s3://bucket/x", "run"))._files.mkdir("bucket")
    yield f"{request.param}://bucket/runs/mine"
    store._bucket.cache_clear()
    server.kill()
    server.wait()


def test_a_folder_is_saved_replaced_renamed_and_deleted(address, monkeypatch, tmp_path):
    root = copy_of(address, "run")
    for stamp, text in enumerate(("first", "second")):
        target = save(root, text, stamp=stamp)
        assert contents(target) == whole(text)
    assert store_of(root).list(target.parent) == ["000000007"]
    on_machine(monkeypatch, tmp_path / "there")
    target = copy_of(address, "run") / "checkpoints" / "000000007"
    assert contents(target) == whole("second")
    kept = keep_as(target, "lost")
    assert store_of(root).list(target.parent) == ["lost-000000007"]
    assert contents(kept) == whole("second")
    store_of(kept).delete(kept)
    assert store_of(root).list(target.parent) == []


def test_a_file_has_its_age_and_is_read_anew(address, monkeypatch, tmp_path):
    root = copy_of(address, "run")
    root.mkdir(parents=True)
    for text in ("once", "and again"):
        (root / "status.json").write_text(text)
        store_of(root).put(root / "status.json")
        reader = Workdir(address)
        assert reader.status_file.read_text() == text
        assert abs(time.time() - reader.status_file.stat().st_mtime) < 60


def test_one_process_at_a_time_holds_the_lock(address, monkeypatch, tmp_path):
    monkeypatch.setattr(directory_lock, "BEAT_S", 0.2)
    monkeypatch.setattr(directory_lock, "GONE_AFTER_S", 2.0)
    path = copy_of(address, "run") / ".lock"
    path.parent.mkdir(parents=True)
    with DirectoryLock(path):
        on_machine(monkeypatch, tmp_path / "there")
        other = copy_of(address, "run") / ".lock"
        other.parent.mkdir(parents=True)
        with pytest.raises(Held):
            DirectoryLock(other)
        # Two that are equally fast: S3 tells them apart, and so does Google, but not its emulator.
        monkeypatch.setattr(directory_lock, "_living", lambda path: None)
        monkeypatch.setattr(directory_lock, "_record_file", lambda path: path)
        if address.startswith("s3"):
            with pytest.raises(Held):
                DirectoryLock(other)
    monkeypatch.undo()


def test_a_missing_bucket_is_no_working_directory(address):
    with pytest.raises(Exception, match="bucket"):
        Workdir(address.replace("//bucket/", "//no-such-bucket/"), works=True).lock()
