"""A server and clients in one process, over real sockets."""

import threading
import time
from contextlib import suppress

import numpy as np
import pytest
import zmq
from number_server import CONFIG, IDENTITY, Device, Running, client_of, expected, rows_of, serving

from podzero.core.errors import ClusterError, ConfigError
from podzero.core.types import Versioned
from podzero.core.waiting import Wait, behind, fresh_params
from podzero.inference.serving import Hello, ServedParams, ServerClient
from podzero.inference.serving import client as client_module
from podzero.inference.serving.client import ServerLost
from podzero.inference.serving.messages import (
    ANSWER,
    HELLO,
    REFUSED,
    Answer,
    Welcome,
    answer_frames,
    hello_frames,
    read_request,
    request_frames,
    welcome_frames,
)
from podzero.inference.serving.server import ServerHung

KNOWN = expected(np.zeros((1, 4)))[0]


@pytest.fixture
def ask_in_vain(monkeypatch, caplog):
    """Evaluates in a thread until the client says that it waits: the thread, and the list for what it returns."""
    monkeypatch.setattr(client_module, "Wait", lambda stage: Wait(0.1, stage=stage))

    def ask(client, rows):
        answers = []

        def evaluate():
            with suppress(ServerLost):
                answers.append(client.evaluate(0, rows))

        asking = threading.Thread(target=evaluate, daemon=True)
        asking.start()
        while f"{client._hello.name} has waited" not in caplog.text:
            time.sleep(0.05)
        return asking, answers

    return ask


def test_positions_come_back_evaluated_and_in_order():
    with serving() as server:
        client = client_of(server)
        for seed, count in enumerate((1, 3, 16, 40, 64)):
            rows = rows_of(seed, count)
            np.testing.assert_array_equal(client.evaluate(0, rows), expected(rows))
        assert client.version == 3
        assert server.announced[0] == server.address


