"""Runs the commands of a launch plan, or prints them as a shell script."""

from __future__ import annotations

import shlex
import shutil
import subprocess
from collections.abc import Iterable
from pathlib import Path

from podzero.core.errors import PodzeroError
from podzero.launch.targets.plan import LaunchStep, Plan

_END = "END-OF-FILE"
_GITIGNORE = "# Created by podzero launch, which overwrites its files in this folder. It may hold a token.\n*\n"
"""Keeps the token out of version control, and marks a folder that `podzero launch` may write to."""


class LaunchFailed(PodzeroError, RuntimeError):
    """A launch or teardown failed; the message names the command and the remedy."""


def script(plan: Plan, folder: Path, down: bool = False, force: bool = False, notes: Iterable[str] = ()) -> str:
    """A shell script equivalent to `perform`, or to `take_down` with `down`; `notes` become comments."""
    lines = ["set -euo pipefail", *(f"# {line}" for line in notes)]
    lines += [f"mkdir -p {_quote(folder)} && cd {_quote(folder)}"]
    lines += [
        f'[ -z "$(ls -A)" ] || [ "$(cat .gitignore 2>/dev/null)" = {shlex.quote(_GITIGNORE.rstrip())} ] ||'
        f" {{ echo {shlex.quote(_not_ours(folder))} >&2; exit 2; }}",
        "",
    ]
    for name, text in _files(plan).items():
        lines += [f"cat > {name} <<'{_END}'", text.rstrip("\n"), _END, ""]
    for step in _teardown(plan, force) if down else plan.up:
        lines += [f"# {step.why}", shlex.join(step.command)]
    if not down:
        lines += ["", "# To watch the run, to end it and to delete the machines, in the same folder:"]
        lines += [f"# {line}" for line in _listed((*plan.watch, *_teardown(plan)))]
    return "\n".join(lines) + "\n"


def perform(plan: Plan, folder: Path) -> None:
    """Writes the files, then prints and runs the commands.

    Raises:
      LaunchFailed: a tool is missing or the folder holds other files (nothing was run), or a command failed (no later
        command was run).
    """
    _begin(plan, folder)
    for step in plan.up:
        code = _run(step, folder)
        if code and step.failure:
            watch = "\n".join(_listed(plan.watch))
            raise LaunchFailed(f"{step.failure}. To watch a run, in {folder}:\n{watch}")
        if code:
            raise LaunchFailed(
                f"this command ended with code {code} (in {folder}):\n  {shlex.join(step.command)}\n"
                "Everything created so far still exists and may cost money. Launch again to continue from there, or "
                "launch with --down to delete it"
            )
    print(f"\nThe run is training. To watch it, in {folder}:", *_listed(plan.watch), sep="\n")
    print("To end it with a checkpoint and delete the machines, repeat this launch with --down")


def take_down(plan: Plan, folder: Path, force: bool = False) -> None:
    """Ends the run with a checkpoint, then deletes the machines.

    Args:
      plan: the launch plan.
      folder: the folder for the launch's files.
      force: whether to delete the machines without ending the run.

    Raises:
      LaunchFailed: nothing could be run, as in `perform`; the run has not ended or has no last checkpoint (no machine
        was deleted); or deleting the machines failed.
    """
    _begin(plan, folder)
    for step in _teardown(plan, force):
        code = _run(step, folder)
        if code and step is plan.stop:
            raise LaunchFailed(
                "no machine was deleted, because the run may still be writing a checkpoint, or has ended without its "
                f"last one. The command that ends the run failed with code {code} (in {folder}):\n"
                f"  {shlex.join(step.command)}\n"
                "Its output above says which it is. Repeat --down to keep waiting for the run, or launch again to "
                "resume a run that has ended. To delete the machines at once, use --down --force: everything since "
                "the newest complete checkpoint is then lost"
            )
        if code:
            raise LaunchFailed(
                f"not everything was deleted, and the rest still costs money. This command failed with code {code} "
                f"(in {folder}):\n  {shlex.join(step.command)}\nRepeat --down, or delete the machines by hand"
            )


def _teardown(plan: Plan, force: bool = False) -> tuple[LaunchStep, ...]:
    return (plan.down,) if force else (plan.stop, plan.down)


def _begin(plan: Plan, folder: Path) -> None:
    """Checks the tools and the folder, then writes the files."""
    missing = [tool for tool in plan.tools if shutil.which(tool) is None]
    if missing:
        raise LaunchFailed(
            f"missing on this machine: {', '.join(missing)}; step 1 of docs/tpu.md says how to install them. "
            "Nothing was run"
        )
    marker = folder / ".gitignore"
    try:
        folder.mkdir(parents=True, exist_ok=True)
        if any(folder.iterdir()) and not (marker.is_file() and marker.read_text(encoding="utf-8") == _GITIGNORE):
            raise LaunchFailed(_not_ours(folder))
        for name, text in _files(plan).items():
            (folder / name).write_text(text, encoding="utf-8")
    except OSError as error:
        raise LaunchFailed(f"--folder {folder}: cannot write there ({error.strerror}). Nothing was run") from error


def _not_ours(folder: Path) -> str:
    return (
        f"--folder {folder}: this folder holds files that podzero launch did not write, and it would overwrite them. "
        "Nothing was run. Name a new or empty folder, or one of an earlier launch"
    )


def _files(plan: Plan) -> dict[str, str]:
    return {".gitignore": _GITIGNORE, **plan.files}


def _run(step: LaunchStep, folder: Path) -> int:
    print(f"\n# {step.why}\n$ {shlex.join(step.command)}", flush=True)
    return subprocess.run(step.command, cwd=folder, check=False).returncode


def _listed(steps: Iterable[LaunchStep]) -> list[str]:
    return [f"  {shlex.join(step.command)}  # {step.why}" for step in steps]


def _quote(path: Path) -> str:
    return shlex.quote(str(path))
