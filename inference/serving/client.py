"""An actor's connection to inference servers, which survives the loss of a server."""

from __future__ import annotations

import itertools
import logging
import math
import threading
import time
import uuid
from collections import Counter
from collections.abc import Callable, Mapping
from typing import Any

import jax
import numpy as np
import zmq

from podzero.config import ServerConfig
from podzero.core.errors import ClusterError, ConfigError, PodzeroError
from podzero.core.types import Array, EnvSpec, EnvState, Params, Versioned
from podzero.core.waiting import Wait
from podzero.inference.evaluation_cache import EvaluationCache, Rows
from podzero.inference.serving import messages
from podzero.inference.serving.messages import Answer, Encoding, Hello, MessageError
from podzero.search import Evaluate

log = logging.getLogger(__name__)

_SLICE_S = 0.2
"""Longest wait before checking whether the client was closed."""
_PAUSE_S = 0.5
"""Pause between attempts to find a server with parameters."""
_RETURN_S = 60.0
"""Interval at which a client of another server tries its preferred one again."""
MOST_UNUSABLE = 3
"""A server that answers in this many attempts in a row with what cannot be used is left alone for `_RETURN_S`."""
_REFRESH_S = 2.0
"""Time without an answer after which a cached position is sent too, because answers carry the version."""


class ServerLost(PodzeroError, TimeoutError):
    """No server answered in time, or the client was closed."""


class _Unserved(Exception):
    """A server does not serve the client now; the message says why."""

    def __init__(self, why: str, stay: bool = False) -> None:
        super().__init__(why)
        self.stay = stay
        """Whether the same server is tried again, not the next one."""


