"""docs/licences.md: the licence of every dependency, by extra."""

from __future__ import annotations

import re
import sys
import tomllib
from collections.abc import Callable, Mapping, Sequence
from importlib.metadata import distributions
from pathlib import Path
from typing import Any

from podzero.benchmarks.markdown import table
from podzero.core.errors import PodzeroError

STATED = {
    "aiobotocore": "Apache-2.0",
    "aioitertools": "MIT",
    "appnope": "BSD-2-Clause",
    "bitbully": "AGPL-3.0",
    "botocore": "Apache-2.0",
    "colorama": "BSD-3-Clause",
    "decorator": "BSD-2-Clause",
    "docutils": "public domain, parts BSD-2-Clause; a tool for Emacs, which is not installed, GPL-3.0",
    "gcsfs": "BSD-3-Clause",
    "glfw": "MIT",
    "google-auth-oauthlib": "Apache-2.0",
    "google-cloud-core": "Apache-2.0",
    "google-cloud-storage": "Apache-2.0",
    "google-cloud-storage-control": "Apache-2.0",
    "google-crc32c": "Apache-2.0",
    "google-resumable-media": "Apache-2.0",
    "grpc-google-iam-v1": "Apache-2.0",
    "grpcio-status": "Apache-2.0",
    "httpx2-jsfetch": "BSD-3-Clause",
    "imageio": "BSD-2-Clause",
    "jax-cuda13-pjrt": "Apache-2.0",
    "jax-cuda13-plugin": "Apache-2.0",
    "jmespath": "MIT",
    "libtpu": "Google's terms; the package states none",
    "mujoco": "Apache-2.0",
    "mujoco-core": "Apache-2.0",
    "mujoco-studio": "Apache-2.0",
    "nest-asyncio": "BSD-2-Clause",
    "oauthlib": "BSD-3-Clause",
    "pgx": "Apache-2.0",
    "pyopengl": "BSD",
    "requests-oauthlib": "ISC",
    "s3fs": "BSD-3-Clause",
    "tzdata": "Apache-2.0",
}
"""Licences from their texts, for packages whose metadata is unclear, that are for other platforms, or that the
development tools do not install."""
SERVER = "podzero-replay-server"
"""The project of the replay server's environment."""
_NVIDIA = "NVIDIA's terms, as the package states them"
_SHORT = {
    "Apache Software License": "Apache-2.0",
    "MIT License": "MIT",
    "BSD License": "BSD",
    "Apache 2.0": "Apache-2.0",
}
_COPYLEFT = re.compile(r"\b[AL]?GPL|General Public License", re.IGNORECASE)

_INTRODUCTION = """\
podzero is under Apache-2.0. `uv run --group dev python benchmarks/pages.py` writes this page from `uv.lock`, from that
of the replay server's environment, and from what the packages say of themselves. No package that is always installed is
under a copyleft licence (GPL, LGPL, AGPL); one, certifi, has MPL-2.0, whose conditions hold for its own files. The
extras `envs` and `solver` contain packages under copyleft licences, whose conditions hold for whoever passes on an
image with them."""

Lock = Mapping[str, Mapping[str, Any]]
"""The packages of `uv.lock`, by name."""


class LicenceUnknown(PodzeroError, RuntimeError):
    """The licence of a package is neither in its metadata nor in `STATED`."""


def licences_page(
    lock: Lock, extras: Sequence[str], licence: Callable[[str], str], server: Lock, server_licence: Callable[[str], str]
) -> str:
    """The page.

    Args:
      lock: the packages of podzero.
      extras: the extras of podzero.
      licence: returns the licence of a package.
      server: the packages of the replay server's environment.
      server_licence: returns the licence of one of them.

    Raises:
      LicenceUnknown: see `licence_of`.
    """
    always = reached(lock, ())
    parts = [
        "# Licences",
        "",
        _INTRODUCTION,
        "",
        *_part("Always installed", lock, always, licence),
        "",
        *_part("The environment of the replay server", server, reached(server, (), SERVER), server_licence),
    ]
    for extra in extras:
        parts += ["", *_part(f"Extra `{extra}`, besides", lock, reached(lock, (extra,)) - always, licence)]
    return "\n".join([*parts, ""])


def read_lock(file: Path) -> Lock:
    """The packages of a lock file."""
    return {package["name"]: package for package in tomllib.loads(file.read_text(encoding="utf-8"))["package"]}


def reached(lock: Lock, extras: Sequence[str], project: str = "podzero") -> set[str]:
    """The packages that a project with `extras` depends on, directly or not, on any platform."""
    seen: set[tuple[str, tuple[str, ...]]] = set()
    ahead = [(project, tuple(extras))]
    while ahead:
        name, wanted = node = ahead.pop()
        if node in seen:
            continue
        seen.add(node)
        optional = lock[name].get("optional-dependencies", {})
        needed = [*lock[name].get("dependencies", []), *(d for extra in wanted for d in optional.get(extra, []))]
        ahead += [(dependency["name"], tuple(dependency.get("extra", ()))) for dependency in needed]
    return {name for name, _ in seen} - {project}


def licence_of(package: str, folders: Sequence[str] | None = None) -> str:
    """The licence of a package from `STATED` or its metadata, which is found in `folders`, by default `sys.path`.

    Raises:
      LicenceUnknown: it is in neither.
    """
    if package in STATED:
        return STATED[package]
    if package.startswith("nvidia-"):
        return _NVIDIA
    installed = next(iter(distributions(name=package, path=list(folders or sys.path))), None)
    if installed is None:
        raise LicenceUnknown(f"{package} is not installed here: use `uv run --group dev`, or add its licence to STATED")
    said = installed.metadata.json
    classifiers = [line.split(" :: ")[-1] for line in said.get("classifier", ()) if line.startswith("License ::")]
    field = str(said.get("license", "")).strip().splitlines()
    names = [str(said["license_expression"])] if "license_expression" in said else classifiers or field[:1]
    if not names:
        raise LicenceUnknown(f"{package} does not state its licence: read it, and add it to STATED")
    return ", ".join(_SHORT.get(name, name) for name in names)


def is_copyleft(licence: str) -> bool:
    """Whether a licence is one of the GNU ones."""
    return _COPYLEFT.search(licence) is not None


def _part(title: str, lock: Lock, packages: set[str], licence: Callable[[str], str]) -> list[str]:
    rows = [(name, lock[name]["version"], licence(name)) for name in sorted(packages)]
    return [f"## {title}", "", *table(("package", "version", "licence"), rows)]
