"""Profiler traces of a running run: asked for by a file in its working directory, which the driver finds."""

from __future__ import annotations

import json
import logging
import time
from collections.abc import Iterable, Mapping
from concurrent.futures import Future
from functools import partial
from pathlib import Path
from typing import NamedTuple

from podzero.core.errors import PodzeroError, os_errors
from podzero.core.waiting import Wait, in_thread
from podzero.files.workdir import Workdir, read_json, write_atomically
from podzero.runtime.cluster.remote import Call, RemoteActor

log = logging.getLogger(__name__)

LONGEST_S = 60.0
"""Longest trace: a second of one process takes megabytes of its memory and of the disk."""
SLACK_S = 60.0
"""Longest time beyond the seconds of a trace until a process has written it."""
NOTICE_S = 60.0
"""Longest time until the driver notices a request: it may be starting workers."""
_RESULT = "processes.json"
_POLL_S = 0.1


class NotTraced(PodzeroError, RuntimeError):
    """No process of the run could be traced; the message says why."""


class Traces(NamedTuple):
    """The traces of a run's processes."""

    folder: Path
    """`folder/PROCESS` holds the trace of each process that was traced."""
    processes: dict[str, str | None]
    """By name of the process, why it could not be traced; None if it was."""


def request_trace(workdir: Workdir, seconds: float) -> Traces:
    """Asks the driver of a running run for traces of its processes, and waits for them.

    Its driver may be on another machine that shares the working directory. Traces are at most `LONGEST_S` long. Raises
    `NotTraced` if there are none.
    """
    holder = workdir.holder()
    if holder is None:
        raise NotTraced(f"{workdir.root} is not running, so nothing is traced; `podzero runs` lists those that are")
    name = time.strftime("%Y%m%d-%H%M%S")
    folder = workdir.traces / name
    with os_errors(NotTraced, f"cannot write {workdir.trace_file}"):
        write_atomically(workdir.trace_file, json.dumps({"name": name, "seconds": seconds}))
    wait = Wait(limit_s=NOTICE_S + seconds + SLACK_S)
    try:
        while not (folder / _RESULT).exists():
            if wait.over:
                raise NotTraced(
                    f"{holder}, the driver of {workdir.root}, has not answered within {wait.seconds:.0f} s; it may be "
                    "starting workers, or hang: see `podzero status` and `podzero logs` of this directory"
                )
            if workdir.holder() is None:
                raise NotTraced(f"the run in {workdir.root} has ended before it was traced; see {workdir.log_file}")
            time.sleep(_POLL_S)
    finally:
        # A request that nobody has noticed is not one for the next run here.
        workdir.trace_file.unlink(missing_ok=True)
    processes = read_json(folder / _RESULT)
    if None not in processes.values():
        reasons = "".join(f"\n  {process}: {reason}" for process, reason in processes.items())
        raise NotTraced(f"no process of {workdir.root} could be traced:{reasons or ' none was there'}")
    return Traces(folder, processes)


class Tracer:
    """The driver's side: lets processes write traces, and tells who has. Not thread-safe."""

    def __init__(self, workdir: Workdir) -> None:
        self._workdir = workdir
        self._ended: Future[None] | None = None
        """The end of the traces begun last."""

    def advance(self, processes: Iterable[RemoteActor]) -> None:
        """Begins the traces of `processes` that were asked for, once those before have ended; never waits."""
        if self._ended is not None and not self._ended.done():
            return
        match read_json(self._workdir.trace_file):
            case {"name": str(name), "seconds": int() | float() as seconds}:
                self._workdir.trace_file.unlink(missing_ok=True)
            case _:
                return
        folder = self._workdir.traces / Path(name).name
        calls = {process.name: process.begin("trace", folder / process.name, seconds) for process in processes}
        log.info("traces of %s for %g s go into %s", ", ".join(calls), seconds, folder)
        self._ended = in_thread("traces", partial(_finish, folder, calls, time.monotonic() + seconds + SLACK_S))


def _finish(folder: Path, calls: Mapping[str, Call], deadline: float) -> None:
    """Waits for the traces of processes until the monotonic time `deadline`, and writes who has written one."""
    found: dict[str, str | None] = {}
    for name, call in calls.items():
        failure = call.exception(max(0.0, deadline - time.monotonic()))
        found[name] = None if failure is None else str(failure)
        if failure is not None:
            log.warning("%s could not be traced: %s", name, failure)
    try:
        folder.mkdir(parents=True, exist_ok=True)
        write_atomically(folder / _RESULT, json.dumps(found))
    except OSError as error:
        log.warning("nobody learns of the traces in %s: %s", folder, error)
