"""Trains a small network for 50 steps on all devices found and saves what it ends at; run by test_sharding."""

import json
import sys

import jax
import numpy as np

from podzero.config import parse
from podzero.envs import make_env
from podzero.learner import make_training
from podzero.learner.sharding import leaf_names
from podzero.networks import make_network
from podzero.types import Sample

NETWORKS = {
    "resnet": {"name": "resnet", "channels": 64, "blocks": 1, "remat": True},
    "transformer": {"name": "transformer", "width": 64, "layers": 2, "heads": 4, "remat": True},
}


OPTIMIZERS = {
    "resnet": {"name": "sgd", "learning_rate": 0.02},
    "transformer": {"name": "adamw", "learning_rate": 1e-3},
}


def main(network: str, learner: dict, out: str) -> None:
    tree = {
        "name": "layout",
        "env": {"name": "tic_tac_toe"},
        "network": NETWORKS[network],
        "replay": {"min_size": 1024},
        "learner": {
            "batch_size": 32,
            "steps_per_dispatch": 5,
            "publish_every": 5,
            "optimizer": OPTIMIZERS[network],
            **learner,
        },
    }
    experiment = parse(tree, "test")
    env = make_env("tic_tac_toe")
    training = make_training(experiment, make_network(experiment.network, env.spec), env.spec, env.symmetries)
    state, rng = training.init(), np.random.default_rng(0)
    for _ in range(10):
        batch = Sample(
            observation=rng.random((5, 32, 3, 3, 2)) > 0.5,
            legal=np.ones((5, 32, 9), bool),
            policy_target=rng.dirichlet(np.ones(9), (5, 32)).astype(np.float32),
            value_target=rng.uniform(-1, 1, (5, 32)).astype(np.float32),
            version=np.zeros((5, 32), np.int32),
        )
        state, sums = training.step(state, training.put(batch))
    assert int(state.step) == 50
    result = (state.params, state.ema, sums)
    leaves = jax.tree.leaves(result)
    assert all(len(leaf.sharding.device_set) == len(jax.devices()) for leaf in leaves)
    mesh = experiment.learner.mesh
    assert any(not leaf.sharding.is_fully_replicated for leaf in leaves) == (mesh.fsdp or mesh.model > 1)
    np.savez(out, **dict(zip(leaf_names(result), map(np.asarray, leaves), strict=True)))


if __name__ == "__main__":
    main(sys.argv[1], json.loads(sys.argv[2]), sys.argv[3])
