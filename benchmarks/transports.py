"""The speed of each transport that an inference server could use between two processes of this machine.

uv run --group dev python benchmarks/transports.py
uv run --group dev python benchmarks/transports.py --rows 256 --row-bytes 11 --outputs 8

Each client keeps two requests in flight; the other process answers at once with zeros. Prints JSON.
"""

from __future__ import annotations

import argparse
import json
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from concurrent import futures
from contextlib import contextmanager
from multiprocessing import shared_memory
from multiprocessing.connection import Connection
from statistics import median
from typing import Any, NamedTuple

import numpy as np
import zmq

from podzero.tools.bench.measuring import child_process

IN_FLIGHT = 2
"""The unanswered requests of a client."""


class Sizes(NamedTuple):
    """The bytes of a request and of its answer."""

    request: int
    answer: int


Start = Callable[[bytes], Any]
"""Sends a request; returns the argument of `Finish`."""
Finish = Callable[[Any], int]
"""Waits for an answer; returns its bytes."""


@contextmanager
def over_zeromq(sizes: Sizes, address: str) -> Iterator[tuple[Start, Finish]]:
    """A DEALER and a ROUTER socket; the server binds to `address`."""
    with child_process(_serve_zeromq, sizes, address) as server:
        socket: zmq.Socket[bytes] = zmq.Context.instance().socket(zmq.DEALER)
        socket.connect(server.receive())
        yield lambda request: socket.send(request, copy=False), lambda _: len(socket.recv())
        socket.close()


def _serve_zeromq(sizes: Sizes, address: str, parent: Connection) -> None:
    socket: zmq.Socket[bytes] = zmq.Context.instance().socket(zmq.ROUTER)
    socket.bind(address)
    parent.send(socket.getsockopt_string(zmq.LAST_ENDPOINT))
    poller, zeros = zmq.Poller(), bytes(sizes.answer)
    poller.register(socket, zmq.POLLIN)
    poller.register(parent.fileno(), zmq.POLLIN)
    while parent.fileno() not in dict(poller.poll()):
        client, _ = socket.recv_multipart()
        socket.send_multipart([client, zeros], copy=False)


@contextmanager
def over_grpc(sizes: Sizes) -> Iterator[tuple[Start, Finish]]:
    """Unary calls with bytes, without protocol buffers."""
    import grpc

    with child_process(_serve_grpc, sizes) as server:
        options = [("grpc.max_receive_message_length", -1), ("grpc.max_send_message_length", -1)]
        with grpc.insecure_channel(f"127.0.0.1:{server.receive()}", options=options) as channel:
            call = channel.unary_unary("/bench/evaluate")
            yield call.future, lambda pending: len(pending.result(timeout=60.0))


def _serve_grpc(sizes: Sizes, parent: Connection) -> None:
    import grpc

    zeros = bytes(sizes.answer)
    handler = grpc.unary_unary_rpc_method_handler(lambda request, context: zeros)
    options = [("grpc.max_receive_message_length", -1), ("grpc.max_send_message_length", -1)]
    server = grpc.server(futures.ThreadPoolExecutor(IN_FLIGHT), options=options)
    server.add_generic_rpc_handlers([grpc.method_handlers_generic_handler("bench", {"evaluate": handler})])
    port = server.add_insecure_port("127.0.0.1:0")
    server.start()
    parent.send(port)
    parent.poll(None)
    server.stop(0)


@contextmanager
def over_shared_memory(sizes: Sizes) -> Iterator[tuple[Start, Finish]]:
    """Buffers in shared memory for the requests in flight, and a pipe for the numbers of those that are ready."""
    memory = shared_memory.SharedMemory(create=True, size=IN_FLIGHT * sum(sizes))
    buffer: Any = memory.buf
    try:
        with child_process(_serve_shared_memory, sizes, memory.name) as server:
            server.receive()
            free = deque(range(IN_FLIGHT))

            def start(request: bytes) -> int:
                slot = free.popleft()
                begin = slot * sum(sizes)
                buffer[begin : begin + sizes.request] = request
                server.send(slot)
                return slot

            def finish(slot: int) -> int:
                assert server.receive(60.0) == slot
                begin = slot * sum(sizes) + sizes.request
                answer = bytes(buffer[begin : begin + sizes.answer])
                free.append(slot)
                return len(answer)

            yield start, finish
    finally:
        memory.close()
        memory.unlink()


