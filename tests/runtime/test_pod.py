"""A pod on one machine: a head, CPU nodes and the hosts of a TPU slice, whose chips are emulated devices."""

from __future__ import annotations

import contextlib
import signal
import subprocess
import sys
import time

import pytest
from ray_nodes import add_node

from podzero.config import load
from podzero.core.errors import ClusterError
from podzero.evaluation.evaluate import evaluate
from podzero.files.workdir import Workdir
from podzero.runtime.checkpoints import checkpoints
from podzero.runtime.train import train

SLICE = (
    "cluster.slice=v4-16",
    "replay.shards=2",
    "replay.tolerance=256",
    "cluster.join_minutes=5",
)
EMULATED = {"JAX_PLATFORMS": "cpu", "XLA_FLAGS": "--xla_force_host_platform_device_count=2"}


class Pod:
    """A Ray cluster whose nodes come and go."""

    def __init__(self, head_cpus=0):
        from ray.cluster_utils import Cluster

        self._cluster = Cluster()
        self._add(head_cpus)
        self.address = self._cluster.address

    def add_cpus(self, cpus=2):
        return self._add(cpus)

    def add_host(self, worker, name="slice", kind="v4-16"):
        """Host number `worker` of a slice whose hosts have four chips each; JAX sees two devices there."""
        labels = {
            "ray.io/tpu-slice-name": name,
            "ray.io/tpu-worker-id": str(worker),
            "ray.io/tpu-pod-type": kind,
        }
        return self._add(1, resources={"TPU": 4}, labels=labels, env_vars=EMULATED)

    def _add(self, cpus, **more):
        return add_node(self._cluster, cpus, **more)

    def kill(self, node):
        """As when the machine is switched off: nothing says good-bye."""
        self._cluster.remove_node(node, allow_graceful=False)

    def shutdown(self):
        self._cluster.shutdown()


@pytest.fixture(scope="module")
def pod():
    pod = Pod()
    yield pod
    pod.shutdown()


@contextlib.contextmanager
def joined(pod, nodes):
    """Nodes that are there for one test, with those that are added to the list `nodes` meanwhile."""
    try:
        yield nodes
    finally:
        for node in nodes:
            with contextlib.suppress(Exception):
                pod.kill(node)


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_two_hosts_train_while_cpu_nodes_and_a_host_of_the_slice_are_lost_and_replaced(pod, tmp_path, tiny, watch):
    """One run through all of it: a CPU node with its actor and shard, then a host of the slice."""
    spare, lost = pod.add_cpus(), pod.add_cpus()
    hosts = [pod.add_host(0, "first"), pod.add_host(1, "first")]
    nodes, events = [spare, *hosts], []

    def act(status):
        if status.step > 8 and not events:
            events.append("cpu node")
            pod.kill(lost)
            nodes.append(pod.add_cpus())
        elif events == ["cpu node"] and "replay" in revived(watcher) and (saved := checkpoints(workdir)):
            if status.step < saved[0].step + 8:
                return False  # steps since the checkpoint are to be lost
            events.append("host")
            pod.kill(hosts[1])
            nodes.extend([pod.add_host(0, "second"), pod.add_host(1, "second")])
        return len(events) == 2

    watcher = watch(act)
    workdir = Workdir(tmp_path / "run")
    overrides = (*SLICE, "actors.count=2", "stop.steps=1200", "stop.minutes=20", "checkpoint.every_minutes=0.5")
    with joined(pod, nodes):
        reason, _ = train(tiny(*overrides), workdir.root, pod.address, watcher)
    assert "steps" in reason
    assert events == ["cpu node", "host"]
    lines = "\n".join(watcher.lines)
    assert "was lost with its node" in lines
    assert "The learner restarts from its newest checkpoint as soon as it has room" in lines
    assert "are made again" in lines
    assert "All workers are stopped" not in lines
    assert checkpoints(workdir)[0].step == 1200
    assert watcher.statuses[-1].restarts >= 1


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_a_lost_slice_is_done_without_until_it_is_replaced_at_a_later_start(pod, tmp_path, tiny, watch):
    """Two slices of one host each: the second is lost; once the other trains alone, it is lost too and two join."""
    cpus, first, second = pod.add_cpus(), *(pod.add_host(0, name, "v5e-4") for name in ("first", "second"))
    nodes, trained, events = [cpus, first, second], [], []

    def act(status):
        if status.hosts and (not trained or trained[-1] != status.hosts):
            trained.append(status.hosts)
        if trained == [2] and status.step > 8 and not events:
            events.append("second")
            pod.kill(second)
        elif trained == [2, 1] and status.step > 16 and events == ["second"]:
            events.append("first")
            nodes.extend(pod.add_host(0, name, "v5e-4") for name in ("third", "fourth"))
            pod.kill(first)
        elif trained == [2, 1, 2] and events == ["second", "first"]:
            events.append("stop")
            signal.raise_signal(signal.SIGINT)

    watcher = watch(act)
    slices = ("cluster.slice=v5e-4", "cluster.slices=2", "cluster.min_slices=1", "cluster.join_minutes=0.3")
    with joined(pod, nodes):
        train(
            tiny(*SLICE, *slices, "stop.minutes=12", "checkpoint.every_minutes=0.2"),
            tmp_path / "run", pod.address, watcher,
        )  # fmt: skip
    assert trained == [2, 1, 2]
    assert "the learner goes on with 1 of 2 slices" in "\n".join(watcher.lines)


