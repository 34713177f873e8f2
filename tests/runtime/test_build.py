"""Self-play actors that evaluate in int8, with in-memory clients, and learners that compute in bfloat16."""

import logging

import jax
import numpy as np
import pytest

from podzero.actors import ActorClients
from podzero.config import ClusterConfig, load
from podzero.learner import make_training
from podzero.networks import make_network
from podzero.runtime import build
from podzero.tools.bench.measuring import random_samples
from podzero.types import Batch, Versioned


class Source:
    """Versions 0, 1, 2, ... of a network, one for each poll."""

    def __init__(self, experiment):
        network, _, _ = build.learner_parts(experiment)
        self.params, self.version = network.init(jax.random.key(0)), 0

    def wait(self, timeout_s):
        return Versioned(0, self.params)

    def poll(self):
        self.version += 1
        return Versioned(self.version, self.params)


class Writer:
    """Keeps what is written, and stops the actor once a sample of `version` or later is among it."""

    def __init__(self, version):
        self.written, self.version = [], version

    def write(self, samples, priorities=None):
        self.written.append(samples)
        if samples.version.max() >= self.version:
            self.enough()


SMALL = (
    "actors.games=8", "search.simulations=4", "network.channels=8", "network.blocks=1", "int8.positions=16",
    "replay.samples_per_item=8", "learner.batch_size=32", "learner.steps_per_dispatch=4", "learner.publish_every=4",
)  # fmt: skip


@pytest.fixture
def experiment(monkeypatch):
    """An experiment in int8; OpenVINO computes it on any CPU, if slowly."""
    monkeypatch.setattr(build, "has_int8_instructions", lambda: True)
    return load("tic_tac_toe", ["actors.inference=int8", *SMALL])


def play(experiment, until_version):
    writer, reports = Writer(until_version), []
    clients = ActorClients(Source(experiment), writer, lambda name, metrics: reports.append(metrics))
    actor = build.make_actor(experiment, "actor-0", 0, clients)
    writer.enough = actor.stop
    actor.run()
    return writer.written, reports


def test_an_actor_plays_in_int8_and_reports_the_agreement(experiment):
    written, reports = play(experiment, until_version=1)
    for samples in written:
        np.testing.assert_allclose(samples.policy_target.sum(axis=1), 1.0, rtol=1e-5)
        assert np.all(np.abs(samples.value_target) <= 1.0)
    assert reports[-1]["int8/quantized"] == 1.0
    assert 0 < reports[-1]["int8/policy_kl"] < experiment.int8.max_policy_kl
    assert reports[-1]["count/moves"] > 0


def test_a_cpu_without_the_instructions_plays_in_float32_and_says_so(experiment, monkeypatch, caplog):
    monkeypatch.setattr(build, "has_int8_instructions", lambda: False)
    with caplog.at_level(logging.WARNING):
        written, reports = play(experiment, until_version=0)
    assert written
    assert not any(name.startswith("int8/") for name in reports[-1])
    assert "no int8 instructions" in caplog.text


def test_both_placements_choose_mostly_the_same_moves(experiment):
    params = make_network(experiment.network, build.learner_parts(experiment)[1]).init(jax.random.key(3))
    found = []
    for make in (build.actor_parts, build.local_parts):
        core, fold, _ = make(experiment)
        state = jax.jit(core.init)(jax.random.key(1))
        _, move = jax.jit(core.move)(fold(params), state)
        found.append(move)
    assert np.mean(found[0].action == found[1].action) >= 0.75


@pytest.fixture
def bfloat16(monkeypatch):
    """An experiment whose learner computes its tower by OpenVINO, which any CPU can, if slowly."""
    monkeypatch.setattr(build, "has_bfloat16_instructions", lambda: True)
    return load("tic_tac_toe", [
        "learner.cpu_convolutions=openvino", "network.channels=8", "network.blocks=1", "learner.batch_size=32",
        "learner.steps_per_dispatch=4", "learner.publish_every=4",
    ])  # fmt: skip


def losses(experiment):
    """The sums of the metrics over a dispatch, run as the learner runs it."""
    network, spec, symmetries = build.learner_parts(experiment)
    training = make_training(experiment, network, spec, symmetries)
    samples = random_samples(experiment, spec, 4 * 32)
    batch = training.put(Batch(jax.tree.map(lambda leaf: leaf.reshape(4, 32, *leaf.shape[1:]), samples)))
    state = training.init()
    with jax.transfer_guard_host_to_device("disallow"):
        return {name: float(total) for name, total in training.step(state, batch).sums.metrics.items()}


@pytest.mark.parametrize("inference", ["local", "int8"])
@pytest.mark.usefixtures("experiment")
def test_auxiliary_heads_are_trained_and_take_no_part_in_play(inference):
    experiment = load("tic_tac_toe", ["network.auxiliary=true", f"actors.inference={inference}", *SMALL])
    written, _ = play(experiment, until_version=0)
    assert all(samples.moves_left.min() >= 1 for samples in written)
    with_heads = {name for name in losses(experiment) if name.endswith("_loss")}
    assert with_heads == {"policy_loss", "value_loss", "outcome_loss", "moves_left_loss", "reply_loss"}


def test_a_learner_by_openvino_learns_what_one_by_xla_learns(bfloat16):
    found = losses(bfloat16)
    xla = bfloat16.model_copy(update={"learner": bfloat16.learner.model_copy(update={"cpu_convolutions": "xla"})})
    expected = losses(xla)
    assert found == pytest.approx(expected, rel=0.02)
    assert found != expected


def test_a_cpu_without_the_instructions_trains_in_float32_and_says_so(bfloat16, monkeypatch, caplog):
    monkeypatch.setattr(build, "has_bfloat16_instructions", lambda: False)
    monkeypatch.setattr(build, "host_resnet", None)
    with caplog.at_level(logging.WARNING):
        build.learner_parts(bfloat16)
    assert "no bfloat16 instructions" in caplog.text


def test_a_learner_on_a_slice_never_computes_on_its_host(bfloat16, monkeypatch):
    monkeypatch.setattr(build, "host_resnet", None)
    slice_of_8 = bfloat16.model_copy(update={"cluster": ClusterConfig(slice="v5e-8")})
    build.learner_parts(slice_of_8)
