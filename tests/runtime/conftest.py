"""Supervisors over a cluster in memory."""

from __future__ import annotations

import time
from concurrent.futures import Future
from unittest.mock import Mock

import pytest
from fake_cluster import FakeCluster, cpu_node, done_of, saves_learner

from podzero.config import parse
from podzero.files.workdir import Workdir
from podzero.runtime import failures, run, supervisor, workers
from podzero.runtime.cluster.placement import POD_TYPE, SLICE_NAME, WORKER_ID, Node
from podzero.runtime.kinds import LearnerProcess
from podzero.runtime.run import Run
from podzero.runtime.saving import Saver
from podzero.runtime.stopping import StopRequest, StopSignals
from podzero.runtime.supervisor import Supervisor


class NoWait(StopRequest):
    """A request whose `wait` returns at once, after it has called `meanwhile`; keeps the times that it was told."""

    def __init__(self, meanwhile=lambda: None):
        super().__init__()
        self._meanwhile = meanwhile
        self.waits = []

    def wait(self, timeout_s):
        self.waits.append(timeout_s)
        self._meanwhile()
        return self.is_set()


@pytest.fixture(scope="session")
def at_once():
    """`in_thread` without a thread."""

    def run(name, work, patience_s=0.0):
        outcome = Future()
        try:
            outcome.set_result(work())
        except Exception as failure:
            outcome.set_exception(failure)
        return outcome

    return run


@pytest.fixture(scope="session")
def no_wait():
    """Makes requests to stop whose `wait` returns at once."""
    return NoWait


@pytest.fixture(scope="session")
def tpu_host():
    """Makes the node of host number `worker` of a slice v5e-16, by default of one named x."""

    def make(worker, name="x"):
        labels = {SLICE_NAME: name, WORKER_ID: str(worker), POD_TYPE: "v5litepod-16"}
        which = "tpu" if name == "x" else name
        return Node(f"{which}-{worker}", f"10.0.1.{worker}", 100.0, {"CPU": 100.0, "TPU": 4.0}, labels)

    return make


@pytest.fixture(scope="session")
def experiment():
    """Makes an experiment of two actors; keyword arguments are its sections."""

    def make(actors=(), **sections):
        actors = {"count": 2, "min_count": 1} | dict(actors)
        replay = {"cpus": 0.0} | sections.pop("replay", {})
        tree = {"name": "test", "env": {"name": "tic_tac_toe"}, "actors": actors, "replay": replay}
        return parse(tree | sections, "test")

    return make


@pytest.fixture
def make_supervisor(monkeypatch, tmp_path, experiment, at_once):
    """Makes a supervisor that is not started, and its cluster of nodes, the first of which is the driver's."""
    monkeypatch.setattr(workers.Call, "done_of", done_of)
    monkeypatch.setattr(supervisor, "LOOK_EVERY_S", 0.0)
    monkeypatch.setattr(supervisor, "STOP_TIMEOUT_S", 0.1)
    monkeypatch.setattr(supervisor, "start_lasting", lambda service, node: f"the {service.__name__} on {node}")
    monkeypatch.setattr(supervisor, "start_param_store", lambda node: Mock())
    monkeypatch.setattr(supervisor, "in_thread", at_once)

    def make(*nodes, joined=True, stopping=None, **sections):
        cluster = FakeCluster(*nodes, joined=joined)
        monkeypatch.setattr(supervisor, "start_agent", cluster.start_agent)
        stopping = stopping or NoWait()
        made = Supervisor(cluster, experiment(**sections), Workdir(tmp_path), stopping, nodes[0].id)
        return made, cluster

    return make


@pytest.fixture
def start(make_supervisor):
    """Starts a supervisor over the given nodes; returns it and its cluster."""

    def make(*nodes, **sections):
        supervisor, cluster = make_supervisor(*nodes, **sections)
        supervisor.start(None)
        list(supervisor.listen())
        return supervisor, cluster

    return make


@pytest.fixture
def restart_limits(monkeypatch):
    """Changes how often workers may fail."""
    return lambda **changed: monkeypatch.setattr(failures, "LIMITS", failures.LIMITS._replace(**changed))


@pytest.fixture
def clock(monkeypatch):
    """The monotonic clock of all modules, as a list of one time in seconds that the test changes."""
    now = [1000.0]
    monkeypatch.setattr(time, "monotonic", lambda: now[0])
    return now


@pytest.fixture
def make_run(make_supervisor, tmp_path, experiment, watch, monkeypatch):
    """Makes a run whose learner trains, its cluster, its signals, and its view, which calls `act`."""
    monkeypatch.setattr(run, "TICK_S", 0.0)
    runs, savers = [], []

    def make(act=None, **sections):
        workdir, stopping, view = Workdir(tmp_path), NoWait(), watch(act)
        supervisor, cluster = make_supervisor(cpu_node("home", 4), stopping=stopping, **sections)
        cluster.answers[LearnerProcess] |= {"checkpoint": saves_learner(40), "snapshot": -1}
        supervisor.start(None)
        savers.append(Saver(experiment(**sections), workdir))
        runs.append(Run(experiment(**sections), workdir, supervisor, view, savers[-1]))
        runs[-1].begin(None)
        return runs[-1], cluster, StopSignals(stopping), view

    yield make
    for made in runs:
        made.close()
    for saver in savers:
        saver.close()
