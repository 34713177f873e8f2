"""The entry point of the command `podzero`."""

from __future__ import annotations

import io
import os
import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

INTERRUPTED = 130
"""Exit code after Ctrl-C: 128 + SIGINT, as in shells."""


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


@contextmanager
def ended_by_interrupt() -> Iterator[None]:
    """In this context Ctrl-C ends the process at once, without cleanup: for imports.

    A KeyboardInterrupt inside the import of an extension is lost or becomes another error, and jaxlib's aborts.
    """
    if signal.getsignal(signal.SIGINT) is not signal.default_int_handler:
        yield
        return
    signal.signal(signal.SIGINT, lambda *_: os._exit(INTERRUPTED))
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, signal.default_int_handler)


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
