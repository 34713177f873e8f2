"""`podzero train` in a process of its own, started by another process."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import IO

from podzero.core.errors import PodzeroError
from podzero.files.workdir import Workdir
from podzero.runtime.stopping import NotStopped

PROGRAM = (sys.executable, "-P", "-c", "from podzero.launch.main import main; main()")
"""The command line `podzero` of this Python, whatever is on the path and in the current folder."""
STOP_LIMIT_S = 900.0
"""Longest wait for the last checkpoint of a run that is to end."""
ENDED_IN_ORDER = (0, *(128 + number for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)))
"""Exit codes of a run that has reached a limit or was asked to end."""


class TrainingFailed(PodzeroError, RuntimeError):
    """A run that could not start, or that failed; the message is that of `podzero train`."""


class DriverProcess:
    """The driver of a run: `podzero train` with these arguments, which starts with this object.

    The command `podzero` is `program`, by default `PROGRAM`; the process has the current `folder` and environment of
    this one, unless others are given.
    """

    def __init__(
        self,
        workdir: Workdir,
        arguments: Sequence[str],
        program: Sequence[str] | None = None,
        folder: Path | None = None,
        environment: Mapping[str, str] | None = None,
    ) -> None:
        self._workdir = workdir
        # While the run lives, stderr goes into its log; then its last error is printed here.
        self._errors: IO[bytes] = tempfile.TemporaryFile()  # noqa: SIM115 (as long as the run)
        self._process = subprocess.Popen(
            [*(program or PROGRAM), "train", *arguments],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=self._errors,
            cwd=folder,
            # Whoever starts it has imported the experiment's code already, or was asked for it.
            env={**(os.environ if environment is None else environment), "PODZERO_TRUST": "1"},
            # Ctrl-C in a terminal or a notebook is for the other process alone.
            start_new_session=True,
        )

    @property
    def pid(self) -> int:
        """The number of the process."""
        return self._process.pid

    @property
    def running(self) -> bool:
        """Whether the process lives."""
        return self._process.poll() is None

    def wait(self, limit_s: float | None = None) -> None:
        """Waits until the run has ended by itself.

        Raises:
          NotStopped: it has not ended within `limit_s` seconds; it goes on.
          TrainingFailed: the run has failed, or its last checkpoint could not be written.
        """
        root = self._workdir.root
        try:
            code = self._process.wait(limit_s)
        except subprocess.TimeoutExpired:
            raise NotStopped(f"the run in {root} has not ended within {limit_s:g} s, and goes on") from None
        if code in ENDED_IN_ORDER:
            return
        self._errors.seek(0)
        said = self._errors.read().decode(errors="replace").strip().removeprefix("podzero: ")
        raise TrainingFailed(said or f"the run in {root} died (exit code {code}); see {self._workdir.log_file}")

    def end(self) -> None:
        """Ends the process with a last checkpoint, and waits at most `STOP_LIMIT_S`; ignores how it ended."""
        self._process.terminate()
        with suppress(subprocess.TimeoutExpired):
            self._process.wait(STOP_LIMIT_S)
