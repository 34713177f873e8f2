"""How Ray is started: signals that arrive meanwhile, and the resources of the node."""

from __future__ import annotations

import resource
import signal
import subprocess
import sys
import threading
from pathlib import Path
from types import SimpleNamespace

import pytest
from ray._private import accelerators, worker

from podzero.core.errors import ConfigError
from podzero.runtime.cluster.preflight import check_session_folder, session_folder
from podzero.runtime.cluster.ray_start import (
    LEAST_FILES,
    allow_files,
    deferred_signals,
    errors_in_log,
    local_cluster,
    local_node,
)


@pytest.fixture
def received():
    """The signals that the process has handled."""
    found = []
    numbers = (signal.SIGINT, signal.SIGTERM)
    before = {number: signal.signal(number, lambda number, _: found.append(number)) for number in numbers}
    yield found
    for number, handler in before.items():
        signal.signal(number, handler)


def run(script, *arguments):
    """Runs a script in its own process: libraries of other tests may have changed how this one takes signals."""
    done = subprocess.run(
        [sys.executable, "-c", script, *arguments], capture_output=True, text=True, timeout=60, check=False
    )
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_is_handled_once_when_the_context_ends(number):
    run(
        """
import signal, sys
from podzero.runtime.cluster.ray_start import deferred_signals

number, received = int(sys.argv[1]), []
signal.signal(number, lambda number, _: received.append(number))
with deferred_signals():
    signal.raise_signal(number)
    signal.raise_signal(number)
    assert received == []
assert received == [number]
signal.raise_signal(number)
assert received == [number, number]
""",
        str(int(number)),
    )


def test_an_exception_of_the_handler_leaves_the_context_and_not_its_body():
    run(
        """
import signal
from podzero.runtime.cluster.ray_start import deferred_signals

signal.signal(signal.SIGINT, signal.default_int_handler)
steps = []
try:
    with deferred_signals():
        signal.raise_signal(signal.SIGINT)
        steps.append("the body goes on")
except KeyboardInterrupt:
    steps.append("left")
assert steps == ["the body goes on", "left"]
"""
    )


def test_a_handler_that_interrupts_the_end_of_the_context_leaves_no_signal_unheard():
    run(
        """
import signal, sys
from podzero.runtime.cluster.ray_start import deferred_signals

received = []
signal.signal(signal.SIGINT, signal.default_int_handler)
signal.signal(signal.SIGTERM, lambda number, _: received.append(number))

def trace(frame, event, argument):
    frame.f_trace_opcodes = True
    if restored():
        signal.raise_signal(signal.SIGINT)
    return trace

def restored():
    return inside and signal.getsignal(signal.SIGINT) is signal.default_int_handler

inside = False
sys.settrace(trace)
try:
    with deferred_signals():
        inside = True
    raise AssertionError("not interrupted")
except KeyboardInterrupt:
    signal.raise_signal(signal.SIGTERM)
assert received == [signal.SIGTERM]
"""
    )


def test_the_default_action_is_kept(received):
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    with deferred_signals():
        assert signal.getsignal(signal.SIGTERM) is signal.SIG_DFL


def test_other_threads_may_connect(received):
    def connect():
        with deferred_signals():
            handlers.append(signal.getsignal(signal.SIGINT))

    handlers, before = [], signal.getsignal(signal.SIGINT)
    thread = threading.Thread(target=connect)
    thread.start()
    thread.join(timeout=10)
    assert handlers == [before]


@pytest.mark.parametrize(("visible", "gpus"), [(None, 4), (["1", "3"], 2), ([], 0)])
def test_a_node_has_the_visible_gpus_of_the_machine(monkeypatch, visible, gpus):
    kind = SimpleNamespace(
        get_current_node_num_accelerators=lambda: 4, get_current_process_visible_accelerator_ids=lambda: visible
    )
    monkeypatch.setattr(accelerators, "get_accelerator_manager_for_resource", {"GPU": kind}.get)
    assert local_node(2)["num_gpus"] == gpus


@pytest.mark.parametrize(
    ("variables", "folder"),
    [({}, "/tmp"), ({"TMPDIR": "/scratch"}, "/scratch"), ({"TMPDIR": "/scratch", "RAY_TMPDIR": "/ray"}, "/ray")],
)
def test_the_folder_of_a_session_is_rays(monkeypatch, variables, folder):
    from ray._common.utils import get_default_system_temp_dir

    for name in ("TMPDIR", "RAY_TMPDIR"):
        monkeypatch.delenv(name, raising=False)
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    assert str(session_folder()) == get_default_system_temp_dir() == folder


def test_a_folder_whose_path_is_too_long_for_sockets_is_refused_before_ray_starts(monkeypatch):
    check_session_folder(Path("/tmp"))
    monkeypatch.setenv("RAY_TMPDIR", f"/tmp/{'ü' * 45}")
    with pytest.raises(ConfigError, match="TMPDIR"), local_cluster(1):
        pass


@pytest.mark.parametrize(
    ("limits", "raised"), [((256, 4096), [(LEAST_FILES, 4096)]), ((LEAST_FILES, 4096), []), ((-1, -1), [])]
)
def test_a_run_may_open_as_many_files_as_it_needs(monkeypatch, limits, raised):
    found = []
    monkeypatch.setattr(resource, "getrlimit", lambda which: limits)
    monkeypatch.setattr(resource, "setrlimit", lambda which, given: found.append(given))
    allow_files()
    assert found == raised


def test_a_limit_of_open_files_that_is_too_low_is_named_before_ray_starts(monkeypatch):
    monkeypatch.setattr(resource, "getrlimit", lambda which: (64, 96))
    with pytest.raises(ConfigError, match=r"96 files .*ulimit"), local_cluster(1.0):
        pass


def test_what_ray_says_of_processes_that_it_restarts_goes_to_the_log_instead_of_the_screen(caplog, capfd):
    with errors_in_log(), caplog.at_level("INFO"):
        worker.print_to_stdstream({"lines": ["Task ParamStore.hold failed."], "pid": "raylet", "is_err": False})
    assert "ParamStore.hold failed" in caplog.text
    assert capfd.readouterr() == ("", "")
