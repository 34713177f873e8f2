import jax
import pytest

from podzero.config import parse
from podzero.envs import make_env
from podzero.networks import make_network
from podzero.params import save_snapshot
from podzero.workdir import Workdir


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


@pytest.fixture
def workdir(tmp_path, experiment):
    """A working directory with snapshots of steps 10 and 20 of an untrained network."""
    workdir = Workdir(tmp_path / "run")
    workdir.open(experiment)
    network = make_network(experiment.network, make_env("tic_tac_toe").spec)
    for step in (10, 20):
        save_snapshot(workdir.snapshots, step, network.init(jax.random.key(step)), experiment)
    return workdir


@pytest.fixture(autouse=True, scope="session")
def _own_cache(tmp_path_factory):
    """Tests neither read nor write the user's cache."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_CACHE_HOME", str(tmp_path_factory.mktemp("cache")))
        yield
