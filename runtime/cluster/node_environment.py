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
from collections.abc import Callable, Iterator, Sequence
from fnmatch import fnmatch
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from podzero.core.errors import ClusterError, ConfigError
from podzero.runtime.cluster.remote import NodeCalls, RemoteActor

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

    def install(self, spec: EnvironmentSpec) -> None:
        """Installs the environment, or completes one that was interrupted; uv downloads a missing Python."""
        uv = shutil.which("uv", path=os.pathsep.join([str(Path(sys.executable).parent), os.environ.get("PATH", "")]))
        if uv is None:
            raise ClusterError(
                "cluster.install_environment needs uv on every node: install it there (`pip install uv`, or `pipx "
                "install uv` where Python belongs to the system), on Ray's PATH"
            )
        own = Path(sys.base_prefix, "bin", f"python{sys.version_info.major}.{sys.version_info.minor}")
        # Ray requires the driver's version anyway.
        python = str(own) if platform.python_version() == spec.python and own.exists() else spec.python
        folder, end = Path.home() / ENVIRONMENTS / spec.environment, time.monotonic() + INSTALL_TIMEOUT_S
        sync = [uv, "sync", "--locked", "--no-dev", "--no-install-project", "--no-progress", "--python", python]
        # Otherwise `uv sync` would remove the packages, which another run may be using.
        inexact = ["--inexact"] if spec.packages else []
        _run_uv([*sync, *(f"--extra={extra}" for extra in spec.extras), *inexact], folder, end, "the environment")
        if spec.packages:
            install = [uv, "pip", "install", "--no-progress", "--python", str(folder / "bin" / "python")]
            _run_uv([*install, *spec.packages], folder, end, f"--with {' --with '.join(spec.packages)}")


def _run_uv(command: Sequence[str], folder: Path, end: float, what: str) -> None:
    """Runs uv for the environment in `folder` until the monotonic time `end`."""
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
        raise ClusterError(f"uv did not install {what} within {INSTALL_TIMEOUT_S:.0f} s") from None
    if done.returncode:
        raise ClusterError(f"uv cannot install {what}: {done.stderr.strip()[-MAX_ERROR_CHARS:]}")


def pack_environment(
    package: Path, extras: Sequence[str], folder: Path, packages: Sequence[str] = ()
) -> EnvironmentSpec:
    """Writes the archive of the code (the same bytes for the same code) into `folder`, and names the environment.

    `package` is the folder of the package `podzero`, which must be that of a checkout.
    """
    checkout, archive = package.parent, folder / "podzero.zip"
    missing = [name for name in PROJECT_FILES if not (checkout / name).is_file()]
    if missing:
        raise ConfigError(
            f"cluster.install_environment copies a checkout to the nodes, but podzero runs from {package}, which has "
            f"no {' and no '.join(missing)} beside it; start `podzero train` from a clone (`uv run podzero train ...`),"
            " or leave cluster.install_environment out and install podzero on every node"
        )
    # The symbolic links to subpackages become plain folders, because Ray's archives cannot hold links.
    files = {file.relative_to(checkout).as_posix(): file for file in code_files(package)}
    files |= {name: checkout / name for name in PROJECT_FILES}
    with zipfile.ZipFile(archive, "w", zipfile.ZIP_DEFLATED) as zipped:
        for name, file in sorted(files.items()):
            # `ZipInfo` has a fixed date: Ray names an archive after its bytes, and sends one that it knows only once.
            zipped.writestr(zipfile.ZipInfo(name), file.read_bytes(), zipfile.ZIP_DEFLATED)
    python = platform.python_version()
    own = [f"--with {package}" for package in sorted(packages)]
    inputs = [(checkout / "uv.lock").read_text(encoding="utf-8"), python, *extras, *own]
    name = hashlib.sha256("\0".join(inputs).encode()).hexdigest()[:16]
    return EnvironmentSpec(archive, name, python, tuple(extras), tuple(packages))


def code_files(package: Path) -> Iterator[Path]:
    """The files of the package and its subpackages, through symbolic links, in no particular order."""
    for folder, inner, names in os.walk(package, followlinks=True):
        inner[:] = [name for name in inner if name.isidentifier() and name not in ("__pycache__", "benchmarks", "zoo")]
        yield from (Path(folder, name) for name in names if any(fnmatch(name, pattern) for pattern in CODE_PATTERNS))


def installations(spawn: Callable[..., RemoteActor], spec: EnvironmentSpec) -> NodeCalls:
    """The installations of an environment on nodes, by processes that `spawn` starts as `Cluster.spawn` does."""

    def start(node: Node) -> RemoteActor:
        log.info("installing the environment of the lock file on %s", node)
        name, where = f"environment installer on {node}", {"node": node, "use_node_python": True}
        return spawn(EnvironmentInstaller, name, cpus=0, environment={}, **where)

    limit_s = INSTALL_TIMEOUT_S + ANSWER_TIMEOUT_S
    return NodeCalls(start, ("install", spec), limit_s, "the installation of the environment")
