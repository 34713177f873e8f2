"""The network that the learner trains, built from experiments: by XLA, and by OpenVINO."""

import jax
import pytest

from podzero.config import ClusterConfig, load
from podzero.learner import build, make_training, openvino_tower
from podzero.learner.build import learner_parts, timed
from podzero.tools.bench.measuring import random_batch

SMALL = (
    "network.channels=8", "network.blocks=1", "learner.batch_size=32", "learner.steps_per_dispatch=4",
    "learner.publish_every=4",
)  # fmt: skip


BY_OPENVINO = load("tic_tac_toe", ["learner.cpu_convolutions=openvino", *SMALL])


def losses(experiment):
    """The sums of the metrics over a dispatch, run as the learner runs it."""
    network, spec, symmetries = learner_parts(experiment)
    training = make_training(experiment, network, spec, symmetries)
    batch = training.put(random_batch(experiment, spec))
    state = training.init()
    with jax.transfer_guard_host_to_device("disallow"):
        return {name: float(total) for name, total in training.step(state, batch).sums.metrics.items()}


def test_auxiliary_heads_are_trained():
    experiment = load("tic_tac_toe", ["network.auxiliary=true", *SMALL])
    with_heads = {name for name in losses(experiment) if name.endswith("_loss")}
    assert with_heads == {"policy_loss", "value_loss", "outcome_loss", "moves_left_loss", "reply_loss"}


def test_the_values_of_one_player_are_trained_as_a_distribution():
    experiment = load("tic_tac_toe", ["env={name: '2048'}", *SMALL])
    assert {name for name in losses(experiment) if name.endswith("_loss")} == {
        "policy_loss", "value_loss", "distribution_loss"
    }  # fmt: skip


def test_a_nested_network_trains_its_outcome():
    experiment = load("tic_tac_toe", ["network={name: nested, channels: 8, blocks: 1}", *SMALL])
    assert {name for name in losses(experiment) if name.endswith("_loss")} == {
        "policy_loss", "value_loss", "outcome_loss"
    }  # fmt: skip


@pytest.mark.parametrize(("bfloat16", "rounding"), [(True, 0.02), (False, 1e-5)])
def test_a_learner_by_openvino_learns_what_one_by_xla_learns(monkeypatch, bfloat16, rounding):
    # Any CPU computes in bfloat16, if slowly.
    monkeypatch.setattr(openvino_tower, "has_bfloat16_instructions", lambda: bfloat16)
    infer, inputs = openvino_tower.infer, []
    monkeypatch.setattr(openvino_tower, "infer", lambda *given: inputs.append(given) or infer(*given))
    found = losses(BY_OPENVINO)
    computed = len(inputs)
    expected = losses(BY_OPENVINO.changed(learner={"cpu_convolutions": "xla"}))
    assert computed == len(inputs) > 0
    assert found == pytest.approx(expected, rel=rounding)
    # In float32 both may round alike.
    assert found != expected or not bfloat16


def test_a_learner_on_a_slice_never_computes_on_its_host(monkeypatch):
    monkeypatch.setattr(build, "host_resnet", None)
    slice_of_8 = BY_OPENVINO.model_copy(update={"cluster": ClusterConfig(slice="v5e-8")})
    learner_parts(slice_of_8)


class Host:
    """A host of a learner whose host 0 has found 8 steps."""

    def told(self, name, text):
        return "8"


def test_on_accelerators_auto_is_what_is_timed_and_what_host_0_found(monkeypatch):
    experiment = load("tic_tac_toe", [*SMALL[:3], "learner.publish_every=16"])
    parts = learner_parts(experiment)
    assert timed(experiment, *parts) == experiment
    assert experiment.learner.dispatch_steps() == 4
    monkeypatch.setattr(build.jax, "default_backend", lambda: "gpu")
    monkeypatch.setattr(build, "_DISPATCHES", 1)
    found = timed(experiment, *parts).learner.steps_per_dispatch
    assert 16 % found == 0 or found % 16 == 0
    monkeypatch.setattr(build, "step_seconds", lambda training, dispatch: 0.001)
    assert timed(experiment, *parts).learner.dispatch_steps() == 16
    monkeypatch.setattr(build, "step_seconds", lambda training, dispatch: 0.0005)
    assert timed(experiment, *parts).learner.dispatch_steps() == 32
    assert timed(experiment, *parts, Host()).learner.dispatch_steps() == 8
    given = load("tic_tac_toe", SMALL)
    assert timed(given, *parts) == given
