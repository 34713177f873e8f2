"""Writers against real Reverb servers."""

import functools
import logging
import re
import threading
import time
from types import SimpleNamespace

import numpy as np
import psutil
import pytest

from podzero.envs import sample_packing
from podzero.replay import ShardedWriter, SignatureError, make_reader, shard
from podzero.replay import writer as writer_module
from podzero.replay.shard import Shard
from podzero.replay.writer import _Connection


def test_wrong_samples_are_refused_before_anything_is_written(serve, connect, make_experiment, make_samples):
    experiment = make_experiment()
    server = serve(experiment)
    writer = connect(ShardedWriter, experiment, server)
    samples = make_samples(5)
    with pytest.raises(SignatureError, match="value_target"):
        writer.write(samples._replace(value_target=np.full(5, np.nan, np.float32)))
    writer.flush()
    assert server.limits().inserted == 0


@pytest.fixture
def lenient(serve, connect, make_experiment):
    """A server whose limiter blocks no insert, and a writer that leaves out and counts what it refuses."""
    experiment = make_experiment(capacity=100_000, min_size=5000)
    server = serve(experiment)
    return server, connect(functools.partial(ShardedWriter, lenient=True), experiment, server)


def refused(samples):
    return samples._replace(value_target=np.full_like(samples.value_target, np.nan))


def test_a_lenient_writer_leaves_out_refused_samples_and_counts_them(lenient, make_samples, caplog):
    server, writer = lenient
    for number in range(5):
        samples = make_samples(8, 8 * number)
        writer.write(refused(samples) if number % 2 else samples)
    writer.flush()
    assert server.limits().inserted == 24
    assert writer.metrics() == {
        "count/samples/made": 40.0, "count/samples/refused/number": 16.0, "count/samples/confirmed": 24.0
    }  # fmt: skip
    assert writer.metrics() == {}
    assert "value_target[0]: found nan" in caplog.text


def test_a_lenient_writer_fails_where_everything_is_refused(lenient, make_samples):
    _, writer = lenient
    for attempt in range(2 * writer_module.MOST_REFUSED):
        samples = make_samples(8)
        writer.write(refused(samples) if attempt % writer_module.MOST_REFUSED else samples)
    writer.write(make_samples(8))
    for _ in range(writer_module.MOST_REFUSED - 1):
        writer.write(refused(make_samples(8)))
    with pytest.raises(SignatureError, match="found nan"):
        writer.write(refused(make_samples(8)))


def test_packed_rows_are_written_and_a_corrupted_one_never_reaches_the_table(
    serve, connect, make_experiment, make_samples, samples_of, spec, caplog
):
    experiment = make_experiment(samples_per_item=2, tolerance=32, min_size=16)
    server, packing = serve(experiment), sample_packing(experiment, spec)
    writer = connect(functools.partial(ShardedWriter, lenient=True), experiment, server)
    rows = packing.pack(make_samples(20))
    rows[3] ^= 0xFF
    writer.write(rows)
    writer.flush()
    assert server.limits().inserted == 18
    assert writer.metrics()["count/samples/refused/bytes"] == 2, "the row, and one that fills no item"
    assert "1 of 20 rows do not decode" in caplog.text
    reader = connect(make_reader, experiment, server)
    read = {int(number) for _ in range(4) for number in samples_of(next(reader)).version.ravel()}
    assert read <= set(range(19)) - {3}


def test_a_writer_whose_rows_are_all_corrupted_fails(lenient, make_samples, make_experiment, spec):
    server, writer = lenient
    rows = sample_packing(make_experiment(), spec).pack(make_samples(8)) ^ 0xFF
    for _ in range(writer_module.MOST_REFUSED - 1):
        writer.write(rows)
    with pytest.raises(SignatureError, match="do not decode"):
        writer.write(rows)
    assert server.limits().inserted == 0


def test_inserts_beyond_the_ratio_wait_until_the_learner_reads_and_the_message_says_why(
    serve, connect, make_experiment, make_samples, waits
):
    experiment = make_experiment()  # error = 2 * inserted must stay within 32: 16 samples pass
    server = serve(experiment)
    writer = connect(ShardedWriter, experiment, server)
    writer.write(make_samples(20))

    def read():
        limits = server.limits()
        assert (limits.inserted, limits.insert_blocked, limits.sample_blocked) == (16, True, False)
        assert server.info()["replay/insert_blocked"] == 1
        next(connect(make_reader, experiment, server))

    message = waits(writer.flush, end=read)
    assert "actors wait for the learner" in message
    assert "16 samples were inserted, the learner has sampled only 0 of the 32" in message
    assert server.limits().inserted == 20


