"""The lock of a run's namespace, on a real cluster."""

from __future__ import annotations

import time
from contextlib import suppress

import pytest
from ray.exceptions import ActorUnavailableError, GetTimeoutError

from podzero.errors import ClusterError
from podzero.runtime.cluster.ray_cluster import connect
from podzero.runtime.cluster.run_lock import lock_run


@pytest.fixture
def namespace(shared_cluster, tmp_path):
    with connect(shared_cluster.address, 0, f"podzero:{tmp_path}"):
        yield


def test_a_second_run_is_refused_with_the_owner_of_the_lock(namespace):
    lock = lock_run("process 1 at elsewhere trains it")
    with pytest.raises(ClusterError, match=r"lock.*process 1 at elsewhere"):
        lock_run("process 2")
    del lock


def test_a_lock_is_free_again_once_its_handle_is_gone(namespace):
    lock_run("the first run")
    lock = None
    deadline = time.monotonic() + 60
    while lock is None:
        with suppress(ClusterError):
            lock = lock_run("the second run")
        assert time.monotonic() < deadline
        time.sleep(0.2)
    with pytest.raises(ClusterError, match="the second run"):
        lock_run("the third run")


def test_an_owner_that_ends_while_it_is_asked_for_is_no_other_error(namespace, monkeypatch):
    import ray

    def not_found(name, namespace=None):
        raise ValueError(f"no actor {name}")

    lock = lock_run("the first run")
    monkeypatch.setattr(ray, "get_actor", not_found)
    with pytest.raises(ClusterError, match=r"lock.*is ending"):
        lock_run("the second run")
    del lock


@pytest.mark.parametrize(
    ("failure", "message"),
    [
        (GetTimeoutError("Get timed out"), "waited 180 s for the lock .* is the node overloaded"),
        (
            ActorUnavailableError("no connection", None),
            "the lock .* could not be started .*: .*no connection",
        ),
    ],
)
def test_a_lock_that_does_not_start_is_an_error_for_people(namespace, monkeypatch, failure, message):
    import ray

    def fail(*references, timeout):
        raise failure

    monkeypatch.setattr(ray, "get", fail)
    with pytest.raises(ClusterError, match=message):
        lock_run("the first run")


def test_a_cluster_without_a_token_is_used_after_one_of_this_machine_that_has_one(shared_cluster):
    """Otherwise this process would ask the other cluster's processes for the token, and lose its actors."""
    with connect(None, cpus=1):
        pass
    with connect(shared_cluster.address, 0, "after another cluster"):
        lock_run("a run")
