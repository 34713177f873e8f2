"""The errors of replay."""

from podzero.errors import PodzeroError


class SignatureError(ValueError):
    """The samples do not have the table's signature; none of them was written."""


class ReplayTimeout(PodzeroError, TimeoutError):
    """Replay did not answer, or not give or take samples, in time; the message says who waited for whom, and why."""


class ReplayRestoreError(PodzeroError, RuntimeError):
    """A replay checkpoint cannot be used; an earlier one may still be good."""


class ReplayMismatch(PodzeroError, RuntimeError):
    """A replay checkpoint is whole, but its tables are not those of the experiment."""


class SaveUnderWay(PodzeroError, RuntimeError):
    """A shard still writes the checkpoint before the one that it was asked for."""


class PortTaken(PodzeroError, RuntimeError):
    """Another process listens on the configured port."""


class WrongServer(PodzeroError, RuntimeError):
    """Another server answers at the address than the one that the address is of."""


class ReplayUnavailable(PodzeroError, ConnectionError):
    """A replay server does not answer, or has gone while it was asked."""


class RequestRefused(PodzeroError, RuntimeError):
    """A replay server answers that it does not do what it was asked for; the message has its reason."""


class MalformedAnswer(PodzeroError, RuntimeError):
    """What answers at the address of a replay server does not speak Reverb's protocol, or holds other items."""


class ServerFailed(PodzeroError, RuntimeError):
    """A replay server did not start, or has ended; the message has its reason."""


class CheckpointRefused(ServerFailed):
    """A replay server did not start, because it could not read the checkpoint that it should begin with."""


class EnvironmentUnusable(PodzeroError, RuntimeError):
    """The environment of the replay server cannot be found or made; the message says what to do."""
