"""Calls of remote actors: results, the exceptions of methods, and what Ray's own errors become."""

from __future__ import annotations

import os
import signal
import time

import pytest

from podzero.core.errors import ClusterError
from podzero.runtime.cluster import remote
from podzero.runtime.cluster.placement import Node
from podzero.runtime.cluster.remote import NodeLost, WorkerDied, current_node_id

ABSENT = Node("ab" * 28, "nowhere", 1.0, {}, {})


@pytest.fixture
def service(ray_cluster):
    actor = ray_cluster.spawn(service_class(), "service", cpus=0, environment={})
    actor.node = current_node_id()
    yield actor
    actor.kill()


def service_class():
    """A class that Ray sends by value: other processes cannot import this module."""

    class Service:
        def pid(self):
            return os.getpid()

        def sleep(self, seconds):
            time.sleep(seconds)

        def fail(self):
            raise ValueError("the board is full")

    return Service


def test_results_and_exceptions_of_methods_come_back_as_they_are(service):
    assert service.ask("pid") != os.getpid()
    with pytest.raises(ValueError, match="the board is full") as failed:
        service.ask("fail")
    assert "in fail" in str(failed.value.__cause__), "the remote traceback"


def test_a_late_answer_is_a_cluster_error_that_names_actor_and_method(service):
    service.ask("pid")
    with pytest.raises(ClusterError, match="service to answer 'sleep'"):
        service.ask("sleep", 60, timeout_s=0.2)


def test_a_killed_process_is_a_dead_worker(service):
    call = service.begin("sleep", 600)
    os.kill(service.ask("pid"), signal.SIGKILL)
    with pytest.raises(WorkerDied, match="service is gone") as died:
        call.result(120)
    assert "\t" not in str(died.value), "lines of identifiers"
    assert not isinstance(died.value, NodeLost)


def test_an_actor_whose_node_is_gone_before_it_starts_is_lost_with_the_node(ray_cluster):
    """Ray raises ActorUnschedulableError, which is no RayActorError."""
    actor = ray_cluster.spawn(service_class(), "late", cpus=0, environment={}, node=ABSENT)
    with pytest.raises(NodeLost, match="late is gone"):
        actor.ask("pid", timeout_s=120)


class FakeHandle:
    """A Ray actor handle; what its calls give is decided by `FakeRay`."""

    def __getattr__(self, method):
        return self

    def remote(self, *args):
        return self


@pytest.fixture
def answers(monkeypatch):
    """What `ray.get` gives or raises, call by call; the last one stays."""
    import ray

    coming = []

    def get(reference, timeout):
        answer = coming.pop(0) if len(coming) > 1 else coming[0]
        if isinstance(answer, Exception):
            raise answer
        return answer

    monkeypatch.setattr(ray, "get", get)
    monkeypatch.setattr(ray, "nodes", lambda: [{"NodeID": "here", "Alive": True}])
    monkeypatch.setattr(remote.time, "sleep", lambda seconds: None)
    return coming


def actor_on(node):
    return remote.RemoteActor("replay-0", FakeHandle(), node)


def ray_error(name, *args):
    from ray import exceptions

    return getattr(exceptions, name)(*args)


@pytest.mark.parametrize(
    ("error", "args"),
    [
        ("ObjectLostError", ("reference", "address", "call site")),
        ("OwnerDiedError", ("reference", "address", "call site")),
        ("ObjectFetchTimedOutError", ("reference", "address", "call site")),
        ("RaySystemError", ("the raylet is gone",)),
        ("NodeDiedError", ("the node is gone",)),
        ("OutOfMemoryError", ("killed by Ray's memory monitor",)),
        ("ActorUnschedulableError", ("no node fits",)),
        ("RuntimeEnvSetupError", ("no such package",)),
        ("ActorUnavailableError", ("connection reset", None)),
    ],
)
@pytest.mark.parametrize(
    ("alive", "node", "expected"),
    [(True, "here", ClusterError), (False, "here", WorkerDied), (False, "elsewhere", NodeLost)],
)
def test_every_error_of_ray_becomes_one_that_callers_handle(answers, error, args, alive, node, expected):
    raised = ray_error(error, *args)
    answers[:] = [raised, "ready" if alive else ray_error("ActorDiedError")]
    with pytest.raises((ClusterError, WorkerDied)) as failed:
        actor_on(node).ask("drain")
    assert type(failed.value) is expected
    assert failed.value.__cause__ is raised


def test_an_unavailable_actor_is_asked_until_ray_knows_more(answers):
    unavailable = ray_error("ActorUnavailableError", "The actor is temporarily unavailable", None)
    answers[:] = [unavailable, unavailable, ray_error("GetTimeoutError"), unavailable, ray_error("ActorDiedError")]
    with pytest.raises(WorkerDied):
        actor_on("here").ask("drain")
    assert len(answers) == 1


def test_an_actor_that_stays_unavailable_counts_as_dead_after_a_while(answers, monkeypatch):
    monkeypatch.setattr(remote, "VERDICT_TIMEOUT_S", 0.05)
    answers[:] = [ray_error("ActorUnavailableError", "connection reset", None)]
    with pytest.raises(WorkerDied, match="connection reset"):
        actor_on("here").ask("drain")
