"""The three tables of a reanalysing experiment on real servers: samples, states, and reanalysed samples."""

from __future__ import annotations

import functools
import re
import threading
import time

import numpy as np
import pytest

from podzero.core.types import EnvSpec, StoredState
from podzero.replay import (
    REANALYSED,
    STATES,
    ShardedWriter,
    make_reader,
    make_state_reader,
)
from podzero.replay.errors import ReplayMismatch
from podzero.replay.shard import SAMPLES

REANALYSED_FROM = 1000
"""Samples with numbers from here on are reanalysed ones."""


@pytest.fixture
def spec():
    return EnvSpec("line", (3,), "float32", 4, state_bytes=8)


@pytest.fixture
def serve_all(serve, spec):
    return functools.partial(serve, spec=spec)


@pytest.fixture
def fill(connect):
    """Writes to a table of servers, and waits until they have confirmed it."""

    def write(table, experiment, servers, samples):
        writer = connect(functools.partial(ShardedWriter, table=table), experiment, *servers)
        writer.write(samples)
        writer.flush()

    return write


def reanalysing(make_experiment, share=0.5, **replay):
    return make_experiment(**replay, reanalyse={"share": share})


def numbered_states(count, start=0):
    number = np.arange(start, start + count)
    return StoredState(
        state=number[:, None].astype(np.uint64).view(np.uint8),
        outcome=np.where(number % 2, 1.0, -1.0).astype(np.float32),
        lambda_return=(number / 1024).astype(np.float32),
        truncated=number % 3 == 0,
        version=number.astype(np.int32),
    )


def test_states_are_read_as_they_were_written(serve_all, connect, fill, make_experiment):
    experiment = reanalysing(make_experiment, samples_per_item=2)
    server = serve_all(experiment)
    fill(STATES, experiment, [server], numbered_states(300))
    reader = connect(make_state_reader, experiment, server)
    for states in (next(reader) for _ in range(5)):
        assert isinstance(states, StoredState)
        assert states.state.shape == (4, 8)
        np.testing.assert_array_equal(states.state.view(np.uint64)[:, 0], states.version)
        np.testing.assert_array_equal(states.outcome, np.where(states.version % 2, 1.0, -1.0))
        np.testing.assert_array_equal(states.lambda_return, states.version / 1024)
    assert server.limits(SAMPLES).inserted == server.limits(REANALYSED).inserted == 0


@pytest.mark.parametrize(("share", "reanalysed"), [(0.01, 1), (0.3, 1), (0.5, 2), (0.99, 3)])
def test_every_batch_holds_its_share_of_reanalysed_samples(
    serve_all, connect, fill, make_experiment, make_samples, share, reanalysed, samples_of
):
    experiment = reanalysing(make_experiment, share, samples_per_insert=8.0, min_size=16, tolerance=128)
    server = serve_all(experiment)
    fill(SAMPLES, experiment, [server], make_samples(16))
    fill(REANALYSED, experiment, [server], make_samples(experiment.reanalysed_min_size, start=REANALYSED_FROM))
    reader = connect(make_reader, experiment, server)
    for _ in range(3):
        version = samples_of(next(reader)).version
        assert version.shape == (2, 4)
        np.testing.assert_array_equal((version >= REANALYSED_FROM).sum(axis=1), [reanalysed] * 2)


def test_the_learner_waits_for_the_missing_table_and_keeps_samples_of_the_other(
    serve_all, connect, fill, make_experiment, make_samples, waits, samples_of
):
    experiment = reanalysing(make_experiment)
    server = serve_all(experiment)
    fill(SAMPLES, experiment, [server], make_samples(8))
    reader, read, sampled = connect(make_reader, experiment, server), [], []

    def reanalyse():
        sampled.append(server.limits(SAMPLES).sampled)
        fill(REANALYSED, experiment, [server], make_samples(8, start=REANALYSED_FROM))

    message = waits(lambda: read.append(next(reader)), end=reanalyse)
    assert re.search("reanalysed samples .*the reanalysers", message)
    assert (samples_of(read[0]).version < REANALYSED_FROM).sum() == 4
    assert server.limits(SAMPLES).sampled <= sampled[0] + 4  # at most what is prefetched after a read


def test_each_table_keeps_its_own_ratio(serve_all, fill, connect, make_experiment, make_samples):
    """2 samples per insert: 27 dispatches of 2 x (2 + 2) samples take 108 from each table, of 60 inserts."""
    experiment = reanalysing(make_experiment, tolerance=12)
    server = serve_all(experiment)
    threads = [
        threading.Thread(target=fill, args=(table, experiment, [server], make_samples(60)))
        for table in (SAMPLES, REANALYSED)
    ]
    for thread in threads:
        thread.start()
    reader = connect(make_reader, experiment, server)
    for _ in range(27):
        next(reader)
    for thread in threads:
        thread.join()
    for table in (SAMPLES, REANALYSED):
        limits = server.limits(table)
        assert limits.inserted == 60
        assert limits.sampled >= 108
        assert limits.settings.min_diff <= 120 - limits.sampled <= limits.settings.max_diff


