"""Losses named by an import path: what they are built from, and a message for each fault."""

from pathlib import Path

import jax
import numpy as np
import pytest

from podzero.config import OwnNetworkConfig, load, parse
from podzero.core.errors import ConfigError
from podzero.core.types import Batch
from podzero.envs import spec_of
from podzero.learner.build import check_objective, example_batch
from podzero.learner.objectives import make_objective
from podzero.networks import make_model_network, make_network

FILE = Path(__file__).with_name("own_objectives.py")


@pytest.fixture
def own(make_experiment):
    """An experiment with a loss of `FILE`."""
    return lambda name, **more: make_experiment(steps=4, objective={"name": f"{FILE}:{name}"} | more)


def check(experiment, network, spec):
    params = jax.jit(network.init)(jax.random.key(0))
    check_objective(make_objective(experiment, network, spec, ()), params, example_batch(experiment, spec), "mine")


def test_the_loss_is_made_of_the_objective_and_its_arguments(
    own, network, spec, make_dispatch, make_experiment, packing
):
    check(own("soft"), network, spec)
    params = jax.jit(network.init)(jax.random.key(0))
    batch = Batch(jax.tree.map(lambda leaf: leaf[0], packing.unpack(make_dispatch(1, 8).rows)))
    plain, same, flat = (
        jax.jit(make_objective(experiment, network, spec, ()).loss)(params, batch)
        for experiment in (make_experiment(), own("soft", temperature=1.0), own("soft", temperature=3.0))
    )
    np.testing.assert_allclose(plain.total, same.total, rtol=1e-6)
    target = batch.samples.policy_target ** (1 / 3)
    target /= target.sum(axis=1, keepdims=True)
    apply = jax.jit(lambda params, seen: jax.nn.log_softmax(network.apply(params, seen)[0]))
    logits = np.asarray(apply(params, batch.samples.observation))
    np.testing.assert_allclose(flat.metrics["policy_loss"], -(target * logits).sum(axis=1).mean(), rtol=1e-5)
    np.testing.assert_array_equal(plain.errors, flat.errors)


def test_the_learner_trains_by_it_and_reports_its_metrics(own, start):
    learner, _, _, reports = start(own("doubled"))
    learner.run()
    found = reports[-1][1]
    assert found["learner/extra"] == 3.0
    assert found["learner/loss"] > 0


def test_what_a_network_of_one_s_own_sows_is_among_the_metrics(spec, make_dispatch, make_experiment, packing):
    nets = Path(__file__).parents[1] / "networks" / "own_nets.py"
    sowing = make_network(OwnNetworkConfig(name=f"{nets}:Sowing"), spec)
    params = jax.jit(sowing.init)(jax.random.key(0))
    batch = Batch(jax.tree.map(lambda leaf: leaf[0], packing.unpack(make_dispatch(1, 8).rows)))
    found = jax.jit(make_objective(make_experiment(), sowing, spec, ()).loss)(params, batch).metrics
    first = batch.samples.observation.reshape(8, -1)[:, 0]
    np.testing.assert_allclose(found["network/first"], 4 * first.mean(), rtol=1e-6)
    assert {"network/twice/seen", "loss"} <= found.keys()


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("nan", "total is not finite"),
        ("steep", "gradient of heads.bias is not finite"),
        ("constant", "gradient is zero"),
    ],
)
def test_a_violation_of_the_contract_is_named(own, network, spec, name, message):
    with pytest.raises(ConfigError, match=rf"mine violates the contract.*\n(.*\n)*.*{message}"):
        check(own(name), network, spec)


@pytest.mark.parametrize(
    ("name", "more", "message"),
    [
        ("per_sample", {}, r"total of its LossOutput has shape \[8\]; expected \[\]"),
        ("mean_error", {}, r"errors of its LossOutput has shape \[\]; expected \[8\]"),
        ("listed", {}, r"each of its LossOutput has shape \[8\]; expected \[\]"),
        ("alone", {}, "its loss returned .*; expected a LossOutput"),
        ("failing", {}, r"its loss failed at line \d+ of own_objectives.py: AttributeError"),
        ("nothing", {}, "returned a NoneType; expected a function"),
        ("soft", {"temprature": 3}, r"learner.objective.temprature: .*did you mean 'temperature'"),
        ("sof", {}, "has no 'sof'.*did you mean 'soft'"),
    ],
)
def test_code_that_cannot_be_used_is_refused(own, network, spec, name, more, message):
    with pytest.raises(ConfigError, match=message):
        check(own(name, **more), network, spec)


@pytest.mark.parametrize("env", ["CartPole-v1", pytest.param("Pendulum-v1", marks=pytest.mark.slow)])
def test_the_loss_of_a_learned_model_is_checked(env):
    tree = {
        "name": "t",
        "env": {"name": "gymnasium", "id": env},
        "network": {"name": "muzero_mlp", "width": 8, "latent": 4, "layers": 1},
        "muzero": {"unroll_steps": 2, "td_steps": 2},
    }
    right, wrong = (
        parse(tree | {"learner": {"objective": {"name": f"{FILE}:{name}"}}}, "test") for name in ("doubled", "nan")
    )
    spec = spec_of(right.env)
    network = make_model_network(right.network, spec)
    check(right, network, spec)
    with pytest.raises(ConfigError, match=r"contract.*\n  total is not finite"):
        check(wrong, network, spec)


def test_another_file_than_that_of_the_experiment_is_refused(tmp_path, network, spec):
    file = tmp_path / "mine.py"
    file.write_text(FILE.read_text())
    first = load("tic_tac_toe", [f"learner.objective={{name: '{file}:soft'}}"])
    file.write_text(f"{FILE.read_text()}\nCHANGED = True\n")
    with pytest.raises(ConfigError, match=f"not the one .*learner.objective.sha256 = {first.learner.objective.sha256}"):
        make_objective(first, network, spec, ())
