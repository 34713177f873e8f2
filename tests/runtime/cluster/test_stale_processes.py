"""Real processes that hold open a file in the place of a chip's."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from contextlib import suppress

import psutil
import pytest

from podzero.core.errors import ClusterError
from podzero.runtime.cluster import preflight
from podzero.runtime.cluster.preflight import RUN_VARIABLE, end_stale_processes

HOLD = """
import os, signal, sys, time
chip = open(sys.argv[1])
if "stubborn" in sys.argv:
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
print(os.getpid(), flush=True)
time.sleep(float(sys.argv[2]))
"""
ORPHAN = """
import subprocess, sys
child = subprocess.Popen([sys.executable, *sys.argv[1:]], stdout=subprocess.PIPE)
sys.stdout.buffer.write(child.stdout.readline())
"""
"""Ends once its child holds the chip, which makes the child an orphan."""


@pytest.fixture
def devices(tmp_path):
    """A folder like /dev of a host with two chips."""
    for name in ("accel0", "accel1"):
        (tmp_path / name).touch()
    return tmp_path


@pytest.fixture
def hold():
    """Starts processes that hold a file open for some seconds; ends those that still run afterwards."""
    started, held = [], []

    def start(file, run, *, orphan=False, seconds=60, stubborn=False):
        environment = {name: value for name, value in os.environ.items() if name != RUN_VARIABLE}
        if run is not None:
            environment[RUN_VARIABLE] = run
        command = ["-c", HOLD, str(file), str(seconds), *(["stubborn"] if stubborn else [])]
        if orphan:
            command = ["-c", ORPHAN, *command]
        parent = subprocess.Popen([sys.executable, *command], env=environment, stdout=subprocess.PIPE)
        started.append(parent)
        pid = int(parent.stdout.readline())
        held.append(psutil.Process(pid))
        if orphan:
            parent.wait(30)
        return pid

    yield start
    for process in held:
        with suppress(psutil.NoSuchProcess):
            process.kill()
    for process in started:
        process.wait(30)
        process.stdout.close()


@pytest.fixture
def short_timeout(monkeypatch):
    monkeypatch.setattr(preflight, "END_TIMEOUT_S", 0.3)


def ended(pid):
    """Whether a process has ended, a zombie included."""
    return not psutil.pid_exists(pid) or psutil.Process(pid).status() == psutil.STATUS_ZOMBIE


@pytest.mark.parametrize("run", ["other", "mine"])
def test_an_orphan_of_any_run_is_ended_and_reported(devices, hold, run):
    """One of this run may be left by a node that was lost and has joined again."""
    pid = hold(devices / "accel0", run, orphan=True)
    (description,) = end_stale_processes(devices)
    assert ended(pid)
    assert description.startswith(f"process {pid} on {socket.gethostname()} (python")


def test_all_orphans_are_ended_whichever_chip_they_hold(devices, hold):
    (devices / "vfio").mkdir()
    (devices / "vfio" / "0").touch()
    pids = [hold(devices / name, "other", orphan=True) for name in ("accel0", "accel1", "vfio/0")]
    assert len(end_stale_processes(devices)) == 3
    assert all(ended(pid) for pid in pids)
    assert end_stale_processes(devices) == []


def test_an_orphan_that_ignores_sigterm_is_killed(devices, hold, short_timeout):
    pid = hold(devices / "accel0", "other", orphan=True, stubborn=True)
    assert len(end_stale_processes(devices)) == 1
    assert ended(pid)


@pytest.mark.parametrize(
    ("run", "orphan"),
    [("mine", False), ("other", False), (None, True), (None, False)],
    ids=["of this run", "of another live run", "other orphan", "other"],
)
def test_a_process_that_is_not_stale_is_named_and_not_ended(devices, hold, short_timeout, run, orphan):
    pid = hold(devices / "accel0", run, orphan=orphan)
    name = psutil.Process(pid).name()
    host = socket.gethostname()
    with pytest.raises(ClusterError, match=rf"process {pid} on {host} \({name}, .*TPU chips"):
        end_stale_processes(devices)
    assert not ended(pid)


def test_a_child_of_a_raylet_is_no_orphan_even_in_a_session_of_its_own(devices, hold, short_timeout, monkeypatch):
    pid = hold(devices / "accel0", "other")
    monkeypatch.setattr(os, "getsid", lambda of: of)
    assert preflight.is_orphan(psutil.Process(pid))  # as if a service manager of another session had adopted it
    monkeypatch.setattr(psutil.Process, "name", lambda process: "raylet")
    with pytest.raises(ClusterError, match=f"process {pid}"):
        end_stale_processes(devices)


def test_a_process_that_ends_by_itself_is_waited_for(devices, hold):
    pid = hold(devices / "accel0", "mine", seconds=0.5)
    assert end_stale_processes(devices) == []
    assert str(devices / "accel0") not in preflight.open_files(pid)


def test_processes_with_other_files_and_this_process_are_ignored(devices, hold):
    (devices / "null").touch()
    pid = hold(devices / "null", "other", orphan=True)
    with (devices / "accel0").open():
        assert end_stale_processes(devices) == []
    assert not ended(pid)


def test_processes_are_not_listed_on_a_host_without_chips(tmp_path, monkeypatch):
    def refuse():
        raise AssertionError("processes were listed")

    monkeypatch.setattr(psutil, "process_iter", refuse)
    assert end_stale_processes(tmp_path) == []


def test_a_stale_process_that_cannot_be_ended_is_an_error(devices, hold, short_timeout, monkeypatch):
    pid = hold(devices / "accel0", "other", orphan=True)
    monkeypatch.setattr(psutil.Process, "terminate", lambda process: None)
    monkeypatch.setattr(psutil.Process, "kill", lambda process: None)
    with pytest.raises(ClusterError, match=rf"process {pid} .*restart the host"):
        end_stale_processes(devices)
