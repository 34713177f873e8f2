"""The code and the commands of docs/own_network.md work."""

import re
import subprocess
import sys
from pathlib import Path

import jax
import pytest

from podzero.config import OwnNetworkConfig, load
from podzero.envs import spec_of
from podzero.errors import ConfigError
from podzero.networks import check_network, make_network

PAGE = (Path(__file__).resolve().parents[2] / "docs" / "own_network.md").read_text()
BLOCKS = re.findall(r"^```(\w+) ?(\S*)\n(.*?)^```$", PAGE, re.MULTILINE | re.DOTALL)


def blocks(language):
    return [text for kind, name, text in BLOCKS if kind == language and not name]


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """A working directory with the files of the page."""
    for _, name, text in BLOCKS:
        if name:
            (tmp_path / name).write_text(text)
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_the_python_of_the_page_runs(folder):
    for text in blocks("python"):
        exec(compile(text, "own_network.md", "exec"), {"__name__": "page"})


def test_the_two_functions_of_the_page_fulfil_the_contract(folder):
    network = make_network(
        OwnNetworkConfig(name=f"{folder}/two_functions.py:linear", scale=0.1), spec_of(load("hex").env)
    )
    check_network(network, spec_of(load("hex").env), "linear")


def test_the_error_of_the_page_is_raised(folder):
    file = folder / "my_net.py"
    changed = file.read_text().replace("jnp.tanh(value[:, 0])", "jnp.tanh(value)")
    assert changed != file.read_text()
    file.write_text(changed)
    experiment = load("my_net.yaml")
    spec = spec_of(experiment.env)
    network = make_network(experiment.network, spec)
    jitted = network._replace(init=jax.jit(network.init), apply=jax.jit(network.apply))
    with pytest.raises(ConfigError) as refusal:
        check_network(jitted, spec, "network.name = 'my_net.py:MyNet'")
    assert str(refusal.value) == blocks("text")[0].strip()


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_the_commands_of_the_page_run(folder):
    """Trains for a few steps, with a small network."""
    short = "stop.steps=40 network.channels=8 replay.min_size=512 search.simulations=8 actors.games=32"
    podzero = Path(sys.executable).parent / "podzero"
    script = "\n".join(blocks("sh")).replace(
        "train my_net.yaml\n", f"train my_net.yaml {short} --workdir runs/my_net\n"
    )
    script = script.replace("--positions 1000", "--positions 20").replace("podzero ", f"{podzero} ")
    found = subprocess.run(["bash", "-euc", script], capture_output=True, text=True, timeout=800, check=False)
    assert found.returncode == 0, found.stdout + found.stderr
    assert (folder / "my_net.onnx").is_file()
