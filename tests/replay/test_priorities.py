"""Prioritized replay against a real server: errors become priorities, and weights undo their bias."""

import math
import queue
import threading
import time
from types import SimpleNamespace

import numpy as np
import pytest

from podzero.replay import ShardedWriter, make_reader, reader
from podzero.replay.reader import LEAST_PRIORITY, PriorityUpdater, importance, priorities_of
from podzero.replay.shard import Address
from podzero.replay.wire import Connection

HIGH = 100
"""Samples with smaller numbers have large errors."""


@pytest.fixture
def prioritized(make_experiment):
    return make_experiment(
        sampler="prioritized", priority_exponent=1.0, min_size=400, samples_per_insert=32.0, tolerance=12800
    )


def learned_from(reader, samples_of, batches, below=HIGH):
    """Versions `[N]` and weights `[N]` of the next batches; only samples below a number get large errors."""
    versions, weights = [], []
    for _ in range(batches):
        batch = next(reader)
        version = samples_of(batch).version
        versions.append(version.ravel())
        weights.append(batch.weight.ravel())
        reader.update_priorities(batch.keys, np.where(version < below, 9.0, 0.0))
    return np.concatenate(versions), np.concatenate(weights)


def test_samples_with_large_errors_are_sampled_more_often(serve, connect, prioritized, make_samples, samples_of):
    server = serve(prioritized)
    writer = connect(ShardedWriter, prioritized, server)
    writer.write(make_samples(400))
    writer.flush()
    reader = connect(make_reader, prioritized, server)
    before = np.concatenate([samples_of(next(reader)).version.ravel() for _ in range(20)])
    assert np.mean(before < HIGH) < 0.5  # of 400 with equal priorities every fourth is one of them
    learned_from(reader, samples_of, 100)
    time.sleep(0.5)  # priorities are set asynchronously
    after, _ = learned_from(reader, samples_of, 300)
    assert np.mean(after[-800:] < HIGH) > 0.9


def test_weights_undo_the_bias_of_priorities(serve, connect, prioritized, make_samples, samples_of):
    server = serve(prioritized)
    writer = connect(ShardedWriter, prioritized, server)
    writer.write(make_samples(400), np.where(np.arange(400) < HIGH, 9.0, 1.0))
    writer.flush()
    reader = connect(make_reader, prioritized, server)
    batches = [next(reader) for _ in range(250)]
    high = np.concatenate([samples_of(batch).version.ravel() for batch in batches]) < HIGH
    weight = np.concatenate([batch.weight.ravel() for batch in batches])
    five_sigma = 5 * math.sqrt(0.75 * 0.25 / len(high))
    assert abs(np.mean(high) - 0.75) < five_sigma  # 900 of 1,200
    np.testing.assert_allclose(
        weight, np.where(high, 1 / 3, 3.0), rtol=1e-5
    )  # 1 / (400 * 9 / 1,200), 1 / (400 / 1,200)
    # Their share of the table; near its mean it changes as fast as their share of what was sampled.
    assert abs(np.average(high, weights=weight) - 0.25) < five_sigma


def test_a_uniform_table_has_no_weights_and_no_keys(serve, connect, make_experiment, make_samples):
    experiment = make_experiment()
    server = serve(experiment)
    connect(ShardedWriter, experiment, server).write(make_samples(10))
    batch = next(connect(make_reader, experiment, server))
    assert batch.weight is None
    assert batch.keys is None


