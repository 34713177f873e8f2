"""What several rooms' tests share."""

import os

import pytest

# Before anything imports jax: the tests are about podzero, not about the accelerator that may be there.
os.environ.setdefault("JAX_PLATFORMS", "cpu")


@pytest.fixture(scope="session")
def ray_cluster():
    """A Ray cluster of one node with two CPUs, shared by all tests that need Ray and taken down with them."""
    from podzero.launch.cluster import connect

    with connect(None, cpus=2) as cluster:
        yield cluster
