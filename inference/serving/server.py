"""An inference server: evaluates the positions of many actors in shared batches.

`Sessions` decides which clients may send requests, and how many; `InferenceServer` is the loop.
"""

from __future__ import annotations

import logging
import math
import os
import threading
import time
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any, Protocol

import zmq

from podzero.config import ServerConfig
from podzero.core.clock import REPORT_EVERY_S
from podzero.core.errors import PodzeroError
from podzero.core.protocols import Report
from podzero.inference.evaluation_cache import Rows
from podzero.inference.serving import messages
from podzero.inference.serving.batching import RUNNING, Batcher, EvaluationBatch, Request, ServerMetrics
from podzero.inference.serving.messages import CREDITS, Answer, Hello, Identity, MessageError, Welcome

QUEUE_BYTES = 2**30
"""Memory of a server for requests and responses; it refuses actors whose requests might need more."""
DEADLINE_S = 0.001
"""Time that a position waits for others while the devices are idle."""
LEASE_S = 120.0
"""Silence after which a client may lose its session to another one."""
_ACTIVE_S = 1.0
"""Time after a client's last message in which another request is expected."""


class Refusal(Exception):
    """The server cannot serve a client."""

    def __init__(self, sentence: str, elsewhere: bool = False) -> None:
        super().__init__(sentence)
        self.elsewhere = elsewhere
        """Whether another server could serve the client."""


@dataclass
class _Session:
    hello: Hello
    heard: float
    unanswered: set[int] = field(default_factory=set)

    @property
    def promised(self) -> int:
        """Positions that the client may have in flight."""
        return CREDITS * self.hello.positions


@dataclass(eq=False)
class Sessions:
    """The clients of a server, by their ZeroMQ identity."""

    name: str
    identity: Identity
    """It must equal the clients'."""
    request_positions: int
    """Most positions in one request."""
    most_positions: int
    """Most positions in flight over all clients."""

    _open: dict[bytes, _Session] = field(default_factory=dict)
    _idle: set[bytes] = field(default_factory=set)

    def active(self, now: float) -> int:
        """Number of clients heard from within `LEASE_S`."""
        return sum(now - session.heard < LEASE_S for session in self._open.values())

    def admit(self, client: bytes, hello: Hello, now: float) -> list[bytes]:
        """Begins a session in place of the client's old one, or raises `Refusal`; returns who lost a session for it."""
        if hello.identity.run != self.identity.run:
            raise Refusal(f"{self.name} belongs to another run than {hello.name}", elsewhere=True)
        if differences := self.identity.differences(hello.identity):
            raise Refusal(f"{hello.name} asks {self.name} for evaluations of another {', another '.join(differences)}")
        if hello.positions > self.request_positions:
            raise Refusal(
                f"{hello.name} announces requests of {hello.positions} positions; this run's limit is "
                f"{self.request_positions} (actors.games)"
            )
        session, others = _Session(hello, now), {key: other for key, other in self._open.items() if key != client}
        promised, lost = session.promised + sum(other.promised for other in others.values()), []
        for key, other in sorted(others.items(), key=lambda item: item[1].heard):
            if promised <= self.most_positions or now - other.heard < LEASE_S:
                break
            promised -= other.promised
            lost.append(key)
        if promised > self.most_positions:
            raise Refusal(
                f"{self.name} can hold {self.most_positions} positions ({QUEUE_BYTES / 2**30:g} GiB); with "
                f"{hello.name} its {len(others) + 1} clients might send {promised}: "
                "raise server.count, or lower actors.games",
                elsewhere=True,
            )
        for key in lost:
            del self._open[key]
            self._idle.discard(key)
        self._open[client] = session
        self._idle.add(client)
        return lost

    def ask(self, client: bytes, number: int, positions: int, now: float) -> None:
        """Records a request; raises `KeyError` if the client has no session, `Refusal` if it asks too much."""
        session = self._open[client]
        session.heard = now
        if positions > session.hello.positions:
            raise Refusal(f"{session.hello.name} sent {positions} positions but announced {session.hello.positions}")
        if len(session.unanswered) >= CREDITS:
            raise Refusal(f"{session.hello.name} has more than {CREDITS} unanswered requests")
        if number in session.unanswered:
            raise Refusal(f"{session.hello.name} sent request {number} again before it was answered")
        session.unanswered.add(number)
        self._idle.discard(client)

    def answered(self, client: bytes, number: int) -> None:
        """Records an answer; ignores one to a request of an earlier session."""
        if session := self._open.get(client):
            session.unanswered.discard(number)
            if not session.unanswered:
                self._idle.add(client)

    def others_may_ask(self, now: float) -> bool:
        """Whether a recently active client has no unanswered request."""
        return any(now - self._open[client].heard < _ACTIVE_S for client in self._idle)


