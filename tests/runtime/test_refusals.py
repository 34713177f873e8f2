"""Runs that cannot start say why, and leave nothing behind."""

from __future__ import annotations

import os
import socket
import subprocess
import sys

import pytest

from podzero.core.errors import ClusterError, ConfigError
from podzero.files.workdir import Workdir, WorkdirError
from podzero.learner import CheckpointMismatch
from podzero.replay.errors import PortTaken
from podzero.runtime.checkpoints import checkpoints
from podzero.runtime.cluster.ray_cluster import connect
from podzero.runtime.train import train


def test_processes_of_a_failed_start_of_ray_are_killed(monkeypatch):
    left = []

    def half_a_node(**arguments):
        left.append(subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"]))
        raise RuntimeError("the raylet is late")

    monkeypatch.setattr("podzero.runtime.cluster.ray_start.RayNodes", half_a_node)
    with pytest.raises(ClusterError, match="3 attempts: the raylet is late"):
        with connect(None, cpus=1):
            pass
    # Not by their numbers, which other processes may have by now.
    assert [process.poll() is None for process in left] == [False] * 3


@pytest.mark.slow
def test_a_taken_port_is_named_and_nothing_is_left_behind(tmp_path, tiny, watch, running):
    with socket.socket() as holder:
        holder.bind(("", 0))
        holder.listen()
        port = holder.getsockname()[1]
        with pytest.raises(PortTaken, match=rf"port {port}.*replay\.port"):
            train(tiny(f"replay.port={port}"), tmp_path, None, watch())
    assert running("ray::") == []
    assert running("raylet") == []


def test_a_refused_experiment_leaves_no_experiment_behind(tmp_path, tiny, watch):
    with pytest.raises(ConfigError, match="nothing answers"):
        train(tiny(), tmp_path, "127.0.0.1:1", watch())
    workdir = Workdir(tmp_path)
    assert not workdir.is_run
    workdir.check(tiny("network.channels=5"))
    assert "nothing answers" in workdir.log_file.read_text()


def test_a_run_that_starts_while_another_one_starts_is_refused_and_writes_nothing(tmp_path, tiny, watch):
    with Workdir(tmp_path).lock():
        with pytest.raises(WorkdirError, match=f"process {os.getpid()}"):
            train(tiny(), tmp_path, None, watch())
    assert [path.name for path in tmp_path.iterdir()] == [".lock"]


def test_another_experiment_is_refused_and_changes_nothing(tmp_path, tiny, watch):
    workdir = Workdir(tmp_path)
    workdir.open(tiny())
    with pytest.raises(WorkdirError, match=r"network\.channels"):
        train(tiny("network.channels=5"), tmp_path, None, watch())
    assert workdir.experiment() == tiny()
    assert not workdir.log_file.exists()


@pytest.mark.slow
def test_a_refused_batch_size_can_be_corrected_in_the_same_directory(tmp_path, monkeypatch, tiny, watch):
    monkeypatch.setenv("XLA_FLAGS", "--xla_force_host_platform_device_count=2")
    with pytest.raises(ConfigError, match=r"batch_size 15 .*2 devices.*batch_size=14 or 16"):
        train(tiny("learner.batch_size=15"), tmp_path, None, watch())
    assert "8" in train(tiny("learner.batch_size=14", "stop.steps=8"), tmp_path, None, watch()).reason
    assert Workdir(tmp_path).experiment().learner.batch_size == 14


@pytest.mark.slow
def test_a_checkpoint_of_another_network_is_refused_and_kept(tmp_path, tiny, watch):
    workdir = Workdir(tmp_path / "run")
    train(tiny("stop.steps=40"), workdir.root, None, watch())
    before = checkpoints(workdir)
    other = tiny("network.channels=5", "stop.steps=80")
    workdir.experiment_file.write_text(other.to_yaml())  # as if edited by hand
    with pytest.raises(CheckpointMismatch, match="network"):
        train(other, workdir.root, None, watch())
    assert checkpoints(workdir) == before


@pytest.mark.slow
def test_too_few_cpus_in_a_cluster_are_counted(tmp_path, tiny, watch):
    from ray.cluster_utils import Cluster

    from podzero.runtime.cluster.ray_start import local_node

    nodes = Cluster(initialize_head=True, head_node_args=local_node(2))
    try:
        with pytest.raises(ClusterError, match=r"2 free CPUs.* 1 of 3 actors.*actors\.count"):
            train(tiny("actors.count=3", "cluster.join_minutes=0.05"), tmp_path, nodes.address, watch())
    finally:
        nodes.shutdown()
