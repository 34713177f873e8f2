"""Checks of nodes before a run uses them; fakes answer the checks."""

from __future__ import annotations

import logging
import shutil
from pathlib import Path

import pytest
from fake_cluster import PENDING, FakeRemoteActor

import podzero
from podzero.config import ClusterConfig
from podzero.core.errors import ClusterError
from podzero.runtime.cluster import preflight as preflight_module
from podzero.runtime.cluster.placement import Node
from podzero.runtime.cluster.preflight import RunNodes, differences, versions
from podzero.runtime.cluster.remote import FIRST_RETRY_S, WorkerDied

MINE = {"python": "3.11.9", "jax": "0.7.1", "podzero's code": "abc"}


class FakeCluster:
    """A joined cluster that starts checks, which answer what `answers` holds for their node."""

    def __init__(self, answers):
        self.answers = answers
        self.joined, self.listed = True, []
        self.started = []
        self.checks = []

    def nodes(self):
        return self.listed

    def request_capacity(self, cpus, beyond):
        self.beyond = beyond

    def spawn(self, process, name, *, cpus, environment, node):
        assert process is preflight_module.PreflightCheck
        assert cpus == 0
        assert environment["JAX_PLATFORMS"] == "cpu"
        self.started.append(node.id)
        self.checks.append(FakeRemoteActor("check", versions=self.answers[node.id]))
        return self.checks[-1]


def node(name):
    return Node(name, f"host-{name}", 4.0, {}, {})


def usable(nodes, cluster, *listed, wait=True):
    """Those of the cluster's nodes that may be used."""
    cluster.listed = list(listed)
    return nodes.usable(wait)


def checked(nodes, cluster):
    """The nodes whose versions are known: a request of room is for others."""
    nodes.request_capacity({}, [])
    return cluster.beyond


@pytest.fixture
def prepare(monkeypatch):
    """Makes the nodes of a run, whose checks answer as given, and the cluster that starts the checks."""
    monkeypatch.setattr(preflight_module, "versions", lambda: MINE)

    def make(**answers):
        cluster = FakeCluster(answers)
        return RunNodes(cluster, ClusterConfig(), (), ""), cluster

    return make


def test_an_optional_package_may_be_missing_and_not_be_another():
    with_it, another, without = {"openvino": "2026.4"}, {"openvino": "2026.5"}, {"openvino": "missing"}
    assert differences(with_it, without) == differences(without, with_it) == differences(with_it, {}) == []
    assert differences(with_it, another) == ["openvino 2026.5, the driver has 2026.4"]
    assert differences({"pyzmq": "27.1"}, {"pyzmq": "missing"}) == ["pyzmq missing, the driver has 27.1"]
    assert {"openvino", "pyzmq"} <= versions().keys()


def test_differences_name_both_versions():
    theirs = {"python": "3.11.9", "jax": "0.7.0", "flax": "0.1"}
    assert differences(MINE, theirs) == [
        "jax 0.7.0, the driver has 0.7.1",
        "podzero's code missing, the driver has abc",
    ]
    assert differences(MINE, MINE) == []


def test_versions_name_python_every_package_and_the_code():
    found = versions()
    assert {"python", "podzero's code", "jax", "grpcio", "ray"} <= found.keys()
    assert [name for name, version in found.items() if version == "missing"] == []


def test_nodes_with_the_versions_of_the_driver_are_usable_in_their_order(prepare):
    nodes, cluster = prepare(b=MINE, a=MINE)
    assert usable(nodes, cluster, node("b"), node("a")) == [node("b"), node("a")]
    assert all(check.killed for check in cluster.checks)
    assert nodes.refusals() == []
    assert checked(nodes, cluster) == {"a", "b"}


def test_a_node_with_other_versions_is_refused_logged_once_and_not_checked_again(prepare, clock, caplog):
    nodes, cluster = prepare(good=MINE, bad=MINE | {"jax": "0.6.0"})
    listed = [node("good"), node("bad")]
    with caplog.at_level(logging.WARNING, "podzero"):
        for _ in range(3):
            assert usable(nodes, cluster, *listed) == [node("good")]
            clock[0] += 10_000
    assert cluster.started == ["good", "bad"]
    advice = "install the same lock file there (`uv sync --locked --inexact`), and restart Ray on it"
    why = f"jax 0.6.0, the driver has 0.7.1; {advice}"
    assert [record.getMessage() for record in caplog.records] == [f"node bad at host-bad is refused: {why}"]
    assert nodes.refusals() == [f"node bad at host-bad: {why}"]
    assert checked(nodes, cluster) == {"good", "bad"}


def test_a_node_that_joins_later_is_checked_then(prepare):
    nodes, cluster = prepare(a=MINE, b=MINE)
    usable(nodes, cluster, node("a"))
    assert usable(nodes, cluster, node("a"), node("b")) == [node("a"), node("b")]
    assert cluster.started == ["a", "b"]


def test_a_node_that_was_not_checked_is_not_listed_as_refused(prepare):
    nodes, cluster = prepare(new=PENDING)
    assert usable(nodes, cluster, node("new"), wait=False) == nodes.refusals() == []


