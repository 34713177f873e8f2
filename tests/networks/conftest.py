"""These tests compile much and compute little."""

import functools

import jax
import pytest


@pytest.fixture(scope="session")
def compiled():
    """As `jax.jit`, without the optimizations of the compiler's backend: a fifth of the time."""
    return functools.partial(jax.jit, compiler_options={"xla_backend_optimization_level": 0})
