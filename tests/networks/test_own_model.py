"""Networks that learn a model, named by an import path: each kind that works, and a message for each fault."""

from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from podzero.config import OwnModelConfig, load
from podzero.core.errors import ConfigError
from podzero.core.types import EnvSpec
from podzero.networks import check_model, make_model_network
from podzero.networks.muzero import LOG_STD_BOUNDS, MEAN_BOUND

FILE = Path(__file__).with_name("own_models.py")
SPEC = EnvSpec("vectors", (4,), "float32", 3, players=1)
KINDS = ["Linen", "Nnx", "Haiku"]


def made(name, spec=SPEC, **arguments):
    return make_model_network(OwnModelConfig(name=f"{FILE}:{name}", learns_model=True, support=5, **arguments), spec)


@pytest.mark.parametrize("kind", KINDS)
def test_each_kind_fulfils_the_contract_and_takes_its_arguments(kind):
    network = made(kind, width=6)
    check_model(network, SPEC, kind)
    params = jax.jit(network.init)(jax.random.key(0))

    @jax.jit
    def run(params, observation, action):
        latent = network.represent(params, observation)
        projected = [network.project(params, latent, predicted) for predicted in (False, True)]
        return latent, network.dynamics(params, latent, action), projected

    latent, (after, reward), projected = run(params, np.ones((2, 4), np.float32), np.array([0, 2], np.int32))
    assert latent.shape == (2, 6)
    assert (float(latent.min()), float(latent.max())) == (0.0, 1.0)
    assert (after.shape, reward.shape) == ((2, 6), (2, 11))
    assert (np.asarray(after[0]) != np.asarray(after[1])).any()
    assert [each.shape for each in projected] == [(2, 128)] * 2


def test_policies_of_continuous_actions_are_bounded():
    spec = EnvSpec("vectors", (4,), "float32", 0, players=1, action_bounds=((-1.0, -1.0), (1.0, 1.0)))
    network = made("Gaussian", spec)
    check_model(network, spec, "Gaussian")
    policy, _ = jax.jit(network.predict)(jax.jit(network.init)(jax.random.key(0)), jnp.ones((3, 8)))
    assert policy.shape == (3, 2, 2)
    np.testing.assert_allclose(policy[:, 0], MEAN_BOUND, rtol=1e-5)
    np.testing.assert_allclose(policy[:, 1], LOG_STD_BOUNDS[1], rtol=1e-5)


@pytest.mark.parametrize(
    ("name", "fault"),
    [
        ("OneOutput", r"predict\(\).*policies and value logits"),
        ("FewBins", r"reward.*\[6, 10\].*\[6, 11\]"),
        ("OtherLatent", r"dynamics\(\).*11\].*8\]"),
        ("WholeBatch", r"latent states.*other observations"),
        ("Without", "represent, predict, dynamics"),
        ("Sowing", r"holds state besides its parameters \(metrics\)"),
    ],
)
def test_a_network_that_breaks_the_contract_is_refused(name, fault):
    with pytest.raises(ConfigError, match=fault):
        check_model(made(name), SPEC, name)


def test_an_unknown_argument_is_refused():
    with pytest.raises(ConfigError, match=r"widht.*'width'"):
        made("Linen", widht=3)


def test_an_experiment_that_does_not_say_so_is_told_how():
    with pytest.raises(ConfigError, match=r"network\.learns_model=true"):
        load("cartpole", [f"network={{name: '{FILE}:Linen'}}"])


def test_an_experiment_with_it_learns_a_model():
    experiment = load("cartpole", [f"network={{name: '{FILE}:Linen', learns_model: true, width: 4}}"])
    assert experiment.learns_model
    assert experiment.replay.samples_per_item == 1
    assert experiment.network.arguments == {"width": 4}


def test_known_rules_need_no_model():
    with pytest.raises(ConfigError, match="rules"):
        load("connect_four", [f"network={{name: '{FILE}:Linen', learns_model: true}}"])
