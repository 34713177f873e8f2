"""Whatever arrives at an inference server, it answers or drops it, and goes on serving."""

import json
from contextlib import suppress

import numpy as np
import pytest
import zmq
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from number_server import IDENTITY, Device, client_of, expected, rows_of, serving

from podzero.inference.serving import Hello
from podzero.inference.serving.messages import (
    ANSWER,
    HELLO,
    HELLO_BYTES,
    REFUSED,
    REQUEST,
    WELCOME,
    MessageError,
    hello_frames,
    read_answer,
    read_hello,
    read_refused,
    read_request,
    read_welcome,
    refused_frames,
    request_frames,
)
from podzero.inference.serving.server import Refusal, Sessions

GREETING = ["actor-0", 8, list(IDENTITY)]
VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text() | st.sampled_from([10**4000, -(10**30), 2**63]),
    lambda inner: st.lists(inner, max_size=6) | st.dictionaries(st.text(max_size=3), inner, max_size=6),
    max_leaves=12,
)
"""Anything that JSON can say, NaN and infinities as Python writes them included."""


@st.composite
def greetings(draw):
    """The content of a greeting in which some values are replaced by anything."""
    identity = [draw(st.just(value) | VALUES) for value in GREETING[2]]
    return [draw(st.just("actor-0") | VALUES), draw(st.integers(-5, 70) | VALUES), draw(st.just(identity) | VALUES)]


