"""Parameters between learner and actor in one process."""

import threading

import jax.numpy as jnp
import numpy as np
import pytest

from podzero.runtime.local_params import LocalParams


def test_a_reader_gets_each_version_once_and_the_newest_alone():
    params = LocalParams()
    assert params.poll() is None
    params.publish(0, {"w": jnp.zeros(3)})
    assert params.wait(1.0).version == 0
    assert params.poll() is None
    params.publish(8, {"w": jnp.ones(3)})
    params.publish(16, {"w": jnp.full(3, 2.0)})
    newest = params.poll()
    assert newest.version == 16
    np.testing.assert_array_equal(newest.params["w"], [2.0, 2.0, 2.0])
    assert params.poll() is None


def test_a_reader_waits_for_the_first_parameters_and_no_longer_than_it_says():
    params = LocalParams()
    with pytest.raises(TimeoutError, match=r"0\.05 s: .*learner .*not published"):
        params.wait(0.05)
    threading.Timer(0.05, params.publish, (3, {"w": jnp.zeros(1)})).start()
    assert params.wait(10.0).version == 3
