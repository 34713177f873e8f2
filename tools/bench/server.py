"""The stage of inference servers: positions/s compared with what the device and the bare transport could do.

No TPU is needed: a stand-in sleeps for the time that the TPU compiler estimates for a server's program on one v5e chip.
This leaves out copies between host and chip.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Sequence
from multiprocessing.connection import Connection
from statistics import median
from typing import Any

import jax
import numpy as np
import zmq

from podzero.config import Experiment, ServerConfig
from podzero.envs import make_env
from podzero.inference.agreement import random_states
from podzero.inference.serving import Hello, InferenceServer, ServerClient, identity_of
from podzero.inference.serving.messages import (
    ANSWER,
    HELLO,
    LARGE,
    Answer,
    Identity,
    Welcome,
    answer_frames,
    encoding_of,
    hello_frames,
    request_frames,
    welcome_frames,
)
from podzero.tools.bench.measuring import (
    START_S,
    BenchError,
    ChildProcess,
    DeviceQueue,
    answer,
    child_process,
    compiled,
)

log = logging.getLogger(__name__)

CLIENTS = (1, 4, 16, 64)
"""Numbers of actors, each with `server.groups` connections."""

ROUND_S = 4.0
"""The longest turn of a side; servers report every two seconds."""
CONNECT_SHARE = 0.25
"""The part of a turn before counting begins, in which all actors connect and the queue fills."""
POLL_S = 0.01
"""How long to wait at a time for an answer that is late."""
POSITIONS = 8192
"""The number of recorded positions, of which each request sends some."""
IDLE_REQUESTS = 200
"""The number of requests to an idle server, whose latency is their median."""


def bench_server(experiment: Experiment, seconds: float) -> dict[str, Any]:
    """Measures a server with different numbers of actors, which send recorded positions without pause.

    Returns:
      `actors`: for each number of them `positions_per_s`, its `share_of_device`, `share_of_transport` and
      `share_of_limit` (the lower of the two), the `fill` of batches (None if the server did not report), `gb_per_s` and
      `messages_per_s`; `device_positions_per_s`: what the chip could do; `added_latency_ms`: the median of an idle
      server, without the device's time; and `ratio`: the smallest `share_of_limit`.
    """
    rows, identity = recorded(experiment)
    times = device_seconds(experiment)
    size, config = experiment.server.batch_sizes[-1], experiment.server
    request = min(len(rows), experiment.actors.games // config.groups)
    with (
        child_process(_serve_stand_in, config, max(request, config.batch_sizes[0]), identity, times) as server,
        child_process(serve_echo, identity) as echo,
    ):
        addresses = server.receive(), echo.receive()
        log.info("measuring the latency of %d requests", IDLE_REQUESTS)
        latency = _idle_latency(addresses[0], config, identity, rows[: config.batch_sizes[0]])
        idle = 1000 * (latency - times[config.batch_sizes[0]])
        limit = size / times[size]
        found = {}
        for actors in CLIENTS:
            connections = [actors * config.groups, rows, request, identity]
            log.info("measuring %d actors for %g s", actors, seconds / len(CLIENTS))
            found[str(actors)] = _measured(server, addresses, connections, limit, seconds / len(CLIENTS))
    return {
        "ratio": min(each["share_of_limit"] for each in found.values()),
        "ratio_of": "positions/s over the lower of what the chip and the bare transport could do",
        "actors": found,
        "device_positions_per_s": limit,
        "added_latency_ms": idle,
        "positions_per_request": request,
        "row_bytes": identity.row_bytes,
        "answer_bytes": 4 * identity.outputs,
    }


def recorded(experiment: Experiment) -> tuple[np.ndarray[Any, Any], Identity]:
    """Encoded positions `[N, S]` uint8 of random games, and the identity of their servers."""
    env = make_env(experiment.env)
    encoding = encoding_of(env, experiment.int8.on_tpu)
    rows = np.asarray(jax.jit(encoding.encode)(random_states(env, jax.random.key(0), POSITIONS)))
    return rows, identity_of(experiment, "bench", encoding.row_bytes, env.spec.outputs)


def device_seconds(experiment: Experiment) -> dict[int, float]:
    """The time of a batch of each size on one v5e chip.

    The TPU compiler estimates it for the smallest and the largest size; the others are interpolated.
    """
    sizes = experiment.server.batch_sizes
    ends = sizes[0], sizes[-1]
    programs = [compiled(experiment.changed(server={"batch_sizes": (size,)}), "v5e-1", "server") for size in ends]
    known = [program["estimated_seconds"] for program in programs]
    return {size: float(np.interp(size, ends, known)) for size in sizes}


class StandIn:
    """A device that takes the given time for each batch, one after the other, and answers with zeros."""

    version = 0

    def __init__(self, times: dict[int, float], outputs: int) -> None:
        self._times = times
        self.known = np.zeros(outputs, np.float32)
        self._answers = {size: np.zeros((size, outputs), np.float32) for size in times}
        self._queue = DeviceQueue()

    def evaluate(self, rows: np.ndarray[Any, Any]) -> tuple[int, np.ndarray[Any, Any]]:
        """See `BatchDevice`; returns once this batch and those before it are computed."""
        ready = self._queue.add(self._times[len(rows)])
        time.sleep(max(0.0, ready - time.perf_counter()))
        return 0, self._answers[len(rows)]


def _serve_stand_in(
    config: ServerConfig, request: int, identity: Identity, times: dict[int, float], parent: Connection
) -> None:
    """In the child: sends its address, then answers each request with the reports since the one before."""
    reports: list[dict[str, float]] = []
    server = InferenceServer(
        name="stand-in", host="127.0.0.1", identity=identity, device=StandIn(times, identity.outputs),
        config=config, request_positions=request, announce=lambda address: None,
        report=lambda _, metrics: reports.append(dict(metrics)),
    )  # fmt: skip
    threading.Thread(target=server.run, daemon=True).start()
    parent.send(server.address)

    def taken() -> list[dict[str, float]]:
        made = list(reports)
        reports.clear()
        return made

    answer(parent, taken)
    server.stop()


def serve_echo(identity: Identity, parent: Connection) -> None:
    """In the child: answers each request at once with zeros, and does nothing else."""
    socket: zmq.Socket[bytes] = zmq.Context.instance().socket(zmq.ROUTER, copy_threshold=LARGE)
    address = f"tcp://127.0.0.1:{socket.bind_to_random_port('tcp://127.0.0.1')}"
    parent.send(address)
    answers: dict[int, np.ndarray[Any, Any]] = {}
    poller = zmq.Poller()
    poller.register(socket, zmq.POLLIN)
    poller.register(parent.fileno(), zmq.POLLIN)
    while parent.fileno() not in dict(poller.poll()):
        client, kind, head, *data = socket.recv_multipart()
        if kind == HELLO:
            socket.send_multipart([client, *welcome_frames(Welcome("echo", 0, np.zeros(identity.outputs, np.float32)))])
            continue
        count = len(data[0]) // identity.row_bytes
        zeros = answers.setdefault(count, np.zeros((count, identity.outputs), np.float32))
        frames = answer_frames(Answer(int.from_bytes(head, "little"), 0, zeros))
        socket.send_multipart([client, *frames], copy=False)


def _measured(
    server: ChildProcess, addresses: tuple[str, str], connections: Sequence[Any], limit: float, seconds: float
) -> dict[str, Any]:
    """The figures of one number of actors: rounds with the server and with the bare transport in turn."""
    turn_s = min(ROUND_S, seconds / 2)
    served: list[float] = []
    bare: list[float] = []
    fills: list[float] = []
    until = time.perf_counter() + seconds
    while not served or time.perf_counter() < until:
        server.ask()
        served.append(positions_per_s(addresses[0], turn_s, *connections))
        fills += [report["server/fill"] for report in server.ask() if "server/fill" in report]
        bare.append(positions_per_s(addresses[1], turn_s, *connections))
    _, _, request, identity = connections
    rate, transport = median(served), median(bare)
    return {
        "positions_per_s": rate,
        "share_of_device": rate / limit,
        "share_of_transport": rate / transport,
        "share_of_limit": rate / min(limit, transport),
        "transport_positions_per_s": transport,
        "fill": median(fills) if fills else None,
        "gb_per_s": rate * (identity.row_bytes + 4 * identity.outputs) / 1e9,
        "messages_per_s": 2 * rate / request,
    }


def positions_per_s(
    address: str, seconds: float, connections: int, rows: Any, request: int, identity: Identity
) -> float:
    """The rate of answers on a number of connections for `seconds`; each repeats its request at once."""
    # One thread serves all connections: threads would share an interpreter, which actors in processes do not.
    context: zmq.Context[zmq.Socket[bytes]] = zmq.Context.instance()
    poller = zmq.Poller()
    frames = {}
    for number in range(connections):
        socket: zmq.Socket[bytes] = context.socket(zmq.DEALER, copy_threshold=LARGE)
        # By default messages that no server takes keep the process from ending.
        socket.setsockopt(zmq.LINGER, 0)
        socket.connect(address)
        socket.send_multipart(hello_frames(Hello(f"bench-{number}", request, identity)))
        start = number * request % max(1, len(rows) - request + 1)
        frames[socket] = request_frames(number, rows[start : start + request])
        poller.register(socket, zmq.POLLIN)
    answers, began = 0, 0.0
    now = time.perf_counter()
    start_s, end_s = now + CONNECT_SHARE * seconds, now + seconds
    while (now := time.perf_counter()) < end_s or not (began and answers):
        if now > end_s + START_S:
            raise BenchError(f"no answer came within {START_S:g} s: measure smaller requests (actors.games)")
        if not began and now >= start_s:  # all are connected, and the queue is full
            answers, began = 0, now
        for socket, _ in poller.poll(round(1000 * min(1.0, max(end_s - now, POLL_S)))):
            kind, *_ = socket.recv_multipart()
            answers += kind == ANSWER
            socket.send_multipart(frames[socket], copy=False)
    for socket in frames:
        socket.close()
    return answers * request / (now - began)


def _idle_latency(address: str, config: ServerConfig, identity: Identity, rows: Any) -> float:
    """Median seconds from a request of one connection to its answer, with pauses between the requests."""
    # Without a cache, which would answer all requests but the first.
    client = ServerClient(Hello("bench-0", len(rows), identity), lambda: {"bench": address}, config)
    latencies = []
    for _ in range(IDLE_REQUESTS):
        began = time.perf_counter()
        client.evaluate(0, rows)
        latencies.append(time.perf_counter() - began)
        time.sleep(0.005)
    return median(latencies)
