"""What can go wrong with replay, in the words of whoever has to act on it."""

from podzero.errors import PodzeroError


class SignatureError(ValueError):
    """Samples that are not what the table holds; nothing of them was written."""


class ReplayTimeout(PodzeroError, TimeoutError):
    """A wait for replay longer than `replay.timeout_s`; the message says who waited for whom, and why."""


class ReplayRestoreError(PodzeroError, RuntimeError):
    """A replay checkpoint that cannot be used; an earlier one may still be good."""


class PortTaken(PodzeroError, RuntimeError):
    """The configured port already has a listener."""


class WrongServer(PodzeroError, RuntimeError):
    """At the address answers another server than the one that gave the address out."""
