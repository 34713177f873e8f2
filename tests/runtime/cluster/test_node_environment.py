"""Code and environment installed on nodes that have neither."""

from __future__ import annotations

import os
import platform
import shutil
import subprocess
import sys
import time
import tomllib
import zipfile
from pathlib import Path

import pytest

import podzero
from podzero.config import load
from podzero.core.errors import ClusterError, ConfigError
from podzero.runtime.cluster import node_environment
from podzero.runtime.cluster.node_environment import (
    EnvironmentInstaller,
    EnvironmentSpec,
    NodeEnvironments,
    archived_files,
    pack_environment,
)
from podzero.runtime.cluster.placement import Node
from podzero.runtime.cluster.preflight import PreflightCheck, differences, versions
from podzero.runtime.cluster.ray_cluster import connect
from podzero.runtime.train import environment_extras, train

PACKAGE = Path(podzero.__file__).parent
PACKAGES = (
    "actors", "configs", "envs", "evaluation", "inference", "launch", "learner", "networks", "replay", "runtime",
    "search", "tools",
)  # fmt: skip
SPEC = EnvironmentSpec(Path("podzero.zip"), "0123", "3.11.7", (), ("a==1",))


@pytest.fixture
def checkout(tmp_path):
    """A checkout with a subpackage behind a link, and with files that must not be copied."""
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


def test_the_archive_holds_the_files_of_a_wheel_and_those_that_uv_needs(checkout):
    assert list(archived_files(checkout)) == [
        "podzero/__init__.py",
        "podzero/launch/__init__.py",
        "podzero/launch/targets/Dockerfile",
        "podzero/launch/targets/run.sh",
        "podzero/py.typed",
        "pyproject.toml",
        "uv.lock",
    ]


def test_the_archive_has_plain_files_where_the_checkout_has_links(checkout, tmp_path):
    with zipfile.ZipFile(pack_environment(checkout, (), tmp_path).archive) as archive:
        assert archive.read("podzero/launch/__init__.py") == b"launch/__init__.py"
        assert archive.namelist() == list(archived_files(checkout))


def test_the_same_code_gives_the_same_archive_and_changed_code_another(checkout, tmp_path):
    """Ray names an archive by its contents and copies an unchanged one to a node only once."""

    def packed(folder):
        (tmp_path / folder).mkdir()
        return pack_environment(checkout, (), tmp_path / folder).archive.read_bytes()

    first = packed("first")
    os.utime(checkout / "__init__.py", (0, 0))
    assert packed("second") == first
    (checkout / "__init__.py").write_text("changed")
    assert packed("third") != first


def test_the_name_of_the_environment_depends_on_lock_file_python_and_extras(checkout, tmp_path, monkeypatch):
    names = [pack_environment(checkout, extras, tmp_path).environment for extras in ((), ("tpu",))]
    (checkout / "__init__.py").write_text("other code, same environment")
    assert pack_environment(checkout, (), tmp_path).environment == names[0]
    (checkout.parent / "uv.lock").write_text("other packages")
    names.append(pack_environment(checkout, (), tmp_path).environment)
    monkeypatch.setattr(node_environment.platform, "python_version", lambda: "3.11.99")
    names.append(pack_environment(checkout, (), tmp_path).environment)
    names += [pack_environment(checkout, (), tmp_path, own).environment for own in (("tpu",), ("tpu", "a==1"))]
    assert len(set(names)) == 6
    assert pack_environment(checkout, (), tmp_path, ("a==1", "tpu")).environment == names[-1]


def test_the_archive_of_this_checkout_is_complete_small_and_without_tests():
    files = archived_files(PACKAGE)
    assert {name.split("/")[1] for name in files if name.count("/") > 1} == {*PACKAGES, "config", "core", "files"}
    assert {name.split("/")[0] for name in files} == {"podzero", "pyproject.toml", "uv.lock"}
    assert {"podzero/py.typed", "podzero/configs/connect_four.yaml", "podzero/runtime/processes.py"} <= set(files)
    assert not [name for name in files if "test_" in name or "token" in name]
    assert sum(file.stat().st_size for file in files.values()) < 10 * 2**20


def test_the_archive_and_a_wheel_hold_files_of_the_same_patterns():
    project = tomllib.loads((PACKAGE.parent / "pyproject.toml").read_text())
    data = project["tool"]["setuptools"]["package-data"]
    server = {Path(name).name for name in data["podzero.replay"]}
    assert set(node_environment.CODE_PATTERNS) == {"*.py", *data["*"], *server}


@pytest.mark.parametrize("name", ["uv.lock", "pyproject.toml"])
def test_an_installation_that_is_no_checkout_is_refused(checkout, tmp_path, name):
    (checkout.parent / name).unlink()
    with pytest.raises(ConfigError, match=rf"cluster\.install_environment .*no {name}"):
        pack_environment(checkout, (), tmp_path)


