"""The wire client and Reverb's own client at one server: each reads what the other wrote, byte for byte."""

import queue
import secrets
import socket
from collections import Counter
from contextlib import closing

import grpc
import numpy as np
import pytest

from podzero.replay import reverb_pb2 as pb
from podzero.replay import server_python
from podzero.replay.errors import RequestRefused
from podzero.replay.process import ServerProcess
from podzero.replay.wire import Connection, Inserter, InsertStream, SampleStream

SIZE = 33
RATIO = {"samples_per_insert": 2.0, "min_size_to_sample": 4, "error_buffer": [0.0, 40.0]}


def table(name, priority_exponent=None, limiter=None, max_size=1000):
    return {
        "name": name, "max_size": max_size, "signature": {"rows": [SIZE]},
        "priority_exponent": priority_exponent, "limiter": limiter,
    }  # fmt: skip


# Reverb's own client samples ahead, and its last request outlives it at the server for a while: it would take what
# another test is to get. So each test in which it reads from a table with such a limiter has one of its own.
OWN = ("limited-1", "limited-4", "counted")
TABLES = [
    table("uniform"), table("prioritized", 1.0), table("limited", limiter=RATIO), table("small", max_size=6),
    *(table(name, limiter=RATIO) for name in OWN),
]  # fmt: skip


def free_port():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def start(folder, port, restore=None):
    wanted = {"port": port, "loopback": True, "checkpoints": str(folder), "restore": restore, "tables": TABLES}
    return ServerProcess(server_python(), wanted, 120)


@pytest.fixture(scope="module")
def endpoint(tmp_path_factory):
    port = free_port()
    server = start(tmp_path_factory.mktemp("checkpoints"), port)
    yield f"127.0.0.1:{port}"
    server.stop()


@pytest.fixture
def connection(endpoint):
    with grpc.insecure_channel(endpoint) as channel:
        reset = channel.unary_unary("/deepmind.reverb.ReverbService/Reset", pb.ResetRequest.SerializeToString)
        for each in TABLES:
            reset(pb.ResetRequest(table=each["name"]), timeout=5)
    with closing(Connection(endpoint)) as connection:
        yield connection


def rows(count, start=0):
    """Rows of which each is different; compressible and not."""
    made = np.random.default_rng(start).integers(0, 256, (count, SIZE), np.uint8)
    made[::2, 8:] = 7
    return made


def insert(connection, table, content, priorities=None, chunk_steps=1):
    stream = InsertStream(connection, table, SIZE, chunk_steps)
    priorities = np.ones(len(content)) if priorities is None else np.asarray(priorities)
    stream.send(content, priorities, new_keys(len(content)))
    assert stream.wait(20)
    stream.close()


def new_keys(count):
    first = secrets.randbits(32) * 2**31
    return range(first, first + count)


def sample(connection, table, count):
    """`count` sampled rows as bytes, and their keys."""
    stream = SampleStream(connection, table)
    stream.ask(count)
    found, keys = [], []
    for items in stream:
        places = np.empty((len(items), SIZE), np.uint8)
        items.read(list(places))
        found += [row.tobytes() for row in places]
        keys += items.drawn["key"].tolist()
        if len(found) == count:
            break
    stream.close()
    return found, keys


@pytest.mark.parametrize("name", ["uniform", "prioritized", "limited"])
@pytest.mark.parametrize("chunk", [1, 4])
def test_reverbs_client_reads_what_the_wire_client_wrote(connection, own_client, endpoint, name, chunk):
    name = f"limited-{chunk}" if name == "limited" else name
    content = rows(20)
    insert(connection, name, content, chunk_steps=chunk)
    found = own_client(endpoint, SIZE).sample(name, 30)
    assert {row for _, row in found} <= {row.tobytes() for row in content}
    assert len({row for _, row in found}) > 8


@pytest.mark.parametrize("name", ["uniform", "prioritized", "limited"])
@pytest.mark.parametrize("chunk", [1, 4])
def test_the_wire_client_reads_what_reverbs_client_wrote(connection, own_client, endpoint, name, chunk):
    content = rows(20)
    assert own_client(endpoint, SIZE).insert(name, content, np.ones(20), chunk) == 20
    found, _ = sample(connection, name, 30)
    assert set(found) <= {row.tobytes() for row in content}
    assert len(set(found)) > 8


