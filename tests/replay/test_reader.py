"""Readers against real Reverb servers."""

import logging
import re
import threading
import time
from collections import Counter

import jax
import numpy as np
import pytest

from podzero.replay import ShardedWriter, make_reader


@pytest.fixture
def rows(samples_of):
    """The samples of a batch `[S, B, ...]` as `[S * B, ...]`."""
    return lambda batch: jax.tree.map(lambda field: field.reshape(-1, *field.shape[2:]), samples_of(batch))


def test_what_is_read_is_what_was_written(serve, connect, make_experiment, make_samples, spec, samples_of, rows):
    experiment = make_experiment()
    server = serve(experiment)
    connect(ShardedWriter, experiment, server).write(make_samples(10, start=30))
    batch = next(connect(make_reader, experiment, server))
    assert samples_of(batch).observation.shape == (2, 4, *spec.observation_shape)
    found = rows(batch)
    for row, number in enumerate(found.version.tolist()):
        assert 30 <= number < 40
        for got, expected in zip(jax.tree.leaves(found), jax.tree.leaves(make_samples(1, number)), strict=True):
            np.testing.assert_array_equal(got[row], expected[0])
            assert got.dtype == expected.dtype


def test_an_item_is_read_as_it_was_written_and_the_limiter_counts_its_samples(
    serve, connect, make_experiment, make_samples, rows
):
    experiment = make_experiment(samples_per_item=4, samples_per_insert=2.0, tolerance=16)
    server = serve(experiment)
    writer = connect(ShardedWriter, experiment, server)
    writer.write(make_samples(16))  # error = 2 * 16 - 0 = 32, the most that is allowed
    writer.flush()
    assert server.limits()[1:3] == (16, 16)
    assert server.limits().insert_blocked
    reader = connect(make_reader, experiment, server)
    items = rows(next(reader)).version.reshape(-1, 4)
    assert (items == items[:, :1] + np.arange(4)).all()
    assert (items[:, 0] % 4 == 0).all()
    assert server.limits().sampled >= 8


def test_a_reader_of_a_shard_that_is_gone_says_that_the_driver_restarts_it(
    serve, connect, make_experiment, make_samples, waits
):
    experiment, stopping = make_experiment(), threading.Event()
    server = serve(experiment)
    reader, writer = connect(make_reader, experiment, server), connect(ShardedWriter, experiment, server)
    server.stop()
    message = r"replay at 127\.0\.0\.1:\d+ does not answer; if it is gone, the driver is restarting it"
    assert re.search(message, waits(lambda: next(reader, None), end=reader.close))
    assert re.search(message, waits(lambda: writer.write(make_samples(100), None, stopping), end=stopping.set))


def test_a_reader_of_an_unfilled_table_waits_and_the_message_says_why(
    serve, connect, make_experiment, make_samples, waits
):
    experiment = make_experiment()
    server = serve(experiment)
    connect(ShardedWriter, experiment, server).write(make_samples(5))
    reader = connect(make_reader, experiment, server)
    message = waits(lambda: next(reader, None), end=reader.close)
    assert "the learner has waited" in message
    assert "5 of the 8 samples" in message


def test_nothing_sampled_is_lost_while_the_reader_starves(
    serve, connect, make_experiment, make_samples, monkeypatch, waits, rows
):
    monkeypatch.setattr("podzero.replay.wire._BLOCKED_MS", 20)  # the stream is opened anew all the time
    experiment = make_experiment(samples_per_insert=1.0, tolerance=6)
    server = serve(experiment)
    writer, reader = connect(ShardedWriter, experiment, server), connect(make_reader, experiment, server)
    delivered = []

    def read():
        for batch in reader:
            delivered.append(rows(batch).version.size)

    def write_and_let_it_starve_again():
        for number in range(48):
            writer.write(make_samples(1, number))
            writer.flush()
            time.sleep(0.05)
        sampled.append(at_rest([server]))
        # What the server has sent, a busy machine may deliver later.
        until = time.monotonic() + 10.0
        while sampled[0] - sum(delivered) >= 8 and time.monotonic() < until:
            time.sleep(0.02)
        reader.close()

    sampled = []
    waits(read, end=write_and_let_it_starve_again)
    assert len(delivered) > 3
    assert 0 <= sampled[0] - sum(delivered) < 8  # all but an incomplete batch, which is still held


