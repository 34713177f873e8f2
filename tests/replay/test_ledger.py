"""What writers and real servers report closes the ledger, and what is at the door of replay is refused and counted."""

import functools
import json
import subprocess
import sys
import threading
import time
from types import SimpleNamespace

import numpy as np
import psutil
import pytest

from podzero.core.types import Sample
from podzero.envs import sample_packing
from podzero.replay import ShardedWriter
from podzero.runtime.monitoring.ledger import Books

WRITE = """
import json, sys
import numpy as np
from podzero.config import parse
from podzero.core.types import EnvSpec, Sample
from podzero.replay import ShardedWriter
experiment = parse({"name": "test", "env": {"name": "tic_tac_toe"}, "replay": {"samples_per_item": 1}}, "test")
spec = EnvSpec("line", (3,), "float32", 4)
writer = ShardedWriter(lambda: sys.argv[1:], spec, experiment, lenient=True, writer="run/actor-1/0/0")
policy = np.full((8, 4), 0.25, np.float32)
nothing = np.zeros((8, 3), np.float32)
samples = Sample(nothing, np.ones((8, 4), bool), policy, nothing[:, 0], np.zeros(8, np.int32))
while True:
    for _ in range(3):
        writer.write(samples)
    print(json.dumps(writer.metrics()), flush=True)
"""


@pytest.fixture
def unblocked(make_experiment):
    """An experiment of a small table whose limiter blocks no insert."""
    experiment = make_experiment()
    limits = {"capacity": 200, "tolerance": 1e12}
    return experiment.model_copy(update={"replay": experiment.replay.model_copy(update=limits)})


def kill(server):
    """Ends the Reverb process of a server at once."""
    port = int(server.address().partition("#")[0].rpartition(":")[2])
    for child in psutil.Process().children(recursive=True):
        if any(one.laddr.port == port for one in child.net_connections() if one.status == "LISTEN"):
            child.kill()
            return
    raise AssertionError(f"nothing listens at {port}")


def settled(server):
    """The samples inserted so far, once no more arrive."""
    before = -1
    while before != (before := server.limits().inserted):
        time.sleep(0.3)
    return before


def test_the_ledger_closes_after_a_writer_and_the_server_are_killed(serve, connect, unblocked, make_samples, tmp_path):
    server = serve(unblocked)
    addresses, books = [server.address()], Books("samples", 1, 0.0, {})
    books.add("replay-0", server.info(), 1.0)
    writer = connect(
        functools.partial(ShardedWriter, lenient=True, writer="run/actor-0/0/0"), unblocked, addresses=addresses
    )
    with subprocess.Popen([sys.executable, "-c", WRITE, addresses[0]], stdout=subprocess.PIPE, text=True) as other:
        for number in range(20):
            writer.write(make_samples(8, 8 * number))
            books.add("actor-1", json.loads(other.stdout.readline()), 2.0)
        other.kill()
    writer.write(make_samples(4)._replace(value_target=np.full(4, np.nan, np.float32)))
    writer.flush()
    books.add("actor-0", writer.metrics(), 3.0)
    saved_at = settled(server)
    books.add("replay-0", server.info(), 3.0)
    books.ended("actor-1", 3.0)
    saved = server.checkpoint(tmp_path / "shard-0")

    writer.write(make_samples(50))
    writer.flush()
    books.add("actor-0", writer.metrics(), 1000.0)
    books.add("replay-0", server.info(), 1000.0)
    kill(server)
    writing = threading.Thread(target=writer.write, args=(make_samples(16),), daemon=True)
    writing.start()
    back = serve(unblocked, restore_from=saved)
    books.ended("replay-0", 1001.0)
    books.add("replay-0", back.info(), 1001.0)
    addresses[0] = back.address()
    writing.join(60)
    writer.flush()
    writer.close()
    books.add("actor-0", writer.metrics(), 2000.0)
    books.add("replay-0", back.info(), 2000.0)

    found = SimpleNamespace(**books.ledger(0, 3000.0))
    assert (found.unaccounted, found.unexplained, found.in_flight) == (0, 0, 0)
    assert found.refused_for == {"number": 4}
    assert (found.lost_with_shards, found.held, found.held + found.evicted) == (50, 200, saved_at + 16)
    # The writer that lives knows of all of its samples; of the other, replay has what it had not reported, too.
    heard = found.confirmed - (8 * 20 + 50 + 16)
    assert found.unheard == saved_at - 8 * 20 - heard
    assert found.unheard >= 0


