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
from podzero.inference.evaluation_cache import EvaluationCache
from podzero.inference.serving.batching import Rows
from podzero.inference.serving.messages import (
    ANSWER,
    REFUSED,
    WELCOME,
    Answer,
    Encoding,
    Hello,
    MessageError,
    Welcome,
    copies,
    hello_frames,
    read_answer,
    read_refused,
    read_welcome,
    request_frames,
)
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


class ServerClient:
    """A connection for one thread at a time; moves to another server if one does not answer.

    Args:
      servers: returns the addresses of the running servers by name.
      config: timeouts and the size of the cache.
      preferred: index of the preferred server among the sorted names; others are used only while it fails.
    """

    def __init__(
        self, hello: Hello, servers: Callable[[], Mapping[str, str]], config: ServerConfig, preferred: int = 0
    ) -> None:
        self.version = -1
        """Learner step of the newest answer's parameters; -1 before the first ones."""
        # The same after a reconnection, so that the server replaces the old session.
        self._id = uuid.uuid4().hex.encode()
        self._hello = hello
        self._servers = servers
        self._config = config
        self._preferred = preferred
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
        outputs = hello.identity.outputs
        self._cache = EvaluationCache(config.cache_mib, outputs) if config.cache_mib else None

    def close(self) -> None:
        """Makes a waiting thread raise `ServerLost`; returns at once."""
        self._closed.set()

    def await_version(self, timeout_s: float) -> int:
        """Connects to a server with parameters; returns their version."""
        self._connect(time.monotonic() + timeout_s)
        return self.version

    def evaluate(self, version: int, rows: Rows) -> Rows:
        """Evaluates positions `[B, S]` uint8 (at most as many as announced): `[B, outputs]` float32.

        Evaluations cached for `version` are not requested again.

        Raises:
          ServerLost: `server.give_up_s` is set and no server answered within it, or the client was closed.
          ConfigError: the servers evaluate another game or network.
        """
        try:
            if self._cache is None:
                return self._ask(rows)
            evaluations = self._cache(version, rows, self._ask)
            if time.monotonic() - self._answered_at > _REFRESH_S:
                self._ask(rows[:1])
        except PodzeroError as failure:
            self.failure = failure
            raise
        return evaluations

    def metrics(self) -> dict[str, float]:
        """`server/cached`, the share of evaluations that the cache answered, and `count/refused_answers`."""
        cache = self._cache
        refused, self._refused_answers = self._refused_answers, 0
        cached = {"server/cached": cache.found / cache.asked} if cache and cache.asked else {}
        return cached | {"count/refused_answers": float(refused)}

    def _ask(self, rows: Rows) -> Rows:
        deadline = time.monotonic() + (self._config.give_up_s or math.inf)
        self._return_if_possible()
        while True:
            number = next(self._numbers)
            if self._socket is None:
                self._connect(deadline)
            assert self._socket is not None
            frames = request_frames(number, rows)
            self._socket.send_multipart(frames, zmq.NOBLOCK, copy=copies(frames))
            try:
                answer = self._await_answer(number, len(rows), deadline)
            except MessageError as error:
                self._leave(self._unusable_answer(error))
                continue
            if answer is not None:
                self._unusable.pop(self._address, None)
                self.version, self._answered_at = answer.version, time.monotonic()
                return answer.evaluations

    def _await_answer(self, number: int, positions: int, deadline: float) -> Answer | None:
        """The answer to a request; without one, disconnects and returns None."""
        until, silence = self._answer_due(deadline)
        while frames := self._receive(until):
            if frames[0] == ANSWER:
                answer = read_answer(frames, self._hello.identity.outputs)
                # Late answers to requests that were given up have other numbers.
                if answer.number == number:
                    if len(answer.evaluations) != positions:
                        raise MessageError(f"{len(answer.evaluations)} evaluations of {positions} positions")
                    return answer
            elif frames[0] == REFUSED:
                self._leave(self._refused(frames))
                return None
        self._leave(f"it has not answered for {silence}")
        return None

    def _unusable_answer(self, error: MessageError) -> str:
        """Counts what a server sent and cannot be used; returns the reason."""
        self._refused_answers += 1
        self._unusable[self._address] += 1
        why = f"what it answers cannot be used: {error}"
        if self._unusable[self._address] >= MOST_UNUSABLE:
            self._left_alone_until[self._address] = time.monotonic() + _RETURN_S
            log.warning("%s leaves %s alone for %g s: %s", self._hello.name, self._server, _RETURN_S, why)
        return why

    def _connect(self, deadline: float) -> None:
        """Tries the servers in turn until one accepts; logs a long wait."""
        wait = Wait()
        while True:
            try:
                running, now = sorted(self._servers().items()), time.monotonic()
                why = "what the servers answer cannot be used" if running else "no server is running"
            except ClusterError as error:
                running, why = [], str(error)
            found = [server for server in running if now >= self._left_alone_until.get(server[1], now)]
            if found:
                self._server, self._address = found[(self._preferred + self._failures) % len(found)]
                why = f"{self._server} at {self._address}: {self._greet(self._address, deadline)}"
                if self._socket is not None:
                    self._connected_at = time.monotonic()
                    return
            if wait.message_due():
                log.warning("%s has waited %s for an inference server: %s", self._hello.name, wait, why)
            self._pause(deadline, why)

    def _return_if_possible(self) -> None:
        """Disconnects in order to try the preferred server again, if that failed a while ago."""
        if self._failures and time.monotonic() - self._connected_at > _RETURN_S:
            self._failures = 0
            self._disconnect()

    def _greet(self, address: str, deadline: float) -> str:
        """Connects to a server; returns the reason if that failed, otherwise an empty string."""
        self._disconnect()
        self._socket = zmq.Context.instance().socket(zmq.DEALER)
        self._socket.setsockopt(zmq.LINGER, 0)
        self._socket.setsockopt(zmq.IDENTITY, self._id)
        self._socket.connect(address)
        self._socket.send_multipart(hello_frames(self._hello))
        until, silence = self._answer_due(deadline)
        try:
            frames = self._reply_to_hello(until)
            if frames and frames[0] == WELCOME:
                return self._welcomed(read_welcome(frames, self._hello.identity.outputs))
            self._disconnect()
            why = self._refused(frames) if frames else f"no answer within {silence}"
        except MessageError as error:
            self._disconnect()
            why = self._unusable_answer(error)
        self._failures += 1
        return why

    def _welcomed(self, welcome: Welcome) -> str:
        """Takes a server that has parameters; otherwise disconnects and returns the reason."""
        self._server = welcome.name
        if welcome.version >= 0:
            self.version = welcome.version
            return ""
        self._disconnect()
        # At the start of a run no server has parameters; later, another one has some.
        self._failures += self.version >= 0
        return "it has no parameters yet: has the learner published any?"

    def _reply_to_hello(self, deadline: float) -> list[bytes] | None:
        """A server's welcome or refusal; None after the deadline."""
        # Answers to earlier requests may arrive first, since the client reconnects with the same ZeroMQ identity.
        while (frames := self._receive(deadline)) and frames[0] not in (WELCOME, REFUSED):
            pass
        return frames

    def _answer_due(self, deadline: float) -> tuple[float, str]:
        """When to stop waiting for a message, and the length of that wait in words."""
        now, timeout_s = time.monotonic(), self._config.timeout_s
        if now + timeout_s <= deadline:
            return now + timeout_s, f"{timeout_s:g} s (server.timeout_s)"
        return deadline, f"{max(0.0, deadline - now):.1f} s, the time left before giving up"

    def _refused(self, frames: list[bytes]) -> str:
        """The reason of a refusal; a `ConfigError` if all servers would refuse."""
        sentence, elsewhere = read_refused(frames)
        if not elsewhere:
            raise ConfigError(sentence)
        return sentence

    def _receive(self, deadline: float) -> list[bytes] | None:
        """The next message; None after the deadline."""
        assert self._socket is not None
        while (left := deadline - time.monotonic()) > 0:
            self._check_open()
            # Rounded up: with zero milliseconds the loop would spin.
            if self._socket.poll(int(1000 * min(left, _SLICE_S)) + 1):
                return self._socket.recv_multipart()
        return None

    def _pause(self, deadline: float, why: str) -> None:
        self._check_open()
        if time.monotonic() + _PAUSE_S >= deadline:
            raise ServerLost(f"{self._hello.name} found no inference server in time: {why}")
        self._closed.wait(_PAUSE_S)

    def _leave(self, why: str) -> None:
        log.warning("%s leaves %s: %s; its games continue with the next server", self._hello.name, self._server, why)
        self._failures += 1
        self._disconnect()

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
        """The newest answer's version if it was not returned yet; never waits."""
        version = self._client.version
        if version == self._returned:
            return None
        self._returned = version
        return Versioned(version, np.int32(version))


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
