"""Optimizers named by an import path: what podzero does around them, and a message for each fault."""

from pathlib import Path

import jax
import numpy as np
import pytest

from podzero.config import OwnOptimizerConfig, load
from podzero.core.errors import ConfigError
from podzero.learner.build import check_optimizer, own_optimizer

FILE = Path(__file__).with_name("own_optimizers.py")


def own(name, **more):
    return OwnOptimizerConfig(name=name if ":" in name else f"{FILE}:{name}", **more)


@pytest.fixture
def params(network):
    return jax.jit(network.init)(jax.random.key(0))


@pytest.mark.parametrize("name", ["descent", "fixed", "optax:adamax", "optax.contrib:muon"])
def test_functions_and_transformations_of_files_and_libraries_fulfil_the_contract(params, name):
    check_optimizer(own_optimizer(own(name)), params, name)


def test_rate_clipping_and_frozen_parameters_are_those_of_every_optimizer(start, make_experiment):
    """The gradient descent of a library learns what the built-in one does."""
    common = {"learning_rate": 0.3, "schedule": "linear", "decay_steps": 8, "max_gradient_norm": 0.2}
    builtin = {"name": "sgd", "weight_decay": 0.0}
    learned = []
    for optimizer in (builtin, {"name": "optax:sgd", "momentum": 0.9}):
        learner, *_ = start(make_experiment(steps=4, frozen=("hidden",), optimizer=common | optimizer))
        first = jax.device_get(learner.state.params)
        learner.run()
        learned.append(jax.device_get(learner.state.params))
        np.testing.assert_array_equal(learned[-1]["hidden"]["kernel"], first["hidden"]["kernel"])
        assert (learned[-1]["heads"]["kernel"] != first["heads"]["kernel"]).any()
    jax.tree.map(np.testing.assert_array_equal, *learned)


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("ascent", "updates point along the gradient"),
        ("nan", "update 1 .* not finite"),
        ("half", r"updates: heads.bias is bfloat16 \[10\]; expected float32 \[10\]"),
        ("partial", "updates have another structure than the parameters"),
        ("growing", r"state .* float32 \[2\]; expected float32 \[1\]"),
    ],
)
def test_a_violation_of_the_contract_is_named(params, name, message):
    with pytest.raises(ConfigError, match=f"mine violates the contract.*\n.*{message}"):
        check_optimizer(own_optimizer(own(name)), params, "mine")


@pytest.mark.parametrize(
    ("name", "more", "message"),
    [
        ("number", {}, "is a int; expected .*GradientTransformation"),
        ("failing", {}, r"its update failed at line \d+ of own_optimizers.py: KeyError"),
        ("descent", {"momentun": 0.5}, r"learner.optimizer.momentun: .*did you mean 'momentum'"),
        ("optax:adamx", {}, "did you mean 'adamax'"),
        ("optax:masked", {}, "learner.optimizer.inner: required"),
        ("gone.py:make", {}, "no such file"),
    ],
)
def test_code_that_cannot_be_used_is_refused(params, name, more, message):
    with pytest.raises(ConfigError, match=message):
        check_optimizer(own_optimizer(own(name, **more)), params, "mine")


def test_another_file_than_that_of_the_experiment_is_refused(tmp_path):
    file = tmp_path / "mine.py"
    file.write_text(FILE.read_text())
    first = load("tic_tac_toe", [f"learner.optimizer={{name: '{file}:descent', momentum: 0.5}}"])
    file.write_text(f"{FILE.read_text()}\nCHANGED = True\n")
    with pytest.raises(ConfigError, match=f"not the one .*learner.optimizer.sha256 = {first.learner.optimizer.sha256}"):
        own_optimizer(first.learner.optimizer)
