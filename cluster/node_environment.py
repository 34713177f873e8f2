"""The driver's code and the lock file's environment, brought to nodes that have neither (`cluster.ship`).

Ray carries an archive of the code to each node and puts it first on the path of the run's processes. The environment is
made before any of them starts, by one `uv sync` on each node: a process that installed its own packages would be
given up by Ray after a minute, and started again without end. Environments lie below `~/.cache/podzero/environments`
of the user who runs Ray, one for each content of the lock file, and stay there for the next run.

This module is also read by the Python that a node brings along, which has Ray and little else: standard library only.
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

from podzero.cluster.remote import Call, ClusterError, RemoteActor
from podzero.errors import ConfigError

if TYPE_CHECKING:
    from podzero.cluster.placement import Node

log = logging.getLogger(__name__)

CODE = ("*.py", "*.yaml", "*.sh", "Dockerfile*", "py.typed")
"""Files of the package that are sent: those that a wheel would hold."""
PROJECT = ("pyproject.toml", "uv.lock")
"""Files beside the package that are sent: what `uv sync` needs to make the environment."""
ENVIRONMENTS = ".cache/podzero/environments"
"""Where the environments lie on a node, below the home of the user who runs Ray."""
NODES_PYTHON = {"py_executable": ""}
"""Ray settings of a process that runs before the environment is there: by the Python that runs Ray on its node."""
BUILD_TIMEOUT_S = 1800.0
"""Longest time to make an environment: all of it may have to be downloaded."""
ANSWER_S = 180.0
"""How long a builder may take to start and to answer, besides."""
RETRY_S = 60.0
"""Pause before the environment of a node that joined later is tried again."""
MOST_WORDS = 2_000
"""Of what uv says when it fails, in characters."""


class EnvironmentSpec(NamedTuple):
    """What goes to the nodes."""

    archive: Path
    """The code, as a zip file."""
    environment: str
    """Name of the environment's folder, from all that it depends on."""
    python: str
    """The exact version of Python."""
    extras: tuple[str, ...]

    @property
    def runtime_env(self) -> dict[str, Any]:
        """Ray's settings for all processes of a run that do not say otherwise."""
        return {
            "working_dir": str(self.archive),
            "py_executable": f"~/{ENVIRONMENTS}/{self.environment}/bin/python",
            "config": {"eager_install": False},
        }


class Builder:
    """A process that makes the environment of its node, where it also finds the code."""

    def __init__(self, name: str) -> None:
        del name

    def build(self, environment: str, python: str, extras: Sequence[str]) -> str:
        """Makes the environment, or brings a half-made one to its end; returns why it could not, or nothing.

        Args:
          environment: name of its folder.
          python: version of Python, which uv downloads where it is missing.
          extras: optional dependencies.
        """
        uv = shutil.which("uv", path=os.pathsep.join([str(Path(sys.executable).parent), os.environ.get("PATH", "")]))
        if uv is None:
            return "cluster.ship needs uv on every node: install it there (`pip install uv`), on the path of Ray"
        command = [uv, "sync", "--locked", "--no-dev", "--no-install-project", "--no-progress", "--python", python]
        command += [f"--extra={extra}" for extra in extras]
        place = Path.home() / ENVIRONMENTS / environment
        try:
            done = subprocess.run(
                command,
                env=os.environ | {"UV_PROJECT_ENVIRONMENT": str(place)},
                capture_output=True,
                text=True,
                timeout=BUILD_TIMEOUT_S,
                check=False,
            )
        except subprocess.TimeoutExpired:
            return f"uv did not make the environment within {BUILD_TIMEOUT_S:.0f} s"
        return f"uv cannot make the environment: {done.stderr.strip()[-MOST_WORDS:]}" if done.returncode else ""


