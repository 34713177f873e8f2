"""The address of a local web server, and the guard that decides which requests it answers."""

from __future__ import annotations

import ipaddress
import re
import secrets
import socket
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

from podzero.core.errors import PodzeroError, os_errors

LOOPBACK = "127.0.0.1"


class AddressNotUsable(PodzeroError, RuntimeError):
    """A server cannot listen on an address; the message says why and what to do."""


class ListenAddress(NamedTuple):
    """The address that a server of web pages listens on."""

    host: str
    """An IP address or a name of this machine; 0.0.0.0 and :: stand for all of its addresses."""
    port: int

    @property
    def is_local(self) -> bool:
        """Whether only this machine can reach the server."""
        return self.host == "localhost" or _ip(self.host).is_loopback

    @property
    def accepted_hosts(self) -> tuple[str, ...] | None:
        """The values of the header `Host` that are answered; None accepts all."""
        # A local server refuses foreign names that resolve to it (DNS rebinding). The names and mapped ports by which
        # other machines reach a server are unknown, so there the token alone protects it.
        return (f"{_bracketed(self.host)}:{self.port}", f"localhost:{self.port}") if self.is_local else None

    @property
    def url(self) -> str:
        """`http://HOST:PORT`, for a browser."""
        host = "localhost" if _ip(self.host).is_unspecified else _bracketed(self.host)
        return f"http://{host}:{self.port}"

    @property
    def readers(self) -> str:
        """Who can reach the server, for messages."""
        if self.is_local:
            return "browsers of this machine"
        return f"all browsers that reach this machine on {self.host}, port {self.port}"


@dataclass(frozen=True)
class RequestGuard:
    """Decides which requests a server answers: those with its token, for an accepted host, with a small body."""

    where: ListenAddress
    """The address that the server listens on."""
    command: str
    """The command that printed the address, for messages."""
    max_body: int
    """The largest body of a request, in bytes."""
    token: str = field(default_factory=secrets.token_urlsafe)

    def refusal(self, headers: Mapping[str, str], token: str) -> tuple[int, str] | None:
        """The status and text that refuse a request, given its headers, with lower-case names, and the token in it, or
        an empty string; None if it is allowed.
        """
        hosts = self.where.accepted_hosts
        if hosts is not None and headers.get("host") not in hosts:
            return 421, f"this server answers only as {' and '.join(hosts)}"
        length = headers.get("content-length", "0")
        # `int` alone would accept signs and underscores, and take long for very many digits.
        if "transfer-encoding" in headers or not re.fullmatch(r"[0-9]{1,15}", length) or int(length) > self.max_body:
            return 413, f"the body is longer than {self.max_body:,} bytes, or of unknown length"
        # In constant time, so that the time of a refusal reveals nothing about the token.
        if not secrets.compare_digest(token.encode(errors="replace"), self.token.encode()):
            return 403, f"wrong token: open the address that `{self.command}` printed"
        return None


def free_address(host: str | None, port: int | None) -> ListenAddress:
    """An address that a server can listen on; by default this machine's loopback address and any free port.

    Raises `AddressNotUsable` if this machine does not have the address, or the port is in use.
    """
    name, remedy = host or LOOPBACK, "choose another --port" if port else "choose another --host"
    with os_errors(AddressNotUsable, f"cannot listen on {name}:{port or 'any port'}", remedy):
        family, kind, _, _, place = socket.getaddrinfo(name, port or 0, type=socket.SOCK_STREAM)[0]
        with socket.socket(family, kind) as probe:
            # As the servers do: a port counts as free while the connections of an earlier server still expire.
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            probe.bind(place)
            return ListenAddress(name, probe.getsockname()[1])


def _ip(host: str) -> ipaddress.IPv4Address | ipaddress.IPv6Address:
    """The IP address in `host`; for a name, the broadcast address, which no machine has."""
    try:
        return ipaddress.ip_address(host)
    except ValueError:
        return ipaddress.ip_address("255.255.255.255")


def _bracketed(host: str) -> str:
    return f"[{host}]" if ":" in host else host
