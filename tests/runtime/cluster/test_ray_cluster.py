"""A cluster on this machine, one that a run joins, and one that it must not use."""

from __future__ import annotations

import atexit
import os
import subprocess
import sys
import tempfile
import time

import psutil
import pytest
import ray
from ray._private import state

from podzero.core.errors import ConfigError
from podzero.runtime.cluster.ray_cluster import connect
from podzero.runtime.train import train

ASK_WITHOUT_TOKEN = """
import sys
from ray._raylet import GcsClient
from ray.exceptions import AuthenticationError
try:
    GcsClient(address=sys.argv[1])
except AuthenticationError:
    print("refused")
"""
START = """
import subprocess, sys
from podzero.runtime.cluster.ray_cluster import connect
from ray._private.services import find_bootstrap_address
with connect(None, cpus=1) as cluster:
    print(cluster.nodes()[0].host, find_bootstrap_address(None), flush=True)
    subprocess.run([sys.executable, *sys.argv[1:], cluster.address], env={"RAY_AUTH_MODE": "disabled"}, timeout=60)
"""


SIGNALLED = """
import os, signal, time
import ray
from ray.cluster_utils import Cluster
from podzero.runtime.cluster.ray_cluster import connect
from podzero.runtime.stopping import StopSignals

init, shutdown = ray.init, Cluster.shutdown

def init_and_signal(*arguments, **options):
    init(*arguments, **options)
    os.kill(os.getpid(), signal.SIGTERM)

def signal_and_shutdown(nodes):
    os.kill(os.getpid(), signal.SIGTERM)
    shutdown(nodes)

ray.init, Cluster.shutdown = init_and_signal, signal_and_shutdown
with StopSignals() as signals:
    with connect(None, cpus=1):
        assert signals.event.is_set()
        time.sleep(5)  # the handler of Ray's libraries aborts the process three seconds later
    os.kill(os.getpid(), signal.SIGTERM)
"""


@pytest.fixture
def short_folder():
    """A folder for Ray's sockets, whose paths may have 107 characters."""
    with tempfile.TemporaryDirectory(prefix="r") as folder:
        yield folder


@pytest.mark.parametrize("before", [pytest.param("", marks=pytest.mark.slow), "import ray"])
def test_a_cluster_asks_for_a_token_even_if_ray_was_imported_before_and_is_not_listed(before, short_folder):
    plain = {"RAY_TMPDIR": short_folder} | {
        name: value for name, value in os.environ.items() if not name.startswith("RAY_")
    }
    command = [sys.executable, "-c", before + START, "-c", ASK_WITHOUT_TOKEN]
    said = subprocess.run(command, env=plain, capture_output=True, text=True, timeout=240, check=True).stdout
    assert said.split() == ["127.0.0.1", "None", "refused"]


@pytest.mark.slow
def test_signals_reach_the_driver_though_ray_replaces_and_removes_their_handlers():
    done = subprocess.run([sys.executable, "-c", SIGNALLED], capture_output=True, text=True, timeout=240, check=False)
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize(
    ("address", "listed", "words"),
    [
        ("auto", None, "no cluster has been started"),
        ("auto", "127.0.0.1:1", "127.0.0.1:1 here: nothing answers"),
        ("ray://127.0.0.1:10001", None, "expected host:port"),
        ("http://127.0.0.1:8265", None, "expected host:port"),
        ("head", None, "expected host:port"),
    ],
)
def test_an_address_without_a_cluster_is_refused_with_what_was_found(monkeypatch, address, listed, words):
    monkeypatch.setattr("ray._private.services.find_bootstrap_address", lambda folder: listed)
    with pytest.raises(ConfigError, match=words):
        with connect(address, 0):
            pass


@pytest.fixture(scope="module")
def cluster(ray_nodes):
    """A running cluster of two nodes with CPUs for an actor and a replay shard each."""
    with ray_nodes(2, 2) as nodes:
        yield nodes


def test_a_cluster_on_this_machine_has_room_for_fractions_of_cpus_starts_no_dashboard_and_remembers_no_calls():
    cpus = os.cpu_count() + 0.5
    with connect(None, cpus=cpus) as here:
        assert [node.cpus for node in here.nodes()] == [os.cpu_count() + 1]
        ray.get(ray.remote(num_cpus=0)(lambda: 0).remote())
        time.sleep(2)  # by default Ray's processes tell of calls every second
        assert state.state._get_all_task_events() == []
        started = " ".join(part for child in psutil.Process().children() for part in child.cmdline())
    assert "gcs_server" in started
    assert "dashboard/dashboard.py" not in started


def test_nodes_keep_their_environment_where_uv_run_started_a_process_that_had_imported_ray(cluster, monkeypatch):
    """Ray would send the working directory, and have uv rebuild the environment for each worker."""
    from ray._private import ray_constants
    from ray._private.runtime_env import uv_runtime_env_hook

    monkeypatch.setattr(ray_constants, "RAY_ENABLE_UV_RUN_RUNTIME_ENV", True)
    monkeypatch.setattr(uv_runtime_env_hook, "_get_uv_run_cmdline", lambda: ["uv", "run", "pytest"])
    with connect(cluster.address, 0):
        import ray

        assert not ray.get_runtime_context().runtime_env


def test_workers_import_nothing_from_the_current_folder(cluster, tmp_path, monkeypatch):
    """The driver does not either: a jax.py of the user's own, or a folder podzero, would hide the library."""
    monkeypatch.chdir(tmp_path)
    with connect(cluster.address, 0):
        from ray._private.worker import global_worker

        assert list(global_worker.core_worker.get_job_config().py_driver_sys_path) == []


def test_a_process_that_waits_in_its_exit_does_not_outlive_the_cluster(monkeypatch):
    """Ray's workers do so now and then, in a destructor of the library."""

    class NeverEnds:
        """In the function, so that it travels to the process, which cannot import this file."""

        def __init__(self):
            atexit.register(time.sleep, 600)

        def pid(self):
            return os.getpid()

    monkeypatch.setattr("podzero.runtime.cluster.ray_start.EXIT_S", 0.5)
    with connect(None, cpus=1):
        actor = ray.remote(NeverEnds).remote()
        process = psutil.Process(ray.get(actor.pid.remote()))
        del actor  # Ray ends its process
        while any(found["State"] != "DEAD" for found in state.actors().values()):
            time.sleep(0.05)
        assert process.is_running()
    assert not process.is_running() or process.status() == psutil.STATUS_ZOMBIE


@pytest.mark.slow
def test_actors_spread_over_the_nodes_of_a_cluster_that_runs_already(cluster, tmp_path, tiny, watch, running):
    raylets = set()

    def watch_actors(status):
        raylets.update(actor.ppid() for actor in running("ray::ActorProcess"))
        return len(raylets) == 2

    train(tiny("actors.count=2", "stop.steps=200"), tmp_path / "run", cluster.address, watch(watch_actors))
    assert len(raylets) == 2


@pytest.mark.slow
def test_a_cluster_that_was_not_named_is_not_used(cluster, tmp_path, monkeypatch, tiny, watch, running):
    monkeypatch.setenv("RAY_ADDRESS", cluster.address)  # what other tools would join
    others = {raylet.pid for raylet in running("raylet/raylet")}
    assert len(others) >= 2
    parents = set()

    def watch_actors(status):
        parents.update(actor.ppid() for actor in running("ray::ActorProcess"))
        return bool(parents)

    assert "40 steps" in train(tiny("stop.steps=40"), tmp_path / "run", None, watch(watch_actors)).reason
    assert parents
    assert not parents & others
    assert {raylet.pid for raylet in running("raylet/raylet")} == others
