"""A real run, `podzero train` as a child process, as the stages `soak` and `chaos` watch it."""

from __future__ import annotations

import json
import logging
import os
import re
import signal
import subprocess
import sys
import time
from collections import defaultdict
from collections.abc import Mapping, Sequence
from contextlib import suppress
from datetime import datetime
from pathlib import Path
from typing import Any

import psutil

from podzero.config import Experiment
from podzero.core.errors import PodzeroError
from podzero.files.workdir import Workdir
from podzero.runtime.monitoring.ledger import open_sums
from podzero.runtime.monitoring.monitor import kind_of
from podzero.runtime.monitoring.status import RunStatus, read_status
from podzero.runtime.program import program
from podzero.tools.bench.measuring import BenchError
from podzero.tools.report.record import GrowingFile, parse_line

log = logging.getLogger(__name__)

TITLES = {
    "actor": "ray::ActorProcess",
    "replay": "ray::ReplayProcess",
    "server": "reverb_server/serve.py",
    "learner": "ray::LearnerProcess",
    "evaluator": "ray::EvaluatorProcess",
    "reanalyser": "ray::ReanalysisProcess",
    "inference": "ray::InferenceProcess",
    "store": "ray::ParamStore",
    "directory": "ray::Directory",
    "raylet": "raylet/raylet",
    "head": "gcs/gcs_server",
    "dashboard agent": "ray::DashboardAgent",
    "environment agent": "ray::RuntimeEnvAgent",
}
"""What the command line of each kind of process holds: `server` is the Reverb server of a shard, `store` the parameter
store, `head` what a Ray cluster's head runs."""
STOP_S = 300.0
"""Longest wait until a run has written its last checkpoint."""
GONE_S = 150.0
"""Longest wait until all processes of drivers that have ended are gone: Ray's agents look for its head for a minute."""
STATUS_S = 60.0
"""Longest time of `podzero status`."""


class ChildRun:
    """A run in a session of its own; `start` also resumes it. Only its descendants are ever signalled.

    Attributes:
      command: starts the run, and resumes it.
      seen: all its processes so far, with the kind of each; another one with the same id is another process.
    """

    def __init__(self, config: str, overrides: Sequence[str], workdir: Path) -> None:
        if workdir.exists():
            raise BenchError(f"{workdir} exists; name a new directory with --workdir, or delete it")
        podzero = Path(sys.executable).with_name("podzero")
        self.command = [str(podzero), "train", config, *overrides, "--workdir", str(workdir), "--view", "plain"]
        self.workdir = Workdir(workdir)
        self.console = workdir.with_name(f"{workdir.name}.console.log")
        self.seen: dict[psutil.Process, str] = {}
        self._driver: psutil.Popen | None = None

    def start(self) -> None:
        """Starts the run, or resumes it. SIGTERM then ends this process as Ctrl-C does, so that the run is closed."""
        signal.signal(signal.SIGTERM, signal.default_int_handler)
        self.console.parent.mkdir(parents=True, exist_ok=True)
        with self.console.open("ab") as console:
            self._driver = psutil.Popen(
                self.command, stdin=subprocess.DEVNULL, stdout=console, stderr=console, start_new_session=True
            )
        self.seen[psutil.Process(self._driver.pid)] = "driver"

    @property
    def driver(self) -> psutil.Popen:
        """The newest process of `podzero train`."""
        assert self._driver is not None
        return self._driver

    @property
    def exit_code(self) -> int | None:
        """The driver's exit code, negative for a signal; None while it runs."""
        code: int | None = self.driver.poll()
        return code

    def processes(self) -> dict[str, list[psutil.Process]]:
        """The driver and its descendants that have not ended, by kind; what is not named in `TITLES` is `other`."""
        found: dict[str, list[psutil.Process]] = defaultdict(list)
        with suppress(psutil.NoSuchProcess):
            if self.exit_code is None:
                found["driver"] = [psutil.Process(self.driver.pid)]
                for child in self.driver.children(recursive=True):
                    if (kind := kind_of_process(child)) is not None:
                        self.seen[child] = kind
                        found[kind].append(child)
        return found

    def status(self) -> RunStatus | None:
        """The newest status, None as long as there is none."""
        try:
            return read_status(self.workdir).status
        except (PodzeroError, OSError):
            return None

    def left(self, timeout_s: float = GONE_S) -> list[str]:
        """The processes that have not ended `timeout_s` after their driver, in words; they are ended then."""
        deadline = time.monotonic() + timeout_s
        while (left := [process for process in self.seen if lives(process)]) and time.monotonic() < deadline:
            time.sleep(0.5)
        named = [f"{self.seen[process]} ({process.pid})" for process in left]
        for process in left:
            with suppress(psutil.NoSuchProcess):
                process.kill()
        return named

    def stop(self, timeout_s: float = STOP_S) -> int | None:
        """Ends the run as SIGTERM does, with a last checkpoint; None if it has not ended in time."""
        if self.exit_code is None:
            self.driver.send_signal(signal.SIGTERM)
        with suppress(psutil.TimeoutExpired):
            self.driver.wait(timeout_s)
        return self.exit_code

    def final_status(self) -> dict[str, Any]:
        """What `podzero status DIR --json` prints."""
        command = [self.command[0], "status", str(self.workdir.root), "--json"]
        done = subprocess.run(command, capture_output=True, check=True, timeout=STATUS_S, encoding="utf-8")
        found: dict[str, Any] = json.loads(done.stdout)
        return found

    def ray_folders(self) -> list[Path]:
        """The folders of Ray's sessions that this run has started, of those whose head still runs."""
        folders = []
        for process, kind in self.seen.items():
            with suppress(psutil.Error):
                if kind == "head" and (found := re.search(r"--log_dir=(\S+)/logs", " ".join(process.cmdline()))):
                    folders.append(Path(found[1]))
        return folders

    def close(self) -> None:
        """Ends what still runs."""
        if self._driver is not None:
            with suppress(psutil.NoSuchProcess):
                self.processes()
                if self.exit_code is None:
                    self._driver.kill()
            self._driver.wait(GONE_S)
            self.left(0.0)


