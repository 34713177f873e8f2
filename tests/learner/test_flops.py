"""FLOPs compared with counts by hand and by XLA."""

import jax
import jax.numpy as jnp
import pytest

from podzero.config import LearnerConfig, MeshConfig, load, parse
from podzero.config.samples import position_like, with_axes
from podzero.core.types import Batch, EnvSpec, Network
from podzero.envs import make_env
from podzero.learner.metrics import chip_metrics, flops_of, training_flops
from podzero.learner.objectives import alphazero_objective, make_augment
from podzero.learner.openvino_tower import host_resnet
from podzero.learner.sharding import make_mesh
from podzero.networks import make_network


def test_operations_are_counted_where_openvino_computes_them(spec):
    """Its callbacks do not say how many they are; so the same network by XLA is counted."""
    flops = []
    for convolutions in ("openvino", "xla"):
        learner = {"batch_size": 16, "steps_per_dispatch": 2, "publish_every": 4, "cpu_convolutions": convolutions}
        network = {"name": "resnet", "channels": 8, "blocks": 1}
        tree = {"name": "t", "env": {"name": "tic_tac_toe"}, "network": network, "learner": learner}
        experiment = parse(tree, "test")
        make = host_resnet if convolutions == "openvino" else make_network
        mesh = make_mesh(MeshConfig(), jax.devices()[:1])
        metrics = chip_metrics(experiment, make(experiment.network, spec), spec, [], mesh)(1.0)
        flops.append(metrics["learner/flops_per_sample"])
    assert flops[0] == flops[1] > 2 * 9 * 9 * 8 * 8


def count(function, *shapes):
    return flops_of(jax.make_jaxpr(function)(*(jnp.zeros(shape) for shape in shapes)).jaxpr)


def flops_per_sample(network, spec, batch_size):
    return training_flops(objective_of(network, spec), position_like(spec), batch_size)


def objective_of(network, spec):
    return alphazero_objective(network, LearnerConfig(), make_augment([], spec.num_actions))


def test_two_dense_layers_by_hand(network, spec):
    forward = 2 * (18 * 32 + 32 * 10)
    backward = 2 * 18 * 32 + 2 * 2 * 32 * 10  # the first layer needs no gradient of the observation
    assert flops_per_sample(network, spec, 16) == forward + backward


def test_a_padded_convolution_by_hand():
    def init(key):
        return {"kernel": jnp.zeros((3, 3, 2, 5)), "heads": jnp.zeros((45, 10))}

    def apply(params, observation):
        x = jax.lax.conv_general_dilated(
            observation.astype(jnp.float32),
            params["kernel"],
            (1, 1),
            "SAME",
            dimension_numbers=("NHWC", "HWIO", "NHWC"),
        )
        x = x.reshape(x.shape[0], -1) @ params["heads"]
        return x[:, :9], jnp.tanh(x[:, 9])

    # Along a side of 3, the kernel covers 3 squares in the middle and 2 at both ends: 7 x 7 pairs on the board.
    convolution, dense = 2 * 7 * 7 * 2 * 5, 2 * 45 * 10
    spec = EnvSpec("tic_tac_toe", (3, 3, 2), "bool", 9)
    assert flops_per_sample(Network(init, apply), spec, 4) == 2 * convolution + 3 * dense


def test_convolutions_with_strides_dilations_and_groups_count_as_in_xla():
    def strided(x, kernel):
        return jax.lax.conv_general_dilated(
            x, kernel, (2, 1), ((2, 1), (0, 3)), lhs_dilation=(2, 1), rhs_dilation=(1, 2), feature_group_count=2
        )

    lowered = jax.jit(strided).lower(jnp.zeros((3, 4, 9, 8)), jnp.zeros((6, 2, 3, 2)))
    assert count(strided, (3, 4, 9, 8), (6, 2, 3, 2)) == lowered.cost_analysis()["flops"]


def test_a_scan_counts_its_length_and_a_cond_its_largest_branch():
    product = 2 * 4 * 4 * 4

    def scanned(x, w):
        return jax.lax.scan(lambda carry, _: (carry @ w, None), x, None, length=7)[0]

    def chosen(x, w):
        return jax.lax.cond(x[0, 0] > 0, lambda: x @ w @ w, lambda: x)

    assert count(scanned, (4, 4), (4, 4)) == 7 * product
    assert count(chosen, (4, 4), (4, 4)) == 2 * product


@pytest.mark.parametrize(
    ("network", "elementwise"),
    [("{name: resnet, channels: 64, blocks: 2}", 0.02), ("{name: transformer, width: 64, layers: 2, heads: 4}", 0.08)],
)
def test_rematerialization_is_not_counted_and_the_rest_agrees_with_xla(network, elementwise):
    env = make_env("connect_four")
    plain, remat = (
        make_network(load("connect_four", [f"network={network}", f"network.remat={remat}"]).network, env.spec)
        for remat in ("false", "true")
    )
    flops = flops_per_sample(plain, env.spec, 32)
    assert flops_per_sample(remat, env.spec, 32) == flops

    def xla(network):
        gradient = jax.grad(lambda params, batch: objective_of(network, env.spec).loss(params, batch).total)
        lowered = jax.jit(gradient).lower(
            jax.eval_shape(network.init, jax.random.key(0)), Batch(with_axes(position_like(env.spec), 32))
        )
        return lowered.cost_analysis()["flops"] / 32

    assert (1 - elementwise) * xla(plain) <= flops <= xla(plain)
    assert xla(remat) > 1.1 * flops
