"""What tests of launches share: stand-ins for the cloud's tools, and a folder that plays the head of a cluster."""

import subprocess
from functools import partial

import pytest
from cloud_tools import BODIES, TRAIN, stand_in

from podzero.config import load
from podzero.launch.targets import machines, plan

_DOCKER = (
    '[[ $1 != run ]] || exit 0; [[ $1 == exec && -d ${HEAD:-} ]] || exit 1; [[ $2 != -i ]] || shift; shift 2; "$@"'
)


@pytest.fixture(autouse=True)
def _without_int8(monkeypatch):
    """What `podzero train` chooses in this process does not depend on this machine's CPU."""
    monkeypatch.setattr("podzero.launch.train.has_int8_instructions", lambda: False)


@pytest.fixture
def tools(tmp_path, monkeypatch):
    """A folder of stand-ins; first on the path."""
    folder = tmp_path / "tools"
    folder.mkdir()
    for tool, body in BODIES.items():
        stand_in(folder, tool, body)
    for tool, body in {"sudo": '"$@"', "docker": _DOCKER}.items():
        (folder / tool).write_text(f"#!/usr/bin/env bash\n{body}\n")
        (folder / tool).chmod(0o755)
    monkeypatch.setenv("PATH", f"{folder}:/usr/bin:/bin")
    monkeypatch.setenv("CALLS", str(tmp_path / "calls"))
    monkeypatch.setenv("RUN_FILES", plan.RUN_FILES)
    monkeypatch.setattr(machines, "sample_bytes", lambda experiment: 1000)
    monkeypatch.chdir(tmp_path)
    return folder


@pytest.fixture
def podzero(command):
    """Runs `podzero launch`, see `command`."""
    return partial(command, "launch")


@pytest.fixture
def states(tmp_path, monkeypatch):
    """Sets the answers to `queued-resources describe`, one a call, of which the last one stays."""
    monkeypatch.setenv("STATES", str(tmp_path / "states"))
    monkeypatch.setenv("POLL", "0")

    def answer(*found):
        (tmp_path / "states").write_text("".join(f"{state}\n" for state in found))

    answer("NOT_FOUND", "ACTIVE")
    return answer


@pytest.fixture
def head(tools, tmp_path, monkeypatch):
    """A folder that plays the head of a cluster; runs verbs of `run.sh` there."""
    folder = tmp_path / "head"
    folder.mkdir()
    stand_in(tools, "podzero", TRAIN)
    for name, text in plan.run_files(load("connect_four")).items():
        (folder / name).write_text(text)
    for name in ("LOGFILE", "PIDFILE", "SAVED", "VARIABLES", "NOTICE", "PROC"):
        monkeypatch.setenv(name, str(folder / name))
    (folder / "SAVED").touch()
    monkeypatch.setenv("START_TIMEOUT", "30")
    monkeypatch.setenv("FIRST_PAUSE", "0")
    monkeypatch.setenv("TICK", "0.1")
    monkeypatch.setenv("HEAD", str(folder))

    def run(verb, *names, given=""):
        return subprocess.run(
            ["bash", str(folder / "run.sh"), verb, "/mnt/podzero/x", *names],
            input=given, capture_output=True, text=True, timeout=60, check=False,
        )  # fmt: skip

    run.folder = folder
    yield run
    (folder / "SAVED").touch()
    run("stop")
