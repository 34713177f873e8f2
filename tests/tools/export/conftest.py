"""Working directories of agents that were not trained, and parameters with no leaf at its special start."""

import jax
import numpy as np
import pytest

from podzero.config import load
from podzero.envs import spec_of
from podzero.files.workdir import Workdir
from podzero.networks import trainable_network
from podzero.networks.snapshots import save_snapshot


def noisy(network, seed=0):
    """Parameters as if some steps had been taken; variances are positive."""
    draw = np.random.default_rng(seed)

    def leaf(path, like):
        found = 0.2 * draw.standard_normal(like.shape, np.float32)
        return 1.0 + np.abs(found) if path[-1].key == "variance" else found

    return jax.tree_util.tree_map_with_path(leaf, jax.eval_shape(network.init, jax.random.key(0)))


@pytest.fixture(scope="session")
def params_of():
    return noisy


@pytest.fixture(scope="module")
def make_agent(tmp_path_factory):
    """Makes the working directory of an experiment with snapshots of these steps."""

    def make(config, *overrides, steps=(7,)):
        experiment = load(config, overrides)
        workdir = Workdir(tmp_path_factory.mktemp("agents") / "run")
        workdir.open(experiment)
        network = trainable_network(experiment.network, spec_of(experiment.env))
        for step in steps:
            save_snapshot(workdir.snapshots, step, noisy(network, seed=step), experiment)
        return workdir

    return make
