"""These tests spend more time compiling than computing."""

import functools

import jax
import pytest


@pytest.fixture(scope="session")
def compiled():
    """`jax.jit` without the optimizations of XLA's backend: compiles in a fifth of the time."""
    return functools.partial(jax.jit, compiler_options={"xla_backend_optimization_level": 0})
