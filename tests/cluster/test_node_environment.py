"""Code and environment sent to nodes that have neither."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import time
import tomllib
import zipfile
from pathlib import Path

import pytest

import podzero
from podzero.cluster import node_environment
from podzero.cluster.node_environment import Builder, EnvironmentSpec, NodeEnvironments, pack, shipped_files
from podzero.cluster.placement import Node
from podzero.cluster.preflight import PreflightCheck, versions
from podzero.cluster.ray_cluster import connect, local_node
from podzero.cluster.remote import ClusterError
from podzero.config import load
from podzero.driver.train import _shipped, train
from podzero.errors import ConfigError

PACKAGE = Path(podzero.__file__).parent
PACKAGES = (
    "actors", "aot", "benchmarks", "cluster", "configs", "driver", "envs", "evaluation", "launch", "learner",
    "monitoring", "networks", "params", "replay", "search",
)  # fmt: skip
SHIPMENT = EnvironmentSpec(Path("podzero.zip"), "0123", "3.11.7", ())


@pytest.fixture
def checkout(tmp_path):
    """A checkout with a room behind a link, and with what must stay at home."""
    package = tmp_path / "checkout" / "podzero"
    for name in (
        "podzero/__init__.py", "podzero/py.typed", "launch/__init__.py", "launch/targets/Dockerfile",
        "launch/targets/run.sh", "launch/token", "launch/__pycache__/a.py", "launch/.hidden/a.py", "launch/key.pem",
        "pyproject.toml", "uv.lock", ".env", ".git/config", ".venv/lib/a.py", "runs/a/experiment.yaml",
        "tests/test_a.py", "docs/a.py", "notes.yaml",
    ):  # fmt: skip
        file = package.parent / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(name)
    (package / "launch").symlink_to("../launch", target_is_directory=True)
    return package


def test_only_what_a_wheel_holds_and_the_environment_needs_is_sent(checkout):
    assert list(shipped_files(checkout)) == [
        "podzero/__init__.py",
        "podzero/launch/__init__.py",
        "podzero/launch/targets/Dockerfile",
        "podzero/launch/targets/run.sh",
        "podzero/py.typed",
        "pyproject.toml",
        "uv.lock",
    ]


def test_the_archive_has_plain_files_where_the_checkout_has_links(checkout, tmp_path):
    with zipfile.ZipFile(pack(checkout, (), tmp_path).archive) as archive:
        assert archive.read("podzero/launch/__init__.py") == b"launch/__init__.py"
        assert archive.namelist() == list(shipped_files(checkout))


def test_the_same_code_gives_the_same_archive_and_other_code_another(checkout, tmp_path):
    """Ray names an archive by its contents: an unchanged one is not sent to a node again."""

    def packed(folder):
        (tmp_path / folder).mkdir()
        return pack(checkout, (), tmp_path / folder).archive.read_bytes()

    first = packed("first")
    os.utime(checkout / "__init__.py", (0, 0))
    assert packed("second") == first
    (checkout / "__init__.py").write_text("changed")
    assert packed("third") != first


def test_the_environment_is_named_after_all_that_it_depends_on(checkout, tmp_path, monkeypatch):
    names = [pack(checkout, extras, tmp_path).environment for extras in ((), ("tpu",))]
    (checkout / "__init__.py").write_text("other code, same environment")
    assert pack(checkout, (), tmp_path).environment == names[0]
    (checkout.parent / "uv.lock").write_text("other packages")
    names.append(pack(checkout, (), tmp_path).environment)
    monkeypatch.setattr(node_environment.platform, "python_version", lambda: "3.11.99")
    names.append(pack(checkout, (), tmp_path).environment)
    assert len(set(names)) == 4


def test_this_checkout_is_sent_whole_small_and_without_tests():
    files = shipped_files(PACKAGE)
    assert {name.split("/")[1] for name in files if name.count("/") > 1} == {*PACKAGES, "config"}
    assert {name.split("/")[0] for name in files} == {"podzero", "pyproject.toml", "uv.lock"}
    assert {"podzero/py.typed", "podzero/configs/connect_four.yaml", "podzero/driver/processes.py"} <= set(files)
    assert not [name for name in files if "test_" in name or "token" in name]
    assert sum(file.stat().st_size for file in files.values()) < 10 * 2**20


def test_what_is_sent_of_the_package_is_what_is_packaged():
    project = tomllib.loads((PACKAGE.parent / "pyproject.toml").read_text())
    assert set(node_environment.CODE) == {"*.py", *project["tool"]["setuptools"]["package-data"]["*"]}


@pytest.mark.parametrize("name", ["uv.lock", "pyproject.toml"])
def test_an_installation_that_is_no_checkout_cannot_be_sent(checkout, tmp_path, name):
    (checkout.parent / name).unlink()
    with pytest.raises(ConfigError, match=f"cluster.ship sends a checkout.*no {name}"):
        pack(checkout, (), tmp_path)


def test_a_slice_is_given_the_library_of_its_chips():
    assert _shipped(load("go_9x9")) is None
    assert _shipped(load("go_9x9", ["cluster.ship=true"])) == []
    assert _shipped(load("go_9x9", ["cluster.ship=true", "cluster.slice=v5e-4"])) == ["tpu"]


def test_a_node_needs_nothing_but_ray_to_read_the_builder():
    """Without site-packages."""
    command = [sys.executable, "-S", "-c", "from podzero.cluster.node_environment import Builder"]
    subprocess.run(command, check=True, timeout=60, env={"PYTHONPATH": str(PACKAGE.parent)})


@pytest.fixture
def fake_uv(tmp_path, monkeypatch):
    """Puts a script in the place of uv."""

    def put(script):
        (tmp_path / "uv").write_text(f"#!/bin/sh\n{script}\n")
        (tmp_path / "uv").chmod(0o755)

    monkeypatch.setattr(node_environment.sys, "executable", str(tmp_path / "python"))
    monkeypatch.setenv("PATH", "/usr/bin:/bin")
    monkeypatch.setenv("HOME", str(tmp_path))
    return put


def test_uv_makes_exactly_the_locked_environment_at_its_place(fake_uv, tmp_path):
    fake_uv('echo "$UV_PROJECT_ENVIRONMENT $@" > "$HOME/said"')
    assert Builder("builder").build("0123", "3.11.7", ("tpu",)) == ""
    place, *words = (tmp_path / "said").read_text().split()
    assert place == str(tmp_path / ".cache/podzero/environments/0123")
    assert SHIPMENT.runtime_env["py_executable"] == place.replace(str(tmp_path), "~") + "/bin/python"
    assert words[0] == "sync"
    assert {"--locked", "--no-dev", "--no-install-project", "--extra=tpu"} <= set(words)
    assert words[words.index("--python") + 1] == "3.11.7"


def test_what_keeps_uv_from_it_is_told(fake_uv, monkeypatch):
    assert "needs uv on every node" in Builder("builder").build("0123", "3.11.7", ())
    fake_uv("echo 'the lock file is out of date' >&2; exit 1")
    assert "the lock file is out of date" in Builder("builder").build("0123", "3.11.7", ())
    fake_uv("exec sleep 60")
    monkeypatch.setattr(node_environment, "BUILD_TIMEOUT_S", 0.2)
    assert "within 0 s" in Builder("builder").build("0123", "3.11.7", ())


class FakeBuilders:
    """Starts builders whose answers are given by node id; None means that there is none yet."""

    def __init__(self, **answers):
        self.answers = answers
        self.started = []
        self.killed = []

    def spawn(self, role, name, *, node, bare, **arguments):
        assert role is Builder
        assert bare
        self.started.append(node.id)
        return _FakeBuilder(self, node.id)


class _FakeBuilder:
    def __init__(self, builders, node):
        self._builders, self._node = builders, node

    def begin(self, method, *args):
        assert (method, *args) == ("build", "0123", "3.11.7", ())
        return self

    @property
    def done(self):
        return self._builders.answers[self._node] is not None

    def result(self, timeout_s):
        assert timeout_s > node_environment.BUILD_TIMEOUT_S
        answer = self._builders.answers[self._node]
        if isinstance(answer, Exception):
            raise answer
        return answer

    def kill(self):
        self._builders.killed.append(self._node)


def node(name):
    return Node(id=name, host="10.0.0.1", cpus=1.0, resources={}, labels={})


def test_nodes_are_equipped_together_and_builders_end():
    builders = FakeBuilders(a="", b="")
    equipment = NodeEnvironments(builders.spawn, SHIPMENT)
    equipment.make([node("a"), node("b")])
    assert builders.started == builders.killed == ["a", "b"]
    assert [found.id for found in equipment.having([node("a"), node("b")])] == ["a", "b"]
    assert builders.started == ["a", "b"]


def test_all_nodes_that_cannot_be_equipped_are_named():
    builders = FakeBuilders(a="uv is missing", b="", c=ClusterError("waited 1800 s"))
    with pytest.raises(ClusterError, match=r"uv is missing\n.*waited 1800 s"):
        NodeEnvironments(builders.spawn, SHIPMENT).make([node("a"), node("b"), node("c")])
    assert builders.killed == ["a", "b", "c"]


def test_a_node_that_joins_later_is_not_waited_for(monkeypatch):
    builders = FakeBuilders(a=None)
    equipment = NodeEnvironments(builders.spawn, SHIPMENT)
    assert equipment.having([node("a")]) == []
    assert equipment.having([node("a")]) == []
    builders.answers["a"] = ""
    assert equipment.having([node("a")]) == [node("a")]
    assert builders.started == builders.killed == ["a"]


def test_a_late_node_that_fails_is_tried_again_after_a_pause(monkeypatch, caplog):
    builders = FakeBuilders(a="no network")
    equipment = NodeEnvironments(builders.spawn, SHIPMENT)
    for _ in range(4):
        assert equipment.having([node("a")]) == []
    assert builders.started == ["a"]
    assert "no network" in caplog.text
    later = time.monotonic() + node_environment.RETRY_S
    monkeypatch.setattr(node_environment.time, "monotonic", lambda: later)
    builders.answers["a"] = ""
    equipment.having([node("a")])
    assert equipment.having([node("a")]) == [node("a")]


@pytest.fixture(scope="module")
def strangers(tmp_path_factory):
    """A cluster of two nodes whose user has another home, without environments in it."""
    from ray.cluster_utils import Cluster

    uv = shutil.which("uv")
    if uv is None:
        pytest.skip("uv is not installed")
    cache = subprocess.run([uv, "cache", "dir"], capture_output=True, text=True, check=True, timeout=60).stdout.strip()
    home = tmp_path_factory.mktemp("home")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("RAY_ENABLE_UV_RUN_RUNTIME_ENV", "0")
        patch.setenv("UV_CACHE_DIR", cache)
        patch.setenv("HOME", str(home))
        nodes = Cluster(initialize_head=True, head_node_args=local_node(1))
        nodes.add_node(**{key: value for key, value in local_node(1).items() if key != "include_dashboard"})
        yield nodes, home
        nodes.shutdown()


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_processes_of_both_nodes_run_the_sent_code_in_the_locked_environment(strangers):
    class Witness:  # known to this process alone: Ray sends it by value
        def __init__(self, name):
            pass

        def whereabouts(self):
            import sys

            import jax

            import podzero

            return podzero.__file__, sys.prefix, jax.__file__

    cluster, home = strangers
    with connect(cluster.address, 0, ship=()) as joined:
        nodes = joined.nodes()
        assert len(nodes) == 2
        (environment,) = (home / ".cache/podzero/environments").iterdir()
        for place in nodes:
            where = {"cpus": 0, "environment": {"JAX_PLATFORMS": "cpu"}, "node": place}
            check = joined.spawn(PreflightCheck, "scout", **where)
            assert check.ask("versions") == versions()
            code, prefix, library = joined.spawn(Witness, "witness", **where).ask("whereabouts")
            assert "/working_dir_files/" in code
            assert prefix == str(environment)
            assert library.startswith(prefix)


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_a_run_on_nodes_that_had_nothing(strangers, tmp_path, tiny, watch):
    cluster, _ = strangers
    reason = train(tiny("cluster.ship=true", "stop.steps=20"), tmp_path / "run", cluster.address, watch())
    assert reason == "20 steps are done"
