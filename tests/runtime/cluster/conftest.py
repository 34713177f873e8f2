"""Ray clusters of several nodes on this machine, and several drivers of one cluster."""

from __future__ import annotations

import subprocess
import sys
from contextlib import contextmanager

import pytest
from ray_nodes import add_node

DRIVER = """
from podzero.runtime.cluster.ray_cluster import connect

with connect({address!r}, 0) as cluster:
    exec({script!r})
    print("done", flush=True)
    input()
"""


@contextmanager
def start_nodes(*cpus, **resources):
    from ray.cluster_utils import Cluster

    nodes = Cluster()
    try:
        add_node(nodes, cpus[0])
        for amount in cpus[1:]:
            add_node(nodes, amount, **resources)
        yield nodes
    finally:
        nodes.shutdown()


@pytest.fixture(scope="session")
def ray_nodes():
    """Starts a Ray cluster of nodes with these CPUs, head first; the other nodes also have the given resources."""
    return start_nodes


@pytest.fixture(scope="module")
def shared_cluster():
    """A cluster of a head without CPUs and a node with four CPUs and two GPUs, which are no real ones."""
    with start_nodes(0, 4, num_gpus=2) as nodes:
        yield nodes


@pytest.fixture
def other_driver(shared_cluster):
    """Starts drivers of the cluster in processes of their own, and waits until each has run its script."""
    started = []

    def start(script):
        command = [sys.executable, "-c", DRIVER.format(address=shared_cluster.address, script=script)]
        started.append(subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True))
        assert started[-1].stdout.readline() == "done\n"
        return started[-1]

    yield start
    for driver in started:
        driver.kill()
        driver.communicate(timeout=30)
