"""Who may send requests to an inference server, and how many are unanswered."""

from __future__ import annotations

from dataclasses import dataclass

from podzero.inference.serving.messages import CREDITS, Hello, Identity

LEASE_S = 120.0
"""Time without a message after which a client may lose its place to another one."""
_ACTIVE_S = 1.0
"""Time since its last message in which a client is expected to ask again soon."""


class Refusal(Exception):
    """The server cannot serve a client."""

    def __init__(self, sentence: str, elsewhere: bool = False) -> None:
        super().__init__(sentence)
        self.elsewhere = elsewhere
        """Whether another server may serve it."""


@dataclass
class _Session:
    hello: Hello
    heard: float
    unanswered: int = 0


class Sessions:
    """The clients of a server, by ZeroMQ's identity of their connection.

    Args:
      name: of the server.
      identity: which clients must have as well.
      most_positions: that may be in flight, over all clients.
    """

    def __init__(self, name: str, identity: Identity, most_positions: int) -> None:
        self._name = name
        self._identity = identity
        self._most = most_positions
        self._open: dict[bytes, _Session] = {}
        self._idle: set[bytes] = set()
        self._promised = 0

    def __len__(self) -> int:
        return len(self._open)

    def admit(self, client: bytes, hello: Hello, now: float) -> list[bytes]:
        """Begins a session, anew if the client has one; returns the clients that lost their places to it.

        Raises:
          Refusal: it is of another run, game or network, or its requests might exceed the memory of the queue.
        """
        if hello.identity.run != self._identity.run:
            raise Refusal(f"{self._name} belongs to another run than {hello.name}", elsewhere=True)
        if differences := self._identity.differences(hello.identity):
            raise Refusal(
                f"{hello.name} asks {self._name} for evaluations with another {', another '.join(differences)}"
            )
        self._close(client)
        needed, lost = CREDITS * hello.positions, []
        for other in sorted(self._open, key=lambda name: self._open[name].heard):
            if self._promised + needed <= self._most or now - self._open[other].heard < LEASE_S:
                break
            self._close(other)
            lost.append(other)
        if self._promised + needed > self._most:
            raise Refusal(
                f"{self._name} holds requests of {self._most} positions at most (server.queue_mib); with {hello.name} "
                f"its {len(self._open) + 1} clients might send {self._promised + needed}: "
                "raise server.queue_mib or server.count, or lower actors.games",
                elsewhere=True,
            )
        self._open[client] = _Session(hello, now)
        self._idle.add(client)
        self._promised += needed
        return lost

    def ask(self, client: bytes, positions: int, now: float) -> None:
        """Notes a request.

        Raises:
          KeyError: the client has no session.
          Refusal: it has too many unanswered requests, or the request has more positions than it announced.
        """
        session = self._open[client]
        session.heard = now
        if positions > session.hello.positions:
            raise Refusal(
                f"{session.hello.name} sent {positions} positions at once and had announced {session.hello.positions}"
            )
        if session.unanswered >= CREDITS:
            raise Refusal(f"{session.hello.name} has more than {CREDITS} unanswered requests")
        session.unanswered += 1
        self._idle.discard(client)

    def answered(self, client: bytes) -> None:
        """Notes an answer."""
        if session := self._open.get(client):
            session.unanswered = max(0, session.unanswered - 1)
            if not session.unanswered:
                self._idle.add(client)

    def others_may_ask(self, now: float) -> bool:
        """Whether a client that was heard of lately has no unanswered request."""
        return any(now - self._open[client].heard < _ACTIVE_S for client in self._idle)

    def _close(self, client: bytes) -> None:
        if session := self._open.pop(client, None):
            self._idle.discard(client)
            self._promised -= CREDITS * session.hello.positions