CONTENTS = (VALUES | greetings()).map(lambda value: json.dumps(value).encode())
KINDS = st.sampled_from([HELLO, WELCOME, REQUEST, ANSWER, REFUSED, b""]) | st.binary(max_size=8)
FRAMES = st.tuples(KINDS, st.binary(max_size=20) | CONTENTS).map(list) | st.lists(
    KINDS | st.binary(max_size=64) | CONTENTS, min_size=1, max_size=5
)
NESTED = b"[" * (HELLO_BYTES // 2) + b"]" * (HELLO_BYTES // 2)
UNREADABLE = {
    "infinity": b'["x", Infinity, []]',
    "not a number": b'["x", NaN, ["run", "hex", "resnet 1234", 4, 3]]',
    "an infinite size": b'["x", 8, ["run", "hex", "resnet 1234", Infinity, 3]]',
    "deep nesting": NESTED,
    "deep nesting in an identity": b'["x", 8, ' + NESTED[: HELLO_BYTES // 2],
    "a huge integer": b'["x", 1' + b"0" * 10_000 + b', ["run", "hex", "resnet 1234", 4, 3]]',
    "an integer of more than 64 bits": b'["x", 9223372036854775808, ["run", "hex", "resnet 1234", 4, 3]]',
    "negative positions": b'["x", -8, ["run", "hex", "resnet 1234", 4, 3]]',
    "no positions": b'["x", 0, ["run", "hex", "resnet 1234", 4, 3]]',
    "positions as a string": b'["x", "8", ["run", "hex", "resnet 1234", 4, 3]]',
    "positions as a boolean": b'["x", true, ["run", "hex", "resnet 1234", 4, 3]]',
    "a name that is a list": b'[[], 8, ["run", "hex", "resnet 1234", 4, 3]]',
    "an identity of four": b'["x", 8, ["run", "hex", "resnet 1234", 4]]',
    "an identity that is an object": b'["x", 8, {"run": 1, "game": 2, "network": 3, "row_bytes": 4, "outputs": 5}]',
    "no list": b"8",
    "no JSON": b"\xff\xfe\x00",
    "nothing": b"",
}


@pytest.mark.parametrize("content", UNREADABLE.values(), ids=UNREADABLE.keys())
def test_a_greeting_that_is_none_is_refused(content):
    with pytest.raises(MessageError, match="hello cannot be read"):
        read_hello([HELLO, content])


ANSWERS = FRAMES | st.lists(st.binary(max_size=40) | CONTENTS, min_size=2, max_size=2).map(lambda rest: [b"", *rest])


def check_readers(frames):
    """What a client reads from a server is of the right shape and finite, or a `MessageError`."""
    with suppress(MessageError):
        welcome = read_welcome(frames, IDENTITY.outputs)
        assert welcome.known.shape == ((IDENTITY.outputs,) if welcome.version >= 0 else (0,))
        assert np.isfinite(welcome.known).all()
    with suppress(MessageError):
        evaluations = read_answer(frames, IDENTITY.outputs).evaluations
        assert evaluations.shape[1:] == (IDENTITY.outputs,)
        assert np.isfinite(evaluations).all()
    with suppress(MessageError):
        sentence, elsewhere = read_refused(frames)
        assert (type(sentence), type(elsewhere)) == (str, bool)


@settings(max_examples=100)
@given(frames=ANSWERS)
def test_a_client_reads_or_refuses_whatever_a_server_sends(frames):
    check_readers(frames)


@pytest.mark.slow
@settings(max_examples=5000)
@given(frames=ANSWERS)
def test_a_client_reads_or_refuses_thousands_of_messages(frames):
    check_readers(frames)


def test_a_greeting_may_not_be_larger_than_any_actor_sends():
    long = hello_frames(Hello("x" * HELLO_BYTES, 8, IDENTITY))
    with pytest.raises(MessageError, match="at most 65536"):
        read_hello(long)
    assert read_hello(hello_frames(Hello("x" * 60_000, 8, IDENTITY))).positions == 8


@given(FRAMES)
def test_any_frames_are_a_message_or_a_message_error(frames):
    """And what is read as a greeting keeps the promises of `Hello`."""
    try:
        hello = read_hello(frames)
    except MessageError:
        pass
    else:
        assert (type(hello.name), type(hello.positions), hello.positions > 0) == (str, int, True)
        refused_frames(f"{hello.name} is not welcome", elsewhere=False)
    try:
        _, rows = read_request(frames, row_bytes=4)
    except MessageError:
        pass
    else:
        assert rows.shape[0] > 0


@given(st.lists(st.tuples(st.sampled_from([b"a", b"b", b"c"]), greetings(), st.integers(0, 3)), max_size=40))
def test_no_greetings_and_requests_promise_more_positions_than_the_queue_holds(messages):
    sessions = Sessions("inference-0", IDENTITY, request_positions=64, most_positions=200)
    for now, (client, content, number) in enumerate(messages):
        try:
            sessions.admit(client, read_hello([HELLO, json.dumps(content).encode()]), float(now))
            sessions.ask(client, number, 1, float(now))
            sessions.ask(client, number, 1, float(now))
        except (MessageError, Refusal):
            pass
        assert sum(session.promised for session in sessions._open.values()) <= 200


@pytest.fixture(scope="module")
def server():
    with serving() as running:
        yield running


@pytest.fixture(scope="module")
def client(server):
    return client_of(server)


@pytest.fixture(scope="module")
def stranger(server):
    """A socket that is connected to the server and has not introduced itself."""
    socket = zmq.Context.instance().socket(zmq.DEALER)
    socket.setsockopt(zmq.LINGER, 0)
    socket.setsockopt(zmq.SNDTIMEO, 20_000)
    socket.connect(server.address)
    yield socket
    socket.close()


def assert_serves(server, client):
    rows = rows_of(0, 4)
    np.testing.assert_array_equal(client.evaluate(0, rows), expected(rows))
    assert server.failure is None


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)
@given(st.lists(FRAMES, min_size=1, max_size=8))
def test_any_messages_are_answered_or_dropped_and_the_server_lives(server, client, stranger, messages):
    for frames in messages:
        stranger.send_multipart(frames)
    assert_serves(server, client)
    while stranger.poll(0):
        kind, *_ = stranger.recv_multipart()
        assert kind in (WELCOME, REFUSED, ANSWER)


def test_one_message_without_credentials_does_not_end_the_server(server, client, stranger):
    stranger.send_multipart([HELLO, b'["x", Infinity, []]'])
    assert_serves(server, client)


def test_a_name_that_is_no_unicode_is_answered(server, client, stranger):
    stranger.send_multipart([HELLO, b'["\\ud800", 8, ["other run", "hex", "resnet 1234", 4, 3]]'])
    assert_serves(server, client)
    while stranger.poll(5000):
        *_, sentence = stranger.recv_multipart()
        if b"\\ud800" in sentence:
            return
    pytest.fail("no refusal names it")


def test_a_frame_that_is_larger_than_any_request_is_not_read(server, client):
    sender = zmq.Context.instance().socket(zmq.DEALER)
    sender.setsockopt(zmq.LINGER, 0)
    sender.connect(server.address)
    sender.send_multipart([REQUEST, bytes(8), bytes(HELLO_BYTES)])
    assert sender.poll(20_000)
    assert sender.recv_multipart()[0] == REFUSED
    sender.send_multipart([REQUEST, bytes(8), bytes(HELLO_BYTES + 1)])
    assert_serves(server, client)
    assert not sender.poll(300)
    sender.close()


def test_larger_requests_than_those_of_the_run_are_refused():
    with pytest.raises(Refusal, match=r"65 positions.* 64 \(actors.games\)"):
        Sessions("inference-0", IDENTITY, 64, 10_000).admit(b"a", Hello("actor-0", 65, IDENTITY), 0.0)


def test_a_number_that_is_unanswered_is_not_taken_twice():
    sessions = Sessions("inference-0", IDENTITY, 64, 10_000)
    sessions.admit(b"a", Hello("actor-0", 8, IDENTITY), 0.0)
    sessions.ask(b"a", 7, 8, 0.0)
    with pytest.raises(Refusal, match="sent request 7 again before it was answered"):
        sessions.ask(b"a", 7, 8, 0.0)


def test_requests_before_the_first_parameters_are_refused():
    with serving(device=Device(version=-1)) as server:
        socket = zmq.Context.instance().socket(zmq.DEALER)
        socket.setsockopt(zmq.LINGER, 0)
        socket.connect(server.address)
        socket.send_multipart(hello_frames(Hello("hasty", 4, IDENTITY)))
        socket.send_multipart(request_frames(0, rows_of(0, 4)))
        assert [socket.recv_multipart()[0] for _ in range(2)] == [WELCOME, REFUSED]
        assert server.device.sizes == []
        socket.close()
