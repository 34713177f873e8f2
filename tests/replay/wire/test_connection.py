"""Connections and streams against servers that answer wrongly, late, or not at all."""

import contextlib
import threading
import time
from concurrent import futures
from contextlib import closing

import grpc
import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from podzero.replay import reverb_pb2 as pb
from podzero.replay.errors import ReplayUnavailable, RequestRefused, WrongServer
from podzero.replay.wire import Connection, InsertStream, SampleStream

NAMES = ("ServerInfo", "MutatePriorities", "Checkpoint", "InsertStream", "SampleStream")
STREAMS = ("InsertStream", "SampleStream")
ROWS = np.arange(12, dtype=np.uint8).reshape(4, 3)


class FakeServer(grpc.GenericRpcHandler):
    """A server whose answers are bytes; `answers` maps the name of a call to a function of its requests."""

    def __init__(self):
        self.answers = {}
        self._server = grpc.server(futures.ThreadPoolExecutor(8), handlers=[self])
        self.endpoint = f"127.0.0.1:{self._server.add_insecure_port('127.0.0.1:0')}"
        self._server.start()

    def service(self, details):
        name = details.method.rsplit("/", maxsplit=1)[-1]
        if name not in self.answers:
            return None
        call = grpc.stream_stream_rpc_method_handler if name in STREAMS else grpc.unary_unary_rpc_method_handler
        return call(self.answers[name])

    def stop(self):
        self._server.stop(0)


@pytest.fixture
def fake():
    server = FakeServer()
    yield server
    server.stop()


@pytest.fixture
def connection(fake):
    with closing(Connection(fake.endpoint)) as connection:
        yield connection


def confirming(requests, context):
    """Confirms every item at once."""
    for request in requests:
        keys = [item.key for item in pb.InsertStreamRequest.FromString(request).items]
        yield pb.InsertStreamResponse(keys=keys).SerializeToString()


def ask_all(connection):
    """One call of each kind that is answered, as functions."""
    return {
        "ServerInfo": lambda: connection.state(5),
        "MutatePriorities": lambda: connection.set_priorities("t", [(1, 1.0)], 5),
        "Checkpoint": lambda: connection.checkpoint(5),
    }


@pytest.mark.parametrize("name", NAMES[:3])
def test_a_server_that_is_away_is_unavailable(name):
    with closing(Connection("127.0.0.1:9")) as connection, pytest.raises(ReplayUnavailable, match=r"127\.0\.0\.1:9"):
        ask_all(connection)[name]()


def test_a_server_that_hangs_is_unavailable_after_the_timeout(fake, connection):
    hanging = threading.Event()
    fake.answers["ServerInfo"] = lambda request, context: hanging.wait(10) and b""
    with pytest.raises(ReplayUnavailable, match="DEADLINE_EXCEEDED"):
        connection.state(0.2)
    hanging.set()


@pytest.mark.parametrize("name", NAMES[:3])
def test_another_protocol_is_named(fake, connection, name):
    with pytest.raises(WrongServer, match="Reverb's protocol"):
        ask_all(connection)[name]()


def test_an_answer_that_is_no_message_is_named(fake, connection):
    fake.answers["ServerInfo"] = lambda request, context: b"\x0a\xff\xff\xff"
    with pytest.raises(WrongServer, match="Reverb's protocol"):
        connection.state(5)


@pytest.mark.parametrize("name", NAMES[:3])
def test_the_reason_of_a_refusal_is_told(fake, connection, name):
    def refuse(request, context):
        context.abort(grpc.StatusCode.NOT_FOUND, "there is no table t")

    fake.answers[name] = refuse
    with pytest.raises(RequestRefused, match=r"NOT_FOUND: .*table t"):
        ask_all(connection)[name]()


@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(answer=st.binary(max_size=60))
def test_no_answer_to_a_question_raises_anything_else(fake, connection, answer):
    fake.answers["ServerInfo"] = lambda request, context: answer
    with contextlib.suppress(WrongServer):
        assert isinstance(connection.state(5)[1], dict)


