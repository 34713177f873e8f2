"""The errors of replay."""


class SignatureError(ValueError):
    """The samples do not have the table's signature; none of them was written."""


class ReplayTimeout(TimeoutError):
    """Replay did not answer within `replay.timeout_s`; the message says who waited for whom, and why."""


class ReplayRestoreError(RuntimeError):
    """A replay checkpoint cannot be used; an earlier one may still be good."""


class PortTaken(RuntimeError):
    """Another process listens on the configured port."""


class WrongServer(RuntimeError):
    """Another server answers at the address than the one that the address is of."""
