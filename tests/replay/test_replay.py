"""Writers and readers against real Reverb servers."""

import logging
import socket
import subprocess
import sys
import threading
from collections import Counter

import numpy as np
import psutil
import pytest

from podzero.replay import PortTaken, ReplayTimeout, SignatureError, WrongServer, make_reader, make_writer
from podzero.types import Batch, Sample


def rows(batch: Batch) -> Sample:
    """The samples of a batch `[S, B, ...]` as `[S * B, ...]`."""
    return Sample(*(field.reshape(-1, *field.shape[2:]) for field in batch.samples))


def test_what_is_read_is_what_was_written(serve, connect, make_experiment, make_samples, spec):
    experiment = make_experiment()
    server = serve(experiment)
    connect(make_writer, experiment, server).write(make_samples(10, start=30))
    batch = next(connect(make_reader, experiment, server))
    assert batch.samples.observation.shape == (2, 4, *spec.observation_shape)
    for found in zip(*rows(batch), strict=True):
        number = int(found[-1])
        assert 30 <= number < 40
        for got, expected in zip(found, make_samples(1, number), strict=True):
            np.testing.assert_array_equal(got, expected[0])
            assert got.dtype == expected.dtype


def test_a_bundle_is_read_as_it_was_written_and_the_limiter_counts_its_samples(
    serve, connect, make_experiment, make_samples
):
    experiment = make_experiment(samples_per_item=4, samples_per_insert=2.0, tolerance=16)
    server = serve(experiment)
    writer, reader = connect(make_writer, experiment, server), connect(make_reader, experiment, server)
    writer.write(make_samples(16))  # error = 2 * 16 - 0 = 32, the most that is allowed
    writer.flush()
    assert server.limits()[1:3] == (16, 16)
    assert server.limits().insert_blocked
    items = rows(next(reader)).version.reshape(-1, 4)
    assert (items == items[:, :1] + np.arange(4)).all()
    assert (items[:, 0] % 4 == 0).all()
    assert server.limits().sampled >= 8


def test_wrong_samples_are_refused_before_anything_is_written(serve, connect, make_experiment, make_samples):
    experiment = make_experiment()
    server = serve(experiment)
    writer = connect(make_writer, experiment, server)
    samples = make_samples(5)
    with pytest.raises(SignatureError, match="value_target"):
        writer.write(samples._replace(value_target=np.full(5, np.nan, np.float32)))
    writer.flush()
    assert server.limits().inserted == 0


def test_inserts_beyond_the_ratio_wait_and_say_why(serve, connect, make_experiment, make_samples, caplog):
    experiment = make_experiment()  # error = 2 * inserted must stay within 32: 16 samples pass
    server = serve(experiment)
    writer = connect(make_writer, experiment, server)
    writer.write(make_samples(20))
    with caplog.at_level(logging.WARNING, "podzero"), pytest.raises(ReplayTimeout, match="actors wait for the learner"):
        writer.flush()
    assert "16 samples were inserted, the learner has taken only 0 of the 32" in caplog.text
    limits = server.limits()
    assert (limits.inserted, limits.insert_blocked, limits.sample_blocked) == (16, True, False)
    assert server.info()["replay/insert_blocked"] == 1


def test_held_inserts_go_on_when_the_learner_reads(serve, connect, make_experiment, make_samples):
    experiment = make_experiment(timeout_s=20)
    server = serve(experiment)
    writer = connect(make_writer, experiment, server)
    writer.write(make_samples(20))
    next(connect(make_reader, experiment, server))
    writer.flush()
    assert server.limits().inserted == 20


def test_a_reader_of_an_unfilled_table_waits_and_says_why(serve, connect, make_experiment, make_samples, caplog):
    experiment = make_experiment()
    server = serve(experiment)
    connect(make_writer, experiment, server).write(make_samples(5))
    reader = connect(make_reader, experiment, server)
    with caplog.at_level(logging.WARNING, "podzero"), pytest.raises(ReplayTimeout, match="5 of the 8 samples"):
        next(reader)
    assert "the learner has waited" in caplog.text


