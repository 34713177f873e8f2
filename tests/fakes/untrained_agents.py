"""Working directories of agents whose small networks have not been trained."""

import jax
import numpy as np
from random_parameters import random_parameters

from podzero.config import parse
from podzero.envs import make_env
from podzero.files.workdir import Workdir
from podzero.networks import make_network
from podzero.networks.snapshots import save_snapshot


def write_untrained(folder, game, step=1, **network):
    """Writes an experiment and the snapshot of a step with random parameters; returns the folder as a name.

    `network` are settings of the network.
    """
    experiment = parse(
        {
            "name": "tiny",
            "env": {"name": game},
            "network": {"name": "resnet", "channels": 4, "blocks": 1, "value_hidden": 4, **network},
            "search": {"simulations": 8},
        },
        "test",
    )
    workdir = Workdir(folder)
    workdir.open(experiment)
    params = random_parameters(make_network(experiment.network, make_env(game).spec), step)
    rng = np.random.default_rng(step)  # networks begin with uniform policies, which would all be the same
    params = jax.tree.map(lambda leaf: leaf + rng.uniform(0, 0.2, leaf.shape).astype(leaf.dtype), params)
    save_snapshot(workdir.snapshots, step, params, experiment)
    return str(workdir.root)
