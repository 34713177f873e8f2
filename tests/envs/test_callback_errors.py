"""Errors of simulators in callbacks come out of compiled computations as they were raised."""

import threading

import jax
import numpy as np
import pytest

from podzero.envs import SimulatorError, simulator_errors
from podzero.envs.host import HostEnv


@pytest.fixture
def failing_step(countdown):
    """Makes calls of a compiled step in which the game raises an error."""

    def make(error, name="countdown"):
        class Raising(countdown):
            def step(self, action):
                if self.stones[0] < 11:
                    raise error
                super().step(action)

        env = HostEnv(Raising(), name, max_plies=20)
        state, step = env.step(env.init(jax.random.key(0)), 2), jax.jit(env.step)
        return lambda: jax.block_until_ready(step(state, 0))

    return make


def test_the_whole_message_and_the_cause_are_kept(failing_step):
    """JAX itself reports only text."""
    broken = ValueError("seven\n  and six")
    with pytest.raises(SimulatorError) as caught, simulator_errors():
        failing_step(broken)()
    message = str(caught.value)
    assert message.startswith("countdown: the game raised ValueError: seven\n  and six (seed ")
    assert message.endswith(", moves so far [2, 0])")
    assert caught.value.__cause__ is broken


def test_errors_of_environments_in_several_threads_are_told_apart(failing_step):
    """Both environments have failed before either thread asks which error was its own."""
    failed = threading.Barrier(2, timeout=60)
    causes = {}

    def play(name):
        step = failing_step(KeyError(name), name)
        try:
            with simulator_errors():
                try:
                    step()
                finally:
                    failed.wait()
        except SimulatorError as error:
            causes[name] = error.__cause__

    threads = [threading.Thread(target=play, args=(name,), daemon=True) for name in ("one", "two")]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(120)
    assert {name: cause.args for name, cause in causes.items()} == {"one": ("one",), "two": ("two",)}


def test_other_errors_of_jax_are_not_replaced(failing_step):
    with pytest.raises(jax.errors.JaxRuntimeError):
        failing_step(KeyError("seven"))()

    def fail(x):
        raise OSError("the disk is full")

    with pytest.raises(jax.errors.JaxRuntimeError, match="the disk is full"), simulator_errors():
        jax.block_until_ready(jax.jit(lambda x: jax.pure_callback(fail, x, x))(np.float32(0)))