def _serve_shared_memory(sizes: Sizes, name: str, parent: Connection) -> None:
    memory, zeros = shared_memory.SharedMemory(name), bytes(sizes.answer)
    buffer: Any = memory.buf
    parent.send(None)
    while True:
        try:
            (slot,) = parent.recv()
        except EOFError:
            return
        begin = slot * sum(sizes) + sizes.request
        bytes(buffer[begin - sizes.request : begin])
        buffer[begin : begin + sizes.answer] = zeros
        parent.send(slot)


class _RayServer:
    def __init__(self, answer: int) -> None:
        self._zeros = np.zeros(answer, np.uint8)

    def evaluate(self, request: Any) -> Any:
        """The answer."""
        del request
        return self._zeros


@contextmanager
def over_ray(sizes: Sizes) -> Iterator[tuple[Start, Finish]]:
    """Calls of a Ray actor with NumPy arrays."""
    import ray

    from podzero.runtime.cluster.ray_cluster import connect

    with connect(None, cpus=2):
        server = ray.remote(_RayServer).options(num_cpus=0).remote(sizes.answer)
        yield (
            lambda request: server.evaluate.remote(np.frombuffer(request, np.uint8)),
            lambda pending: len(ray.get(pending, timeout=60.0)),
        )


def rate(ways: tuple[Start, Finish], request: bytes, seconds: float) -> float:
    """Answers per second with `IN_FLIGHT` requests in flight."""
    start, finish = ways
    pending = deque(start(request) for _ in range(IN_FLIGHT))
    count, began = 0, time.perf_counter()
    while time.perf_counter() - began < seconds:
        finish(pending.popleft())
        pending.append(start(request))
        count += 1
    elapsed = time.perf_counter() - began
    for one in pending:
        finish(one)
    return count / elapsed


def latency_ms(ways: tuple[Start, Finish], request: bytes, count: int = 300) -> float:
    """Median milliseconds of single requests."""
    start, finish = ways
    times = []
    for _ in range(count):
        began = time.perf_counter()
        finish(start(request))
        times.append(1000 * (time.perf_counter() - began))
    return median(times)


def main() -> None:
    """Measures one transport after the other."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=int, default=1024, help="positions of a request")
    parser.add_argument("--row-bytes", type=int, default=173, help="bytes of a position")
    parser.add_argument("--outputs", type=int, default=83, help="numbers of an answer, 4 bytes each")
    parser.add_argument("--seconds", type=float, default=5.0, help="for each way and round")
    parser.add_argument("--rounds", type=int, default=3)
    arguments = parser.parse_args()
    rows = arguments.rows
    sizes = Sizes(rows * arguments.row_bytes, rows * arguments.outputs * 4)
    request = bytes(sizes.request)
    ways: Mapping[str, Callable[[], Any]] = {
        "zeromq_tcp": lambda: over_zeromq(sizes, "tcp://127.0.0.1:*"),
        "zeromq_ipc": lambda: over_zeromq(sizes, "ipc://*"),
        "grpc": lambda: over_grpc(sizes),
        "shared_memory": lambda: over_shared_memory(sizes),
        "ray": lambda: over_ray(sizes),
    }
    found = {}
    for name, connected in ways.items():
        with connected() as way:
            delay = latency_ms(way, request)
            per_s = median(rate(way, request, arguments.seconds) for _ in range(arguments.rounds))
        found[name] = {
            "requests_per_s": per_s,
            "positions_per_s": per_s * rows,
            "gb_per_s": per_s * sum(sizes) / 1e9,
            "latency_ms": delay,
        }
        print(f"{name}: {found[name]}", flush=True)
    print(json.dumps({"request_bytes": sizes.request, "answer_bytes": sizes.answer, "ways": found}))


if __name__ == "__main__":
    main()
