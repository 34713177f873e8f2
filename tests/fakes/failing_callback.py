"""A compiled computation whose callback raises a `SimulatorError`, as with a broken simulator."""

import jax
import numpy as np

from podzero.envs import SimulatorError
from podzero.envs.faults import recorded_errors


def fail_in_callback(message):
    """Raises a `JaxRuntimeError` caused by a `SimulatorError` with this message."""

    @recorded_errors()
    def callback():
        raise SimulatorError(message)

    jax.block_until_ready(jax.jit(lambda: jax.pure_callback(callback, np.float32(0)))())
