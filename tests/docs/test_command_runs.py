"""Every command line that can be run on this machine does run, shortened, to the exit code that it promises."""

import shlex
import shutil
import signal
import subprocess
import sys
import urllib.request
from contextlib import contextmanager
from itertools import pairwise

import pytest
from cloud_tools import BODIES, stand_in
from command_checks import simple_commands, usages
from command_lines import ROOT, command_lines
from command_runs import commands, write_runs

from podzero.launch import cli

LINES = command_lines()
PODZERO = [sys.executable, "-c", "from podzero.launch.cli import main; main()"]
LIMIT_S = 900
"""The longest time of one command."""
PLANNED = commands(LINES)
RUN = [command for command in PLANNED if not command.not_run]
QUICK = [command for command in RUN if command.quick]
SERVED = [command for command in RUN if command.serves]
LONG = [command for command in RUN if not command.quick and not command.serves]


def named(found):
    """The parameters of a test."""
    return [pytest.param(one, id=one.title) for one in found]


@pytest.mark.usefixtures("made_here")
@pytest.mark.parametrize("command", named(QUICK))
def test_a_quick_command_runs(command, beside_pages, monkeypatch, capfd):
    write_runs(command.arguments)
    for option, name in pairwise(command.arguments):
        if option == "--env":
            monkeypatch.setenv(name, "value")
    monkeypatch.setattr(sys, "argv", ["podzero", *command.arguments])
    (beside_pages / "stdin").write_text(command.stdin)
    with open("stdin") as stdin:
        monkeypatch.setattr(sys, "stdin", stdin)
        with pytest.raises(SystemExit) as ended:
            cli.main()
    assert (ended.value.code or 0) == 0, capfd.readouterr()


@pytest.mark.slow
@pytest.mark.usefixtures("beside_pages")
@pytest.mark.parametrize("command", named(LONG))
def test_a_long_command_runs_shortened(command):
    if any("gnugo" in word for word in command.arguments) and not shutil.which("gnugo", path="/usr/games:/usr/bin"):
        pytest.skip("needs the program gnugo")
    write_runs(command.arguments)
    done = subprocess.run(
        [*PODZERO, *command.arguments],
        input=command.stdin,
        capture_output=True,
        text=True,
        timeout=LIMIT_S,
        check=False,
    )
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]


@pytest.mark.slow
@pytest.mark.usefixtures("beside_pages")
@pytest.mark.parametrize("command", named(SERVED))
def test_a_page_is_served(command):
    from pages import served  # it needs selenium

    write_runs(command.arguments)
    verb, *rest = command.arguments
    assert verb in {"demo", "play", "report"}
    page = served_report(*rest) if verb == "report" else served(*rest, verb=(verb,))
    with page as address, urllib.request.urlopen(address, timeout=60) as answer:
        assert answer.status == 200


@contextmanager
def served_report(*arguments):
    """The address of the page that `podzero report ARGUMENTS` serves."""
    server = subprocess.Popen([*PODZERO, "report", *arguments], stdout=subprocess.PIPE, text=True)
    try:
        yield server.stdout.readline().split()[-1]
    finally:
        server.send_signal(signal.SIGINT)
        assert server.wait(60) == 130


UV = sorted({
    shlex.join(words)
    for line in LINES if "⟦" not in line.text
    for usage in usages(line.text) for words in simple_commands(usage)
    if words[0] == "uv" and words[1:2] not in ([], ["run"], ["lock"], ["python"])
})  # fmt: skip
"""The command lines of uv that change an environment."""


@pytest.mark.skipif(shutil.which("uv") is None, reason="needs uv")
@pytest.mark.parametrize("text", UV)
def test_uv_knows_the_options_and_extras_of_a_command_line(text):
    """Nothing is installed; uv says what it would do."""
    _, verb, *rest = shlex.split(text)
    extra = ["--dry-run"] if verb in {"sync", "pip"} else ["--frozen"]
    done = subprocess.run(
        ["uv", verb, *rest, *extra, "--offline"], capture_output=True, text=True, timeout=60, check=False, cwd=ROOT
    )
    assert done.returncode == 0, done.stderr


def test_installing_an_extra_keeps_the_others():
    hints = [line.text for line in LINES if "uv sync" in line.text and "--extra" in line.text]
    assert len(hints) > 5
    assert [hint for hint in hints if "--inexact" not in hint and "--no-dev" not in hint] == []


def test_tensorboard_starts():
    done = subprocess.run(
        [sys.executable, "-m", "tensorboard.main", "--version"],
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 0, done.stderr


@pytest.mark.usefixtures("beside_pages")
def test_the_page_about_tpus_runs_from_its_first_line_to_its_last(tmp_path, monkeypatch):
    """With stand-ins for the programs of Google Cloud, which accept whatever they are asked for."""
    tools = tmp_path / "tools"
    tools.mkdir()
    answers = """
case "$*" in
  *"filestore instances describe"*) echo 10.0.0.2 ;;
  *"config get-value account"*) echo somebody@example.com ;;
esac"""
    for tool, body in BODIES.items():
        stand_in(tools, tool, answers + body if tool == "gcloud" else body)
    monkeypatch.setenv("PATH", f"{tools}:/usr/bin:/bin")
    monkeypatch.setenv("CALLS", str(tmp_path / "calls"))
    blocks = [line.text for line in LINES if line.where.startswith("docs/tpu.md") and line.shown == "block"]
    script = [text for text in blocks if not text.startswith(ELSEWHERE)]
    done = subprocess.run(
        ["bash", "-euo", "pipefail", "-c", "\n".join(script)], capture_output=True, text=True, timeout=240, check=False
    )
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-2000:]
    called = (tmp_path / "calls").read_text()
    assert all(" ".join(text.split()[:3]) in called for text in script if text.startswith("gcloud"))


ELSEWHERE = ("pip ", "bash queued.sh", "podzero ", "uv ", "git ", "curl ")
"""Lines of that page which other tests run, or which need the internet."""


def test_what_is_not_run_says_why():
    assert {command.arguments[0] for command in PLANNED if command.not_run} <= {
        "bench",
        "check-env",
        "compile",
        "import",
        "launch",
        "logs",
        "plan",
        "push",
        "stop",
        "sweep",
        "trace",
        "train",
    }
    for line in LINES:
        assert line.text.strip()
