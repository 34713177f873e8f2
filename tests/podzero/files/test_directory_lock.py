"""A directory has one living holder, also where machines do not see each other's `flock`."""

import os
import signal
import socket
import subprocess
import sys

import pytest

from podzero.files import directory_lock
from podzero.files.directory_lock import DirectoryLock, Held, LockHolder, TakenOver, holder_of

ELSEWHERE = LockHolder(7, "elsewhere")


@pytest.fixture(autouse=True)
def quick(monkeypatch):
    monkeypatch.setattr(directory_lock, "BEAT_S", 0.02)
    monkeypatch.setattr(directory_lock, "GONE_AFTER_S", 0.3)


@pytest.fixture
def path(tmp_path):
    return tmp_path / ".lock"


@pytest.fixture
def other(path, monkeypatch):
    """A process of another machine that holds the lock of `path`; `flock` does not reach from there to here."""
    script = (
        "import socket, sys; from pathlib import Path; from podzero.files import directory_lock as module\n"
        "module.BEAT_S = 0.02; socket.gethostname = lambda: 'elsewhere'; module.os.getpid = lambda: 7\n"
        "lock = module.DirectoryLock(Path(sys.argv[1])); print('held', flush=True); sys.stdin.read(); lock.close()\n"
    )
    process = subprocess.Popen(
        [sys.executable, "-c", script, str(path)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    assert process.stdout.readline() == "held\n"
    monkeypatch.setattr(directory_lock.fcntl, "flock", lambda *_: None)
    yield process
    process.kill()
    process.communicate()


def test_a_holder_of_another_machine_is_seen_by_its_beats_until_it_ends(path, other):
    assert holder_of(path) == ELSEWHERE
    with pytest.raises(Held) as raised:
        DirectoryLock(path)
    assert raised.value.holder == ELSEWHERE
    other.communicate("")
    assert holder_of(path) is None
    DirectoryLock(path).close()


def test_a_holder_that_was_killed_on_another_machine_is_gone_after_a_look(path, other):
    other.kill()
    other.wait()
    with DirectoryLock(path):
        assert holder_of(path) == LockHolder(os.getpid(), socket.gethostname())


def test_a_holder_that_stood_still_and_was_followed_by_another_learns_of_it(path, other):
    other.send_signal(signal.SIGSTOP)
    with DirectoryLock(path) as mine:
        other.send_signal(signal.SIGCONT)
        mine._thread.join(0.2)
        mine.check()
        assert other.poll() is None
        other.communicate("")
        assert holder_of(path) == LockHolder(os.getpid(), socket.gethostname()), "it wrote nothing more"


def test_the_name_of_another_process_in_the_file_ends_the_hold(path):
    with DirectoryLock(path) as mine:
        path.write_text("7 elsewhere 000000000001")
        mine._thread.join(20)
        with pytest.raises(TakenOver, match="process 7 on elsewhere"):
            mine.check()
    assert path.read_text() == "7 elsewhere 000000000001"


def test_a_process_that_stood_still_looks_before_its_thread_does(path, monkeypatch):
    monkeypatch.setattr(directory_lock, "BEAT_S", 60.0)
    with DirectoryLock(path) as mine:
        path.write_text("7 elsewhere 000000000001")
        mine.check()
        with pytest.raises(TakenOver):
            mine.check(look=True)
        mine._taken_by = None
        monkeypatch.setattr(directory_lock, "GONE_AFTER_S", -1.0)
        with pytest.raises(TakenOver):
            mine.check()
        monkeypatch.setattr(directory_lock, "BEAT_S", 0.0)


@pytest.mark.parametrize(
    "text", ["", "4711 elsewhere", "nobody", "\u00b2 elsewhere 1", "\x00\x00", f"{2**22 + 1} {socket.gethostname()} 1"]
)
def test_files_that_name_no_living_process_need_no_look(path, monkeypatch, text):
    """Among them those of an older version, which had no beats, and of a process of this machine that is gone."""
    path.write_text(text)
    monkeypatch.setattr(directory_lock, "GONE_AFTER_S", 1e9)
    assert holder_of(path) is None
    DirectoryLock(path).close()


def test_a_file_of_yesterday_needs_no_look(path, monkeypatch):
    path.write_text("7 elsewhere 000000000001")
    os.utime(path, (0, 0))
    monkeypatch.setattr(directory_lock, "GONE_AFTER_S", 1e9)
    assert holder_of(path) is None


def test_storage_that_is_gone_for_a_moment_does_not_end_the_hold(path):
    with DirectoryLock(path) as mine:
        path.unlink()
        path.mkdir()
        mine._thread.join(0.1)
        path.rmdir()
        mine._thread.join(0.1)
        mine.check()
        assert path.read_text().startswith(str(os.getpid()))
