"""The code and the commands of docs/own_network.md work."""

import shutil

import jax
import pytest

from podzero.config import OwnNetworkConfig, load
from podzero.core.errors import ConfigError
from podzero.envs import spec_of
from podzero.networks import check_model, check_network, make_model_network, make_network

from .printed import ROOT, SHORT, PrintedPage, run_script

PAGE = PrintedPage("own_network.md")


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """A working directory with the files of the page."""
    PAGE.save(tmp_path)
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_the_python_of_the_page_runs(folder):
    for text in PAGE.blocks("python"):
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
    assert str(refusal.value) == PAGE.blocks("text")[0].strip()


def test_the_model_of_the_page_fulfils_its_contract(folder):
    shutil.copy(ROOT / "configs" / "own_model.py", folder)
    experiment = load("my_model.yaml")
    spec = spec_of(experiment.env)
    check_model(make_model_network(experiment.network, spec), spec, "my model")


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_the_commands_of_the_page_run(folder):
    """Trains for a few steps, with a small network."""
    train = f"train my_net.yaml {SHORT} --workdir runs/my_net\n"
    script = "\n".join(PAGE.blocks("sh")).replace("train my_net.yaml\n", train)
    run_script(script.replace("--positions 1000", "--positions 20"))
    assert (folder / "my_net.onnx").is_file()