class ServerClient:
    """A connection for one thread at a time; moves to another server if one does not answer."""

    def __init__(
        self,
        hello: Hello,
        servers: Callable[[], Mapping[str, str]],
        config: ServerConfig,
        preferred: int = 0,
        cache_mib: float = 0.0,
    ) -> None:
        """`servers` returns the addresses of the running servers by name; `preferred` is an index among the sorted
        names: the other servers are used only while this one fails.
        """
        self.version = -1
        """Learner step of the newest answer's parameters; -1 before the first ones."""
        self.lag = 0
        """How many publications these were behind."""
        self._row: Rows | None = None
        # The same after a reconnection, so that the server replaces the old session.
        self._id = uuid.uuid4().hex.encode()
        self._hello, self._config = hello, config
        self._servers, self._preferred = servers, preferred
        self._failures = 0
        self._connected_at = self._answered_at = time.monotonic()
        self.failure: Exception | None = None
        """The error of the last failed evaluation; JAX keeps only the text of an exception in a callback."""
        self._numbers = itertools.count()
        self._socket: zmq.Socket[bytes] | None = None
        self._server, self._address = "no server", ""
        self._unusable: Counter[str] = Counter()
        """Unusable answers in a row, by the server's address."""
        self._left_alone_until: dict[str, float] = {}
        """The times until which servers are left alone, by address."""
        self._refused_answers = 0
        self._closed = threading.Event()
        self._cache = EvaluationCache(cache_mib, hello.identity.outputs)

    def close(self) -> None:
        """Makes a waiting thread raise `ServerLost`; returns at once."""
        self._closed.set()

    def await_version(self, timeout_s: float) -> int:
        """Connects to a server with parameters; returns their version."""
        self._connect(time.monotonic() + timeout_s)
        return self.version

    def evaluate(self, version: int, rows: Rows) -> Rows:
        """Evaluates positions `[B, S]` uint8 (at most as many as announced): `[B, outputs]` float32.

        Evaluations cached for `version` are not requested again. Raises `ServerLost` if the client was closed,
        `ConfigError` if the servers evaluate another game or network.
        """
        try:
            evaluations = self._cache(version, rows, self._ask)
            self._row = rows[:1]
            self.refresh()
        except PodzeroError as failure:
            self.failure = failure
            raise
        return evaluations

    def refresh(self) -> None:
        """Asks about a position again if there was no answer lately, since answers tell version and lag."""
        if self._row is not None and time.monotonic() - self._answered_at > _REFRESH_S:
            self._ask(self._row)

    def metrics(self) -> dict[str, float]:
        """`server/cached`, the share of evaluations that the cache answered, and `count/refused_answers`."""
        cache = self._cache
        refused, self._refused_answers = self._refused_answers, 0
        cached = {"server/cached": cache.found / cache.asked} if cache.asked else {}
        return cached | {"count/refused_answers": float(refused)}

    def _ask(self, rows: Rows) -> Rows:
        if self._failures and time.monotonic() - self._connected_at > _RETURN_S:
            # The preferred server failed a while ago: it is tried again.
            self._failures = 0
            self._disconnect()
        while True:
            if self._socket is None:
                self._connect()
            try:
                answer = self._exchange(rows)
            except (_Unserved, MessageError) as error:
                name, server, why = self._hello.name, self._server, self._lose(error)
                log.warning("%s leaves %s: %s; its games continue with the next server", name, server, why)
            else:
                self._unusable.pop(self._address, None)
                self.version, self.lag, self._answered_at = answer.version, answer.lag, time.monotonic()
                return answer.evaluations

    def _exchange(self, rows: Rows) -> Answer:
        """The server's answer to a request."""
        assert self._socket is not None
        number = next(self._numbers)
        self._socket.send_multipart(messages.request_frames(number, rows), zmq.NOBLOCK, copy=False)
        due = self._answer_due()
        while True:
            answer = messages.read_answer(self._receive(messages.ANSWER, *due), self._hello.identity.outputs)
            # Late answers to requests that were given up have other numbers.
            if answer.number == number:
                if len(answer.evaluations) != len(rows):
                    raise MessageError(f"{len(answer.evaluations)} evaluations of {len(rows)} positions")
                return answer

    def _connect(self, deadline: float = math.inf) -> None:
        """Tries the servers in turn until one accepts; logs a long wait, and raises `ServerLost` at the deadline."""
        wait = Wait(stage="wait_servers")
        while True:
            try:
                running, now = sorted(self._servers().items()), time.monotonic()
                why = "what the servers answer cannot be used" if running else "no server is running"
            except ClusterError as error:
                running, why = [], str(error)
            found = [server for server in running if now >= self._left_alone_until.get(server[1], now)]
            if found:
                self._server, self._address = found[(self._preferred + self._failures) % len(found)]
                try:
                    self._greet(deadline)
                    return
                except (_Unserved, MessageError) as error:
                    why = f"{self._server} at {self._address}: {self._lose(error)}"
            if wait.message_due():
                log.warning("%s has waited %s for an inference server: %s", self._hello.name, wait, why)
            self._check_open()
            if time.monotonic() + _PAUSE_S >= deadline:
                raise ServerLost(f"{self._hello.name} found no inference server in time: {why}")
            self._closed.wait(_PAUSE_S)

    def _greet(self, deadline: float) -> None:
        """Connects to the server, which must have parameters."""
        self._disconnect()
        self._socket = zmq.Context.instance().socket(zmq.DEALER, copy_threshold=messages.LARGE)
        self._socket.setsockopt(zmq.LINGER, 0)
        self._socket.setsockopt(zmq.IDENTITY, self._id)
        self._socket.connect(self._address)
        self._socket.send_multipart(messages.hello_frames(self._hello))
        # Answers to earlier requests may arrive first, since the client reconnects with the same ZeroMQ identity.
        frames = self._receive(messages.WELCOME, *self._answer_due(deadline))
        welcome = messages.read_welcome(frames, self._hello.identity.outputs)
        self._server = welcome.name
        if welcome.version < 0:
            # At the start of a run no server has parameters; later, another one has some.
            raise _Unserved("it has no parameters yet: has the learner published any?", stay=self.version < 0)
        self.version, self._connected_at = welcome.version, time.monotonic()

    def _lose(self, error: _Unserved | MessageError) -> str:
        """Disconnects from a server that does not serve, or sent what cannot be used; returns the reason."""
        self._disconnect()
        if isinstance(error, _Unserved):
            self._failures += not error.stay
            return str(error)
        self._failures += 1
        self._refused_answers += 1
        self._unusable[self._address] += 1
        why = f"what it answers cannot be used: {error}"
        if self._unusable[self._address] >= MOST_UNUSABLE:
            self._left_alone_until[self._address] = time.monotonic() + _RETURN_S
            log.warning("%s leaves %s alone for %g s: %s", self._hello.name, self._server, _RETURN_S, why)
        return why

    def _answer_due(self, deadline: float = math.inf) -> tuple[float, str]:
        """When to stop waiting for a message, and the length of that wait in words."""
        now, timeout_s = time.monotonic(), self._config.timeout_s
        if now + timeout_s <= deadline:
            return now + timeout_s, f"{timeout_s:g} s (server.timeout_s)"
        return deadline, f"{max(0.0, deadline - now):.1f} s, the time left before giving up"

    def _receive(self, kind: bytes, until: float, silence: str) -> list[bytes]:
        """The server's next message of a kind; raises `_Unserved` for a refusal, or if none came in time."""
        assert self._socket is not None
        while (left := until - time.monotonic()) > 0:
            self._check_open()
            # Rounded up: with zero milliseconds the loop would spin.
            if not self._socket.poll(int(1000 * min(left, _SLICE_S)) + 1):
                continue
            frames = self._socket.recv_multipart()
            if frames[0] == kind:
                return frames
            if frames[0] == messages.REFUSED:
                sentence, elsewhere = messages.read_refused(frames)
                if not elsewhere:
                    raise ConfigError(sentence)
                raise _Unserved(sentence)
        raise _Unserved(f"it has not answered for {silence}")

    def _disconnect(self) -> None:
        if self._socket is not None:
            self._socket.close()
        self._socket = None

    def _check_open(self) -> None:
        if self._closed.is_set():
            raise ServerLost(f"{self._hello.name} was stopped while it waited for {self._server}")


