"""Installs the driver's code and the environment of its lock file on all nodes (`cluster.install_environment`).

Ray copies an archive of the code to each node and puts it first on the path of the run's processes. The environment is
installed before any of them starts, by `uv sync` on each node. A process that installed its own packages would take
too long to start: Ray gives it up after a minute and starts it again, without end. Environments are kept below
`~/.cache/podzero/environments` of the user who runs Ray, for later runs: one for each lock file, version of Python and
choice of extras and of packages beside those of the lock file.

The Python that runs Ray on a node imports this module too. It has Ray and little else, so this module may import only
the standard library and modules of podzero that need no more.
"""

from __future__ import annotations

import hashlib
import logging
import os
import platform
import shutil
import subprocess
import sys
import time
import zipfile
from collections.abc import Callable, Iterable, Iterator, Sequence
from fnmatch import fnmatch
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from podzero.core.errors import ClusterError, ConfigError, described
from podzero.runtime.cluster.remote import Call, RemoteActor

if TYPE_CHECKING:
    from podzero.runtime.cluster.placement import Node

log = logging.getLogger(__name__)

CODE_PATTERNS = (
    "*.py", "*.pyi", "*.proto", "*.yaml", "*.sh", "Dockerfile*", "py.typed", "*.html", "*.css", "*.js", "*.npz",
    "*.LICENSE", "pyproject.toml", "uv.lock",
)  # fmt: skip
"""Files of the package that go into the archive: those of a wheel, except the zoo and the compiler's figures."""
PROJECT_FILES = ("pyproject.toml", "uv.lock")
"""Files next to the package that go into the archive, because `uv sync` needs them."""
ENVIRONMENTS = ".cache/podzero/environments"
"""The folder of environments on a node, in the home of the user who runs Ray."""
NODE_PYTHON = {"py_executable": ""}
"""The runtime environment of a process that uses the Python that runs Ray on its node."""
INSTALL_TIMEOUT_S = 1800.0
"""Longest time for uv, which may have to download all packages."""
ANSWER_TIMEOUT_S = 180.0
"""Additional time for the installing process to start and answer."""
RETRY_S = 60.0
"""Pause before the next attempt on a node that joined later."""
MAX_ERROR_CHARS = 2_000
"""How much of uv's error is reported."""


class EnvironmentSpec(NamedTuple):
    """The code and the environment for the nodes."""

    archive: Path
    """The code, as a zip file."""
    environment: str
    """The name of the environment's folder: a hash of everything it depends on."""
    python: str
    """The exact version of Python."""
    extras: tuple[str, ...]
    packages: tuple[str, ...] = ()
    """Requirements beside those of the lock file."""

    @property
    def runtime_env(self) -> dict[str, Any]:
        """Ray's runtime environment for all processes of a run that do not set one."""
        return {
            "working_dir": str(self.archive),
            "py_executable": f"~/{ENVIRONMENTS}/{self.environment}/bin/python",
            # By default Ray uses it at once on every node, where the Python above is not installed yet.
            "config": {"eager_install": False},
        }


class EnvironmentInstaller:
    """A process that installs the environment on its node. Ray puts the code into its working directory."""

    def __init__(self, name: str) -> None:
        del name

    def install(self, environment: str, python: str, extras: Sequence[str], packages: Sequence[str] = ()) -> str:
        """Installs the environment, or completes one that was interrupted; returns the error, empty on success.

        Args:
          environment: the name of its folder.
          python: the version of Python, which uv downloads if it is missing.
          extras: optional dependencies.
          packages: requirements beside those of the lock file.
        """
        uv = shutil.which("uv", path=os.pathsep.join([str(Path(sys.executable).parent), os.environ.get("PATH", "")]))
        if uv is None:
            return (
                "cluster.install_environment needs uv on every node: install it there (`pip install uv`, or `pipx "
                "install uv` where Python belongs to the system), on Ray's PATH"
            )
        own = Path(sys.base_prefix, "bin", f"python{sys.version_info.major}.{sys.version_info.minor}")
        if platform.python_version() == python and own.exists():  # Ray requires the driver's version anyway
            python = str(own)
        command = [uv, "sync", "--locked", "--no-dev", "--no-install-project", "--no-progress", "--python", python]
        command += [f"--extra={extra}" for extra in extras]
        folder = Path.home() / ENVIRONMENTS / environment
        end = time.monotonic() + INSTALL_TIMEOUT_S
        if not packages:
            return _run_uv(command, folder, end, "the environment")
        # Otherwise `uv sync` would remove the packages, which another run may be using.
        error = _run_uv([*command, "--inexact"], folder, end, "the environment")
        command = [uv, "pip", "install", "--no-progress", "--python", str(folder / "bin" / "python"), *packages]
        return error or _run_uv(command, folder, end, f"--with {' --with '.join(packages)}")


def _run_uv(command: Sequence[str], folder: Path, end: float, what: str) -> str:
    """Runs uv for the environment in `folder` until the monotonic time `end`; returns the error, empty on success."""
    try:
        done = subprocess.run(
            command,
            env=os.environ | {"UV_PROJECT_ENVIRONMENT": str(folder)},
            capture_output=True,
            encoding="utf-8",
            errors="replace",
            timeout=end - time.monotonic(),
            check=False,
        )
    except subprocess.TimeoutExpired:
        return f"uv did not install {what} within {INSTALL_TIMEOUT_S:.0f} s"
    error = done.stderr.strip()[-MAX_ERROR_CHARS:]
    return f"uv cannot install {what}: {error}" if done.returncode else ""


