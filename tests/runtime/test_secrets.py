"""Environment variables of the driver that the processes of a run get."""

import os
import shutil
import tempfile
from contextlib import suppress
from pathlib import Path

import psutil
import pytest

from podzero.config import load
from podzero.core.errors import ConfigError
from podzero.files.workdir import Workdir
from podzero.runtime.process import Process, RunContext, hosted
from podzero.runtime.train import read_secrets, train

VALUE = "s3cret-value"


def teller(secrets):
    """A process that tells a variable; Ray sends the class by its value, since nodes do not have this module."""

    class Teller(Process):
        def build(self):
            """Needs nothing."""

        def told(self):
            return os.environ.get("API_KEY")

    return Teller("teller", RunContext(load("tic_tac_toe"), Workdir("run"), "run", None, None, secrets=secrets))


def test_values_are_those_of_the_environment():
    assert read_secrets(["API_KEY"], {"API_KEY": VALUE, "OTHER": "x"}) == {"API_KEY": VALUE}


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("API_KEY", "not set"),
        (f"API_KEY={VALUE}", "name alone"),
        ("API KEY", "expected the name"),
        ("RAY_ADDRESS", "themselves"),
        ("JAX_PLATFORMS", "themselves"),
    ],
)
def test_other_names_are_refused_without_a_value(name, message):
    with pytest.raises(ConfigError, match=message) as refused:
        read_secrets([name], {"RAY_ADDRESS": VALUE, "JAX_PLATFORMS": VALUE})
    assert VALUE not in str(refused.value)


def test_a_value_is_not_shown_with_the_process_that_has_it():
    assert VALUE not in repr(teller({"API_KEY": VALUE}))


def test_processes_of_ray_have_the_variables_and_ray_writes_no_value(ray_cluster):
    from ray._private.worker import global_worker

    process = teller({"API_KEY": VALUE})
    actor = ray_cluster.spawn(hosted(type(process)), "teller", process, cpus=0, environment={})
    try:
        assert actor.ask("told") == VALUE
        assert "API_KEY" not in os.environ
        logs = [file for file in Path(global_worker.node.get_logs_dir_path()).rglob("*") if file.is_file()]
        assert logs
        assert not [file for file in logs if VALUE.encode() in file.read_bytes()]
    finally:
        actor.kill()


def test_the_command_takes_names_alone(command, tmp_path, monkeypatch):
    monkeypatch.setenv("API_KEY", VALUE)
    code, out, error = command(
        "train", "tic_tac_toe", "--env", "API_KEY", "--check", "--workdir", str(tmp_path / "run")
    )
    assert code == 0
    assert VALUE not in out + error
    code, out, error = command("train", "tic_tac_toe", "--env", "NO_SUCH_KEY", "--check")
    assert code == 2
    assert "NO_SUCH_KEY" in error


PASSED_ON = {"API_KEY": "s3cret-passed-on"}
"""Given to the run's processes by `--env`."""
OF_THE_DRIVER = {
    name: f"s3cret-{name.lower()}"
    for name in (
        "WANDB_API_KEY", "MLFLOW_TRACKING_USERNAME", "MLFLOW_TRACKING_PASSWORD", "AWS_SECRET_ACCESS_KEY", "HF_TOKEN",
        "RAY_AUTH_TOKEN",
    )
} | {"HTTPS_PROXY": "http://me:s3cret-proxy@127.0.0.1:9"}  # fmt: skip
"""What users have in their environment."""


@pytest.fixture
def session_folder(monkeypatch):
    """A short path for Ray's folder."""
    folder = Path(tempfile.mkdtemp(prefix="ds", dir="/tmp"))
    monkeypatch.setenv("RAY_TMPDIR", str(folder))
    yield folder
    shutil.rmtree(folder, ignore_errors=True)


def holding(folders, values):
    """The files below folders that hold one of the values."""
    files = [file for folder in folders for file in folder.rglob("*") if file.is_file() and not file.is_symlink()]
    assert len(files) > 20
    return [(str(file), value) for file in files for value in values if value.encode() in file.read_bytes()]


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_a_run_writes_no_secret_and_shows_none_in_its_arguments(
    tmp_path, tiny, watch, monkeypatch, session_folder, capfd
):
    shown = set()
    monkeypatch.setenv("RAY_AUTH_MODE", "token")
    for name, value in (OF_THE_DRIVER | PASSED_ON).items():
        monkeypatch.setenv(name, value)

    def look(status):
        driver = psutil.Process()
        for process in [driver, *driver.children(recursive=True)]:
            with suppress(psutil.NoSuchProcess):
                shown.update(process.cmdline())

    train(tiny("stop.steps=40"), tmp_path / "run", None, watch(look), secrets=read_secrets(["API_KEY"], os.environ))
    values = ["s3cret", *PASSED_ON.values(), *OF_THE_DRIVER.values()]
    assert len(shown) > 20
    assert [text for text in shown if "s3cret" in text] == []
    assert holding([tmp_path, session_folder], values) == []
    out, error = capfd.readouterr()
    assert "s3cret" not in out + error
