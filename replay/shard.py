"""A client of one shard: its address, its identity and the state of its tables."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import NamedTuple

from podzero.replay.errors import MalformedAnswer, ReplayTimeout, ReplayUnavailable, WrongServer
from podzero.replay.tables import Limits, Table, limits_of
from podzero.replay.wire.connection import Connection

_POLL_S = 0.05
"""How often to ask a server that does not answer yet."""

IDENTITY = "identity-"
"""Prefix of the name of an empty table, which ends with the server's identity: Reverb has no better place for it."""

ANSWER_S = 2.0
"""Longest wait for one answer."""


Addresses = Callable[[], Sequence[str]]
"""Returns the addresses of all shards (`ReplayServer.address()`), always in the same order; never waits.

A shard that was restarted has a new address; one that is away keeps its last one.
"""


class Address(NamedTuple):
    """The address and identity of a shard; as text `host:port#identity`."""

    endpoint: str
    identity: str

    def __str__(self) -> str:
        return f"{self.endpoint}#{self.identity}"

    @property
    def host(self) -> str:
        """The name or IP of the machine."""
        return self.endpoint.rpartition(":")[0]

    @classmethod
    def parse(cls, text: str) -> Address:
        """Parses `host:port#identity`; other text is a ValueError."""
        endpoint, mark, identity = text.partition("#")
        if not mark or ":" not in endpoint:
            raise ValueError(f"replay address '{text}': expected host:port#identity, as ReplayServer.address() gives")
        return cls(endpoint, identity)


class Shard:
    """A client of one table of a shard; every request has a timeout."""

    def __init__(self, address: Address, table: Table) -> None:
        self.address = address
        self.connection = Connection(address.endpoint)
        self.table = table

    def limits(self) -> Limits | None:
        """The state of the table, or None if the server does not answer within `ANSWER_S`.

        Raises:
          WrongServer: another server answers, or its table holds other samples.
        """
        try:
            tables = self.connection.tables(ANSWER_S)
        except ReplayUnavailable:
            return None
        except MalformedAnswer as error:
            raise WrongServer(str(error)) from None
        names = [name.removeprefix(IDENTITY) for name in tables if name.startswith(IDENTITY)]
        if names != [self.address.identity] or self.table.name not in tables:
            raise WrongServer(
                f"replay server {names or list(tables)} answers at {self.address.endpoint}, expected "
                f"{self.address.identity}: two servers share the port, or an old one still runs; stop it"
            )
        found, expected = tables[self.table.name], self.table.signature
        layout = ", ".join(found.signature.dict_value.fields)
        if layout != expected.layout:
            raise WrongServer(f"replay at {self.address.endpoint} holds '{layout}'; expected '{expected.layout}'")
        return limits_of(found, expected.samples_per_item, self.table.users)

    def explain(self, reason: Callable[[Limits], str]) -> str:
        """Why the server does not give or accept samples: the `reason` in its limits, or what is wrong with it."""
        try:
            limits = self.limits()
        except WrongServer as error:
            return str(error)
        if limits is None:
            return f"replay at {self.address.endpoint} does not answer; if it is gone, the driver is restarting it"
        return f"{self.address.endpoint}: {reason(limits)}"

    def wait(self, timeout_s: float) -> Limits:
        """The state of the table; asks repeatedly until the server answers."""
        until = time.monotonic() + timeout_s
        while (limits := self.limits()) is None:
            if time.monotonic() >= until:
                raise ReplayTimeout(f"replay at {self.address.endpoint} did not answer within {timeout_s:g} s")
            time.sleep(_POLL_S)
        return limits

    def close(self) -> None:
        """Ends the connection and its streams; may be called twice."""
        self.connection.close()