class ServedParams:
    """A `ParamSource` for an actor whose servers hold the parameters; the version stands for them."""

    def __init__(self, client: ServerClient) -> None:
        self._client = client
        self._returned = -1

    def wait(self, timeout_s: float) -> Versioned:
        """Waits until a server has parameters and returns their version."""
        self._returned = self._client.await_version(timeout_s)
        return Versioned(self._returned, np.int32(self._returned))

    def poll(self) -> Versioned | None:
        """The newest answer's version if it was not returned yet; asks again for old ones that were behind."""
        if self._client.lag:
            self._client.refresh()
        version = self._client.version
        if version == self._returned:
            return None
        self._returned = version
        return Versioned(version, np.int32(version))

    @property
    def publications(self) -> tuple[int, int]:
        """See `ParamSource.publications`; 0 stands for the servers' parameters."""
        return 0, self._client.lag


def served_evaluation(encoding: Encoding, spec: EnvSpec, client: ServerClient) -> Evaluate:
    """The evaluation by a server, for searches with the parameters of `ServedParams`."""

    def on_host(version: Any, rows: Any) -> Rows:
        return client.evaluate(int(version), np.asarray(rows))

    def evaluate(params: Params, key: Array, states: EnvState) -> tuple[jax.Array, jax.Array]:
        del key
        rows = encoding.encode(states)
        like = np.zeros((rows.shape[0], spec.outputs), np.float32)
        evaluations = jax.pure_callback(on_host, like, params, rows)
        logits, values = evaluations[:, : spec.num_actions], evaluations[:, spec.num_actions :]
        return logits, values.reshape(rows.shape[0], *spec.value_shape)

    return evaluate
