"""Actors built from experiments, with in-memory clients: the four placements of the network."""

import logging
import threading
from functools import partial
from pathlib import Path

import jax
import numpy as np
import pytest
from random_parameters import random_parameters

from podzero.actors import ActorClients, build
from podzero.actors.build import FoundServers, actor_parts, make_actor, make_reanalysis, selfplay_core
from podzero.config import load, parse
from podzero.core.errors import ConfigError
from podzero.core.types import Versioned
from podzero.envs import make_env, sample_packing
from podzero.inference import openvino_network
from podzero.inference.agreement import MAX_POLICY_KL, RecentPositions, random_positions
from podzero.inference.build import make_server
from podzero.inference.serving import Hello, ServedParams, ServerClient, encoding_of, identity_of, served_evaluation
from podzero.networks import make_network


class Source:
    """Versions 0, 1, 2, ... of a network, one for each poll."""

    publications = 0, 0

    def __init__(self, experiment):
        network = make_network(experiment.network, make_env(experiment.env).spec)
        self.params, self.version = random_parameters(network), 0

    def wait(self, timeout_s):
        return Versioned(0, self.params)

    def poll(self):
        self.version += 1
        return Versioned(self.version, self.params)


class Writer:
    """Keeps what is written, and stops the actor once a sample of `version` or later is among it."""

    def __init__(self, version):
        self.written, self.version = [], version

    def write(self, samples, priorities=None, stopping=None):
        self.written.append(samples)
        if samples.version.max() >= self.version:
            self.enough()


SMALL = (
    "actors.games=8", "search.simulations=4", "network.channels=8", "network.blocks=1",
    "replay.samples_per_item=8", "learner.batch_size=32", "learner.steps_per_dispatch=4", "learner.publish_every=4",
)  # fmt: skip


@pytest.fixture
def experiment(monkeypatch):
    """An experiment in int8, with auxiliary heads, which take no part in play; OpenVINO computes it on any CPU."""
    monkeypatch.setattr(build, "has_int8_instructions", lambda: True)
    monkeypatch.setattr(openvino_network, "random_positions", partial(random_positions, count=16))
    return load("tic_tac_toe", ["actors.inference=int8", "network.auxiliary=true", *SMALL])


def initial_params(experiment):
    return jax.jit(make_network(experiment.network, make_env(experiment.env).spec).init)(jax.random.key(3))


def play(experiment, until_version):
    writer, reports = Writer(until_version), []
    clients = ActorClients(Source(experiment), writer, lambda name, metrics: reports.append(metrics))
    actor = make_actor(experiment, "actor-0", 0, [clients])
    writer.enough = actor.stop
    actor.run()
    return writer.written, reports


def test_an_actor_plays_in_int8_and_reports_the_agreement(experiment):
    written, reports = play(experiment, until_version=1)
    for samples in written:
        np.testing.assert_allclose(samples.policy_target.sum(axis=1), 1.0, rtol=1e-5)
        assert np.all(np.abs(samples.value_target) <= 1.0)
        assert samples.moves_left.min() >= 1
    assert reports[-1]["int8/quantized"] == 1.0
    assert 0 < reports[-1]["int8/policy_kl"] < MAX_POLICY_KL
    assert reports[-1]["count/moves"] > 0


def test_a_cpu_without_the_instructions_plays_in_float32_and_says_so(experiment, monkeypatch, caplog):
    monkeypatch.setattr(build, "has_int8_instructions", lambda: False)
    with caplog.at_level(logging.WARNING):
        written, reports = play(experiment, until_version=0)
    assert written
    assert not any(name.startswith("int8/") for name in reports[-1])
    assert "no int8 instructions" in caplog.text


def test_both_placements_choose_mostly_the_same_moves(experiment):
    params, found = initial_params(experiment), []
    for inference in ("int8", "local"):
        core, fold, _ = actor_parts(experiment, inference)
        state = jax.jit(core.init)(jax.random.key(1))
        _, move = jax.jit(core.move)(fold(params), state)
        found.append(move)
    assert np.mean(found[0].action == found[1].action) >= 0.75


GAME, GAMES, MOVES = "connect_four", 8, 6


