"""The replay server as a process: its environment is made once, and unusable interpreters and servers are refused."""

import contextlib
import os
import subprocess
import sys
import threading
import time
from pathlib import Path

import psutil
import pytest
import uv

from podzero.core.errors import TRY_AGAIN
from podzero.replay import EnvironmentUnusable, ReplayRestoreError, process, server_python
from podzero.replay.errors import ServerFailed, ServerKilled
from podzero.replay.process import PROJECT, VARIABLE, ServerProcess, environment_folder, server_variables


def interpreter(tmp_path, script):
    """A stand-in for the Python of the server's environment: it runs this shell script instead."""
    program = tmp_path / "python"
    program.write_text(f"#!/bin/sh\n{script}\n")
    program.chmod(0o755)
    return program


def test_a_server_whose_version_is_unknown_is_refused_and_ended(tmp_path):
    script = """read line; echo '{"ready": {"reverb": "0.13.0", "loopback": true}}'; read end; touch "$0.ended\""""
    python = interpreter(tmp_path, script)
    with pytest.raises(ServerFailed, match=r"dm-reverb 0\.13\.0; .* 0\.14\."):
        ServerProcess(python, {}, 20)
    assert (tmp_path / "python.ended").exists()


def test_the_error_of_a_server_that_does_not_start_is_told(tmp_path):
    script = """read line; echo '{"error": "ModuleNotFoundError: No module named reverb"}'; exit 1"""
    with pytest.raises(ServerFailed, match="No module named reverb"):
        ServerProcess(interpreter(tmp_path, script), {}, 20)


def test_a_server_that_ends_before_it_listens_is_named_with_its_exit_code(tmp_path):
    with pytest.raises(ServerFailed, match="exit code 7"):
        ServerProcess(interpreter(tmp_path, "exit 7"), {}, 20)


def test_a_server_that_does_not_listen_in_time_is_killed(tmp_path):
    python = interpreter(tmp_path, 'echo $$ > "$0.pid"; exec sleep 60')
    with pytest.raises(ServerFailed, match=r"within 0\.5 s"):
        ServerProcess(python, {}, 0.5)
    assert not psutil.pid_exists(int((tmp_path / "python.pid").read_text()))


@pytest.mark.parametrize(
    ("script", "error"),
    [
        ("""read line; echo '{"error": "truncated record", "restoring": true}'; exit 1""", ReplayRestoreError),
        ("""read line; echo '{"error": "no memory", "restoring": false}'; exit 1""", ServerFailed),
        ("kill -9 $$", ServerKilled),
        ("read line; echo 'Traceback of a wrapper'; exit 1", ServerFailed),
    ],
)
def test_only_a_server_that_says_so_has_refused_its_checkpoint(tmp_path, script, error):
    """A failure for another reason, such as too little memory, does not condemn the checkpoint, and may pass."""
    with pytest.raises((ServerFailed, ReplayRestoreError)) as failure:
        ServerProcess(interpreter(tmp_path, script), {}, 20)
    assert failure.type is error
    assert (failure.value.exit_code == TRY_AGAIN) == (error is ServerKilled)


def test_a_server_that_has_not_answered_yet_dies_with_the_process_that_started_it(tmp_path):
    """While it restores, it does not look at its standard input."""
    (tmp_path / "reverb").mkdir()
    (tmp_path / "reverb" / "__init__.py").write_text(
        f"import os, pathlib, time\npathlib.Path({str(tmp_path / 'pid')!r}).write_text(str(os.getpid()))\n"
        "time.sleep(60)\n"
    )
    parent = subprocess.Popen(
        [sys.executable, "-c", STARTER.format(program=str(PROJECT / "serve.py"))],
        env=os.environ | {"PYTHONPATH": str(tmp_path)},
    )
    pid = tmp_path / "pid"
    while not (pid.exists() and pid.read_text()):
        assert parent.poll() is None
        time.sleep(0.05)
    server = psutil.Process(int(pid.read_text()))
    parent.kill()
    parent.wait()
    with contextlib.suppress(psutil.NoSuchProcess, psutil.TimeoutExpired):
        server.wait(10)
    assert not psutil.pid_exists(server.pid) or server.status() == psutil.STATUS_ZOMBIE