def test_the_environment_for_a_slice_includes_the_tpu_library():
    assert environment_extras(load("go_9x9")) is None
    assert environment_extras(load("go_9x9", ["cluster.install_environment=true"])) == []
    assert environment_extras(load("go_9x9", ["cluster.install_environment=true", "cluster.slice=v5e-4"])) == ["tpu"]
    for setting in ("actors.inference=int8", "learner.cpu_convolutions=openvino"):
        assert environment_extras(load("go_9x9", ["cluster.install_environment=true", setting])) == ["openvino"]


def test_the_installer_imports_the_standard_library_alone():
    """`-S` leaves out site-packages."""
    command = [sys.executable, "-S", "-c", "from podzero.runtime.cluster.node_environment import EnvironmentInstaller"]
    subprocess.run(command, check=True, timeout=60, env={"PYTHONPATH": str(PACKAGE.parent)})


@pytest.fixture
def fake_uv(tmp_path, monkeypatch):
    """Replaces uv by a script."""

    def put(script):
        (tmp_path / "uv").write_text(f"#!/bin/sh\n{script}\n")
        (tmp_path / "uv").chmod(0o755)

    monkeypatch.setattr(node_environment.sys, "executable", str(tmp_path / "python"))
    monkeypatch.setenv("PATH", "/usr/bin:/bin")
    monkeypatch.setenv("HOME", str(tmp_path))
    return put


def test_uv_installs_exactly_the_locked_environment_in_its_folder(fake_uv, tmp_path):
    fake_uv('echo "$UV_PROJECT_ENVIRONMENT $@" > "$HOME/command"')
    assert EnvironmentInstaller("installer").install("0123", "3.11.7", ("tpu",)) == ""
    folder, *words = (tmp_path / "command").read_text().split()
    assert folder == str(tmp_path / ".cache/podzero/environments/0123")
    assert SPEC.runtime_env["py_executable"] == folder.replace(str(tmp_path), "~") + "/bin/python"
    assert words[0] == "sync"
    assert {"--locked", "--no-dev", "--no-install-project", "--extra=tpu"} <= set(words)
    assert words[words.index("--python") + 1] == "3.11.7"


def test_the_installer_returns_the_error_of_uv(fake_uv, monkeypatch):
    assert "needs uv on every node" in EnvironmentInstaller("installer").install("0123", "3.11.7", ())
    fake_uv("echo 'the lock file is out of date' >&2; exit 1")
    assert "the lock file is out of date" in EnvironmentInstaller("installer").install("0123", "3.11.7", ())
    fake_uv("exec sleep 60")
    monkeypatch.setattr(node_environment, "INSTALL_TIMEOUT_S", 0.2)
    assert "within 0 s" in EnvironmentInstaller("installer").install("0123", "3.11.7", ())


def test_packages_of_ones_own_come_after_those_of_the_lock_file_and_stay_when_it_is_repeated(fake_uv, tmp_path):
    fake_uv('echo "$@" >> "$HOME/commands"')
    assert EnvironmentInstaller("installer").install("0123", "3.11.7", (), ("a==1", "b[x]==2")) == ""
    sync, install = (words.split() for words in (tmp_path / "commands").read_text().splitlines())
    assert sync[0] == "sync"
    assert "--inexact" in sync
    assert install[:2] == ["pip", "install"]
    assert install[install.index("--python") + 1] == str(tmp_path / ".cache/podzero/environments/0123/bin/python")
    assert install[-2:] == ["a==1", "b[x]==2"]


@pytest.mark.parametrize(("failing", "message"), [("sync", "the environment: no"), ("pip", "--with a==1: no")])
def test_the_installer_says_what_uv_could_not_install(fake_uv, failing, message):
    fake_uv(f"[ $1 = {failing} ] || exit 0; echo 'no network' >&2; exit 1")
    assert message in EnvironmentInstaller("installer").install("0123", "3.11.7", (), ("a==1",))


class FakeInstallers:
    """Starts installers whose answers are given by node id; None means that the answer is pending."""

    def __init__(self, **answers):
        self.answers = answers
        self.started = []
        self.killed = []

    def spawn(self, process, name, *, node, use_node_python, **options):
        assert process is EnvironmentInstaller
        assert use_node_python
        self.started.append(node.id)
        return _FakeInstaller(self, node.id)


class _FakeInstaller:
    def __init__(self, installers, node):
        self._installers, self._node = installers, node

    def begin(self, method, *args):
        assert (method, *args) == ("install", "0123", "3.11.7", (), ("a==1",))
        return self

    @property
    def done(self):
        return self._installers.answers[self._node] is not None

    def result(self, timeout_s):
        assert timeout_s > node_environment.INSTALL_TIMEOUT_S
        answer = self._installers.answers[self._node]
        if isinstance(answer, Exception):
            raise answer
        return answer

    def kill(self):
        self._installers.killed.append(self._node)