def kind_of_process(process: psutil.Process) -> str | None:
    """The kind of a descendant of a driver, None if it has ended."""
    try:
        command = " ".join(process.cmdline()[:4])
        if process.status() == psutil.STATUS_ZOMBIE:
            return None
    except psutil.NoSuchProcess:
        return None
    return next((kind for kind, title in TITLES.items() if title in command), "other")


def lives(process: psutil.Process) -> bool:
    """Whether a process has not ended; one that nobody has waited for has."""
    with suppress(psutil.NoSuchProcess):
        return process.is_running() and process.status() != psutil.STATUS_ZOMBIE
    return False


_BUILT = re.compile(rb"(\d{4}-\d\d-\d\d \d\d:\d\d:\d\d,\d{3}) INFO (\S+): built in ")
_HEARD_S = 1800.0
"""For how long reports are remembered."""


class Signals:
    """What a run itself says of its workers, from its log and metrics. Times are Unix seconds.

    Attributes:
      built: when each worker was last said to be built, by name.
      worked: when workers of each kind reported work; `together` when at least two of them did.
      versions: the times at which actors reported the version of their parameters, and the newest one.
    """

    def __init__(self, experiment: Experiment, workdir: Workdir) -> None:
        # A learner that waits reports no steps.
        self._work = {kind.name: kind.work for kind in program(experiment)} | {"learner": "learner/loss"}
        self._log, self._metrics = GrowingFile(workdir.log_file), GrowingFile(workdir.metrics_file)
        self._last_t = 0.0
        self.built: dict[str, float] = {}
        self.worked: dict[str, list[float]] = defaultdict(list)
        self.together: dict[str, list[float]] = defaultdict(list)
        self.versions: list[tuple[float, float]] = []

    def read(self) -> None:
        """Reads what is new."""
        _, lines = self._log.read()
        for line in lines:
            if found := _BUILT.match(line):
                self.built[found[2].decode()] = datetime.strptime(found[1].decode(), "%Y-%m-%d %H:%M:%S,%f").timestamp()
        replaced, lines = self._metrics.read()
        for t, _, worker, metrics in filter(None, map(parse_line, lines)):
            if not replaced or t > self._last_t:
                self._add(t, kind_of(worker), metrics)

    def _add(self, t: float, kind: str, metrics: Mapping[str, float]) -> None:
        self._last_t = t
        if metrics.get(self._work.get(kind, "")) not in (None, 0.0):
            lists = [self.worked[kind]] + [self.together[kind]] * any(name.endswith("_min") for name in metrics)
            for times in lists:
                times[:] = [*(old for old in times if old > t - _HEARD_S), t]
        versions = [metrics.get(f"{stage}/version{of}") for stage in ("selfplay", "acting") for of in ("_max", "")]
        for version in [version for version in versions if version is not None][:1]:
            self.versions = [*(old for old in self.versions if old[0] > t - _HEARD_S), (t, version)]


def closes(status: Mapping[str, Any]) -> str:
    """`closes`, or which sums of the ledger do not; `unknown` without one."""
    ledger = status.get("ledger")
    return (open_sums(ledger) or "closes") if ledger else "unknown"


def machine_in_words(cpu_info: Path = Path("/proc/cpuinfo")) -> str:
    """The processor of this machine, as `benchmarks/results` names it."""
    text = cpu_info.read_text(encoding="utf-8") if cpu_info.exists() else ""
    found = dict(re.findall(r"^(model name|cpu family|model)\s*:\s*(.*)$", text, re.MULTILINE))
    name = re.sub(r"\s+", " ", found.get("model name", "an unknown processor"))
    if "AMD" in name and "Zen" not in name:  # the name of a virtual processor does not say its generation
        newer = int(found.get("model", 0)) // 16 in (1, 6, 7, 10)  # Zen 3 and Zen 4 share a family
        name += {"25": " (Zen 4)" if newer else " (Zen 3)", "26": " (Zen 5)"}.get(found.get("cpu family", ""), "")
    return f"{os.cpu_count()} cores of an {name}, no accelerator"