def test_keys_hold_the_index_of_the_shard(serve, connect, make_experiment, make_samples, samples_of):
    experiment = make_experiment(sampler="prioritized", shards=2, min_size=16, tolerance=32)
    servers = [serve(experiment, shard) for shard in range(2)]
    for index, server in enumerate(servers):
        connect(ShardedWriter, experiment, server).write(make_samples(20, start=100 * index))
    reader = connect(make_reader, experiment, *servers)
    for _ in range(3):
        batch = next(reader)
        np.testing.assert_array_equal(batch.keys.shard, samples_of(batch).version // 100)


def test_errors_that_are_not_finite_are_skipped(serve, connect, prioritized, make_samples, caplog):
    server = serve(prioritized)
    connect(ShardedWriter, prioritized, server).write(make_samples(400))
    reading = connect(make_reader, prioritized, server)
    for _ in range(50):
        batch = next(reading)
        reading.update_priorities(batch.keys, np.full(batch.keys.key.shape, np.nan))
    reading.close()
    assert not [record for record in caplog.records if record.name == reader.__name__]


class FakeShard:
    """Keeps the updates of priorities; waits for `gate` before each."""

    def __init__(self, name):
        self.address, self.connection, self.table = Address(name, "1234"), self, SimpleNamespace(name="samples")
        self.updates, self.gate = queue.Queue(), threading.Event()
        self.gate.set()

    def set_priorities(self, table, priorities, timeout_s):
        assert self.gate.wait(30.0)
        self.updates.put(dict(priorities))


@pytest.fixture
def silent():
    """A shard that does not answer, and the updater of its priorities."""
    shard = FakeShard("10.0.0.1:7")
    shard.gate.clear()
    updater = PriorityUpdater(shard)
    yield shard, updater
    updater.stop()
    shard.gate.set()
    updater.join(time.monotonic() + 30.0)


def test_updates_for_a_shard_that_never_answers_do_not_wait_and_the_newest_remain(silent, caplog):
    shard, updater = silent
    for number in range(20):  # more than may wait
        updater.put(np.array([number], np.uint64), np.array([1.0]))
    assert shard.updates.empty()
    assert "replay at 10.0.0.1:7 is slow to take priority updates" in caplog.text
    shard.gate.set()
    taken = []
    while {19: 1.0} not in taken:
        taken.append(shard.updates.get(timeout=30.0))
    # The thread may have taken one before the queue was full.
    assert len(taken) <= 9
    assert taken[-8:] == [{number: 1.0} for number in range(12, 20)]


def test_a_shard_that_has_moved_takes_updates_although_its_old_server_never_answers(
    serve, connect, prioritized, make_samples, monkeypatch, samples_of
):
    gate, set_priorities = threading.Event(), Connection.set_priorities
    old, new = serve(prioritized), serve(prioritized)
    for server, start in ((old, 0), (new, 1000)):
        connect(ShardedWriter, prioritized, server).write(make_samples(400, start))

    def gated(connection, *arguments):
        if old.address().startswith(connection.endpoint):
            gate.wait(60.0)
        set_priorities(connection, *arguments)

    monkeypatch.setattr(Connection, "set_priorities", gated)
    addresses = [old.address()]
    reading = connect(make_reader, prioritized, addresses=addresses)
    learned_from(reading, samples_of, 10)
    addresses[0] = new.address()
    learned_from(reading, samples_of, 100, below=1000 + HIGH)
    time.sleep(0.5)  # priorities are set asynchronously
    after, _ = learned_from(reading, samples_of, 300, below=1000 + HIGH)
    gate.set()
    assert np.mean(after[-800:] < 1000 + HIGH) > 0.9


def test_a_shard_that_never_answers_is_named_at_the_end(silent, caplog):
    _, updater = silent
    updater.put(np.array([5], np.uint64), np.ones(1))
    updater.stop()
    updater.join(time.monotonic() + 0.1)
    assert "replay at 10.0.0.1:7 does not take priority updates" in caplog.text


def test_a_priority_is_the_absolute_error_plus_the_least_priority():
    np.testing.assert_allclose(priorities_of(np.array([0.0, -2.0])), [LEAST_PRIORITY, 2.0 + LEAST_PRIORITY])


def test_importance_is_one_over_n_p():
    # Of N = 10 one sample has probability 1/2 and another 1/50.
    np.testing.assert_allclose(importance(np.array([0.5, 0.02]), np.array([10, 10])), [0.2, 5.0], rtol=1e-6)


def test_weights_have_mean_one_over_what_is_sampled():
    probability = np.array([0.5, 0.3, 0.2])
    assert np.sum(probability * importance(probability, np.full(3, 3))) == pytest.approx(1.0)