def node(name):
    return Node(id=name, host="10.0.0.1", cpus=1.0, resources={}, labels={})


def test_the_environment_is_installed_on_all_nodes_once_and_the_installers_end():
    installers = FakeInstallers(a="", b="")
    environments = NodeEnvironments(installers.spawn, SPEC)
    environments.install([node("a"), node("b")])
    assert installers.started == installers.killed == ["a", "b"]
    assert [found.id for found in environments.ready_nodes([node("a"), node("b")])] == ["a", "b"]
    assert installers.started == ["a", "b"]


def test_all_nodes_without_the_environment_are_named_with_their_errors():
    installers = FakeInstallers(a="uv is missing", b="", c=ClusterError("waited 1800 s"))
    with pytest.raises(ClusterError, match=r"uv is missing\n.*1800 s"):
        NodeEnvironments(installers.spawn, SPEC).install([node("a"), node("b"), node("c")])
    assert installers.killed == ["a", "b", "c"]


def test_a_node_that_joins_later_is_not_waited_for():
    installers = FakeInstallers(a=None)
    environments = NodeEnvironments(installers.spawn, SPEC)
    assert environments.ready_nodes([node("a")]) == []
    assert environments.ready_nodes([node("a")]) == []
    installers.answers["a"] = ""
    assert environments.ready_nodes([node("a")]) == [node("a")]
    assert installers.started == installers.killed == ["a"]


def test_a_failed_installation_on_a_late_node_is_repeated_after_a_pause(monkeypatch, caplog):
    installers = FakeInstallers(a="no network")
    environments = NodeEnvironments(installers.spawn, SPEC)
    for _ in range(4):
        assert environments.ready_nodes([node("a")]) == []
    assert installers.started == ["a"]
    assert "no network" in caplog.text
    later = time.monotonic() + node_environment.RETRY_S
    monkeypatch.setattr(node_environment.time, "monotonic", lambda: later)
    installers.answers["a"] = ""
    environments.ready_nodes([node("a")])
    assert environments.ready_nodes([node("a")]) == [node("a")]


@pytest.fixture(scope="module")
def uv_cache():
    """Keeps what uv has downloaded before where the home is another."""
    uv = shutil.which("uv")
    if uv is None:
        pytest.skip("uv is not installed")
    cache = subprocess.run([uv, "cache", "dir"], capture_output=True, text=True, check=True, timeout=60).stdout.strip()
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("UV_CACHE_DIR", cache)
        yield


@pytest.fixture(scope="module")
def empty_nodes(uv_cache, tmp_path_factory, ray_nodes):
    """A cluster of two nodes whose user has another home, without environments in it."""
    home = tmp_path_factory.mktemp("home")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("HOME", str(home))
        with ray_nodes(2, 2) as nodes:
            yield nodes, home


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_uv_adds_a_package_to_the_locked_environment(uv_cache, tmp_path, monkeypatch):
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.chdir(PACKAGE.parent)
    for packages in (("chess>=1.11",), ()):
        environment = f"with-{len(packages)}"
        installer = EnvironmentInstaller("installer")
        assert installer.install(environment, platform.python_version(), (), packages) == ""
        python = tmp_path / node_environment.ENVIRONMENTS / environment / "bin" / "python"
        script = "from importlib.util import find_spec as f; print(f('jax') is not None, f('chess') is not None)"
        told = subprocess.run([python, "-I", "-c", script], capture_output=True, text=True, check=True, timeout=60)
        assert told.stdout.split() == ["True", str(bool(packages))]


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_processes_of_both_nodes_run_the_copied_code_in_the_locked_environment(empty_nodes):
    class Process:  # known to this process alone: Ray sends it by value
        def __init__(self, name):
            pass

        def paths(self):
            import sys

            import jax

            import podzero

            return podzero.__file__, sys.prefix, jax.__file__

    cluster, home = empty_nodes
    with connect(cluster.address, 0, install_extras=()) as joined:
        nodes = joined.nodes()
        assert len(nodes) == 2
        (environment,) = (home / ".cache/podzero/environments").iterdir()
        for node in nodes:
            where = {"cpus": 0, "environment": {"JAX_PLATFORMS": "cpu"}, "node": node}
            check = joined.spawn(PreflightCheck, "check", **where)
            assert differences(versions(), check.ask("versions")) == []
            code, prefix, library = joined.spawn(Process, "process", **where).ask("paths")
            assert "/working_dir_files/" in code
            assert prefix == str(environment)
            assert library.startswith(prefix)


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_a_run_on_nodes_without_podzero(empty_nodes, tmp_path, tiny, watch):
    cluster, _ = empty_nodes
    experiment = tiny("cluster.install_environment=true", "stop.steps=20")
    reason, _ = train(experiment, tmp_path / "run", cluster.address, watch())
    assert "20 steps" in reason