def test_a_writer_blocked_by_the_limiter_closes_at_once_and_logs_what_it_drops(
    serve, connect, make_experiment, make_samples, caplog
):
    experiment = make_experiment()
    writer = connect(ShardedWriter, experiment, serve(experiment))
    writer.write(make_samples(40))
    writer.close()
    (dropped,) = re.findall(r"(\d+) samples sent", caplog.text)
    assert 24 <= int(dropped) <= 40  # the limiter lets 16 pass, of which the last may not have been confirmed


def test_a_writer_that_is_stopping_drops_what_would_have_to_wait(serve, connect, make_experiment, make_samples, caplog):
    caplog.set_level(logging.DEBUG, "podzero")
    experiment, stopping = make_experiment(), threading.Event()
    server = serve(experiment)
    writer = connect(ShardedWriter, experiment, server)
    writing = threading.Thread(target=writer.write, args=(make_samples(400), None, stopping))
    writing.start()
    while not server.limits().insert_blocked:
        time.sleep(0.01)
    assert writing.is_alive()
    stopping.set()
    writing.join(10.0)
    assert not writing.is_alive()
    (dropped,) = re.findall(r"dropped (\d+) samples", caplog.text)
    assert 400 - 256 <= int(dropped) < 400


def test_a_full_shard_does_not_block_writes_to_the_others(serve, connect, make_experiment, make_samples):
    experiment = make_experiment(shards=2, tolerance=16)  # per shard: 8 samples pass unread
    full, empty = servers = [serve(experiment, shard) for shard in range(2)]
    connect(ShardedWriter, make_experiment(), full).write(make_samples(9))
    while not full.limits().insert_blocked:
        time.sleep(0.01)
    writer = connect(ShardedWriter, experiment, *servers)
    for start in range(3):
        writer.write(make_samples(2, start))
    writer.write(make_samples(2))
    assert empty.limits().size >= 4


def test_a_lost_shard_is_skipped_and_used_again_when_it_is_back(
    serve, connect, make_experiment, make_samples, caplog, tmp_path, monkeypatch
):
    monkeypatch.setattr("podzero.replay.writer.PROBE_S", 0.01)
    monkeypatch.setattr("podzero.replay.writer._RESUME_S", 0.01)
    experiment = make_experiment(shards=2, min_size=400, tolerance=400, samples_per_insert=1.0)
    lost, other = (serve(experiment, shard) for shard in range(2))
    addresses = [lost.address(), other.address()]
    writer = connect(ShardedWriter, experiment, addresses=addresses)
    for _ in range(2):
        writer.write(make_samples(4))
    writer.flush()
    folder, port = lost.checkpoint(tmp_path / "shard-0"), int(lost.address().split("#")[0].split(":")[1])
    lost.stop()
    written = 8
    while "does not answer; it is skipped" not in caplog.text:
        assert written < 200
        writer.write(make_samples(1, written))
        written += 1
        time.sleep(0.01)
    back = serve(make_experiment(**experiment.replay.model_dump() | {"port": port}), restore_from=folder)
    addresses[0] = back.address()
    writer.flush()
    while back.limits().inserted <= 10:
        writer.write(make_samples(1, written))
        writer.flush()
        written += 1
    assert back.limits().inserted + other.limits().inserted == written


def test_a_writer_that_reaches_no_shard_waits_for_one(
    serve, connect, make_experiment, make_samples, caplog, tmp_path, monkeypatch
):
    monkeypatch.setattr("podzero.replay.writer.PROBE_S", 0.01)
    monkeypatch.setattr("podzero.replay.writer._RESUME_S", 0.01)
    experiment = make_experiment()
    server = serve(experiment)
    folder, port = server.checkpoint(tmp_path / "shard-0"), int(server.address().split("#")[0].split(":")[1])
    server.stop()
    addresses = [server.address()]
    writer = connect(ShardedWriter, experiment, addresses=addresses)
    writing = threading.Thread(target=writer.write, args=(make_samples(4),), daemon=True)
    writing.start()
    while "samples have waited" not in caplog.text:
        time.sleep(0.05)
    back = serve(make_experiment(**experiment.replay.model_dump() | {"port": port}), restore_from=folder)
    addresses[0] = back.address()
    writing.join(60)
    writer.flush()
    assert back.limits().inserted == 4


def test_a_blocked_writer_waits_without_spinning(serve, connect, make_experiment, make_samples, monkeypatch):
    experiment, stopping = make_experiment(), threading.Event()
    writer = connect(ShardedWriter, experiment, serve(experiment))
    asked, ready = [], _Connection.ready
    monkeypatch.setattr(_Connection, "ready", lambda connection: asked.append(0) or ready(connection))
    threading.Timer(1.0, stopping.set).start()
    writer.write(make_samples(1000), None, stopping)
    assert 10 < len(asked) < 200  # one second has 50 times 20 ms


