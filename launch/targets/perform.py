"""Shows a plan as the shell script that it is, or carries it out."""

from __future__ import annotations

import importlib.util
import shlex
import shutil
import subprocess
from pathlib import Path

from podzero.launch.targets.plan import Plan, Step

_END = "END-OF-FILE"


class LaunchFailed(RuntimeError):
    """A launch that did not get through; the message says at which command, and what there is to do."""


def script(plan: Plan, folder: Path, down: bool = False) -> str:
    """A shell script that does what `perform` would do: files, then commands; how to watch and end it as comments."""
    lines = ["set -euo pipefail", f"mkdir -p {_quote(folder)} && cd {_quote(folder)}", ""]
    for name, text in _files(plan).items():
        lines += [f"cat > {name} <<'{_END}'", text.rstrip("\n"), _END, ""]
    for step in plan.down if down else plan.up:
        lines += [f"# {step.why}", shlex.join(step.command) + (" || true" if down else "")]
    if not down:
        lines += ["", "# Watch it, and end it, from the same folder:"]
        lines += [f"#   {shlex.join(step.command)}  # {step.why}" for step in (*plan.watch, *plan.down)]
    return "\n".join(lines) + "\n"


def perform(plan: Plan, folder: Path) -> None:
    """Writes the files and runs the commands, each shown before it is run.

    Raises:
      LaunchFailed: a tool is missing, then nothing was run; or a command failed, then none after it was run.
    """
    _start(plan, folder)
    for step in plan.up:
        code = _run(step, folder)
        if code:
            raise LaunchFailed(
                f"this command ended with code {code} (in {folder}):\n  {shlex.join(step.command)}\n"
                "What was made before it still stands and may cost money: launch again to go on, or launch --down"
            )
    print(f"\nIt runs. From {folder}:")
    for step in (*plan.watch, *plan.down):
        print(f"  {shlex.join(step.command)}  # {step.why}")


def take_down(plan: Plan, folder: Path) -> None:
    """Runs the commands of the teardown, every one of them even if one fails.

    Raises:
      LaunchFailed: a tool is missing, then nothing was run; or commands failed.
    """
    _start(plan, folder)
    failed = [step for step in plan.down if _run(step, folder)]
    if failed:
        listed = "\n".join(f"  {shlex.join(step.command)}" for step in failed)
        raise LaunchFailed(f"these commands failed (in {folder}), so something may be left that costs money:\n{listed}")


def _start(plan: Plan, folder: Path) -> None:
    missing = [tool for tool in plan.tools if shutil.which(tool) is None]
    missing += [f"the Python module {name}" for name in plan.modules if importlib.util.find_spec(name) is None]
    if missing:
        raise LaunchFailed(
            f"missing on this machine: {', '.join(missing)}; docs/tpu.md says how to install each. Nothing was run"
        )
    folder.mkdir(parents=True, exist_ok=True)
    for name, text in _files(plan).items():
        (folder / name).write_text(text)


def _files(plan: Plan) -> dict[str, str]:
    # The folder will hold a token, which must not be committed.
    return {".gitignore": "*\n", **plan.files}


def _run(step: Step, folder: Path) -> int:
    print(f"\n# {step.why}\n$ {shlex.join(step.command)}", flush=True)
    return subprocess.run(step.command, cwd=folder, check=False).returncode


def _quote(path: Path) -> str:
    return shlex.quote(str(path))