@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(answers=st.lists(st.binary(max_size=60), max_size=3))
def test_no_answer_of_a_stream_raises_anything_else(fake, connection, answers):
    fake.answers["SampleStream"] = lambda requests, context: iter(answers)
    stream = SampleStream(connection, "t")
    stream.ask(4)
    try:
        for items in stream:
            items.read([np.empty(3, np.uint8) for _ in range(len(items))])
    except WrongServer:
        pass
    finally:
        stream.close()


def test_a_request_of_a_stream_names_what_is_asked_for(fake, connection):
    asked = []

    def answers(requests, context):
        asked.append(pb.SampleStreamRequest.FromString(next(requests)))
        yield from ()

    fake.answers["SampleStream"] = answers
    stream = SampleStream(connection, "t")
    stream.ask(4)
    assert list(stream) == []
    assert (asked[0].table, asked[0].num_samples) == ("t", 4)
    assert asked[0].rate_limiter_timeout.milliseconds > 0


def test_a_stream_ends_where_the_limiter_blocks_and_fails_where_the_server_goes(fake, connection):
    for status, ends in ((grpc.StatusCode.DEADLINE_EXCEEDED, True), (grpc.StatusCode.UNAVAILABLE, False)):
        fake.answers["SampleStream"] = lambda requests, context, status=status: context.abort(status, "")
        stream = SampleStream(connection, "t")
        stream.ask(1)
        if ends:
            assert list(stream) == []
        else:
            with pytest.raises(ReplayUnavailable):
                list(stream)


def test_closing_ends_a_thread_that_waits_for_items(fake, connection):
    fake.answers["SampleStream"] = lambda requests, context: (b"" for _ in requests)
    stream = SampleStream(connection, "t")
    threading.Timer(0.2, stream.close).start()
    assert list(stream) == []


def test_items_are_pending_until_the_server_confirms_them(fake, connection):
    confirm = threading.Event()

    def late(requests, context):
        for request in requests:
            confirm.wait(10)
            yield from confirming([request], context)

    fake.answers["InsertStream"] = late
    stream = InsertStream(connection, "t", 3, 1)
    stream.send(ROWS, np.ones(4), range(4))
    assert not stream.wait(0.1)
    assert stream.pending == 4
    confirm.set()
    assert stream.wait(10)
    assert stream.pending == 0
    stream.close()


def test_unconfirmed_items_are_sent_again_under_the_same_keys(fake, connection):
    sent = []

    def break_once(requests, context):
        request = pb.InsertStreamRequest.FromString(next(requests))
        sent.append([item.key for item in request.items])
        if len(sent) == 1:
            yield pb.InsertStreamResponse(keys=sent[0][:1]).SerializeToString()
            context.abort(grpc.StatusCode.UNAVAILABLE, "")
        yield pb.InsertStreamResponse(keys=sent[1]).SerializeToString()
        yield from confirming(requests, context)

    fake.answers["InsertStream"] = break_once
    stream = InsertStream(connection, "t", 3, 2)
    stream.send(ROWS, np.ones(4), range(4))
    until = time.monotonic() + 10
    while not stream.broken and time.monotonic() < until:
        stream.wait(0.05)
    assert stream.pending == 3
    stream.resume()
    assert stream.wait(10)
    assert sent[0] == sent[1]
    stream.send(ROWS, np.ones(4), range(4))
    assert stream.wait(10)
    stream.close()


def test_a_refused_insertion_is_told(fake, connection):
    def refuse(requests, context):
        next(requests)
        context.abort(grpc.StatusCode.NOT_FOUND, "there is no table t")

    fake.answers["InsertStream"] = refuse
    stream = InsertStream(connection, "t", 3, 1)
    stream.send(ROWS, np.ones(4), range(4))
    with pytest.raises(RequestRefused, match="there is no table t"):
        stream.wait(10)
    stream.close()