def test_priorities_decide_what_is_sampled_and_are_changed_by_key(connection):
    content = rows(4)
    insert(connection, "prioritized", content, [1.0, 0.0, 0.0, 0.0])
    found, keys = sample(connection, "prioritized", 20)
    assert set(found) == {content[0].tobytes()}
    connection.set_priorities("prioritized", [(keys[0], 0.0), (keys[0] + 2, 3.0)], 5)
    assert set(sample(connection, "prioritized", 20)[0]) == {content[2].tobytes()}


def test_the_limiter_counts_what_both_clients_move(connection, own_client, endpoint):
    insert(connection, "counted", rows(6))
    client = own_client(endpoint, SIZE)
    client.insert("counted", rows(6, start=1), np.ones(6))
    sample(connection, "counted", 5)
    info = connection.state(5)[1]["counted"]
    assert info.rate_limiter_info.insert_stats.completed == 12
    assert info.rate_limiter_info.sample_stats.completed == 5
    client.sample("counted", 7)  # which samples ahead
    assert connection.state(5)[1]["counted"].rate_limiter_info.sample_stats.completed >= 12
    assert (info.current_size, info.max_size) == (12, 1000)
    assert list(info.signature.dict_value.fields) == ["rows"]
    assert info.sampler_options.WhichOneof("distribution") == "uniform"


def test_inserts_beyond_the_ratio_are_confirmed_when_samples_make_room(connection):
    stream = InsertStream(connection, "limited", SIZE, 1)
    stream.send(rows(24), np.ones(24), range(24))  # (20 + 1) * 2 exceeds 40
    assert not stream.wait(0.5)
    assert stream.pending == 4
    sample(connection, "limited", 8)
    assert stream.wait(20)
    stream.close()


def test_a_blocked_stream_gives_what_is_allowed_and_the_rest_when_more_is_inserted(connection):
    insert(connection, "limited", rows(5))
    stream = SampleStream(connection, "limited")
    stream.ask(14)  # 10 are allowed
    counts, inserted = 0, False
    for items in stream:
        counts += len(items)
        if counts == 10 and not inserted:
            insert(connection, "limited", rows(2, start=1))
            inserted = True
        if counts == 14:
            break
    stream.close()
    assert connection.state(5)[1]["limited"].rate_limiter_info.sample_stats.completed == 14


def test_the_oldest_items_are_removed(connection, own_client, endpoint):
    content = rows(9)
    insert(connection, "small", content, chunk_steps=4)
    last = {row.tobytes() for row in content[3:]}
    assert set(sample(connection, "small", 60)[0]) == last
    assert {row for _, row in own_client(endpoint, SIZE).sample("small", 60)} <= last


def test_an_item_that_is_sent_twice_is_inserted_once(connection):
    request = Inserter("uniform", SIZE, 1).request(rows(3), np.ones(3), range(70, 73))
    requests, confirmed = queue.SimpleQueue(), 0
    requests.put(request)
    requests.put(request)
    call = connection.insert(iter(requests.get, None))
    while confirmed < 6:
        confirmed += len(next(call).keys)
    requests.put(None)
    call.cancel()
    assert connection.state(5)[1]["uniform"].current_size == 3


def test_an_unknown_table_is_refused(connection):
    stream = InsertStream(connection, "none", SIZE, 1)
    stream.send(rows(1), np.ones(1), [1])
    with pytest.raises(RequestRefused, match="none was not found"):
        stream.wait(20)
    stream.close()
    with pytest.raises(RequestRefused, match="none was not found"):
        sample(connection, "none", 1)


def test_a_server_that_restores_gives_both_clients_the_same_items(tmp_path, own_client):
    port, content = free_port(), rows(12)
    server = start(tmp_path / "a", port)
    with closing(Connection(f"127.0.0.1:{port}")) as connection:
        insert(connection, "uniform", content[:6])
        own_client(connection.endpoint, SIZE).insert("uniform", content[6:], np.ones(6), 2)
        saved = connection.checkpoint(20)
        server.stop()
        restored = start(tmp_path / "b", port, restore=saved)
        found = Counter(sample(connection, "uniform", 400)[0])
        own = {row for _, row in own_client(connection.endpoint, SIZE).sample("uniform", 200)}
        restored.stop()
    assert set(found) == {row.tobytes() for row in content} == own
