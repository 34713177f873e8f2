"""The entry point of the command `podzero`."""

from __future__ import annotations

import io
import os
import sys
from pathlib import Path

from podzero.core.machine import INTERRUPTED, ended_by_interrupt


def main() -> None:
    """Runs the command line; Ctrl-C ends it without a traceback."""
    try:
        complete_process()
        with ended_by_interrupt():
            # Imported here, so that this is true of Ctrl-C during the import too, which takes about a second.
            from podzero.launch.cli import main as run

        run()
    except KeyboardInterrupt:
        sys.exit(INTERRUPTED)


def complete_process() -> None:
    """Gives this process what services and containers may start it without: standard streams, and a home directory.

    What the encoding of standard output lacks is printed as `?` from then on.
    """
    for name, mode in (("stdin", "r"), ("stdout", "w"), ("stderr", "w")):
        if getattr(sys, name) is None:
            # The lowest free number, which is the stream's own; a file opened later would take it otherwise.
            descriptor = os.open(os.devnull, os.O_RDWR)
            os.set_inheritable(descriptor, True)
            setattr(sys, name, open(descriptor, mode, encoding="utf-8"))  # noqa: SIM115 (as long as the process)
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="replace")
    try:
        Path.home()
    except RuntimeError:
        # Debian's name for the home of users without one: whatever is written there fails like any other file.
        os.environ["HOME"] = "/nonexistent"
