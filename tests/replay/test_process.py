"""The replay server's process, where the interpreter or the server is another than expected."""

import sys

import pytest

from podzero.replay import ServerFailed
from podzero.replay.process import ServerProcess


def interpreter(tmp_path, script):
    """A stand-in for the Python of the server's environment: it runs this shell script instead."""
    program = tmp_path / "python"
    program.write_text(f"#!/bin/sh\n{script}\n")
    program.chmod(0o755)
    return program


def test_a_server_whose_version_is_unknown_is_refused_and_ended(tmp_path):
    script = """read line; echo '{"ready": {"reverb": "0.13.0", "loopback": true}}'; read end; touch "$0.ended\""""
    python = interpreter(tmp_path, script)
    with pytest.raises(ServerFailed, match=r"dm-reverb 0\.13\.0; podzero speaks .* 0\.14\."):
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


def test_the_real_program_says_what_is_wrong_with_an_environment_without_reverb(tmp_path):
    wanted = {"port": 0, "loopback": True, "checkpoints": str(tmp_path), "restore": None, "tables": []}
    with pytest.raises(ServerFailed, match="No module named 'reverb'"):
        ServerProcess(sys.executable, wanted, 60)