def test_priorities_are_set_in_the_table_that_a_sample_is_from(
    serve_all, connect, fill, make_experiment, make_samples, samples_of
):
    experiment = reanalysing(
        make_experiment, sampler="prioritized", priority_exponent=1.0, shards=2, min_size=40, tolerance=2560,
        samples_per_insert=64.0,
    )  # fmt: skip
    servers = [serve_all(experiment, shard) for shard in range(2)]
    for index, server in enumerate(servers):
        fill(SAMPLES, experiment, [server], make_samples(20, start=100 * index))
        fill(REANALYSED, experiment, [server], make_samples(20, start=REANALYSED_FROM + 100 * index))
    reader = connect(make_reader, experiment, *servers)

    def learn(batches):
        versions = []
        for _ in range(batches):
            batch = next(reader)
            version = samples_of(batch).version
            fresh, shard = version < REANALYSED_FROM, version % REANALYSED_FROM // 100
            np.testing.assert_array_equal(batch.keys.shard, np.where(fresh, shard, 2 + shard))
            reader.update_priorities(batch.keys, np.where(version % 100 == 7, 500.0, 0.0))
            versions.append(version.ravel())
        return np.concatenate(versions)

    learn(60)
    time.sleep(0.5)  # priorities are set asynchronously
    late = learn(100)[-200:]
    for fresh in (True, False):
        chosen = late[(late < REANALYSED_FROM) == fresh]
        assert len(chosen) == 100
        assert np.mean(chosen % 100 == 7) > 0.8


def test_an_empty_shard_does_not_delay_a_reanalyser(serve_all, connect, fill, make_experiment):
    experiment = reanalysing(make_experiment, shards=2, min_size=16, tolerance=32)
    servers = [serve_all(experiment, shard) for shard in range(2)]
    fill(STATES, experiment, servers[1:], numbered_states(40, start=100))
    reader = connect(make_state_reader, experiment, *servers)
    assert next(reader).version.min() >= 100
    fill(STATES, experiment, servers[:1], numbered_states(40))
    seen = np.concatenate([next(reader).version for _ in range(120)])
    assert 0.3 < np.mean(seen < 100) < 0.6


def test_a_reanalyser_reads_as_many_states_as_an_actor_plays_in_whole_items(serve_all, connect, fill, make_experiment):
    experiment = reanalysing(make_experiment, samples_per_item=8, min_size=16, tolerance=32)  # with 4 games
    server = serve_all(experiment)
    fill(STATES, experiment, [server], numbered_states(16))
    assert next(connect(make_state_reader, experiment, server)).version.shape == (8,)


@pytest.mark.parametrize("others", [0, 1])
def test_a_shard_restarted_elsewhere_is_read_there(serve_all, connect, fill, make_experiment, others):
    """Also where another shard has samples enough, so that nothing is waited for."""
    experiment = reanalysing(make_experiment, shards=1 + others, min_size=16, tolerance=32)
    lost, *rest = [serve_all(experiment, shard) for shard in range(1 + others)]
    for number, server in enumerate((lost, *rest)):
        fill(STATES, experiment, [server], numbered_states(20, start=1000 * number))
    addresses = [server.address() for server in (lost, *rest)]
    reader = connect(make_state_reader, experiment, addresses=addresses)
    next(reader)
    lost.stop()
    back = serve_all(experiment)
    fill(STATES, experiment, [back], numbered_states(20, start=100))
    addresses[0] = back.address()
    deadline = time.monotonic() + 20
    while not set(next(reader).version) & set(range(100, 120)):
        assert time.monotonic() < deadline


def test_a_checkpoint_restores_all_tables(
    serve_all, connect, fill, make_experiment, make_samples, tmp_path, samples_of
):
    experiment = reanalysing(make_experiment)
    server = serve_all(experiment)
    fill(SAMPLES, experiment, [server], make_samples(8))
    fill(STATES, experiment, [server], numbered_states(12))
    fill(REANALYSED, experiment, [server], make_samples(6, start=REANALYSED_FROM))
    folder = server.checkpoint(tmp_path / "shard-0")
    server.stop()
    back = serve_all(experiment, restore_from=folder)
    assert {name: back.limits(name).size for name in (SAMPLES, STATES, REANALYSED)} == {
        SAMPLES: 8,
        STATES: 12,
        REANALYSED: 6,
    }
    assert back.info()["states/size"] == 12
    assert back.info()["reanalysed/inserted"] == 6
    np.testing.assert_array_less(next(connect(make_state_reader, experiment, back)).version, 12)
    version = samples_of(next(connect(make_reader, experiment, back))).version
    assert ((version >= REANALYSED_FROM).sum(axis=1) == 2).all()


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (
            {"share": 0.0},
            r"holds the tables samples, states, reanalysed; this experiment needs samples \(reanalyse.share\)",
        ),
        (
            {"share": 0.5, "capacity": 50},
            r"table reanalysed, was written with other settings.*capacity 20000 \(now 50\)",
        ),
    ],
)
def test_a_checkpoint_of_other_tables_is_refused(serve_all, make_experiment, tmp_path, change, words):
    server = serve_all(reanalysing(make_experiment))
    folder = server.checkpoint(tmp_path / "shard-0")
    server.stop()
    with pytest.raises(ReplayMismatch, match=words):
        serve_all(make_experiment(reanalyse=change), restore_from=folder)
