"""Commands on machines that lack something: standard streams, UTF-8, a home directory, the current folder."""

import errno
import json
import os
import pwd
import subprocess
import sys
from pathlib import Path

import pytest

from podzero.core.machine import keep_compiled_programs
from podzero.launch.main import complete_process
from podzero.replay.errors import EnvironmentUnusable
from podzero.replay.process import VARIABLE, server_python
from podzero.tools.commands.trust import TrustedCode

PODZERO = Path(sys.executable).with_name("podzero")


def podzero(*arguments, shell="", **variables):
    """Runs the program; `shell` may redirect its streams."""
    return subprocess.run(
        ["sh", "-c", f'"$0" "$@" {shell}', PODZERO, *arguments], env=os.environ | variables, check=False,
        capture_output=True, timeout=120,
    )  # fmt: skip


def refuse(*_, **__):
    """Stands for a call that the system does not permit."""
    raise PermissionError(errno.EACCES, "Permission denied")


def test_ctrl_c_ends_an_import_that_would_swallow_it_and_is_an_exception_afterwards():
    program = """
import signal
from podzero.core.machine import ended_by_interrupt
with ended_by_interrupt():
    pass
try:
    signal.raise_signal(signal.SIGINT)
except KeyboardInterrupt:
    print("interrupted", flush=True)
with ended_by_interrupt():
    try:
        signal.raise_signal(signal.SIGINT)
    except BaseException:
        print("swallowed", flush=True)
"""
    done = subprocess.run([sys.executable, "-c", program], check=False, capture_output=True, timeout=120)
    assert (done.returncode, done.stdout, done.stderr) == (130, b"interrupted\n", b"")


def test_what_an_encoding_lacks_is_replaced():
    done = podzero("configs", PYTHONIOENCODING="ascii")
    assert (done.returncode, done.stderr) == (0, b"")
    assert b"connect_four" in done.stdout


def test_any_text_can_be_printed_in_ascii(monkeypatch, tmp_path):
    file = tmp_path / "out"
    with file.open("w", encoding="ascii") as out:
        monkeypatch.setattr(sys, "stdout", out)
        complete_process()
        print("rating 12 ± 3 … ü 囲碁", file=out)
    assert file.read_bytes() == b"rating 12 ? 3 ? ? ??\n"


@pytest.mark.parametrize("closed", ["<&-", ">&-", "<&- >&- 2>&-"])
def test_closed_streams_end_no_command(closed):
    done = podzero("diff", "connect_four", "hex", shell=closed)
    assert (done.returncode, done.stderr) == (0, b"")


def test_a_file_never_takes_the_number_of_a_closed_stream():
    complete = "from podzero.launch.main import complete_process; complete_process()"
    program = f"{complete}; print(open('/dev/null').fileno(), file=open(9, 'w'))"
    done = subprocess.run(
        ["sh", "-c", f'"$0" -c "{program}" 9>&1 <&- >&- 2>&-', sys.executable],
        stdout=subprocess.PIPE, check=False, timeout=60,
    )  # fmt: skip
    assert int(done.stdout) > 2


@pytest.fixture
def without_home(monkeypatch, tmp_path):
    """A user without a home directory, as containers with a number for a user have it."""

    def unknown(uid):
        raise KeyError(uid)

    for name in ("HOME", "XDG_CACHE_HOME", "XDG_CONFIG_HOME", "JAX_COMPILATION_CACHE_DIR"):
        monkeypatch.setenv(name, "")
        monkeypatch.delenv(name)
    monkeypatch.setattr(pwd, "getpwuid", unknown)
    monkeypatch.setattr(Path, "mkdir", refuse)
    complete_process()


def test_a_user_without_home_runs_commands_without_a_cache(command, without_home):
    code, out, _ = command("configs")
    assert (code, "connect_four" in out) == (0, True)
    code, _, err = command("status", "~/runs/none")
    assert (code, len(err.splitlines())) == (2, 1)
    keep_compiled_programs()
    assert "JAX_COMPILATION_CACHE_DIR" not in os.environ


def test_a_user_without_home_is_asked_about_code_each_time(without_home, tmp_path):
    file, asked = tmp_path / "own.py", []
    file.write_text("")
    for _ in range(2):
        TrustedCode(Path.home() / "trusted.json", lambda question: not asked.append(question), "").approve(
            f"{file}:Net"
        )
    assert len(asked) == 2


def test_the_replay_servers_environment_needs_a_folder_and_says_which_variable_names_it(without_home, monkeypatch):
    monkeypatch.delenv(VARIABLE, raising=False)
    with pytest.raises(EnvironmentUnusable, match="XDG_CACHE_HOME"):
        server_python()


def test_a_removed_current_folder_is_one_sentence(tmp_path):
    gone = tmp_path / "gone"
    for arguments in (["train", "tic_tac_toe"], ["runs", "--json"]):
        gone.mkdir()
        done = subprocess.run(
            ["sh", "-c", 'cd "$0" && rmdir "$0" && exec "$@"', gone, PODZERO, *arguments],
            capture_output=True, check=False, timeout=60,
        )  # fmt: skip
        said = json.loads(done.stdout)["error"] if "--json" in arguments else done.stderr.decode()
        assert (done.returncode, len(said.strip().splitlines())) == (2, 1)
        assert "the current folder no longer exists" in said