def test_many_clients_get_their_own_answers():
    failures = []

    def ask(number, server):
        client = client_of(server, name=f"actor-{number}")
        for turn in range(20):
            rows = rows_of(100 * number + turn, 1 + (7 * number + turn) % 64)
            if not np.array_equal(client.evaluate(0, rows), expected(rows)):
                failures.append((number, turn))

    with serving() as server:
        threads = [threading.Thread(target=ask, args=(number, server)) for number in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(60.0)
        assert failures == []
        assert set(server.device.sizes) <= {4, 16}


def test_a_client_that_does_not_read_delays_nobody():
    with serving() as server:
        slow = zmq.Context.instance().socket(zmq.DEALER)
        slow.setsockopt(zmq.LINGER, 0)
        slow.connect(server.address)
        slow.send_multipart(hello_frames(Hello("slow", 64, IDENTITY)))
        slow.send_multipart(request_frames(0, rows_of(0, 64)))
        rows = rows_of(1, 8)
        np.testing.assert_array_equal(client_of(server).evaluate(0, rows), expected(rows))
        slow.close()
        np.testing.assert_array_equal(client_of(server).evaluate(0, rows), expected(rows))


def test_newer_parameters_are_seen_by_the_actor():
    with serving() as server:
        client = client_of(server)
        source = ServedParams(client)
        assert source.wait(5.0) == (3, 3)
        assert source.poll() is None
        server.device.version = 4
        client.evaluate(3, rows_of(0, 2))
        assert source.poll() == (4, 4)
        assert source.poll() is None


def test_an_actor_that_waits_hears_when_the_server_is_no_longer_behind(monkeypatch):
    monkeypatch.setattr(client_module, "_REFRESH_S", 0.0)
    with serving() as server:
        client = client_of(server)
        source = ServedParams(client)
        source.wait(5.0)
        server.server.lag = 9
        client.evaluate(3, rows_of(0, 2))
        assert behind(source) == 9
        server.device.version, server.server.lag = 4, 1
        assert fresh_params(source, Versioned(3, 3), 8, threading.Event()) == (4, 4)
        assert behind(source) == 1


def test_an_actor_waits_for_the_first_parameters():
    with serving(device=Device(version=-1)) as server:
        client = client_of(server)
        with pytest.raises(ServerLost, match=r"inference-0 at tcp://.*no parameters yet"):
            client.await_version(0.2)
        server.device.version = 0
        assert client.await_version(5.0) == 0


def test_positions_evaluated_before_are_not_sent_again():
    with serving() as server:
        client = client_of(server, cache_mib=1.0)
        rows = rows_of(0, 16)
        client.evaluate(3, rows)
        batches = len(server.device.sizes)
        np.testing.assert_array_equal(client.evaluate(3, rows[:5]), expected(rows[:5]))
        assert len(server.device.sizes) == batches
        assert client.metrics()["server/cached"] == 5 / 21
        client.evaluate(4, rows)  # a newer version
        assert len(server.device.sizes) > batches


def test_another_network_is_refused_as_a_mistake_of_the_experiment():
    with serving() as server, pytest.raises(ConfigError, match="'mlp' instead of 'resnet 1234'"):
        client_of(server, identity=IDENTITY._replace(network="mlp")).await_version(5.0)


def test_positions_of_another_size_are_refused():
    with serving() as server:
        socket = zmq.Context.instance().socket(zmq.DEALER)
        socket.connect(server.address)
        for frames, message in (
            (request_frames(0, np.zeros((2, 3), np.uint8)), b"6 bytes"),
            ([b"request"], b"cannot be read"),
            ([b"hello", b"{"], b"cannot be read"),
            ([b"what"], b"does not know messages of the kind"),
            (request_frames(0, rows_of(0, 2)), b"closed this client's session"),
        ):
            socket.send_multipart(frames)
            assert socket.poll(5000)
            kind, _, sentence = socket.recv_multipart()
            assert kind == REFUSED
            assert message in sentence
        socket.close()


def test_a_lost_server_is_left_for_another_one(caplog):
    """In the middle of a request: the answer comes from the other server."""
    first, second = Running("inference-0"), Running("inference-1")
    first.device.gate.clear()
    with serving(first, second):
        client = client_of(first, second)
        rows = rows_of(0, 8)
        np.testing.assert_array_equal(client.evaluate(0, rows), expected(rows))
        assert "actor-0 leaves inference-0: it has not answered for 0.5 s" in caplog.text
        assert second.device.sizes


class Sick(Device):
    """A device whose first answers are `wrong`, and whose evaluation of the initial position may be `known`."""

    def __init__(self, wrong, times, known=None):
        super().__init__()
        self.wrong, self.times = wrong, times
        self.known = self.known if known is None else known

    def evaluate(self, rows):
        version, evaluations = super().evaluate(rows)
        self.times -= 1
        return version, self.wrong(evaluations) if self.times >= 0 else evaluations


WRONG = {
    "not a number": lambda evaluations: evaluations * np.float32(np.nan),
    "one infinity": lambda evaluations: np.where(evaluations == evaluations[0, 0], np.inf, evaluations),
    "double": lambda evaluations: np.concatenate([evaluations, evaluations], axis=1),
}


@pytest.mark.parametrize("wrong", WRONG.values(), ids=WRONG.keys())
def test_answers_that_cannot_be_used_are_refused_and_counted_and_the_games_go_on(wrong, caplog):
    rows = rows_of(0, 4)  # one batch
    with serving(device=Sick(lambda evaluations: wrong(evaluations).astype(np.float32), times=2)) as server:
        client = client_of(server)
        np.testing.assert_array_equal(client.evaluate(0, rows), expected(rows))
        assert client.metrics() == {"count/refused_answers": 2.0}
        assert client.metrics() == {"count/refused_answers": 0.0}
    assert "leaves inference-0: what it answers cannot be used" in caplog.text


def test_a_server_that_keeps_answering_rubbish_is_left_alone(ask_in_vain, caplog):
    sick = Running("inference-0", Sick(WRONG["not a number"], times=10**6))
    with serving(sick):
        client = client_of(sick)
        asking, answers = ask_in_vain(client, rows_of(1, 4))
        assert "for an inference server: what the servers answer cannot be used" in caplog.text
        assert len(sick.device.sizes) == client_module.MOST_UNUSABLE
        well = Running("inference-1")
        with serving(well):
            found = {server.name: server.address for server in (sick, well)}
            client._servers = lambda: found
            asking.join(30.0)
            np.testing.assert_array_equal(answers[0], expected(rows_of(1, 4)))
        assert len(sick.device.sizes) == client_module.MOST_UNUSABLE


def test_a_server_that_was_left_alone_is_tried_again(monkeypatch):
    monkeypatch.setattr(client_module, "_RETURN_S", 0.0)
    with serving(device=Sick(WRONG["not a number"], times=2 * client_module.MOST_UNUSABLE)) as server:
        client = client_of(server)
        np.testing.assert_array_equal(client.evaluate(0, rows_of(0, 4)), expected(rows_of(0, 4)))


@pytest.mark.parametrize("known", [np.full(3, np.nan, np.float32), np.zeros(4, np.float32), np.zeros(0, np.float32)])
def test_a_server_that_cannot_evaluate_the_initial_position_gets_no_positions(known):
    sick, well = Running("inference-0", Sick(lambda evaluations: evaluations, 0, known)), Running("inference-1")
    with serving(sick, well):
        client = client_of(sick, well)
        for seed in range(3):
            np.testing.assert_array_equal(client.evaluate(0, rows_of(seed, 8)), expected(rows_of(seed, 8)))
        assert sick.device.sizes == []


def test_an_actor_that_meets_only_sick_servers_waits_until_it_is_closed_and_says_why(ask_in_vain, caplog):
    with serving(device=Sick(lambda evaluations: evaluations, 0, np.full(3, np.nan, np.float32))) as server:
        client = client_of(server)
        asking, answers = ask_in_vain(client, rows_of(0, 8))
        assert "cannot be used" in caplog.text
        client.close()
        asking.join(10.0)
        assert not asking.is_alive()
        assert not answers


def answer_late(router):
    """A server that answers the first request only after the client has introduced itself again."""
    late = []
    while router.poll(10_000):
        client, *frames = router.recv_multipart()
        if frames[0] == HELLO:
            for answer in late:
                router.send_multipart([client, *answer])
            router.send_multipart([client, *welcome_frames(Welcome("inference-0", 3, KNOWN))])
            continue
        number, rows = read_request(frames, IDENTITY.row_bytes)
        answer = answer_frames(Answer(number, 3, -expected(rows)))  # negative numbers are not UTF-8
        if late:
            router.send_multipart([client, *answer])
            return
        late.append(answer)


def test_an_answer_that_comes_late_is_neither_welcome_nor_refusal():
    router = zmq.Context.instance().socket(zmq.ROUTER)
    router.setsockopt(zmq.ROUTER_HANDOVER, 1)
    address = f"tcp://127.0.0.1:{router.bind_to_random_port('tcp://127.0.0.1')}"
    thread = threading.Thread(target=answer_late, args=(router,), daemon=True)
    thread.start()
    config = CONFIG.model_copy(update={"timeout_s": 0.3})
    client = ServerClient(Hello("actor-0", 64, IDENTITY), lambda: {"inference-0": address}, config)
    rows = rows_of(0, 8)
    np.testing.assert_array_equal(client.evaluate(0, rows), -expected(rows))
    thread.join(10.0)
    router.close()


def test_a_lost_server_is_returned_to_when_it_is_back(monkeypatch):
    monkeypatch.setattr("podzero.inference.serving.client._RETURN_S", 0.0)
    first, second = Running("inference-0"), Running("inference-1")
    found = {"inference-0": "tcp://127.0.0.1:1", "inference-1": second.address}
    with serving(first, second):
        client = ServerClient(Hello("actor-0", 64, IDENTITY), lambda: dict(found), CONFIG)
        client.evaluate(0, rows_of(0, 2))
        assert second.device.sizes
        found["inference-0"] = first.address
        client.evaluate(0, rows_of(0, 2))
        assert first.device.sizes


def test_servers_without_parameters_are_not_asked_and_not_left():
    """One that compiles longer than the other keeps its actors."""
    late, early = Running("inference-0", device=Device(version=-1)), Running("inference-1")
    with serving(late, early):
        client = client_of(late, early)
        threading.Timer(1.0, setattr, (late.device, "version", 5)).start()
        assert client.await_version(20.0) == 5
        client.evaluate(5, rows_of(0, 2))
        assert late.device.sizes
        assert not early.device.sizes


def test_a_server_that_has_lost_its_parameters_is_left_for_one_that_has_some(monkeypatch):
    """Its own server was restarted, and compiles when the client returns to it."""
    monkeypatch.setattr("podzero.inference.serving.client._RETURN_S", 0.0)
    restarted, other = Running("inference-0", device=Device(version=-1)), Running("inference-1")
    found = {"inference-0": "tcp://127.0.0.1:1", "inference-1": other.address}
    with serving(restarted, other):
        client = ServerClient(Hello("actor-0", 64, IDENTITY), lambda: dict(found), CONFIG)
        client.evaluate(0, rows_of(0, 2))
        found["inference-0"] = restarted.address
        rows = rows_of(1, 2)
        np.testing.assert_array_equal(client.evaluate(0, rows), expected(rows))
        assert not restarted.device.sizes


def test_a_wait_that_is_cut_short_does_not_name_the_timeout():
    patient = CONFIG.model_copy(update={"timeout_s": 60.0})
    client = ServerClient(Hello("actor-0", 4, IDENTITY), lambda: {"inference-0": "tcp://127.0.0.1:1"}, patient)
    with pytest.raises(ServerLost, match=r"it has not answered for 0\.3 s.* before giving up") as lost:
        client.await_version(0.3)
    assert "server.timeout_s" not in str(lost.value)


def test_a_directory_that_does_not_answer_is_waited_for():
    with serving() as server:
        answers = iter([ClusterError("waited 20 s for the directory"), {server.name: server.address}])

        def servers():
            answer = next(answers)
            if isinstance(answer, Exception):
                raise answer
            return answer

        client = ServerClient(Hello("actor-0", 64, IDENTITY), servers, CONFIG)
        rows = rows_of(0, 2)
        np.testing.assert_array_equal(client.evaluate(0, rows), expected(rows))


def test_newer_versions_are_seen_although_every_position_is_cached(monkeypatch):
    monkeypatch.setattr("podzero.inference.serving.client._REFRESH_S", 0.0)
    with serving() as server:
        client, rows = client_of(server, cache_mib=1.0), rows_of(0, 4)
        client.evaluate(3, rows)
        server.device.version = 4
        client.evaluate(3, rows)
        assert client.version == 4


def test_a_server_that_comes_back_serves_again():
    config = CONFIG.model_copy(update={"timeout_s": 0.3})
    first = Running("inference-0", config=config)
    found = {"inference-0": first.address}
    client = ServerClient(Hello("actor-0", 64, IDENTITY), lambda: found, config)
    rows = rows_of(0, 8)
    client.evaluate(0, rows)
    first.stop()
    second = Running("inference-0", config=config)
    found["inference-0"] = second.address
    with serving(second):
        np.testing.assert_array_equal(client.evaluate(0, rows), expected(rows))


def test_without_any_server_the_wait_for_parameters_ends_in_time_and_says_for_whom_it_was():
    config = CONFIG.model_copy(update={"timeout_s": 0.1})
    server = Running()
    client = client_of(server, config=config)
    client.evaluate(0, rows_of(0, 2))
    server.stop()
    with pytest.raises(ServerLost, match=r"actor-0 .*in time: inference-0 at tcp://"):
        client.await_version(0.5)
    with pytest.raises(ServerLost, match="no server is running"):
        ServerClient(Hello("actor-0", 4, IDENTITY), dict, config).await_version(0.1)


def test_an_actor_waits_for_a_server_however_long_and_says_so(ask_in_vain):
    config = CONFIG.model_copy(update={"timeout_s": 0.1})
    first, found = Running(config=config), {}
    found["inference-0"] = first.address
    client = ServerClient(Hello("actor-0", 16, IDENTITY), lambda: found, config)
    client.evaluate(0, rows_of(0, 2))
    first.stop()
    rows = rows_of(1, 2)
    asking, answers = ask_in_vain(client, rows)
    second = Running(config=config)
    found["inference-0"] = second.address
    with serving(second):
        asking.join(30.0)
        np.testing.assert_array_equal(answers[0], expected(rows))
    client.close()


def test_a_closed_client_stops_waiting():
    with serving() as server:
        server.device.gate.clear()
        client = client_of(server, config=CONFIG.model_copy(update={"timeout_s": 60.0}))
        threading.Timer(0.3, client.close).start()
        with pytest.raises(ServerLost, match=r"stopped while .*inference-0"):
            client.evaluate(0, rows_of(0, 2))


def test_a_batch_that_hangs_ends_the_server_with_its_name():
    server = Running(config=CONFIG.model_copy(update={"timeout_s": 0.1}))
    server.device.gate.clear()
    client = client_of(server, config=CONFIG.model_copy(update={"timeout_s": 0.2}))
    threading.Timer(0.5, client.close).start()
    with suppress(ServerLost):
        client.evaluate(0, rows_of(0, 2))
    server.thread.join(10.0)
    assert isinstance(server.failure, ServerHung)
    assert "server.timeout_s" in str(server.failure)
    server.device.gate.set()


def test_a_device_that_fails_ends_the_server():
    class Broken(Device):
        def evaluate(self, rows):
            raise RuntimeError("the chip is on fire")

    server = Running(device=Broken())
    client = client_of(server)
    threading.Timer(0.4, client.close).start()
    with suppress(ServerLost):
        client.evaluate(0, rows_of(0, 2))
    server.thread.join(10.0)
    assert str(server.failure) == "the chip is on fire"


def test_figures_are_reported(monkeypatch):
    monkeypatch.setattr("podzero.inference.serving.server.REPORT_EVERY_S", 0.2)
    with serving() as server:
        client = client_of(server)
        until = time.monotonic() + 10.0
        while not any("server/latency_ms_p99" in report for report in server.reports) and time.monotonic() < until:
            client.evaluate(0, rows_of(0, 16))
        report = next(report for report in server.reports if "server/latency_ms_p99" in report)
        assert report["count/served"] > 0
        assert 0 < report["server/fill"] <= 1
        assert 0 < report["server/busy"] <= 1
        assert 0 < report["server/latency_ms_median"] <= report["server/latency_ms_p99"]
        assert report["server/clients"] == 1
        assert report["server/version"] == 3


def test_credits_bound_what_is_in_flight():
    with serving() as server:
        server.device.gate.clear()
        socket = zmq.Context.instance().socket(zmq.DEALER)
        socket.setsockopt(zmq.LINGER, 0)
        socket.connect(server.address)
        socket.send_multipart(hello_frames(Hello("greedy", 4, IDENTITY)))
        socket.recv_multipart()
        for number in range(3):
            socket.send_multipart(request_frames(number, rows_of(number, 4)))
        kind, _, sentence = socket.recv_multipart()
        assert (kind, b"more than 2 unanswered" in sentence) == (REFUSED, True)
        server.device.gate.set()
        assert [socket.recv_multipart()[0] for _ in range(2)] == [ANSWER, ANSWER]
        socket.close()