def test_what_an_ended_server_had_not_confirmed_is_sent_to_its_successor(
    serve, connect, make_experiment, make_samples, unblocked
):
    experiment = make_experiment()  # 16 samples pass unread
    addresses = [serve(experiment).address()]
    writer = connect(ShardedWriter, experiment, addresses=addresses)
    writer.write(make_samples(40))
    successor = serve(unblocked)
    addresses[0] = successor.address()
    writer.flush()
    sums = writer.metrics()
    assert sums == {"count/samples/made": 40.0, "count/samples/confirmed": 40.0}
    assert 24 <= successor.limits().inserted <= 40


def test_a_writer_of_another_run_gets_nothing_into_a_shard_at_its_old_port(
    serve, connect, make_experiment, make_samples, tmp_path, monkeypatch, caplog
):
    """Even if one run continues from a copy of the other's checkpoint."""
    monkeypatch.setattr("podzero.replay.writer._RESUME_S", 0.01)
    old = serve(make_experiment())
    writer, stopping = connect(ShardedWriter, make_experiment(), old), threading.Event()
    writer.write(make_samples(8))
    writer.flush()
    copied, port = old.checkpoint(tmp_path / "shard-0"), int(old.address().split("#")[0].split(":")[1])
    old.stop()
    ours = serve(make_experiment(port=port), restore_from=copied)
    writing = threading.Thread(target=writer.write, args=(make_samples(80), None, stopping), daemon=True)
    writing.start()
    while "another run's server has the port" not in caplog.text:
        time.sleep(0.02)
    stopping.set()
    writing.join(20)
    writer.close()
    assert writer.metrics() == {
        "count/samples/made": 88.0, "count/samples/confirmed": 8.0, "count/samples/lost": 80.0
    }  # fmt: skip
    assert ours.limits().inserted == 8


def good_samples(count, random):
    """Samples as games make them, also with values and probabilities at their bounds."""
    legal = random.random((count, 4)) < 0.6
    legal[np.arange(count), random.integers(4, size=count)] = True
    policy = np.where(legal, random.random((count, 4)) ** 8, 0)
    value = random.uniform(-1, 1, count)
    value[::5] = np.sign(value[::5])
    return Sample(
        observation=random.normal(size=(count, 3)).astype(np.float32),
        legal=legal,
        policy_target=(policy / policy.sum(axis=1, keepdims=True)).astype(np.float32),
        value_target=value.astype(np.float32),
        version=random.integers(2**31 - 1, size=count, dtype=np.int32),
    )


@pytest.mark.parametrize("count", [20_000, pytest.param(1_000_000, marks=pytest.mark.slow)])
def test_no_good_sample_is_refused(serve, connect, unblocked, spec, count):
    random, piece = np.random.default_rng(7), 2_000
    server, packing = serve(unblocked), sample_packing(unblocked, spec)
    writer = connect(functools.partial(ShardedWriter, lenient=True), unblocked, server)
    for number in range(count // piece):
        samples = good_samples(piece, random)
        writer.write(packing.pack(samples) if number % 2 else samples)
    writer.flush()
    assert writer.metrics() == {"count/samples/made": float(count), "count/samples/confirmed": float(count)}
    assert server.limits().inserted == count


BAD = {
    "number": lambda samples: samples._replace(value_target=samples.value_target * np.float32(np.nan)),
    "shape": lambda samples: samples._replace(legal=samples.legal[:, :3]),
    "illegal": lambda samples: samples._replace(legal=~samples.legal),
    "bytes": lambda rows: rows ^ 0xFF,
}


@pytest.mark.parametrize("reason", BAD)
def test_bad_samples_are_refused_and_counted_by_reason(serve, connect, unblocked, spec, reason):
    server, packing = serve(unblocked), sample_packing(unblocked, spec)
    writer = connect(functools.partial(ShardedWriter, lenient=True), unblocked, server)
    samples = good_samples(8, np.random.default_rng(3))
    writer.write(BAD[reason](packing.pack(samples) if reason == "bytes" else samples))
    writer.flush()
    assert writer.metrics() == {"count/samples/made": 8.0, f"count/samples/refused/{reason}": 8.0}
    assert server.limits().inserted == 0