def test_closing_ends_a_waiting_read(serve, connect, make_experiment):
    experiment = make_experiment()
    reader = connect(make_reader, experiment, serve(experiment))
    threading.Timer(0.3, reader.close).start()
    with pytest.raises(StopIteration):
        next(reader)


def test_samples_per_insert_is_kept_within_the_tolerance(serve, connect, make_experiment, make_samples, rows):
    experiment = make_experiment()
    server = serve(experiment)
    writer, reader = connect(ShardedWriter, experiment, server), connect(make_reader, experiment, server)
    total = 600

    def write():
        for start in range(0, total, 20):
            writer.write(make_samples(20, start))
        writer.flush()

    thread = threading.Thread(target=write)
    thread.start()
    read = 0
    while thread.is_alive() and read < 2 * total:
        read += rows(next(reader)).version.size
    thread.join()
    limits = server.limits()
    assert limits.inserted == total
    assert 0 <= 2 * limits.inserted - limits.sampled <= 32
    # One read and two items, and a twentieth of the 2,000 drawn while the table is replaced; see `make_reader`.
    assert 0 <= limits.sampled - read < 8 + 2 + 100


@pytest.mark.parametrize(("shards", "samples_per_item"), [(1, 1), (1, 4), (2, 1), (2, 4)])
def test_less_than_a_read_and_two_items_of_each_shard_are_sampled_ahead(
    serve, connect, make_experiment, make_samples, shards, samples_per_item
):
    """One read is 8 samples."""
    experiment = make_experiment(
        shards=shards, samples_per_item=samples_per_item, min_size=16, samples_per_insert=100, tolerance=1600
    )
    servers = [serve(experiment, shard) for shard in range(shards)]
    for server in servers:
        connect(ShardedWriter, experiment, server).write(make_samples(16))
    reader = connect(make_reader, experiment, *servers)
    for reads in range(1, 4):
        next(reader)
        assert 0 <= at_rest(servers) - 8 * reads < 8 + 2 * samples_per_item * shards


def test_a_fast_reader_is_read_ahead_for_at_most_a_twentieth_of_what_replaces_the_table(
    serve, connect, make_experiment, make_samples
):
    """100 samples are drawn 10 times until they are replaced."""
    experiment = make_experiment(capacity=100, min_size=100, samples_per_insert=10, tolerance=1000)
    server = serve(experiment)
    connect(ShardedWriter, experiment, server).write(make_samples(100))
    reader = connect(make_reader, experiment, server)
    for _ in range(20):
        next(reader)
    assert 8 < at_rest([server]) - 8 * 20 <= 8 + 50


def at_rest(servers):
    """Samples given out by the servers, once the number has stopped changing."""
    last, sampled = -1, 0
    while sampled != last:
        time.sleep(0.3)
        last, sampled = sampled, sum(server.limits().sampled for server in servers)
    return sampled


