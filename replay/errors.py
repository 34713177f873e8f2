"""The errors of replay."""

from podzero.core.errors import TRY_AGAIN, PodzeroError


class SignatureError(ValueError):
    """Samples do not match the table's signature; none of them was written."""

    def __init__(self, message: str, reason: str = "shape") -> None:
        """`reason` is `shape` (fields, too), `number` (NaN, or out of its range), `illegal` (a mask or policy that no
        game has) or `bytes` (rows that do not decode).
        """
        super().__init__(message)
        self.reason = reason


class ReplayTimeout(PodzeroError, TimeoutError):
    """Replay did not answer, or did not deliver or accept samples in time."""


class ReplayRestoreError(PodzeroError, RuntimeError):
    """A replay checkpoint is damaged or incomplete; an earlier one may be intact."""


class ReplayMismatch(PodzeroError, RuntimeError):
    """A replay checkpoint is intact, but its tables are not the experiment's."""


class PortTaken(PodzeroError, RuntimeError):
    """Another process listens on the configured port."""

    exit_code = TRY_AGAIN


class WrongServer(PodzeroError, RuntimeError):
    """What answers at the address is another server, speaks another protocol or sends unexpected items."""


class ReplayUnavailable(PodzeroError, ConnectionError):
    """A replay server does not answer, or disappeared during a request."""

    exit_code = TRY_AGAIN


class RequestRefused(PodzeroError, RuntimeError):
    """A replay server refuses a request."""


class ServerFailed(PodzeroError, RuntimeError):
    """A replay server did not start, or has ended."""


class ServerKilled(ServerFailed):
    """A signal has ended a replay server before it listened, as when memory is short."""

    exit_code = TRY_AGAIN


class EnvironmentUnusable(PodzeroError, RuntimeError):
    """The Python environment of the replay server cannot be found or made."""