def pack_environment(
    package: Path, extras: Sequence[str], folder: Path, packages: Sequence[str] = ()
) -> EnvironmentSpec:
    """Writes the archive of the code (the same bytes for the same code) and names the environment.

    Args:
      package: the folder of the package `podzero` in a checkout.
      extras: optional dependencies of the environment.
      folder: the folder of the archive.
      packages: requirements beside those of the lock file.

    Raises:
      ConfigError: podzero does not run from a checkout.
    """
    checkout, archive = package.parent, folder / "podzero.zip"
    missing = [name for name in PROJECT_FILES if not (checkout / name).is_file()]
    if missing:
        raise ConfigError(
            f"cluster.install_environment copies a checkout to the nodes, but podzero runs from {package}, which has "
            f"no {' and no '.join(missing)} beside it; start `podzero train` from a clone (`uv run podzero train ...`),"
            " or leave cluster.install_environment out and install podzero on every node"
        )
    with zipfile.ZipFile(archive, "w", zipfile.ZIP_DEFLATED) as zipped:
        for name, file in archived_files(package).items():
            # `ZipInfo` has a fixed date: Ray names an archive after its bytes, and sends one that it knows only once.
            zipped.writestr(zipfile.ZipInfo(name), file.read_bytes(), zipfile.ZIP_DEFLATED)
    python = platform.python_version()
    own = [f"--with {package}" for package in sorted(packages)]
    inputs = [(checkout / "uv.lock").read_text(encoding="utf-8"), python, *extras, *own]
    name = hashlib.sha256("\0".join(inputs).encode()).hexdigest()[:16]
    return EnvironmentSpec(archive, name, python, tuple(extras), tuple(packages))


def archived_files(package: Path) -> dict[str, Path]:
    """The archive's files by their names in it, in order.

    The symbolic links to subpackages become plain folders, because Ray's archives cannot hold links.
    """
    code = {file.relative_to(package.parent).as_posix(): file for file in code_files(package)}
    project = {name: package.parent / name for name in PROJECT_FILES}
    return dict(sorted({**code, **project}.items()))


def code_files(package: Path) -> Iterator[Path]:
    """The files of the package and its subpackages, through symbolic links, in no particular order."""
    for folder, inner, names in os.walk(package, followlinks=True):
        inner[:] = [name for name in inner if name.isidentifier() and name not in ("__pycache__", "benchmarks", "zoo")]
        yield from (Path(folder, name) for name in names if any(fnmatch(name, pattern) for pattern in CODE_PATTERNS))


class NodeEnvironments:
    """The environments on a cluster's nodes.

    Args:
      spawn: starts a process on a node, as `Cluster.spawn` does.
      spec: the environment that each node needs.
    """

    def __init__(self, spawn: Callable[..., RemoteActor], spec: EnvironmentSpec) -> None:
        self._spawn = spawn
        self._spec = spec
        self._ready: set[str] = set()
        self._pending: dict[str, tuple[RemoteActor, Call]] = {}
        self._retry_at: dict[str, float] = {}

    def install(self, nodes: Sequence[Node]) -> None:
        """Installs the environment on all of `nodes` in parallel and waits for the end.

        Raises:
          ClusterError: an installation failed; the message names each such node and its error.
        """
        for node in nodes:
            self._begin(node)
        failures = [f"{node}: {error}" for node in nodes if (error := self._finish(node))]
        if failures:
            raise ClusterError("\n  ".join(["cannot install the environment on these nodes:", *failures]))

    def ready_nodes(self, nodes: Iterable[Node]) -> list[Node]:
        """The nodes that have the environment; starts its installation on the others and never waits."""
        for node in nodes:
            if node.id in self._pending:
                if self._pending[node.id][1].done and (error := self._finish(node)):
                    self._retry_at[node.id] = time.monotonic() + RETRY_S
                    log.warning("%s is not used yet, another attempt follows in %.0f s: %s", node, RETRY_S, error)
            elif node.id not in self._ready and time.monotonic() >= self._retry_at.get(node.id, 0.0):
                self._begin(node)
        return [node for node in nodes if node.id in self._ready]

    def _begin(self, node: Node) -> None:
        log.info("installing the environment of the lock file on %s", node)
        installer = self._spawn(
            EnvironmentInstaller,
            f"environment installer on {node}",
            cpus=0,
            environment={},
            node=node,
            use_node_python=True,
        )
        spec = self._spec
        call = installer.begin("install", spec.environment, spec.python, spec.extras, spec.packages)
        self._pending[node.id] = installer, call

    def _finish(self, node: Node) -> str:
        """Takes the result of a node's installation; returns its error, empty on success."""
        installer, call = self._pending.pop(node.id)
        try:
            error = str(call.result(INSTALL_TIMEOUT_S + ANSWER_TIMEOUT_S))
        except Exception as failure:  # a node's own Python may lack anything
            error = f"the installing process failed: {described(failure)}"
        installer.kill()
        if not error:
            self._ready.add(node.id)
        return error