def test_two_shards_are_written_and_read_in_equal_parts(serve, connect, make_experiment, make_samples, rows):
    experiment = make_experiment(shards=2, min_size=400, tolerance=400, samples_per_insert=1.0)
    servers = [serve(experiment, shard) for shard in range(2)]
    writer = connect(ShardedWriter, experiment, *servers)
    for start in range(0, 400, 10):
        writer.write(make_samples(10, start))
        writer.flush()  # a shard that has not confirmed yet is skipped
    assert [server.limits().size for server in servers] == [200, 200]
    reader = connect(make_reader, experiment, *servers)
    seen = Counter()
    for _ in range(10):
        seen.update((rows(next(reader)).version // 10 % 2).tolist())
    assert seen == {0: 40, 1: 40}


def test_shards_give_equal_parts_of_several_odd_batches(serve, connect, make_experiment, make_samples, rows):
    experiment = make_experiment(shards=3, min_size=600, tolerance=600, samples_per_insert=1.0)
    servers = [serve(experiment, shard) for shard in range(3)]
    for shard, server in enumerate(servers):
        writer = connect(ShardedWriter, experiment, server)
        writer.write(make_samples(200)._replace(version=np.full(200, shard, np.int32)))
        writer.flush()
    reader = connect(make_reader, experiment, *servers)
    seen = Counter()
    for _ in range(3):  # of 8 samples each
        seen.update(rows(next(reader)).version.tolist())
    assert seen == {0: 8, 1: 8, 2: 8}


def test_a_shard_restarted_elsewhere_is_written_and_read_there(
    serve, connect, make_experiment, make_samples, caplog, rows
):
    experiment = make_experiment(shards=2, min_size=80, samples_per_insert=8, tolerance=640)
    lost, other = serve(experiment, 0), serve(experiment, 1)
    addresses = [lost.address(), other.address()]
    writer = connect(ShardedWriter, experiment, addresses=addresses)
    reader = connect(make_reader, experiment, addresses=addresses)
    for start in range(0, 80, 8):
        writer.write(make_samples(8, start))
        writer.flush()  # so that no shard is skipped because it is slow to answer
    next(reader)
    lost.stop()
    caplog.set_level("INFO", "podzero")
    back = serve(experiment, 0)
    addresses[0] = back.address()
    for start in range(200, 280, 8):
        writer.write(make_samples(8, start))
        writer.flush()
    assert back.limits().inserted >= 40
    seen = np.concatenate([rows(next(reader)).version for _ in range(12)])
    assert np.mean(seen >= 200) > 0.4
    assert back.limits().sampled >= 12 * 4 - 16
    assert f"was restarted at {back.address().partition('#')[0]}" in caplog.text


def test_a_read_waits_until_actors_write(serve, connect, make_experiment, make_samples, caplog, rows):
    experiment = make_experiment()
    server = serve(experiment)
    writer, reader = connect(ShardedWriter, experiment, server), connect(make_reader, experiment, server)
    writer.write(make_samples(5))
    caplog.set_level(logging.WARNING, "podzero")

    def write_after_two_messages():
        while len(caplog.messages) < 2:
            time.sleep(0.05)
        writer.write(make_samples(5))

    writing = threading.Thread(target=write_after_two_messages, daemon=True)
    writing.start()
    assert rows(next(reader)).version.size == 8
    writing.join()
    for message in caplog.messages[:2]:
        assert "replay holds 5 of the 8 samples that the learner starts from" in message
        assert "the learner has waited" in message
        assert "since" in message


def test_a_shard_that_is_away_when_a_reader_is_made_is_read_once_it_is_back(
    serve, connect, make_experiment, make_samples, tmp_path, caplog, rows
):
    experiment = make_experiment()
    server = serve(experiment)
    writer = connect(ShardedWriter, experiment, server)
    writer.write(make_samples(16))
    writer.flush()
    folder, port = server.checkpoint(tmp_path / "shard-0"), int(server.address().split("#")[0].split(":")[1])
    server.stop()
    addresses, read = [server.address()], []
    reader = connect(make_reader, experiment, addresses=addresses)
    reading = threading.Thread(target=lambda: read.append(next(reader)), daemon=True)
    reading.start()
    while "the learner has waited" not in caplog.text:
        time.sleep(0.05)
    back = serve(make_experiment(**experiment.replay.model_dump() | {"port": port}), restore_from=folder)
    addresses[0] = back.address()
    reading.join(60)
    assert rows(read[0]).version.size == 8