def pack(package: Path, extras: Sequence[str], folder: Path) -> EnvironmentSpec:
    """Writes the archive of the code; the same code gives the same bytes.

    Args:
      package: the folder of the package `podzero` in a checkout.
      extras: optional dependencies that the environment shall hold.
      folder: where the archive goes.

    Raises:
      ConfigError: podzero does not run from a checkout.
    """
    checkout, archive = package.parent, folder / "podzero.zip"
    missing = [name for name in PROJECT if not (checkout / name).is_file()]
    if missing:
        raise ConfigError(
            f"cluster.ship sends a checkout, but podzero runs from {package}, which has no {' and no '.join(missing)} "
            "beside it; start `podzero train` from a clone (`uv run podzero train ...`), or leave cluster.ship out and "
            "install podzero on every node"
        )
    with zipfile.ZipFile(archive, "w", zipfile.ZIP_DEFLATED) as zipped:
        for name, file in shipped_files(package).items():
            zipped.writestr(zipfile.ZipInfo(name), file.read_bytes(), zipfile.ZIP_DEFLATED)
    python = platform.python_version()
    recipe = [(checkout / "uv.lock").read_text(), python, *extras]
    return EnvironmentSpec(archive, hashlib.sha256("\0".join(recipe).encode()).hexdigest()[:16], python, tuple(extras))


def shipped_files(package: Path) -> dict[str, Path]:
    """What is sent of a checkout: names in the archive and the files, in order.

    The rooms, which the package reaches through links, become plain folders of it: Ray's archives have no links.
    """
    code = {file.relative_to(package.parent).as_posix(): file for file in code_files(package)}
    project = {name: package.parent / name for name in PROJECT}
    return dict(sorted({**code, **project}.items()))


def code_files(package: Path) -> Iterator[Path]:
    """The files of the package, through the links to its rooms, in no order."""
    for folder, inner, names in os.walk(package, followlinks=True):
        inner[:] = [name for name in inner if name.isidentifier() and name != "__pycache__"]
        yield from (Path(folder, name) for name in names if any(fnmatch(name, pattern) for pattern in CODE))


class NodeEnvironments:
    """The environments of a cluster's nodes.

    Args:
      spawn: starts a process on a node, as `Cluster.spawn` does.
      shipment: what each node shall have.
    """

    def __init__(self, spawn: Callable[..., RemoteActor], environment: EnvironmentSpec) -> None:
        self._spawn = spawn
        self._shipment = environment
        self._equipped: set[str] = set()
        self._under_way: dict[str, tuple[RemoteActor, Call]] = {}
        self._again: dict[str, float] = {}

    def make(self, nodes: Sequence[Node]) -> None:
        """Makes the environment on all of `nodes` at the same time; returns when it is there.

        Raises:
          ClusterError: it cannot be made; names the nodes and what kept each.
        """
        for node in nodes:
            self._begin(node)
        failures = [f"{node}: {problem}" for node in nodes if (problem := self._end(node))]
        if failures:
            raise ClusterError("\n  ".join(["these nodes cannot be given the environment:", *failures]))

    def having(self, nodes: Iterable[Node]) -> list[Node]:
        """Those of `nodes` that have the environment; never waits, and begins to make it on the others."""
        for node in nodes:
            if node.id in self._under_way:
                if self._under_way[node.id][1].done and (problem := self._end(node)):
                    self._again[node.id] = time.monotonic() + RETRY_S
                    log.warning("%s is not used for the time being: %s", node, problem)
            elif node.id not in self._equipped and time.monotonic() >= self._again.get(node.id, 0.0):
                self._begin(node)
        return [node for node in nodes if node.id in self._equipped]

    def _begin(self, node: Node) -> None:
        log.info("making the environment of the lock file on %s", node)
        builder = self._spawn(Builder, f"builder on {node}", cpus=0, environment={}, node=node, bare=True)
        call = builder.begin("build", self._shipment.environment, self._shipment.python, self._shipment.extras)
        self._under_way[node.id] = builder, call

    def _end(self, node: Node) -> str:
        """What went wrong on a node, or nothing."""
        builder, call = self._under_way.pop(node.id)
        try:
            problem = str(call.result(BUILD_TIMEOUT_S + ANSWER_S))
        except Exception as failure:  # a node's own Python may lack anything
            problem = f"its builder failed: {failure}"
        builder.kill()
        if not problem:
            self._equipped.add(node.id)
        return problem
