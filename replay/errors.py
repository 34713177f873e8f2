"""The errors of replay."""

from podzero.core.errors import TRY_AGAIN, PodzeroError


class SignatureError(ValueError):
    """Samples do not match the table's signature; none of them was written."""


class ReplayTimeout(PodzeroError, TimeoutError):
    """Replay did not answer, or did not deliver or accept samples in time."""


class ReplayRestoreError(PodzeroError, RuntimeError):
    """A replay checkpoint is damaged or incomplete; an earlier one may be intact."""


class ReplayMismatch(PodzeroError, RuntimeError):
    """A replay checkpoint is intact, but its tables are not the experiment's."""


class SaveUnderWay(PodzeroError, RuntimeError):
    """A shard is still writing an earlier checkpoint."""


class PortTaken(PodzeroError, RuntimeError):
    """Another process listens on the configured port."""

    exit_code = TRY_AGAIN


class WrongServer(PodzeroError, RuntimeError):
    """A different server answers at the address."""


class ReplayUnavailable(PodzeroError, ConnectionError):
    """A replay server does not answer, or disappeared during a request."""

    exit_code = TRY_AGAIN


class RequestRefused(PodzeroError, RuntimeError):
    """A replay server refuses a request."""


class MalformedAnswer(PodzeroError, RuntimeError):
    """The program at a replay server's address does not speak Reverb's protocol, or sends unexpected items."""


class ServerFailed(PodzeroError, RuntimeError):
    """A replay server did not start, or has ended."""


class CheckpointRefused(ServerFailed):
    """A replay server did not start because it could not read the checkpoint to restore."""


class EnvironmentUnusable(PodzeroError, RuntimeError):
    """The Python environment of the replay server cannot be found or made."""