@pytest.mark.slow
@pytest.mark.timeout(1800)
def test_a_slice_learns_tic_tac_toe_to_perfection_while_a_cpu_node_dies_and_another_joins(pod, tmp_path, watch):
    """The experiment of the foundation, on two hosts, to its bar: 400 games against a perfect player without a loss."""
    nodes = [pod.add_cpus(), pod.add_cpus(), pod.add_host(0), pod.add_host(1)]

    def act(status):
        if status.step < 400:
            return False
        pod.kill(nodes[1])
        nodes.append(pod.add_cpus())
        return True

    overrides = ("cluster.slice=v4-16", "replay.shards=2", "actors.count=2", "actors.cpus=1", "actors.games=64")
    experiment = load("tic_tac_toe", [*overrides, "checkpoint.every_minutes=1", "stop.minutes=10"])
    watcher = watch(act)
    with joined(pod, nodes):
        train(experiment, tmp_path / "run", pod.address, watcher)
    assert "was lost with its node" in "\n".join(watcher.lines)
    result = evaluate(str(tmp_path / "run"), "solver", games=400, simulations=32)
    print(watcher.statuses[-1].step, result)
    assert result["losses"] == 0


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_the_loss_of_the_head_ends_the_run_and_the_same_command_goes_on_with_another_head(tmp_path, tiny, watch):
    config, root = tmp_path / "tiny.yaml", tmp_path / "run"
    config.write_text(tiny("checkpoint.every_minutes=0.3", "stop.minutes=30").to_yaml())
    script = "from podzero.launch.cli import main; main()"
    with lonely_head() as pod:
        command = [sys.executable, "-c", script, "train", config, "--workdir", root, "--address", pod.address]
        driver = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        try:
            wait_for(lambda: checkpoints(Workdir(root)), 300)
        finally:
            pod.shutdown()
        try:
            assert driver.wait(timeout=180) != 0
        finally:
            driver.kill()
    step = checkpoints(Workdir(root))[0].step
    assert step > 0
    with lonely_head() as pod:
        watcher = watch()
        experiment = tiny("checkpoint.every_minutes=0.3", f"stop.steps={step + 40}", "stop.minutes=30")
        train(experiment, root, pod.address, watcher)
    assert watcher.statuses[0].step == step
    assert checkpoints(Workdir(root))[0].step >= step + 40


@contextlib.contextmanager
def lonely_head():
    """A cluster of a head alone, with CPUs of its own."""
    pod = Pod(head_cpus=2)
    try:
        yield pod
    finally:
        pod.shutdown()


def wait_for(condition, timeout_s):
    until = time.monotonic() + timeout_s
    while not condition():
        assert time.monotonic() < until
        time.sleep(0.5)


def revived(watcher):
    return " ".join(line for line in watcher.lines if "was restarted at" in line or "restarts on" in line)


@pytest.mark.slow
def test_a_host_of_the_slice_that_never_joins_is_named(pod, tmp_path, tiny, watch):
    with joined(pod, [pod.add_cpus(2), pod.add_host(1)]):
        with pytest.raises(ClusterError, match=r"'slice' host\(s\) 0 .*not joined, 1 ") as refused:
            train(tiny(*SLICE, "cluster.join_minutes=0.1"), tmp_path, pod.address, watch())
        assert "waited 0.1 minutes (cluster.join_minutes)" in str(refused.value)


@pytest.mark.slow
def test_a_cluster_without_the_slice_says_what_it_has_instead(pod, tmp_path, tiny, watch):
    with joined(pod, [pod.add_cpus(2)]):
        with pytest.raises(ClusterError, match=r"v4-16 .* 2 hosts .* 4 chips .*no TPUs"):
            train(tiny(*SLICE, "cluster.join_minutes=0.05"), tmp_path, pod.address, watch())
