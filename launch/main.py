"""The entry point of the command `podzero`."""

from __future__ import annotations

import sys

INTERRUPTED = 130
"""Exit code after Ctrl-C: 128 + SIGINT, as in shells."""


def main() -> None:
    """Runs the command line; Ctrl-C ends it without a traceback."""
    try:
        # Imported here, so that this is true of Ctrl-C during the import too, which takes about a second.
        from podzero.launch.cli import main as run

        run()
    except KeyboardInterrupt:
        sys.exit(INTERRUPTED)
