"""Machines are looked at before they take part: fakes answer for them."""

from __future__ import annotations

import logging
import re
import shutil
from pathlib import Path

import pytest

import podzero
from podzero.cluster import preflight as preflight_module
from podzero.cluster.placement import Node
from podzero.cluster.preflight import Preflight, differences, versions
from podzero.cluster.remote import ClusterError, WorkerDied

MINE = {"python": "3.11.9", "jax": "0.7.1", "podzero's code": "abc"}


class FakeScout:
    """A scout and its answer in one."""

    def __init__(self, answer):
        self._answer = answer
        self.killed = False
        self.done = answer is not None

    def begin(self, method):
        assert method == "versions"
        return self

    def result(self, timeout_s):
        assert 0 <= timeout_s <= preflight_module.LOOK_TIMEOUT_S
        if self._answer is None:
            raise ClusterError("waited for it")
        if isinstance(self._answer, Exception):
            raise self._answer
        return self._answer

    def kill(self):
        self.killed = True


class FakeCluster:
    """Starts scouts that answer what `answers` says for their node."""

    def __init__(self, answers):
        self._answers = answers
        self.sent = []
        self.checks = []

    def spawn(self, role, name, *, cpus, environment, node):
        assert role is preflight_module.PreflightCheck
        assert cpus == 0
        assert environment == {"JAX_PLATFORMS": "cpu"}
        self.sent.append(node.id)
        self.checks.append(FakeScout(self._answers[node.id]))
        return self.checks[-1]


def node(name):
    return Node(name, f"host-{name}", 4.0, {}, {})


@pytest.fixture
def scouting(monkeypatch):
    """Preflight over nodes that answer as given, and the cluster that starts them."""
    monkeypatch.setattr(preflight_module, "versions", lambda: MINE)

    def make(**answers):
        cluster = FakeCluster(answers)
        return Preflight(cluster, {"JAX_PLATFORMS": "cpu"}), cluster

    return make


def test_what_differs_is_named_with_both_versions():
    theirs = {"python": "3.11.9", "jax": "0.7.0", "flax": "0.1"}
    assert differences(MINE, theirs) == [
        "jax 0.7.0, the driver has 0.7.1",
        "podzero's code missing, the driver has abc",
    ]
    assert differences(MINE, MINE) == []


def test_versions_name_python_every_package_and_the_code():
    found = versions()
    assert {"python", "podzero's code", "jax", "dm-reverb", "ray"} <= found.keys()
    assert [name for name, version in found.items() if version == "missing"] == []


def test_nodes_that_run_what_the_driver_runs_are_fit_in_their_order(scouting):
    checks, cluster = scouting(b=MINE, a=MINE)
    assert checks.fit([node("b"), node("a")], wait=True) == [node("b"), node("a")]
    assert all(check.killed for check in cluster.checks)
    assert checks.refusals([node("b"), node("a")]) == []


def test_a_node_of_other_versions_is_refused_named_once_and_not_asked_again(scouting, caplog):
    checks, cluster = scouting(good=MINE, bad=MINE | {"jax": "0.6.0"})
    nodes = [node("good"), node("bad")]
    with caplog.at_level(logging.WARNING, "podzero"):
        for _ in range(3):
            assert checks.fit(nodes, wait=True) == [node("good")]
    assert cluster.sent == ["good", "bad"]
    why = "jax 0.6.0, the driver has 0.7.1; install the same lock file there (`uv sync --locked`)"
    assert [record.getMessage() for record in caplog.records] == [f"node bad at host-bad is refused: {why}"]
    assert checks.refusals(nodes) == [f"node bad at host-bad: {why}"]


def test_a_node_that_joins_later_is_looked_at_then(scouting):
    checks, cluster = scouting(a=MINE, b=MINE)
    checks.fit([node("a")], wait=True)
    assert checks.fit([node("a"), node("b")], wait=True) == [node("a"), node("b")]
    assert cluster.sent == ["a", "b"]


def test_a_node_that_nobody_looked_at_is_not_called_refused(scouting):
    checks, _ = scouting()
    assert checks.refusals([node("new")]) == []


