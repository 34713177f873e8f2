"""Checks whether this machine can train, by trying each part that a run needs."""

from __future__ import annotations

import importlib.metadata
import os
import platform
import shutil
import socket
import subprocess
import sys
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Literal, NamedTuple

import psutil
import typer
from packaging.requirements import Requirement
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from podzero.core.errors import ConfigError
from podzero.core.machine import usable_cpus
from podzero.runtime.cluster.preflight import check_session_folder, session_folder
from podzero.tools.commands.options import Json
from podzero.tools.commands.printing import print_json

PROBE_TIMEOUT_S = 120.0
"""Time limit for importing a library in its own process."""
PYTHONS = ((3, 12), (3, 13))
"""Python versions on which podzero is tested."""
_SYNC = "`uv sync --locked --inexact` installs the tested versions"
MIN_MEMORY_GIB = 4.0
MIN_DISK_GIB = 5.0


class Check(NamedTuple):
    """The result of one check."""

    name: str
    verdict: Literal["ok", "warn", "fail"]
    found: str
    hint: str = ""
    """Advice; empty if the verdict is `ok`. With `fail`, podzero cannot train on this machine."""


def doctor(as_json: Json = False) -> None:
    """Check whether this machine can train: libraries, devices, memory, disk, ports.

    This also creates the replay server's Python environment if it is missing.
    """
    checks = examine()
    failed = any(check.verdict == "fail" for check in checks)
    if as_json:
        print_json({"ok": not failed, "checks": [check._asdict() for check in checks]})
        raise typer.Exit(int(failed))
    colours = {"ok": "green", "warn": "yellow", "fail": "red"}
    table = Table(box=None, show_header=False, pad_edge=False)
    table.add_column(no_wrap=True)
    table.add_column(no_wrap=True, style="bold")
    table.add_column()
    for check in checks:
        hint = f"\n[dim]{escape(check.hint)}[/dim]" if check.hint else ""
        table.add_row(f"[{colours[check.verdict]}]{check.verdict}[/]", check.name, f"{escape(check.found)}{hint}")
    console = Console(highlight=False)
    console.print(table)
    console.print(f"\npodzero {'cannot' if failed else 'can'} train on this machine.")
    raise typer.Exit(int(failed))


def examine() -> list[Check]:
    """Runs all checks, two at a time."""
    checks: list[Callable[[], Check]] = [
        python, packages, cores, memory, disk, ports, jax_devices, ray, replay_server, tpu_library,
    ]  # fmt: skip
    # Most checks import a library in a process of its own, which keeps a core busy.
    with ThreadPoolExecutor(2) as pool:
        return list(pool.map(lambda check: check(), checks))


def python() -> Check:
    """The version of Python."""
    found = f"{platform.python_version()} on {platform.system()} {platform.machine()}"
    if sys.version_info[:2] not in PYTHONS:
        return Check("Python", "fail", found, "podzero needs Python 3.12 or 3.13; `uv run` installs one")
    return Check("Python", "ok", found)


def packages() -> Check:
    """Compares the installed packages with the versions that podzero declares."""
    wrong = []
    for requirement in map(Requirement, importlib.metadata.requires("podzero") or ()):
        # The requirements of extras have markers such as `extra == "web"`.
        if requirement.marker is not None and not requirement.marker.evaluate({"extra": ""}):
            continue
        try:
            version = importlib.metadata.version(requirement.name)
        except importlib.metadata.PackageNotFoundError:
            wrong.append(f"{requirement.name} is missing, expected {requirement.specifier}")
            continue
        if not requirement.specifier.contains(version, prereleases=True):
            wrong.append(f"{requirement.name} {version}, expected {requirement.specifier}")
    if wrong:
        return Check("packages", "warn", "; ".join(wrong), _SYNC)
    return Check("packages", "ok", "as podzero declares them")


def cores() -> Check:
    """The CPUs that this process may use."""
    usable = usable_cpus()
    if usable < 2:
        return Check("CPU", "warn", f"{usable} core", "self-play and training share it; expect half the speed")
    return Check("CPU", "ok", f"{usable} cores")


def memory() -> Check:
    """The free memory."""
    state = psutil.virtual_memory()
    found = f"{state.available / 2**30:.1f} GiB free of {state.total / 2**30:.1f}"
    if state.available < MIN_MEMORY_GIB * 2**30:
        hint = "a small run takes about 4 GiB; close other programs, or lower actors.count"
        return Check("memory", "warn", found, hint)
    return Check("memory", "ok", found)


