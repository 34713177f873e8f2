"""Trains one convolution for 16 steps on all devices found and saves its parameters; run by test_sharding."""

import sys

import jax
import jax.numpy as jnp
import numpy as np

from podzero.config import MeshConfig, OptimizerConfig
from podzero.learner.augment import make_augment
from podzero.learner.optimizers import make_optimizer
from podzero.learner.sharding import batch_sharding, make_mesh, put_batch, state_shardings
from podzero.learner.state import init_state
from podzero.learner.step import Recipe, make_train_step
from podzero.types import Network, Sample, Symmetry

MIRROR = Symmetry(lambda x: jnp.flip(x, axis=1), np.arange(7, dtype=np.int32)[::-1])


def init(key):
    first, second = jax.random.split(key)
    return {
        "conv": {"kernel": 0.2 * jax.random.normal(first, (3, 3, 2, 8)), "bias": jnp.zeros(8)},
        "heads": {"kernel": 0.1 * jax.random.normal(second, (6 * 7 * 8, 8)), "bias": jnp.zeros(8)},
    }


def apply(params, observation):
    conv, heads = params["conv"], params["heads"]
    x = jax.lax.conv_general_dilated(
        observation.astype(jnp.float32), conv["kernel"], (1, 1), "SAME", dimension_numbers=("NHWC", "HWIO", "NHWC")
    )
    x = jax.nn.relu(x + conv["bias"]).reshape(observation.shape[0], -1) @ heads["kernel"] + heads["bias"]
    return x[:, :7], jnp.tanh(x[:, 7])


def main(devices: int, model: int, out: str) -> None:
    assert len(jax.devices()) == devices
    network = Network(init, apply)
    optimizer = make_optimizer(OptimizerConfig(learning_rate=1e-3))
    mesh = make_mesh(MeshConfig(model=model))
    state = init_state(network, optimizer, jax.random.key(1))
    state = jax.device_put(state, state_shardings(mesh, state))
    recipe = Recipe(network, optimizer, make_augment([MIRROR], 7), 1.0, 0.9)
    train = make_train_step(recipe, mesh, jax.eval_shape(lambda: state))
    rng = np.random.default_rng(0)
    for _ in range(4):
        batch = Sample(
            observation=rng.random((4, 16, 6, 7, 2)) > 0.5,
            legal=np.ones((4, 16, 7), bool),
            policy_target=rng.dirichlet(np.ones(7), (4, 16)).astype(np.float32),
            value_target=rng.uniform(-1, 1, (4, 16)).astype(np.float32),
            version=np.zeros((4, 16), np.int32),
        )
        state, sums = train(state, put_batch(batch, batch_sharding(mesh)))
    leaves = jax.tree.leaves((state.params, state.ema, sums))
    assert all(len(leaf.sharding.device_set) == devices for leaf in leaves)
    np.savez(out, *map(np.asarray, leaves))


if __name__ == "__main__":
    main(int(sys.argv[1]), int(sys.argv[2]), sys.argv[3])
