"""Errors of simulators in JAX callbacks. JAX reports only their text, so the exceptions themselves are kept here."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager, suppress

import jax

from podzero.errors import PodzeroError


class SimulatorError(PodzeroError, RuntimeError):
    """A simulator failed during play; the message names the game, the seed, the moves so far and the error."""


_recent: deque[SimulatorError] = deque(maxlen=16)
"""The last errors raised by callbacks of this process, in any thread; bounded, since not all are re-raised."""


@contextmanager
def kept_errors() -> Iterator[None]:
    """Decorates a callback: keeps the `SimulatorError` that it raises, for `simulator_errors`."""
    try:
        yield
    except SimulatorError as error:
        _recent.append(error)
        raise


@contextmanager
def simulator_errors() -> Iterator[None]:
    """Where a computation fails because a callback raised a `SimulatorError`, re-raises that `SimulatorError`.

    JAX's error contains the whole message of the callback's exception, which tells apart the errors of several
    environments and threads.
    """
    try:
        yield
    except (jax.errors.JaxRuntimeError, ValueError) as failure:  # depending on how the program was dispatched
        text = str(failure)
        error = next((recent for recent in list(_recent) if str(recent) in text), None)
        if error is None:
            raise
        with suppress(ValueError):  # another thread may have removed it
            _recent.remove(error)
        raise error from error.__cause__