STARTER = """
import subprocess, sys, time

server = subprocess.Popen([sys.executable, {program!r}], stdin=subprocess.PIPE, text=True)
server.stdin.write('{{"checkpoints": "", "restore": null, "tables": [], "port": 0, "loopback": true}}' + chr(10))
server.stdin.flush()
time.sleep(60)
"""
"""Starts a server, and waits for no answer."""


def test_the_real_program_says_what_is_wrong_with_an_environment_without_reverb(tmp_path):
    wanted = {"port": 0, "loopback": True, "checkpoints": str(tmp_path), "restore": None, "tables": []}
    with pytest.raises(ServerFailed, match="No module named 'reverb'"):
        ServerProcess(sys.executable, wanted, 60)


MAKE = 'mkdir -p "$UV_PROJECT_ENVIRONMENT/bin"; touch "$UV_PROJECT_ENVIRONMENT/bin/python"'
"""What uv does, in shell."""


@pytest.fixture
def cache(tmp_path):
    """Variables that name an empty cache."""
    return {"XDG_CACHE_HOME": str(tmp_path)}


@pytest.fixture
def made(monkeypatch, tmp_path):
    """The file in which uv, which is replaced by a stand-in, writes a line for each environment that it makes."""
    file = tmp_path / "made"
    uv_that(monkeypatch, tmp_path, f'echo "$UV_PROJECT_ENVIRONMENT" >> {file}; {MAKE}')
    return file


def uv_that(monkeypatch, tmp_path, script):
    """Replaces the program uv by a shell script."""
    program = tmp_path / "uv"
    program.write_text(f"#!/bin/sh\n{script}\n")
    program.chmod(0o755)
    monkeypatch.setattr(uv, "find_uv_bin", lambda: str(program))


def test_a_named_interpreter_is_taken(tmp_path, made):
    python = tmp_path / "python"
    python.touch(0o755)
    assert server_python({VARIABLE: str(python)}) == python
    assert not made.exists()


def test_a_named_interpreter_that_does_not_exist_is_refused(tmp_path):
    with pytest.raises(EnvironmentUnusable, match=f"{VARIABLE}={tmp_path}/none"):
        server_python({VARIABLE: f"{tmp_path}/none"})


def test_it_is_made_once(cache, made):
    first, second = server_python(cache), server_python(cache)
    assert first == second == environment_folder(cache) / "bin" / "python"
    assert first.exists()
    assert len(made.read_text().splitlines()) == 1


def test_what_an_interrupted_installation_left_is_made_anew(cache, made):
    folder = environment_folder(cache)
    for leftover in (folder.with_name(folder.name + ".new"), folder):
        (leftover / "lib").mkdir(parents=True)
    assert server_python(cache).exists()
    assert not (folder / "lib").exists()
    assert [path.name for path in folder.parent.iterdir() if path.name.endswith(".new")] == []


def test_an_installation_that_fails_leaves_nothing(cache, monkeypatch, tmp_path):
    script = 'mkdir -p "$UV_PROJECT_ENVIRONMENT/lib"; echo "No space left on device" >&2; exit 2'
    uv_that(monkeypatch, tmp_path, script)
    with pytest.raises(EnvironmentUnusable, match="No space left on device"):
        server_python(cache)
    assert [path for path in environment_folder(cache).parent.iterdir() if path.is_dir()] == []


def test_of_two_processes_one_makes_it_and_the_other_waits_and_says_so(cache, monkeypatch, caplog, tmp_path):
    monkeypatch.setattr(process, "MESSAGE_S", 0.01)
    caplog.set_level("INFO", "podzero")
    begun, go_on = tmp_path / "begun", tmp_path / "go_on"
    wait = f"until [ -e {go_on} ]; do sleep 0.05; done"
    uv_that(monkeypatch, tmp_path, f"echo once >> {begun}; {wait}; {MAKE}")
    found = []
    threads = [threading.Thread(target=lambda: found.append(server_python(cache))) for _ in range(2)]
    for thread in threads:
        thread.start()
    until = time.monotonic() + 10
    while not (begun.exists() and "has waited" in caplog.text) and time.monotonic() < until:
        time.sleep(0.05)
    go_on.touch()
    for thread in threads:
        thread.join(10)
    assert begun.read_text().split() == ["once"]
    assert "has waited" in caplog.text
    assert found == [environment_folder(cache) / "bin" / "python"] * 2