def experiment_with(inference, int8=None, **changes):
    tree = {
        "name": "test",
        "env": {"name": GAME},
        "network": {"name": "resnet", "channels": 8, "blocks": 1},
        "search": {"simulations": 8},
        "actors": {"inference": inference, "games": GAMES, "cache_mib": 1.0},
        "int8": int8 or {},
        "server": {"groups": 1, "batch_sizes": [8, 16]} | changes,
    }
    return parse(tree, "test")


class Params:
    """A `ParamSource` with one version, or several that the test publishes."""

    publications = 0, 0

    def __init__(self, params, version=7):
        self.newest = Versioned(version, params)
        self.new = False

    def wait(self, timeout_s):
        return self.newest

    def poll(self):
        return self.newest if self.new else None


class CountingWriter:
    """Keeps what is written, and calls `enough` after some samples."""

    def __init__(self, wanted, enough):
        self.written, self.wanted, self.enough = [], wanted, enough

    def write(self, samples, priorities=None, stopping=None):
        self.written.append(samples)
        if sum(len(jax.tree.leaves(own)[0]) for own in self.written) >= self.wanted:
            self.enough()


class Serving:
    """A server of an experiment in a thread."""

    def __init__(self, experiment, params, report=lambda *_: None):
        self.addresses = {}
        self.server = make_server(
            experiment, "inference-0", "127.0.0.1", "run", Params(params), report,
            lambda address: self.addresses.update({"inference-0": address}), jax.devices()[:1],
        )  # fmt: skip
        self.thread = threading.Thread(target=self.server.run, daemon=True)

    def __enter__(self):
        self.thread.start()
        return lambda: dict(self.addresses)

    def __exit__(self, *_):
        self.server.stop()
        self.thread.join(20.0)


@pytest.fixture(scope="module")
def params():
    return initial_params(experiment_with("local"))


def moves_of(core, params):
    """Actions, policies and values of some moves of the games of one seed."""
    state, move, made = jax.jit(core.init)(jax.random.key(5)), jax.jit(core.move), []
    for _ in range(MOVES):
        state, one = move(params, state)
        made.append((one.action, one.policy, one.value))
    return [np.stack(part) for part in zip(*jax.device_get(made), strict=True)]


@pytest.fixture(scope="module")
def moves_by_mctx(params):
    """What actors with `local` inference choose, in float32 and in trees of mctx."""
    parts = actor_parts(experiment_with("local"))
    return moves_of(parts.core, parts.fold(params))


def moves_by_server(experiment, params):
    """What an actor of an experiment chooses whose network a server evaluates."""
    env = make_env(experiment.env)
    with Serving(experiment, params) as servers:
        encoding = encoding_of(env)
        hello = Hello("actor-0", GAMES, identity_of(experiment, "run", encoding.row_bytes, env.spec.outputs))
        client = ServerClient(hello, servers, experiment.server, cache_mib=1.0)
        version = ServedParams(client).wait(60.0)
        assert version.version == 7
        core = selfplay_core(experiment, env, served_evaluation(encoding, env.spec, client))
        return moves_of(core, version.params)


def test_all_placements_choose_the_same_moves(params, moves_by_mctx):
    """`local` in trees of mctx, as `device` in dense trees, and as `server` over a connection."""
    device = actor_parts(experiment_with("device"))
    placements = {
        "device": moves_of(device.core, device.fold(params)),
        "server": moves_by_server(experiment_with("server"), params),
    }
    for name, made in placements.items():
        np.testing.assert_array_equal(made[0], moves_by_mctx[0], err_msg=name)
        for values, wanted in zip(made[1:], moves_by_mctx[1:], strict=True):
            np.testing.assert_allclose(values, wanted, atol=1e-4, err_msg=name)


def test_an_actor_plays_its_groups_at_the_same_time_and_writes_both(params):
    experiment, reports = experiment_with("server", groups=2), []
    with Serving(experiment, params) as servers:
        finished = [threading.Event() for _ in range(2)]
        writers = [CountingWriter(64, event.set) for event in finished]
        clients = [ActorClients(None, writer, lambda *made: reports.append(made)) for writer in writers]
        actor = make_actor(experiment, "actor-0", 1, clients, servers=FoundServers("run", servers))
        thread = threading.Thread(target=actor.run)
        thread.start()
        assert all(event.wait(120.0) for event in finished)
        actor.stop()
        thread.join(60.0)
        assert not thread.is_alive()
    first, second = (writer.written for writer in writers)
    assert first
    assert second
    assert all(np.all(samples.version == 7) for samples in first)
    assert not np.array_equal(first[0].policy_target, second[0].policy_target)  # other games
    assert {name for name, _ in reports} == {"actor-0"}
    assert any("server/cached" in metrics for _, metrics in reports)


