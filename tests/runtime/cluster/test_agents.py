"""An agent in real Ray: its process is killed, and what it answers for its node's processes goes on."""

from __future__ import annotations

import os
import time

import pytest

from podzero.runtime.cluster.ray_cluster import connect
from podzero.runtime.cluster.remote import Call, start_lasting
from podzero.runtime.cluster.services import Directory, Publication, ask, start_agent, start_param_store
from podzero.runtime.monitoring.reports import MetricsReport
from podzero.runtime.workers import Worker, drained


@pytest.fixture
def reporting():
    class Reporting:  # known to this process alone: Ray sends it by value
        def __init__(self, name):
            self._name = name

        def drain(self):
            return [MetricsReport(time.time(), self._name, {"count/moves": 1.0})]

        def fail(self):
            raise ValueError("this is how it is")

    return Reporting


@pytest.fixture
def cluster(shared_cluster):
    with connect(shared_cluster.address, 0) as cluster:
        yield cluster


def until(found):
    deadline = time.monotonic() + 120
    while not (value := found()):
        assert time.monotonic() < deadline
        time.sleep(0.1)
    return value


def test_an_agent_answers_for_directory_store_and_processes_and_after_its_death_again(cluster, reporting, monkeypatch):
    import ray
    from ray._private.state import actors

    monkeypatch.setattr("podzero.runtime.workers.NAME_EVERY_S", 0.5)
    (node,) = [node for node in cluster.nodes() if node.cpus]
    home = next(found.id for found in cluster.nodes() if found.id != node.id)
    directory, store = start_lasting(Directory, home), start_param_store(home)
    agent = Worker(start_agent(node.id, directory, store))
    where = {"cpus": 0, "environment": {}, "node": node}
    processes = [cluster.spawn(reporting, name, name, **where) for name in ("actor-0", "actor-1")]
    workers = {process.name: Worker(process) for process in processes}

    def heard():
        reports = drained(agent, workers)
        return {report.worker for report in reports} == set(workers)

    def announced():
        ray.get(directory.announce.remote("replay-0", 0, "a:1"))
        return ask(handle) == {"replay-0": "a:1"}

    until(heard)
    handle = agent.actor.actor
    until(announced)
    store.hold.remote(Publication("learner", 1, 8))
    assert ray.get(handle.other_than.remote("", 0, 60.0), timeout=60).version == 8
    waiting = handle.other_than.remote("learner", 1, 60.0)
    before = actors(handle._actor_id.hex())["Pid"]
    os.kill(before, 9)
    until(lambda: actors(handle._actor_id.hex())["Pid"] not in (0, before))
    heard()  # what the dead one had answered
    until(heard)
    until(announced)
    store.hold.remote(Publication("learner", 2, 16))
    assert ray.get(waiting, timeout=60).version == 16, "Ray repeats what was asked of the one that died"
    processes[0].kill()
    until(lambda: {report.worker for report in drained(agent, workers)} == {"actor-1"})


def test_of_many_calls_those_that_are_done_are_found_by_one_question(cluster, reporting):
    (node,) = [node for node in cluster.nodes() if node.cpus]
    process = cluster.spawn(reporting, "actor-0", "actor-0", cpus=0, environment={}, node=node)
    calls, failing = [process.begin("drain") for _ in range(3)], process.begin("fail")
    until(lambda: failing in Call.done_of([*calls, failing]))
    with pytest.raises(ValueError, match="this is how it is"):
        failing.result(60.0)
    assert len([call.result(60.0) for call in calls]) == 3
    assert Call.done_of([*calls, failing]) == {*calls, failing}
    assert Call.done_of([]) == set()
