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
from fake_cluster import PENDING, FakeRemoteActor

import podzero
from podzero.config import load
from podzero.core.errors import ClusterError, ConfigError
from podzero.runtime.cluster import node_environment, remote
from podzero.runtime.cluster.node_environment import (
    EnvironmentInstaller,
    EnvironmentSpec,
    installations,
    pack_environment,
)
from podzero.runtime.cluster.placement import Node
from podzero.runtime.cluster.preflight import PreflightCheck, differences, versions
from podzero.runtime.cluster.ray_cluster import Cluster, connect
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


def archived(package, folder):
    """The sizes of the archive's files by their names in it, in order."""
    with zipfile.ZipFile(pack_environment(package, (), folder).archive) as archive:
        return {file.filename: file.file_size for file in archive.infolist()}


def test_the_archive_holds_the_files_of_a_wheel_and_those_that_uv_needs(checkout, tmp_path):
    assert list(archived(checkout, tmp_path)) == [
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


def test_the_archive_of_this_checkout_is_complete_small_and_without_tests(tmp_path):
    files = archived(PACKAGE, tmp_path)
    assert {name.split("/")[1] for name in files if name.count("/") > 1} == {*PACKAGES, "config", "core", "files"}
    assert {name.split("/")[0] for name in files} == {"podzero", "pyproject.toml", "uv.lock"}
    assert {"podzero/py.typed", "podzero/configs/connect_four.yaml", "podzero/runtime/kinds.py"} <= set(files)
    assert not [name for name in files if "test_" in name or "token" in name]
    assert sum(files.values()) < 10 * 2**20


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
    EnvironmentInstaller().install(SPEC._replace(extras=("tpu",), packages=()))
    folder, *words = (tmp_path / "command").read_text().split()
    assert folder == str(tmp_path / ".cache/podzero/environments/0123")
    assert SPEC.runtime_env["py_executable"] == folder.replace(str(tmp_path), "~") + "/bin/python"
    assert words[0] == "sync"
    assert {"--locked", "--no-dev", "--no-install-project", "--extra=tpu"} <= set(words)
    assert words[words.index("--python") + 1] == "3.11.7"


def test_the_installer_raises_the_error_of_uv(fake_uv, monkeypatch):
    installer = EnvironmentInstaller()
    with pytest.raises(ClusterError, match="needs uv on every node"):
        installer.install(SPEC)
    fake_uv("echo 'the lock file is out of date' >&2; exit 1")
    with pytest.raises(ClusterError, match="the lock file is out of date"):
        installer.install(SPEC)
    fake_uv("exec sleep 60")
    monkeypatch.setattr(node_environment, "INSTALL_TIMEOUT_S", 0.2)
    with pytest.raises(ClusterError, match="within 0 s"):
        installer.install(SPEC)


def test_packages_of_ones_own_come_after_those_of_the_lock_file_and_stay_when_it_is_repeated(fake_uv, tmp_path):
    fake_uv('echo "$@" >> "$HOME/commands"')
    EnvironmentInstaller().install(SPEC._replace(packages=("a==1", "b[x]==2")))
    sync, install = (words.split() for words in (tmp_path / "commands").read_text().splitlines())
    assert sync[0] == "sync"
    assert "--inexact" in sync
    assert install[:2] == ["pip", "install"]
    assert install[install.index("--python") + 1] == str(tmp_path / ".cache/podzero/environments/0123/bin/python")
    assert install[-2:] == ["a==1", "b[x]==2"]


@pytest.mark.parametrize(("failing", "message"), [("sync", "the environment: no"), ("pip", "--with a==1: no")])
def test_the_installer_says_what_uv_could_not_install(fake_uv, failing, message):
    fake_uv(f"[ $1 = {failing} ] || exit 0; echo 'no network' >&2; exit 1")
    with pytest.raises(ClusterError, match=message):
        EnvironmentInstaller().install(SPEC)


class FakeInstallers:
    """Starts installers that end as given by node id: by an error, without one, or, if PENDING, not yet."""

    def __init__(self, **ends):
        self.ends = ends
        self.started = []

    def spawn(self, process, name, *, node, use_node_python, **options):
        assert process is EnvironmentInstaller
        assert use_node_python
        self.started.append(FakeRemoteActor(node.id, install=self.ends[node.id]))
        return self.started[-1]


def node(name):
    return Node(id=name, host="10.0.0.1", cpus=1.0, resources={}, labels={})


def test_the_environment_is_installed_on_all_nodes_once_and_the_installers_end():
    installers = FakeInstallers(a=None, b=None)
    environments = installations(installers.spawn, SPEC)
    assert environments.update([node("a"), node("b")], wait=True) == [node("a"), node("b")]
    assert environments.update([node("a"), node("b")], wait=False) == []
    assert [(one.name, one.killed, one.last("install").args) for one in installers.started] == [
        ("a", True, (SPEC,)), ("b", True, (SPEC,)),
    ]  # fmt: skip


def test_all_nodes_without_the_environment_are_named_with_their_errors(monkeypatch):
    nodes = [node("a"), node("b"), node("c")]
    installers = FakeInstallers(a=ClusterError("uv is missing"), b=None, c=PENDING)
    cluster = Cluster("here", joined=True)
    monkeypatch.setattr(cluster, "spawn", installers.spawn)
    monkeypatch.setattr(cluster, "nodes", lambda: nodes)
    with pytest.raises(ClusterError, match=r"node a .*: uv is missing\n.*node c .*: waited \d+ s"):
        cluster.install_environment(SPEC)
    assert all(installer.killed for installer in installers.started)


def test_a_node_that_joins_later_is_not_waited_for():
    installers = FakeInstallers(a=PENDING)
    environments = installations(installers.spawn, SPEC)
    assert environments.update([node("a")], wait=False) == []
    assert environments.update([node("a")], wait=False) == []
    installers.started[0].last("install").end(None)
    assert environments.update([node("a")], wait=False) == [node("a")]
    assert [installer.killed for installer in installers.started] == [True]


def test_a_failed_installation_on_a_late_node_is_repeated_after_a_pause(monkeypatch, caplog):
    installers = FakeInstallers(a=ClusterError("no network"))
    environments = installations(installers.spawn, SPEC)
    for _ in range(4):
        assert environments.update([node("a")], wait=False) == []
    assert len(installers.started) == 1
    assert "no network" in caplog.text
    later = time.monotonic() + remote.FIRST_RETRY_S
    monkeypatch.setattr(time, "monotonic", lambda: later)
    installers.ends["a"] = None
    assert environments.update([node("a")], wait=False) == [node("a")]


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
        spec = EnvironmentSpec(Path("podzero.zip"), environment, platform.python_version(), (), packages)
        EnvironmentInstaller().install(spec)
        python = tmp_path / node_environment.ENVIRONMENTS / environment / "bin" / "python"
        script = "from importlib.util import find_spec as f; print(f('jax') is not None, f('chess') is not None)"
        told = subprocess.run([python, "-I", "-c", script], capture_output=True, text=True, check=True, timeout=60)
        assert told.stdout.split() == ["True", str(bool(packages))]


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_processes_of_both_nodes_run_the_copied_code_in_the_locked_environment(empty_nodes):
    class Process:  # known to this process alone: Ray sends it by value
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
