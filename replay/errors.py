"""What can go wrong with replay, in the words of whoever has to act on it."""


class SignatureError(ValueError):
    """Samples that are not what the table holds; nothing of them was written."""


class ReplayTimeout(TimeoutError):
    """A wait for replay longer than `replay.timeout_s`; the message says who waited for whom, and why."""


class ReplayRestoreError(RuntimeError):
    """A replay checkpoint that cannot be used; an earlier one may still be good."""


class PortTaken(RuntimeError):
    """The configured port already has a listener."""


class WrongServer(RuntimeError):
    """At the address answers another server than the one that gave the address out."""
