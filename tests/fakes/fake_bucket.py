"""A bucket in memory behind fsspec's interface, whose requests fail, answer late or lose their answers as told."""

from __future__ import annotations

import time
from datetime import UTC, datetime
from pathlib import Path

from fsspec.spec import AbstractFileSystem

from podzero.files import store
from podzero.files.store import UNFINISHED, store_of


class Killed(BaseException):
    """The end of the process."""


class FakeFiles(AbstractFileSystem):
    """Objects by their keys, `BUCKET/KEY`; only the bucket `b` exists.

    Attributes:
      before: called with the verb and the key before each request; raises what the request raises.
      after: the same when it has been done, so that its answer is lost.
      requests: the verbs and keys of all requests that changed something.
    """

    cachable = False

    def __init__(self, **options):
        super().__init__(**options)
        self.objects: dict[str, tuple[bytes, float]] = {}
        self.requests: list[tuple[str, str]] = []
        self.before = self.after = lambda verb, key: None

    def _request(self, verb, key, change=None):
        self.before(verb, key)
        if key.split("/")[0] != "b":
            raise FileNotFoundError(f"the bucket of {key} does not exist")
        if change is not None:
            self.requests.append((verb, key))
            change()
        self.after(verb, key)

    def _content(self, key):
        if key not in self.objects:
            raise FileNotFoundError(key)
        return self.objects[key][0]

    def ls(self, path, detail=True, refresh=False):
        self._request("ls", path)
        below = {key[len(path) + 1 :].split("/")[0] for key in self.objects if key.startswith(f"{path}/")}
        if not below:
            raise FileNotFoundError(path)
        return [f"{path}/{name}" for name in sorted(below)]

    def find(self, path, detail=False, refresh=False):
        self._request("find", path)
        found = [key for key in sorted(self.objects) if key == path or key.startswith(f"{path}/")]
        return {key: {"size": len(self.objects[key][0])} for key in found}

    def modified(self, path):
        self._request("modified", path)
        self._content(path)
        return datetime.fromtimestamp(self.objects[path][1], UTC)

    def cat_file(self, path):
        self._request("cat_file", path)
        return self._content(path)

    def get_file(self, rpath, lpath):
        self._request("get_file", rpath)
        Path(lpath).write_bytes(self._content(rpath))

    def _put(self, verb, key, content):
        self._request(verb, key, lambda: self.objects.update({key: (content, time.time())}))

    def put_file(self, lpath, rpath):
        self._put("put_file", rpath, Path(lpath).read_bytes())

    def pipe_file(self, path, value, mode="overwrite"):
        if mode == "create" and path in self.objects:
            raise FileExistsError(path)
        self._put("pipe_file", path, value)

    def cp_file(self, path1, path2):
        self._put("cp_file", path2, self._content(path1))

    def rm(self, path, recursive=False):
        found = self.find(path)
        if not found:
            raise FileNotFoundError(path)
        for key in sorted(found, reverse=True):  # one request for each, as some stores do
            self._request("rm", key, lambda key=key: self.objects.pop(key, None))


def use_fake_bucket(monkeypatch, cache) -> FakeFiles:
    """From now on `gs://b/...` is a bucket in memory, of which this machine keeps its copies below `cache`."""
    files = FakeFiles()
    bucket = store.Bucket.__new__(store.Bucket)
    bucket._scheme, bucket._files = "gs", files
    monkeypatch.setattr(store, "_bucket", lambda scheme: bucket)
    on_machine(monkeypatch, cache)
    return files


def on_machine(monkeypatch, cache) -> None:
    """From now on the copies of this machine are below another folder: that of another machine."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(cache))


def write(folder, text, *names):
    for name in names:
        file = folder / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(f"{name} {text}")
    return folder


def save(root, text, step=7, stamp=1):
    """A folder of two parts and a manifest, completed in the way of a checkpoint."""
    kept = store_of(root)
    unfinished, target = root / "checkpoints" / f"{UNFINISHED}{stamp}", root / "checkpoints" / f"{step:09d}"
    write(unfinished, text, "learner/state", "replay/shard-0/data", "run.json")
    kept.put(unfinished / "learner")
    kept.put(unfinished / "replay" / "shard-0")
    kept.put(unfinished)
    kept.commit(unfinished, target)
    return target


def contents(folder):
    """What this machine reads of a folder."""
    store_of(folder).get(folder)
    return {
        path.relative_to(folder).as_posix(): path.read_text() for path in sorted(folder.rglob("*")) if path.is_file()
    }


def whole(text):
    return {name: f"{name} {text}" for name in ("learner/state", "replay/shard-0/data", "run.json")}