def disk() -> Check:
    """The free space for working directories (here) and for Ray's session (in TMPDIR)."""
    hint, places, session = "", [], session_folder()
    for place in dict.fromkeys((Path.cwd(), session)):
        found = next(folder for folder in (place, *place.absolute().parents) if folder.exists())
        free = shutil.disk_usage(found).free / 2**30
        places.append(f"{free:.0f} GiB free in {place}")
        if free < MIN_DISK_GIB:
            hint = f"little space in {place}; free some, or train with --workdir and TMPDIR elsewhere"
    return Check("disk", "warn" if hint else "ok", ", ".join(places), hint)


def ports() -> Check:
    """Whether this process may listen on a local port."""
    try:
        with socket.create_server(("127.0.0.1", 0)) as server:
            return Check("ports", "ok", f"a process can listen (tried {server.getsockname()[1]})")
    except OSError as error:
        return Check("ports", "fail", str(error), "Ray and the replay server listen on local ports; allow it")


def jax_devices() -> Check:
    """The devices that JAX finds for the learner."""
    found = "f'{jax.__version__}, {len(d)} {d[0].platform} device(s): {d[0].device_kind}'"
    hint = "run `uv sync --locked --inexact`; the driver of an accelerator may be missing"
    return probe("JAX", f"import jax; d = jax.devices(); print({found})", hint)


def ray() -> Check:
    """Whether Ray can be imported, and its session folder be where TMPDIR says."""
    try:
        check_session_folder(session_folder())
    except ConfigError as error:
        return Check("Ray", "fail", str(error), "no experiment can be trained here without Ray")
    return probe("Ray", "import ray; print(ray.__version__)", _SYNC)


def replay_server() -> Check:
    """Whether the replay server's Python environment has Reverb; creates the environment if it is missing."""
    from podzero.replay import EnvironmentUnusable, server_python
    from podzero.replay.process import VARIABLE, server_variables

    try:
        interpreter = server_python()
    except EnvironmentUnusable as error:
        return Check("replay server", "fail", str(error), "no experiment can be trained without it")
    found = f"'dm-reverb', version('dm-reverb') + ',', {str(interpreter)!r}"
    code = f"import reverb, tensorflow; from importlib.metadata import version; print({found})"
    hint = (
        f"{VARIABLE} names {interpreter}: it needs dm-reverb 0.14 and its TensorFlow; or unset {VARIABLE}"
        if VARIABLE in os.environ
        else f"delete {interpreter.parents[1]}, and podzero makes it again"
    )
    return probe("replay server", code, hint, interpreter, server_variables())


def tpu_library() -> Check:
    """The version of libtpu, which TPU hosts and `podzero compile` need."""
    try:
        return Check("TPU library", "ok", f"libtpu {importlib.metadata.version('libtpu')}")
    except importlib.metadata.PackageNotFoundError:
        chips = [*Path("/dev").glob("accel*"), *Path("/dev/vfio").glob("[0-9]*")]
        hint = "needed for TPUs and `podzero compile`; `uv sync --inexact --extra tpu` installs it"
        return Check("TPU library", "warn" if chips else "ok", "not installed", hint)


def probe(
    name: str, code: str, hint: str, python: str | Path = sys.executable, variables: Mapping[str, str] = os.environ
) -> Check:
    """Runs Python code in a process: the check finds the last line of its output, or fails with that of its errors.

    The current folder is not on the path of the process, as in a run.
    """
    # In a process of its own, since a broken library may crash it or never return. After a crash the last line would
    # be one of TensorFlow's notices.
    environment = {**variables, "TF_CPP_MIN_LOG_LEVEL": "2"}
    command = [str(python), "-P", "-c", code]
    try:
        done = subprocess.run(
            command,
            capture_output=True,
            encoding="utf-8",
            errors="replace",
            timeout=PROBE_TIMEOUT_S,
            env=environment,
            check=False,
        )
    except subprocess.TimeoutExpired:
        return Check(name, "fail", f"no answer within {PROBE_TIMEOUT_S:.0f} s", hint)
    if done.returncode:
        lines = done.stderr.strip().splitlines() or [f"exit code {done.returncode}"]
        return Check(name, "fail", lines[-1], hint)
    return Check(name, "ok", done.stdout.strip().splitlines()[-1])