def test_without_a_network_the_message_says_what_to_do(cache, monkeypatch, tmp_path):
    uv_that(monkeypatch, tmp_path, "echo 'error: failed to fetch dm-reverb' >&2; exit 2")
    with pytest.raises(EnvironmentUnusable, match=f"{VARIABLE}.*failed to fetch dm-reverb"):
        server_python(cache)


def test_a_missing_python_is_named_with_the_remedy(cache, monkeypatch, tmp_path):
    uv_that(monkeypatch, tmp_path, "echo 'error: No interpreter found for Python 3.11' >&2; exit 2")
    monkeypatch.setenv("PYENV_ROOT", str(tmp_path))
    with pytest.raises(EnvironmentUnusable, match=r"needs Python 3\.11.*uv python install 3\.11"):
        server_python(cache)


def test_the_pythons_of_pyenv_are_found_after_all_others(cache, monkeypatch, tmp_path):
    """uv alone finds only the one that is active."""
    python = tmp_path / "versions" / "3.11.9" / "bin" / "python3.11"
    python.parent.mkdir(parents=True)
    python.symlink_to(sys.executable)
    monkeypatch.setenv("PYENV_ROOT", str(tmp_path))
    monkeypatch.setenv("PATH", "/nowhere")
    uv_that(monkeypatch, tmp_path, f'PATH="$PATH:/usr/bin:/bin"; echo "$PATH" > {tmp_path}/path; {MAKE}')
    assert server_python(cache).exists()
    assert (tmp_path / "path").read_text().startswith(f"/nowhere:{python.parent}:")


def test_uv_installs_the_locked_project_into_the_folder_that_is_wanted(cache, monkeypatch, tmp_path):
    said = tmp_path / "said"
    uv_that(monkeypatch, tmp_path, f'echo "$@" "[$VIRTUAL_ENV]" > {said}; {MAKE}')
    monkeypatch.setenv("VIRTUAL_ENV", "/elsewhere")
    assert server_python(cache).exists()
    words = said.read_text().split()
    assert words[0] == "sync"
    assert "--frozen" in words
    project = Path(words[words.index("--project") + 1])
    assert (project / "uv.lock").is_file()
    assert words[words.index("--python") + 1] == "3.11"
    assert words[-1] == "[]"


def test_uv_holds_the_lock_so_that_nobody_begins_while_it_runs(cache, monkeypatch, tmp_path):
    """Also if the process that called it is killed."""
    uv_that(monkeypatch, tmp_path, f"readlink /proc/self/fd/* > {tmp_path}/open; {MAKE}")
    server_python(cache)
    assert str(environment_folder(cache)) + ".lock" in (tmp_path / "open").read_text().splitlines()


def test_a_cache_that_cannot_be_written_is_named(tmp_path):
    (tmp_path / "podzero").touch()  # where a folder should be
    with pytest.raises(EnvironmentUnusable, match="XDG_CACHE_HOME"):
        server_python({"XDG_CACHE_HOME": str(tmp_path)})


def test_the_server_keeps_bytecode_and_finds_packages_of_its_own_alone(monkeypatch):
    for name in ("PYTHONDONTWRITEBYTECODE", "PYTHONPATH", "PYTHONHOME", "TF_CPP_MIN_LOG_LEVEL"):
        monkeypatch.setenv(name, "1")
    found = server_variables().keys() & {"PYTHONDONTWRITEBYTECODE", "PYTHONPATH", "PYTHONHOME", "TF_CPP_MIN_LOG_LEVEL"}
    assert found == {"TF_CPP_MIN_LOG_LEVEL"}
