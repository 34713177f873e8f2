"""Trains a small network for 50 steps, or a part of them, on all devices of one or several processes; saves the state.

test_sharding runs it once per process; each process passes its own part of the same batches.
"""

import json
import sys
from itertools import islice
from pathlib import Path

import jax
import numpy as np

from podzero.config import parse
from podzero.core.types import PackedBatch, Sample
from podzero.learner import join, make_training
from podzero.learner.checkpoints import LearnerCheckpoints
from podzero.learner.sharding import local_part
from podzero.networks import make_network

NETWORKS = {
    "resnet": {"name": "resnet", "channels": 64, "blocks": 1, "remat": True},
    "nested": {"name": "nested", "channels": 64, "blocks": 3, "remat": True},
    "transformer": {"name": "transformer", "width": 64, "layers": 2, "heads": 4, "remat": True},
}
NETWORKS |= dict.fromkeys(("muon", "taught"), NETWORKS["resnet"])
OPTIMIZERS = {
    "resnet": {"name": "sgd", "learning_rate": 0.02},
    "transformer": {"name": "adamw", "learning_rate": 1e-3},
    "muon": {"name": "muon", "learning_rate": 1e-3},
}
OPTIMIZERS |= dict.fromkeys(("nested", "taught"), OPTIMIZERS["resnet"])
TEACHERS = {"taught": "zoo:tic_tac_toe"}


def experiment_of(network, learner, hosts=1, slices=1):
    machines = {"hosts": hosts} if slices == 1 else {"slice": "v4-16", "slices": slices, "hosts": hosts}
    tree = {
        "name": "layout",
        "env": {"name": "tic_tac_toe"},
        "network": NETWORKS[network],
        "teacher": TEACHERS.get(network),
        "replay": {"min_size": 1024, "shards": hosts},
        "cluster": machines | {"join_minutes": 2},
        "learner": {
            "batch_size": 32,
            "steps_per_dispatch": 5,
            "publish_every": 5,
            "optimizer": OPTIMIZERS[network],
            **learner,
        },
    }
    return parse(tree, "test")


def training_of(experiment):
    from podzero.envs import make_env  # importing the games initializes JAX, which must not happen before `join`

    env = make_env("tic_tac_toe")
    return make_training(experiment, make_network(experiment.network, env.spec), env.spec, env.symmetries)


def batches(part, packing, rest_of_games):
    """The given part of the batches of ten dispatches, if asked with targets about the rest of their games."""
    # With seed 0 an activation meets the kink of relu so closely that the order of sums decides.
    rng = np.random.default_rng(1)
    for _ in range(10):
        batch = Sample(
            observation=rng.random((5, 32, 3, 3, 2)) > 0.5,
            legal=np.ones((5, 32, 9), bool),
            policy_target=rng.dirichlet(np.ones(9), (5, 32)).astype(np.float32),
            value_target=rng.uniform(-1, 1, (5, 32)).astype(np.float32),
            version=np.zeros((5, 32), np.int32),
        )
        if rest_of_games:
            rest = ("outcome", "moves_left", "reply")
            batch = batch._replace(**{name: rng.integers(-1, 3, (5, 32), np.int32) for name in rest})
        weight = rng.uniform(0.1, 3.0, (5, 32)).astype(np.float32)
        yield jax.tree.map(lambda field: field[:, part], PackedBatch(packing.pack(batch), weight))


def main(network, learner, out, rank, hosts, coordinator, slices=1, dispatches=(0, 10), restore_from=None):
    experiment = experiment_of(network, learner, hosts, slices)
    join(rank, hosts, coordinator, experiment)
    training = training_of(experiment)
    checkpoints = LearnerCheckpoints(training.mesh)
    saved = checkpoints.restore(Path(restore_from), training.like) if restore_from else None
    state = training.init() if saved is None else training.with_teacher(saved)
    share = 32 // hosts
    part = slice(rank * share, (rank + 1) * share)
    for batch in islice(batches(part, training.packing, experiment.has_auxiliary_heads), *dispatches):
        put = training.put(batch)
        state, sums, errors = training.step(state, put)
        # Each host gets the errors of its own samples, in the order of the samples.
        np.testing.assert_array_equal(local_part(put.rows), batch.rows)
        assert np.concatenate([local_part(part) for part in errors]).shape == (5, share)
    assert int(state.step) == 5 * dispatches[1]
    leaves = jax.tree.leaves(state)
    assert all(len(leaf.sharding.device_set) == len(jax.devices()) for leaf in leaves)
    mesh = experiment.learner.mesh
    assert any(not leaf.sharding.is_fully_replicated for leaf in leaves) == (mesh.fsdp or mesh.model > 1)
    checkpoints.save(Path(out), state).result(60)
    checkpoints.close()
    print(json.dumps([float(value) for value in jax.tree.leaves(sums)]))


if __name__ == "__main__":
    main(**json.loads(sys.argv[1]))