log = logging.getLogger(__name__)

_LONGEST_WAIT_S = 0.5
"""Longest wait for an event."""
_MESSAGES = 256
"""Most messages read before batches are started and answered again."""


class ServerHung(PodzeroError, RuntimeError):
    """A batch has been on the devices for too long."""


class BatchDevice(Protocol):
    """Evaluates the batches of a server."""

    @property
    def version(self) -> int:
        """The learner step of the parameters; -1 before the first ones."""
        ...

    @property
    def known(self) -> Rows:
        """Their evaluation of the initial position, `[outputs]` float32; empty before the first ones."""
        ...

    def evaluate(self, rows: Rows) -> tuple[int, Rows]:
        """Evaluates `[size, S]` uint8; returns the parameters' version and `[size, outputs]` float32. Thread-safe."""
        ...


@dataclass(kw_only=True, eq=False)
class InferenceServer:
    """Serves on one port; `run` is a loop over messages, finished batches and the clock."""

    name: str
    """Its name in metrics and messages, such as `inference-0`."""
    host: str
    """The name or IP at which actors reach it."""
    identity: Identity
    """It must equal the actors'."""
    device: BatchDevice
    config: ServerConfig
    request_positions: int
    """Most positions in one request; clients that send larger frames are disconnected."""
    report: Report
    announce: Callable[[str], None]
    """Called with the address every few seconds, for actors that look for a server."""
    lag: int = 0
    """How many publications the parameters of `device` are behind, which actors are told."""

    def __post_init__(self) -> None:
        identity, config = self.identity, self.config
        most_positions = QUEUE_BYTES // (identity.row_bytes + 4 * identity.outputs)
        self._sessions = Sessions(self.name, identity, self.request_positions, most_positions)
        self._batcher = Batcher(config.batch_sizes, DEADLINE_S)
        self._metrics = ServerMetrics()
        self._started: dict[Future[tuple[int, Rows]], tuple[EvaluationBatch, float]] = {}
        # ZeroMQ's sockets are for one thread: others wake its poll through this descriptor.
        self._wake = os.eventfd(0, os.EFD_NONBLOCK)
        self._stopping = threading.Event()
        self._socket: zmq.Socket[bytes] = zmq.Context.instance().socket(zmq.ROUTER, copy_threshold=messages.LARGE)
        self._socket.setsockopt(zmq.LINGER, 0)
        # A client that reconnects replaces its old connection.
        self._socket.setsockopt(zmq.ROUTER_HANDOVER, 1)
        # Messages to a client that does not read are dropped instead of filling the memory.
        self._socket.setsockopt(zmq.SNDHWM, 4 * CREDITS)
        self._socket.setsockopt(zmq.MAXMSGSIZE, max(messages.HELLO_BYTES, self.request_positions * identity.row_bytes))
        self.address = f"tcp://{self.host}:{self._socket.bind_to_random_port(f'tcp://{self.host}')}"
        """Address for actors."""

    def stop(self) -> None:
        """Ends `run`; thread-safe, returns at once."""
        self._stopping.set()
        os.eventfd_write(self._wake, 1)

    def run(self) -> None:
        """Serves until `stop` is called; open requests then stay unanswered."""
        poller = zmq.Poller()
        poller.register(self._socket, zmq.POLLIN)
        poller.register(self._wake, zmq.POLLIN)
        pool = ThreadPoolExecutor(RUNNING, thread_name_prefix="evaluate")
        try:
            self.announce(self.address)
            while not self._stopping.is_set():
                wait_s = min(_LONGEST_WAIT_S, self._batcher.wait_s(time.monotonic(), len(self._started)))
                # Rounded up, so that the time has passed after the wait.
                poller.poll(math.ceil(1000 * wait_s))
                self._receive()
                self._answer()
                self._start(pool)
                self._watch()
            self._report_metrics(time.monotonic())
        finally:
            self._socket.close()
            # Never wait for a batch that hangs.
            pool.shutdown(wait=False, cancel_futures=True)

    def _receive(self) -> None:
        """Reads the messages that have arrived."""
        for _ in range(_MESSAGES):
            try:
                client, *frames = self._socket.recv_multipart(zmq.NOBLOCK)
            except zmq.Again:
                return
            now = time.monotonic()
            try:
                self._handle(client, frames, now)
            except (MessageError, Refusal) as error:
                self._send(client, messages.refused_frames(str(error), elsewhere=getattr(error, "elsewhere", False)))

    def _handle(self, client: bytes, frames: list[bytes], now: float) -> None:
        """Handles one message, which may come from anyone and hold anything; raises if it cannot be read or served."""
        match frames[0]:
            case messages.HELLO:
                for lost in [client, *self._sessions.admit(client, messages.read_hello(frames), now)]:
                    self._batcher.drop(lost)
                self._send(client, messages.welcome_frames(Welcome(self.name, self.device.version, self.device.known)))
            case messages.REQUEST:
                number, rows = messages.read_request(frames, self.identity.row_bytes)
                if self.device.version < 0:
                    raise Refusal(f"{self.name} has no parameters yet", elsewhere=True)
                try:
                    self._sessions.ask(client, number, len(rows), now)
                except KeyError:
                    raise Refusal(f"{self.name} closed this client's session: it was silent", elsewhere=True) from None
                self._batcher.add(Request(client, number, rows, now))
            case other:
                raise MessageError(f"{self.name} does not know messages of the kind {other[:20]!r}")

    def _start(self, pool: ThreadPoolExecutor) -> None:
        """Starts the batches that are due."""
        now = time.monotonic()
        while batch := self._batcher.take(now, len(self._started), self._sessions.others_may_ask(now)):
            future = pool.submit(self.device.evaluate, batch.rows())
            self._started[future] = batch, now
            self._metrics.started(batch, now)
            future.add_done_callback(lambda _: os.eventfd_write(self._wake, 1))

    def _answer(self) -> None:
        """Answers the requests of finished batches."""
        try:
            os.eventfd_read(self._wake)
        except BlockingIOError:
            # No batch has finished.
            return
        for future in [future for future in self._started if future.done()]:
            batch, _ = self._started.pop(future)
            version, evaluations = future.result()
            now = time.monotonic()
            self._metrics.finished(now)
            for request in batch.answer(version, evaluations):
                self._sessions.answered(request.client, request.number)
                assert request.evaluations is not None
                answer = Answer(request.number, request.version, request.evaluations, self.lag)
                self._send(request.client, messages.answer_frames(answer))
                self._metrics.answered(now - request.arrived)

    def _send(self, client: bytes, frames: list[Any]) -> None:
        """Sends without waiting; a ROUTER socket drops messages to clients that are gone or do not read."""
        self._socket.send_multipart([client, *frames], zmq.NOBLOCK, copy=False)

    def _watch(self) -> None:
        """Reports every few seconds; fails if a batch hangs."""
        now = time.monotonic()
        oldest = min((began for _, began in self._started.values()), default=now)
        if now - oldest > self.config.hang_s:
            raise ServerHung(f"{self.name}: a batch took over {self.config.hang_s:g} s (three times server.timeout_s)")
        if self._metrics.elapsed_s(now) >= REPORT_EVERY_S:
            self._report_metrics(now)
            self.announce(self.address)

    def _report_metrics(self, now: float) -> None:
        queued, clients = self._batcher.queued, self._sessions.active(now)
        self.report(self.name, self._metrics.flush(now) | {
            "server/queued": float(queued), "server/clients": float(clients),
            "server/version": float(self.device.version),
        })  # fmt: skip
