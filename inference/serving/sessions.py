"""Who may send requests to an inference server, and how many are unanswered."""

from __future__ import annotations

from dataclasses import dataclass, field

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
    unanswered: set[int] = field(default_factory=set)
    """Numbers of its requests."""


class Sessions:
    """The clients of a server, by ZeroMQ's identity of their connection.

    Args:
      name: of the server.
      identity: which clients must have as well.
      request_positions: the most that a request of a client may have.
      most_positions: that may be in flight, over all clients.
    """

    def __init__(self, name: str, identity: Identity, request_positions: int, most_positions: int) -> None:
        self._name = name
        self._identity = identity
        self._request = request_positions
        self._most = most_positions
        self._open: dict[bytes, _Session] = {}
        self._idle: set[bytes] = set()
        self.promised = 0
        """Positions of the requests that all clients together may have in flight."""

    def active(self, now: float) -> int:
        """The number of clients that were heard of within `LEASE_S`."""
        return sum(now - session.heard < LEASE_S for session in self._open.values())

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
        if hello.positions > self._request:
            raise Refusal(
                f"{hello.name} announces requests of {hello.positions} positions, and actors of this run have "
                f"{self._request} at most (actors.games)"
            )
        lost, promised = self._places(client, CREDITS * hello.positions, now)
        if promised > self._most:
            raise Refusal(
                f"{self._name} holds requests of {self._most} positions at most (server.queue_mib); with {hello.name} "
                f"its {len(self._open.keys() | {client})} clients might send {promised}: "
                "raise server.queue_mib or server.count, or lower actors.games",
                elsewhere=True,
            )
        for other in [client, *lost]:
            self._close(other)
        self._open[client] = _Session(hello, now)
        self._idle.add(client)
        self.promised += CREDITS * hello.positions
        return lost

    def _places(self, client: bytes, needed: int, now: float) -> tuple[list[bytes], int]:
        """The silent clients whose places a client needs, and the positions that are promised then."""
        own, lost = self._open.get(client), []
        promised = self.promised + needed - (CREDITS * own.hello.positions if own else 0)
        for other in sorted(self._open.keys() - {client}, key=lambda name: self._open[name].heard):
            session = self._open[other]
            if promised <= self._most or now - session.heard < LEASE_S:
                break
            promised -= CREDITS * session.hello.positions
            lost.append(other)
        return lost, promised

    def ask(self, client: bytes, number: int, positions: int, now: float) -> None:
        """Notes a request by its number.

        Raises:
          KeyError: the client has no session.
          Refusal: it has too many unanswered requests, or one of this number, or the request has more positions than it
            announced.
        """
        session = self._open[client]
        session.heard = now
        if positions > session.hello.positions:
            raise Refusal(
                f"{session.hello.name} sent {positions} positions at once and had announced {session.hello.positions}"
            )
        if len(session.unanswered) >= CREDITS:
            raise Refusal(f"{session.hello.name} has more than {CREDITS} unanswered requests")
        if number in session.unanswered:
            raise Refusal(f"{session.hello.name} sent request {number} again before it was answered")
        session.unanswered.add(number)
        self._idle.discard(client)

    def answered(self, client: bytes, number: int) -> None:
        """Notes an answer; also one to a request of an earlier session, which counts for nothing."""
        if session := self._open.get(client):
            session.unanswered.discard(number)
            if not session.unanswered:
                self._idle.add(client)

    def others_may_ask(self, now: float) -> bool:
        """Whether a client that was heard of lately has no unanswered request."""
        return any(now - self._open[client].heard < _ACTIVE_S for client in self._idle)

    def _close(self, client: bytes) -> None:
        if session := self._open.pop(client, None):
            self._idle.discard(client)
            self.promised -= CREDITS * session.hello.positions