FAILURES = pytest.mark.parametrize(
    ("failure", "message"),
    [
        (ClusterError("waited 120 s"), "its check failed: waited 120 s"),
        (WorkerDied("no module named podzero"), "its check failed: no module named podzero"),
        (KeyError("jax"), "its check failed: KeyError: 'jax'"),
    ],
    ids=["time-out", "dead", "exception"],
)


@FAILURES
def test_a_node_whose_check_fails_is_left_out_with_the_error_and_the_others_are_used(prepare, caplog, failure, message):
    nodes, cluster = prepare(bad=failure, good=MINE)
    with caplog.at_level(logging.WARNING, "podzero"):
        assert usable(nodes, cluster, node("bad"), node("good")) == [node("good")]
    assert nodes.refusals() == [f"node bad at host-bad: {message}; the check is repeated"]
    assert f"node bad at host-bad is not used yet: {message}" in caplog.text
    assert all(check.killed for check in cluster.checks)
    assert checked(nodes, cluster) == {"good"}


@FAILURES
def test_a_check_that_failed_is_repeated_after_a_pause_and_its_node_then_used(prepare, clock, failure, message):
    nodes, cluster = prepare(a=failure)
    assert usable(nodes, cluster, node("a")) == []
    cluster.answers["a"] = MINE
    assert usable(nodes, cluster, node("a")) == []
    assert cluster.started == ["a"]
    clock[0] += FIRST_RETRY_S
    assert usable(nodes, cluster, node("a")) == [node("a")]
    assert nodes.refusals() == []


def test_pauses_between_checks_double_up_to_the_longest(prepare, clock):
    nodes, cluster = prepare(a=WorkerDied("gone"))
    pauses, last = [], clock[0]
    while len(pauses) < 7:
        before = len(cluster.started)
        usable(nodes, cluster, node("a"), wait=False)
        if len(cluster.started) > before:
            pauses.append(clock[0] - last)
            last = clock[0]
        clock[0] += 5
    assert pauses == [0, 15, 30, 60, 120, 240, 300]


def test_a_repeated_check_is_not_waited_for(prepare, clock):
    nodes, cluster = prepare(a=WorkerDied("gone"), b=MINE)
    usable(nodes, cluster, node("a"), node("b"))
    cluster.answers["a"] = PENDING
    clock[0] += FIRST_RETRY_S
    assert usable(nodes, cluster, node("a"), node("b")) == [node("b")]
    assert not cluster.checks[-1].killed


def test_a_pending_check_is_not_waited_for_until_its_deadline(prepare, clock):
    nodes, cluster = prepare(a=MINE, slow=PENDING)
    listed = [node("a"), node("slow")]
    assert usable(nodes, cluster, *listed, wait=False) == [node("a")]
    assert nodes.refusals() == []
    clock[0] += preflight_module.CHECK_TIMEOUT_S
    assert usable(nodes, cluster, *listed, wait=False) == [node("a")]
    assert "its check failed: waited" in nodes.refusals()[0]


PACKAGE = Path(podzero.__file__).parent
SUBPACKAGES = [path for path in PACKAGE.iterdir() if path.is_dir() and path.name != "__pycache__"]


def digest(folder):
    return preflight_module.code_digest(folder)


@pytest.fixture
def installed(tmp_path):
    """The package as a wheel installs it: every subpackage is a real folder."""
    ignored = shutil.ignore_patterns("__pycache__", "*.yaml")
    return Path(shutil.copytree(PACKAGE, tmp_path / "site-packages" / "podzero", ignore=ignored))


def test_a_wheel_and_a_source_tree_of_the_same_code_have_the_same_digest(installed):
    assert not any(path.is_symlink() for path in installed.iterdir())
    assert digest(installed) == digest(PACKAGE)


def test_a_source_tree_elsewhere_has_the_same_digest(tmp_path):
    source = tmp_path / "elsewhere"
    for folder in SUBPACKAGES:
        shutil.copytree(folder.resolve(), source / folder.name, ignore=shutil.ignore_patterns("__pycache__"))
    (source / "podzero").mkdir()
    for folder in SUBPACKAGES:
        (source / "podzero" / folder.name).symlink_to(f"../{folder.name}")
    for file in PACKAGE.glob("*.py"):
        shutil.copy(file, source / "podzero")
    assert digest(source / "podzero") == digest(PACKAGE)


@pytest.mark.parametrize("file", ["types.py", "search/algorithms.py", "tools/compile/programs.py"])
def test_a_change_of_any_file_changes_the_digest(installed, file):
    before = digest(installed)
    with (installed / file).open("a") as code:
        code.write("\n")
    assert digest(installed) != before


def test_a_file_that_is_added_or_moved_changes_the_digest(installed):
    seen = {digest(installed)}
    (installed / "search" / "more.py").touch()
    seen.add(digest(installed))
    (installed / "search" / "more.py").rename(installed / "search" / "other.py")
    seen.add(digest(installed))
    (installed / "search" / "deep").mkdir()
    (installed / "search" / "other.py").rename(installed / "search" / "deep" / "other.py")
    seen.add(digest(installed))
    assert len(seen) == 4


def test_other_files_than_code_do_not_change_the_digest(installed):
    before = digest(installed)
    (installed / "search" / "__pycache__").mkdir()
    (installed / "search" / "__pycache__" / "algorithms.cpython-311.pyc").touch()
    (installed / "notes.txt").touch()
    assert digest(installed) == before
