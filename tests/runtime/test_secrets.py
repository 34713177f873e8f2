"""Environment variables of the driver that the processes of a run get."""

import os
from pathlib import Path

import pytest

from podzero.config import load
from podzero.core.errors import ConfigError
from podzero.files.workdir import Workdir
from podzero.runtime.process import Process, RunContext, hosted
from podzero.runtime.train import read_secrets

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