def test_a_server_in_int8_reports_the_agreement_and_chooses_mostly_the_same_moves(params, moves_by_mctx, monkeypatch):
    monkeypatch.setattr("podzero.inference.build.random_positions", partial(random_positions, count=64))
    experiment, reports = experiment_with("server", {"on_tpu": True}), []
    serving = Serving(experiment, params, lambda *made: reports.append(made))
    with serving as servers:
        env = make_env(experiment.env)
        encoding, outputs = encoding_of(env, with_legal=True), env.spec.outputs
        hello = Hello("actor-0", GAMES, identity_of(experiment, "run", encoding.row_bytes, outputs))
        client = ServerClient(hello, servers, experiment.server, cache_mib=1.0)
        version = ServedParams(client).wait(60.0)
        core = selfplay_core(experiment, env, served_evaluation(encoding, env.spec, client))
        made = moves_of(core, version.params)
    assert np.mean(made[0][0] == moves_by_mctx[0][0]) >= 0.75  # of the first move: later ones are of other positions
    assert 0 < np.abs(made[2] - moves_by_mctx[2]).max() < 0.2
    worker, metrics = reports[-1]
    assert worker == "inference-0"
    assert metrics["int8/quantized"] == 1.0
    assert 0 < metrics["int8/policy_kl"] < 1e-3


def test_what_an_actor_writes_is_recorded_for_calibrations():
    writer, recorded = CountingWriter(10**6, None), []
    rows = np.ones((2, 5), np.uint8)
    ActorClients(None, writer, None, record=recorded.append).write(rows, None)
    assert recorded == writer.written == [rows]


@pytest.mark.slow
def test_an_actor_on_devices_in_int8_reports_the_agreement_and_notes_what_it_writes(params, monkeypatch):
    monkeypatch.setattr("podzero.inference.build.CALIBRATION_POSITIONS", 64)
    monkeypatch.setattr("podzero.inference.build.random_positions", partial(random_positions, count=64))
    experiment, reports, recorded = experiment_with("device", {"on_tpu": True}), [], []
    monkeypatch.setattr(RecentPositions, "add", lambda self, rows: recorded.append((rows, self._decode(rows))))
    writer = CountingWriter(64, None)
    clients = ActorClients(Params(params), writer, lambda *made: reports.append(made))
    actor = make_actor(experiment, "actor-0", 0, [clients], devices=jax.devices()[:1])
    writer.enough = actor.stop
    actor.run()
    packing = sample_packing(experiment, make_env(experiment.env).spec)
    assert sum(map(len, writer.written)) >= 64
    for (rows, positions), written in zip(recorded, writer.written, strict=True):
        np.testing.assert_array_equal(rows, written)
        samples = packing.unpack(rows[:64])
        np.testing.assert_array_equal(positions.observation, samples.observation)
        np.testing.assert_array_equal(positions.legal, samples.legal)
    metrics = reports[-1][1]
    assert metrics["int8/quantized"] == 1.0
    assert metrics["count/moves"] > 0


def test_positions_with_action_masks_are_not_searched_again():
    with pytest.raises(ConfigError, match=r"reanalyse\.share=0"):
        make_reanalysis(load("taxi", ["reanalyse.share=0.5"]), seed=0)


THREE = {"name": f"{Path(__file__).resolve().parents[2] / 'configs' / 'own_three_players.py'}:ThreeInARow"}


def test_a_server_evaluates_a_value_for_each_player():
    tree = experiment_with("server").model_dump(mode="json") | {"env": THREE}
    served = parse(tree, "test")
    local = parse(tree | {"actors": {"inference": "local", "games": GAMES}}, "test")
    params, parts = initial_params(local), actor_parts(local)
    for expected, found in zip(moves_of(parts.core, parts.fold(params)), moves_by_server(served, params), strict=True):
        np.testing.assert_allclose(found, expected, atol=1e-4)