def test_nothing_sampled_is_lost_while_the_reader_starves(serve, connect, make_experiment, make_samples, monkeypatch):
    monkeypatch.setattr("podzero.replay.reader._REOPEN_MS", 20)  # the stream ends and is opened anew all the time
    experiment = make_experiment(samples_per_insert=1.0, tolerance=6, timeout_s=0.2)
    server = serve(experiment)
    writer, reader = connect(make_writer, experiment, server), connect(make_reader, experiment, server)
    writer.write(make_samples(8))
    delivered = timeouts = 0
    for number in range(8, 48):
        writer.write(make_samples(1, number))
        writer.flush()
        try:
            delivered += rows(next(reader)).version.size
        except ReplayTimeout:
            timeouts += 1
    assert timeouts > 10
    assert delivered % 8 == 0
    with pytest.raises(ReplayTimeout, match="used up"):
        next(reader)
    assert server.limits().sampled - delivered < 8  # all but an incomplete batch, which is still held


def test_closing_ends_a_read_that_waits(serve, connect, make_experiment):
    experiment = make_experiment(timeout_s=60)
    reader = connect(make_reader, experiment, serve(experiment))
    threading.Timer(0.3, reader.close).start()
    with pytest.raises(StopIteration):
        next(reader)


def test_a_writer_held_by_the_limiter_closes_at_once_and_says_what_it_drops(
    serve, connect, make_experiment, make_samples, caplog
):
    experiment = make_experiment()
    writer = connect(make_writer, experiment, serve(experiment))
    writer.write(make_samples(40))
    writer.close()
    assert "40 samples sent" in caplog.text


def test_samples_per_insert_is_kept_within_the_tolerance(serve, connect, make_experiment, make_samples):
    experiment = make_experiment(timeout_s=20)
    server = serve(experiment)
    writer, reader = connect(make_writer, experiment, server), connect(make_reader, experiment, server)
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
    # What the reader holds ahead is bounded; Reverb's server may take up to 64 items at once for it.
    assert 0 <= limits.sampled - read <= 40 + 64


