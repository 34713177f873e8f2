"""A trial of Ray Tune: one run of a sweep, in a process of its own on the trial's node.

The run has a local Ray and resumes when started again. Each trial loads this module, which imports no JAX.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from ray import tune

from podzero.config import StopConfig
from podzero.files.workdir import Workdir
from podzero.runtime.cluster.remote import RemoteActor
from podzero.runtime.driver_process import STOP_LIMIT_S, DriverProcess
from podzero.runtime.stopping import NotStopped, stop_run
from podzero.tools.sweep.folder import METRICS, progress

POLL_S = 2.0
"""Time between two looks at a run, in seconds; its status is written as often."""
STRENGTH = "strength"
"""The metric that ASHA compares."""
ENDED = "ended"
"""The metric that tells whether the run has ended by itself."""
STOP_FILE = ".stop"
"""A file in the sweep's folder that asks trials to end. Tune kills one after 5 s, before a last checkpoint."""
PROGRAM = (
    "-P",
    "-c",
    # SIGTERM, and thus a last checkpoint, when the trial's process dies: PR_SET_PDEATHSIG is 1.
    "import ctypes, signal; ctypes.CDLL(None).prctl(1, signal.SIGTERM)\n"
    "from podzero.launch.main import main; main()",
)  # fmt: skip
"""The arguments of Python for the command line of a run, which ends with its trial."""


class SecretsKeeper:
    """A process beside the sweep's driver that tells trials the environment variables of their runs.

    The values stay in memory: Tune writes the settings of a trial to files, and Ray may write its objects to a disk.
    """

    def __init__(self, secrets: Mapping[str, str]) -> None:
        self._secrets = dict(secrets)

    def secrets(self) -> dict[str, str]:
        """The values by name."""
        return self._secrets


class RunTrial(tune.Trainable):  # type: ignore[misc]
    """A trial: one run in a process of its own. A failure of the run is one of the trial."""

    def setup(self, config: dict[str, Any], keeper: RemoteActor | None = None) -> None:
        """Starts or resumes the run, unless it has ended before and only tells what it reached.

        `keeper` is a `SecretsKeeper`, if runs get environment variables of the sweep's driver.
        """
        trial = config["run"]
        self._workdir = Workdir(trial["workdir"])
        self._limits = StopConfig.model_validate(trial["limits"])
        self._stop_file = self._workdir.root.parent / STOP_FILE
        self._process: DriverProcess | None = None
        # The trial before may have been killed on this node; its run then writes a last checkpoint.
        stop_run(self._workdir, STOP_LIMIT_S, lambda _: None)
        ended = trial["stopped_early"] or progress(self._workdir, self._limits).state == "finished"
        if not ended and not self._stop_file.exists():
            # Without what Ray has set for its worker: RAY_ADDRESS would make the run join the cluster of the sweep.
            environment = {k: v for k, v in os.environ.items() if not k.startswith("RAY_") and k != "OMP_NUM_THREADS"}
            self._process = DriverProcess(
                self._workdir,
                trial["arguments"],
                # That of this node, which may be another than the driver's.
                [sys.executable, *trial["program"]],
                Path(trial["folder"]),
                environment | ({} if keeper is None else keeper.ask("secrets")),
            )

    def step(self) -> dict[str, Any]:
        """Waits a while; returns what the run has reached, and whether it has ended."""
        if self._process is not None:
            with suppress(NotStopped):
                self._process.wait(POLL_S)
            if self._stop_file.exists():
                self._process.end()
        ended = self._process is None or not self._process.running
        # Tune sets `done` too when it stops a trial.
        reported: dict[str, Any] = {"done": ended, ENDED: ended}
        if (status := progress(self._workdir, self._limits).status) is None:
            return reported
        reported |= {"minutes": status.elapsed_s / 60, "steps": status.step, "games": status.games}
        strength = next((value for name in METRICS if (value := getattr(status, name)) is not None), None)
        return reported if strength is None else reported | {STRENGTH: strength}

    def cleanup(self) -> None:
        """Ends the run with a last checkpoint, if it still goes on: Tune has stopped the trial."""
        if self._process is not None:
            self._process.end()