@pytest.mark.parametrize(
    ("failure", "words"),
    [
        (ClusterError("waited 120 s"), r"podzero does not start there \(waited 120 s\); install it from the same lock"),
        (WorkerDied("no module named podzero"), r"podzero does not start there \(no module named podzero\); install"),
        (KeyError("jax"), r"podzero fails there: KeyError\('jax'\); install it from the same lock"),
    ],
    ids=["silent", "dead", "broken"],
)
def test_a_node_whose_scout_fails_is_refused_with_its_last_words_and_the_others_take_part(
    scouting, caplog, failure, words
):
    checks, cluster = scouting(bad=failure, good=MINE)
    with caplog.at_level(logging.WARNING, "podzero"):
        assert checks.fit([node("bad"), node("good")], wait=True) == [node("good")]
    (why,) = checks.refusals([node("bad"), node("good")])
    assert re.match(f"node bad at host-bad: {words}", why)
    assert why.removeprefix("node bad at host-bad: ") in caplog.text
    assert all(check.killed for check in cluster.checks)


PACKAGE = Path(podzero.__file__).parent
ROOMS = [path for path in PACKAGE.iterdir() if path.is_dir() and path.name != "__pycache__"]


def digest(folder):
    return preflight_module._digest(folder)


@pytest.fixture
def installed(tmp_path):
    """The package as a wheel installs it: every room a real folder."""
    ignored = shutil.ignore_patterns("__pycache__", "*.yaml")
    return Path(shutil.copytree(PACKAGE, tmp_path / "site-packages" / "podzero", ignore=ignored))


def test_a_wheel_and_a_source_tree_of_the_same_code_are_the_same(installed):
    assert not any(path.is_symlink() for path in installed.iterdir())
    assert digest(installed) == digest(PACKAGE)


def test_a_source_tree_elsewhere_is_the_same(tmp_path):
    source = tmp_path / "elsewhere"
    for room in ROOMS:
        shutil.copytree(room.resolve(), source / room.name, ignore=shutil.ignore_patterns("__pycache__"))
    (source / "podzero").mkdir()
    for room in ROOMS:
        (source / "podzero" / room.name).symlink_to(f"../{room.name}")
    for file in PACKAGE.glob("*.py"):
        shutil.copy(file, source / "podzero")
    assert digest(source / "podzero") == digest(PACKAGE)


@pytest.mark.parametrize("file", ["types.py", "search/algorithms.py", "aot/programs.py"])
def test_a_change_of_any_file_is_seen(installed, file):
    before = digest(installed)
    with (installed / file).open("a") as code:
        code.write("\n")
    assert digest(installed) != before


def test_a_file_more_or_less_is_seen_and_so_is_one_that_moved(installed):
    seen = {digest(installed)}
    (installed / "search" / "more.py").touch()
    seen.add(digest(installed))
    (installed / "search" / "more.py").rename(installed / "search" / "other.py")
    seen.add(digest(installed))
    (installed / "search" / "deep").mkdir()
    (installed / "search" / "other.py").rename(installed / "search" / "deep" / "other.py")
    seen.add(digest(installed))
    assert len(seen) == 4


def test_what_is_no_code_is_not_looked_at(installed):
    before = digest(installed)
    (installed / "search" / "__pycache__").mkdir()
    (installed / "search" / "__pycache__" / "algorithms.cpython-311.pyc").touch()
    (installed / "notes.txt").touch()
    assert digest(installed) == before


def test_a_scout_that_is_out_keeps_nobody_waiting(scouting, monkeypatch):
    checks, _ = scouting(a=MINE, slow=None)
    nodes = [node("a"), node("slow")]
    assert [fit.id for fit in checks.fit(nodes, wait=False)] == ["a"]
    assert checks.refusals(nodes) == []
    monkeypatch.setattr(preflight_module.time, "monotonic", lambda: float("inf"))
    assert [fit.id for fit in checks.fit(nodes, wait=False)] == ["a"]
    assert "does not start there" in checks.refusals(nodes)[0]
