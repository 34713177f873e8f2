"""The replay server's process, where the interpreter or the server is another than expected."""

import contextlib
import os
import subprocess
import sys
import time

import psutil
import pytest

from podzero.replay import ServerFailed
from podzero.replay.errors import CheckpointRefused
from podzero.replay.process import PROJECT, ServerProcess


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
        ("""read line; echo '{"error": "truncated record", "restoring": true}'; exit 1""", CheckpointRefused),
        ("""read line; echo '{"error": "no memory", "restoring": false}'; exit 1""", ServerFailed),
        ("kill -9 $$", ServerFailed),
        ("read line; echo 'Traceback of a wrapper'; exit 1", ServerFailed),
    ],
)
def test_only_a_server_that_says_so_has_refused_its_checkpoint(tmp_path, script, error):
    """What ends it for another reason, too little memory for example, says nothing of the checkpoint."""
    with pytest.raises(ServerFailed) as failure:
        ServerProcess(interpreter(tmp_path, script), {}, 20)
    assert failure.type is error


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