def test_two_shards_are_written_and_read_in_equal_parts(serve, connect, make_experiment, make_samples):
    experiment = make_experiment(shards=2, min_size=400, tolerance=400, samples_per_insert=1.0)
    servers = [serve(experiment, shard) for shard in range(2)]
    writer = connect(make_writer, experiment, *servers)
    for start in range(0, 400, 10):
        writer.write(make_samples(10, start))
    writer.flush()
    assert [server.limits().size for server in servers] == [200, 200]
    reader = connect(make_reader, experiment, *servers)
    seen = Counter()
    for _ in range(10):
        seen.update((rows(next(reader)).version // 10 % 2).tolist())
    assert seen == {0: 40, 1: 40}


def test_an_odd_batch_is_shared_evenly_over_time(serve, connect, make_experiment, make_samples):
    experiment = make_experiment(shards=3, min_size=600, tolerance=600, samples_per_insert=1.0)
    servers = [serve(experiment, shard) for shard in range(3)]
    for shard, server in enumerate(servers):
        writer = connect(make_writer, experiment, server)
        writer.write(make_samples(200)._replace(version=np.full(200, shard, np.int32)))
        writer.flush()
    reader = connect(make_reader, experiment, *servers)
    seen = Counter()
    for _ in range(3):  # of 8 samples each
        seen.update(rows(next(reader)).version.tolist())
    assert seen == {0: 8, 1: 8, 2: 8}


def test_a_full_shard_does_not_keep_samples_from_the_others(serve, connect, make_experiment, make_samples):
    experiment = make_experiment(shards=2, tolerance=16, timeout_s=20)  # per shard: 8 samples pass unread
    full, empty = servers = [serve(experiment, shard) for shard in range(2)]
    filler = connect(make_writer, make_experiment(timeout_s=0.3), full)
    filler.write(make_samples(9))
    with pytest.raises(ReplayTimeout):
        filler.flush()
    writer = connect(make_writer, experiment, *servers)
    for start in range(3):
        writer.write(make_samples(2, start))
    writer.write(make_samples(2))
    assert empty.limits().size >= 4


def test_a_shard_that_is_gone_is_passed_over_and_used_again_when_it_is_back(
    serve, connect, make_experiment, make_samples, caplog, tmp_path, monkeypatch
):
    monkeypatch.setattr("podzero.replay.writer._LOOK_S", 0.01)
    experiment = make_experiment(shards=2, min_size=400, tolerance=400, samples_per_insert=1.0, timeout_s=30)
    lost, other = (serve(experiment, shard) for shard in range(2))
    writer = connect(make_writer, experiment, lost, other)
    for _ in range(2):
        writer.write(make_samples(4))
    writer.flush()
    folder, port = lost.checkpoint(tmp_path / "shard-0"), int(lost.address().split("#")[0].split(":")[1])
    lost.stop()
    for start in range(8):
        writer.write(make_samples(1, start))
    assert "does not answer; it is passed over" in caplog.text
    back = serve(make_experiment(**experiment.replay.model_dump() | {"port": port}), restore_from=folder)
    writer.flush()
    for start in range(40):
        writer.write(make_samples(1, start))
    writer.flush()
    assert back.limits().inserted + other.limits().inserted == 8 + 8 + 40
    assert back.limits().inserted > 10


def test_a_writer_without_any_shard_says_so(serve, connect, make_experiment):
    experiment = make_experiment()
    server = serve(experiment)
    server.stop()
    with pytest.raises(ReplayTimeout, match="no replay shard answers"):
        connect(make_writer, experiment, server)


def test_a_taken_port_is_refused(serve, make_experiment):
    with socket.socket() as holder:
        holder.bind(("", 0))
        holder.listen()
        port = holder.getsockname()[1]
        with pytest.raises(PortTaken, match=f"shard 0 cannot listen on port {port}.*replay.port"):
            serve(make_experiment(port=port))


def test_a_port_that_another_replay_server_holds_is_refused(serve, make_experiment):
    port = int(serve(make_experiment()).address().split("#")[0].split(":")[1])
    with pytest.raises(PortTaken):
        serve(make_experiment(port=port))


def test_another_server_at_the_address_is_noticed(serve, make_experiment, spec):
    experiment = make_experiment()
    endpoint = serve(experiment).address().split("#")[0]
    for make in (make_writer, make_reader):
        with pytest.raises(WrongServer, match=f"at {endpoint} answers"):
            make([f"{endpoint}#0123456789ab"], spec, experiment)


def test_a_table_of_another_game_is_noticed(serve, make_experiment, spec):
    experiment = make_experiment()
    address = serve(experiment).address()
    with pytest.raises(WrongServer, match="expected 'ring "):
        make_writer([address], spec._replace(name="ring"), experiment)


def test_a_malformed_address_is_refused(make_experiment, spec):
    with pytest.raises(ValueError, match="expected host:port#identity"):
        make_writer(["127.0.0.1:80"], spec, make_experiment())


def test_a_server_at_loopback_is_reached_from_this_machine_alone(serve, make_experiment, listening):
    before = listening([psutil.Process()])
    serve(make_experiment()).limits()
    after = listening([psutil.Process()])
    assert [addresses for port, addresses in after.items() if port not in before] == [[]]


def test_a_server_at_another_address_is_reached_there(serve, connect, make_experiment, make_samples, outward):
    experiment = make_experiment()
    server = serve(experiment, host=outward)
    assert server.address().startswith(f"{outward}:")
    connect(make_writer, experiment, server).write(make_samples(10))


def test_a_system_that_cannot_keep_a_server_to_loopback_is_told_of(serve, make_experiment, monkeypatch, caplog):
    monkeypatch.setattr(socket, "SO_BINDTODEVICE", -1)
    assert serve(make_experiment()).limits().size == 0
    assert "replay listens on all interfaces" in caplog.text


def test_the_oldest_samples_leave_at_capacity(serve, connect, make_experiment, make_samples):
    experiment = make_experiment(capacity=20, min_size=20, tolerance=40, timeout_s=20)  # 40 samples pass unread
    server = serve(experiment)
    writer = connect(make_writer, experiment, server)
    writer.write(make_samples(40))
    writer.flush()
    assert server.info()["replay/size"] == 20
    reader = connect(make_reader, experiment, server)
    seen = np.concatenate([rows(next(reader)).version for _ in range(6)])
    assert seen.min() >= 20


def test_a_prioritized_table_samples_in_proportion_to_priority(serve, connect, make_experiment, make_samples):
    experiment = make_experiment(
        sampler="prioritized", priority_exponent=1.0, min_size=400, samples_per_insert=8.0, tolerance=3200
    )
    server = serve(experiment)
    writer = connect(make_writer, experiment, server)
    priorities = np.where(np.arange(400) < 200, 3.0, 1.0)
    writer.write(make_samples(400), priorities)
    writer.flush()
    reader = connect(make_reader, experiment, server)
    seen = np.concatenate([rows(next(reader)).version for _ in range(250)])
    share = np.mean(seen < 200)
    assert abs(share - 0.75) < 0.05  # five standard deviations of 2,000 draws


@pytest.mark.parametrize("bad", [-1.0, np.nan, np.inf])
def test_priorities_that_would_wedge_the_table_are_refused(serve, connect, make_experiment, make_samples, bad):
    experiment = make_experiment(sampler="prioritized")
    server = serve(experiment)
    writer = connect(make_writer, experiment, server)
    with pytest.raises(SignatureError, match=r"priorities\[1\]: found .*expected finite numbers of at least 0"):
        writer.write(make_samples(3), np.array([1.0, bad, 1.0]))
    writer.flush()
    assert server.limits().inserted == 0


def test_importing_replay_imports_neither_reverb_nor_tensorflow():
    code = "import sys, podzero.replay; print({'reverb', 'tensorflow'} & set(sys.modules))"
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120, check=True)
    assert found.stdout.strip() == "set()"


def test_a_shard_that_comes_to_life_elsewhere_is_written_and_read_there(
    serve, connect, make_experiment, make_samples, caplog
):
    experiment = make_experiment(shards=2, timeout_s=30.0, min_size=80, samples_per_insert=8, tolerance=640)
    lost, other = serve(experiment, 0), serve(experiment, 1)
    writer = connect(make_writer, experiment, lost, other)
    reader = connect(make_reader, experiment, lost, other)
    for start in range(0, 80, 8):
        writer.write(make_samples(8, start))
        writer.flush()  # so that no shard is passed over because it is slow to answer
    next(reader)
    address = lost.address()
    lost.stop()
    caplog.set_level("INFO", "podzero")
    back = serve(experiment, 0)
    for door in (writer, reader):
        door.moved(address, back.address())
    for start in range(200, 280, 8):
        writer.write(make_samples(8, start))
        writer.flush()
    assert back.limits().inserted >= 40
    seen = np.concatenate([rows(next(reader)).version for _ in range(12)])
    assert np.mean(seen >= 200) > 0.4
    assert back.limits().sampled >= 12 * 4 - 16
    assert f"goes on at {back.address().partition('#')[0]}" in caplog.text


def test_a_shard_on_the_own_machine_is_written_to_while_it_accepts(serve, make_experiment, make_samples, spec):
    experiment = make_experiment(shards=2, timeout_s=20.0, min_size=16, tolerance=32)
    far, near = serve(experiment, 0), serve(experiment, 1)
    addresses = [far.address(), near.address()]
    writer = make_writer(addresses, spec, experiment, near=[near.address()])
    for start in range(12):
        writer.write(make_samples(1, start))
        writer.flush()
    assert (near.limits().inserted, far.limits().inserted) == (12, 0)
    for start in range(12, 24):  # (8 * 2 + 16) / 2 = 16 are what one shard's limiter lets pass
        writer.write(make_samples(1, start))
    assert far.limits().inserted > 0
    assert near.limits().inserted == 16
    writer.close()