def test_a_shard_that_hangs_is_asked_for_a_small_share_of_the_time(
    serve, connect, make_experiment, make_samples, real_server, monkeypatch
):
    """Each question takes 0.3 s, which the healthy shard lacks."""
    monkeypatch.setattr(shard, "ANSWER_S", 0.3)
    monkeypatch.setattr(writer_module, "PROBE_S", 0.1)
    experiment = make_experiment(shards=2, capacity=4_000_000, min_size=2_000_000, tolerance=4_000_000)
    hanging, healthy = servers = [serve(experiment, number) for number in range(2)]
    writer = connect(ShardedWriter, experiment, *servers)
    (process,) = [child for child in psutil.Process().children(recursive=True) if listens(child, hanging)]
    process.suspend()
    asked, ask, began = [], Shard.limits, time.monotonic()
    monkeypatch.setattr(Shard, "limits", lambda shard: asked.append(shard.address.endpoint) or ask(shard))
    try:
        while time.monotonic() - began < 3:
            writer.write(make_samples(64))
    finally:
        process.resume()
    assert healthy.limits().inserted > 64
    assert 1 <= asked.count(hanging.address().partition("#")[0]) <= 2


@pytest.fixture
def faked(monkeypatch):
    """Makes a connection, to a shard with these `limits`, whose stream never has room or confirms anything."""
    stream = SimpleNamespace(pending=3, broken=False, wait=lambda s, at_most: False)
    monkeypatch.setattr(writer_module, "InsertStream", lambda *_: stream)
    table = SimpleNamespace(name="samples", signature=SimpleNamespace(item_bytes=8, samples_per_item=1))
    address = shard.Address("10.0.0.1:7", "1234")

    def make(limits):
        return _Connection(0, SimpleNamespace(limits=limits, connection=None, table=table, address=address), True, ())

    return make


@pytest.mark.parametrize("answers", ["ready", "settled"])
def test_a_shard_that_is_back_has_not_confirmed_what_was_sent_before(monkeypatch, faked, answers):
    monkeypatch.setattr(writer_module, "_RESUME_S", 0.0)
    away_once = iter([None, "its limits"])
    connection = faked(lambda: next(away_once))
    assert not getattr(connection, answers)()
    assert connection.alive


def test_a_shard_is_asked_again_soon_after_the_machine_stood_still(monkeypatch, faked):
    now, asked = [0.0], []
    monkeypatch.setattr(writer_module.time, "monotonic", lambda: now[0])

    def limits():
        asked.append(now[0])
        now[0] += 180.0 if len(asked) == 2 else 2.0

    connection = faked(limits)
    for _ in range(300):
        now[0] += 1.0
        connection.ready()
    assert asked[1] < 30
    assert asked[2] - asked[1] < 180 + 40
    assert max(np.diff(asked[2:])) < 40


def listens(process, server):
    port = int(server.address().partition("#")[0].rpartition(":")[2])
    return any(socket.laddr.port == port for socket in process.net_connections() if socket.status == "LISTEN")


@pytest.mark.parametrize("bad", [-1.0, np.nan, np.inf])
def test_negative_or_infinite_priorities_are_refused(serve, connect, make_experiment, make_samples, bad):
    experiment = make_experiment(sampler="prioritized")
    server = serve(experiment)
    writer = connect(ShardedWriter, experiment, server)
    with pytest.raises(SignatureError, match=r"priorities\[1\]: .*finite"):
        writer.write(make_samples(3), np.array([1.0, bad, 1.0]))
    writer.flush()
    assert server.limits().inserted == 0


def test_a_shard_on_the_same_node_is_written_to_while_it_accepts(serve, make_experiment, make_samples, spec):
    experiment = make_experiment(shards=2, min_size=16, tolerance=32)
    far, near = serve(experiment, 0), serve(experiment, 1)
    addresses = [far.address().replace("127.0.0.1", "localhost"), near.address()]
    writer = ShardedWriter(lambda: addresses, spec, experiment, near="127.0.0.1")
    for start in range(12):
        writer.write(make_samples(1, start))
        writer.flush()
    assert (near.limits().inserted, far.limits().inserted) == (12, 0)
    for start in range(12, 24):  # (8 * 2 + 16) / 2 = 16 are what one shard's limiter lets pass
        writer.write(make_samples(1, start))
    assert far.limits().inserted > 0
    assert near.limits().inserted == 16
    writer.close()
