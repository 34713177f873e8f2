"""The entry point of the command `podzero`."""

from __future__ import annotations

import sys

INTERRUPTED = 130
"""The exit code after Ctrl-C, by the convention of shells."""


def main() -> None:
    """Runs the command line. Ctrl-C ends it without a traceback, also while its modules are imported."""
    try:
        from podzero.launch.cli import main as run

        run()
    except KeyboardInterrupt:
        sys.exit(INTERRUPTED)
