"""Code that an experiment names is imported only if the user trusts it."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from podzero import importing
from podzero.config import load
from podzero.errors import ConfigError
from podzero.launch.trust import TrustedCode, approve_files, ask_before_imports


class User:
    """Answers questions, and keeps them."""

    def __init__(self, answer=True):
        self.answer, self.questions = answer, []

    def __call__(self, question):
        self.questions.append(question)
        return self.answer


@pytest.fixture
def code(tmp_path):
    """Makes a file in a folder."""

    def make(name, text="1"):
        file = tmp_path / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text)
        return file

    return make


@pytest.fixture
def trusted(tmp_path):
    """Makes what a user trusts, in a record that is there for all."""
    return lambda user: TrustedCode(tmp_path / "config" / "trusted.json", user, "train mine.yaml")


def test_a_folder_is_asked_about_once(code, trusted):
    user = User()
    file = code("mine/net.py")
    trusted(user).approve(file)
    file.write_text("changed")
    for other in (file, code("mine/deeper/loss.py")):
        trusted(user).approve(other)
    assert len(user.questions) == 1
    assert str(file) in user.questions[0]
    trusted(user).approve(code("other/net.py", "other"))
    assert len(user.questions) == 2


def test_the_copy_of_a_trusted_file_is_known_wherever_it_is(code, trusted):
    user = User()
    trusted(user).approve(code("mine/net.py", "v1"))
    trusted(user).approve(code("mine/net.py", "v2"))
    for version in ("v1", "v2"):
        trusted(None).approve(code(f"runs/x/code/{version}/net.py", version))
    with pytest.raises(ConfigError):
        trusted(None).approve(code("runs/x/code/v3/net.py", "v3"))


def test_no_is_remembered_by_nobody(code, trusted):
    file = code("theirs/net.py")
    with pytest.raises(ConfigError, match="not trusted"):
        trusted(User(answer=False)).approve(file)
    with pytest.raises(ConfigError, match=r"--trust train mine\.yaml"):
        trusted(None).approve(file)


def test_a_damaged_record_trusts_nothing(code, trusted, tmp_path):
    user = User()
    trusted(user).approve(code("mine/net.py"))
    record = tmp_path / "config" / "trusted.json"
    assert json.loads(record.read_text())["folders"] == [str(tmp_path / "mine")]
    record.write_text("{")
    trusted(user).approve(code("mine/net.py"))
    assert len(user.questions) == 2


@pytest.fixture
def asking(monkeypatch, tmp_path):
    """This process asks, with nobody there to answer."""
    monkeypatch.setattr(importing, "_approve", [])
    ask_before_imports({"XDG_CONFIG_HOME": str(tmp_path / "config")}, trust_all=False)


@pytest.mark.usefixtures("asking")
def test_experiments_of_podzero_itself_are_trusted_and_others_are_not(code):
    approve_files(load("own_game"))
    file = code("theirs/net.py", "raise SystemExit")
    with pytest.raises(ConfigError, match=str(file)):
        importing.import_named(f"{file}:Net", "network.name")
    simulator = f"env={{name: gymnasium_simulator, id: A-v0, module: '{file}'}}"
    for setting in (f"network={{name: '{file}:Net'}}", simulator):
        with pytest.raises(ConfigError, match=str(file)):
            approve_files(load("tic_tac_toe", [setting]))


def test_the_command_line_asks_before_it_runs_a_strangers_code(code, tmp_path):
    ran = tmp_path / "ran"
    file = code("theirs/net.py", f"open({str(ran)!r}, 'w')")
    environment = {**os.environ, "XDG_CONFIG_HOME": str(tmp_path / "config")}
    del environment["PODZERO_TRUST"]

    def podzero(*options):
        program = "import sys; sys.argv[0] = 'podzero'; from podzero.launch.main import main; main()"
        command = [sys.executable, "-c", program, *options, "check-env", f"{file}:Game"]
        return subprocess.run(
            command, env=environment, stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False
        )

    refused = podzero()
    assert (refused.returncode, Path(ran).exists()) == (2, False)
    assert f"podzero --trust check-env {file}:Game" in refused.stderr
    podzero("--trust")
    assert ran.exists()
