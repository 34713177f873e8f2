import jax
import pytest
from random_parameters import random_parameters

from podzero.config import parse
from podzero.envs import make_env
from podzero.files.workdir import Workdir
from podzero.networks import make_network
from podzero.networks.snapshots import save_snapshot


@pytest.fixture(scope="session")
def experiment():
    return parse(
        {
            "name": "tiny",
            "env": {"name": "tic_tac_toe"},
            "network": {"name": "resnet", "channels": 8, "blocks": 1, "value_hidden": 8},
            "search": {"simulations": 8},
            "evaluation": {"opponents": ["random", "earlier"], "games": 4, "simulations": 8, "positions": 20,
                           "every_minutes": 0.01},
        },
        "test",
    )  # fmt: skip


@pytest.fixture(scope="session")
def snapshots(experiment):
    """Writes the snapshot of a step, of an untrained network that depends on the step: `(workdir, step)`."""
    network = make_network(experiment.network, make_env("tic_tac_toe").spec)
    return lambda workdir, step: save_snapshot(workdir.snapshots, step, random_parameters(network, step), experiment)


@pytest.fixture(scope="module")
def workdir(tmp_path_factory, experiment, snapshots):
    """A working directory with snapshots of steps 10 and 20."""
    workdir = Workdir(tmp_path_factory.mktemp("run"))
    workdir.open(experiment)
    snapshots(workdir, 10)
    snapshots(workdir, 20)
    return workdir


@pytest.fixture(autouse=True, scope="module")
def _quick_compilation():
    """Tiny programs that run a few times: most of their time would be spent on making them fast."""
    jax.config.update("jax_disable_most_optimizations", True)
    yield
    jax.config.update("jax_disable_most_optimizations", False)
