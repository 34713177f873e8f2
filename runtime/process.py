"""The processes of a run: each is a value that is sent to its node, where a Ray actor holds it.

A process reaches another kind only by a handle that the table of `program` gives it.
"""

from __future__ import annotations

import ctypes
import logging
import os
import sys
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import cache, cached_property, partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from podzero.config import Experiment
from podzero.core.machine import NoAccelerator, nvidia_driver, prepare_jax, start_cudnn, use_graphs
from podzero.core.protocols import ParamSource
from podzero.core.waiting import waits_in
from podzero.files.store import store_of
from podzero.files.workdir import Workdir
from podzero.runtime.cluster.remote import BUILD_TIMEOUT_S
from podzero.runtime.cluster.services import AddressBook, ask
from podzero.runtime.monitoring.reports import LogReport, MetricsReport, ReportBuffer

if TYPE_CHECKING:
    import jax

log = logging.getLogger(__name__)

_COMPILED = "/jax/core/compile/backend_compile_duration"
"""JAX's name for the event that a program was compiled."""
_QUIET_S = 10.0
"""After this time without a compilation, a process is assumed to have compiled all of its programs."""
SILENT_S = 5.0
"""After this time without metrics, a process that waits says so itself."""


@dataclass(frozen=True)
class RunContext:
    """What processes that start together share.

    Attributes:
      workdir: the working directory, on a file system that all nodes share, or in a bucket.
      run: the id of the run. It changes when all processes start again, to distinguish them from those left behind.
      store: the Ray handle of the parameter store, or of the agent in its place on this node.
      directory: that of the directory, which knows the addresses of replay shards and inference servers, or the same.
      restore_from: the folder of the checkpoint that the learner continues; None starts from nothing.
      coordinator: the address at which learner host 0 coordinates the others; empty for one host on this machine.
      ladder: the rating ladder that the evaluator continues.
      secrets: environment variables of the driver that each process gets, by name.
    """

    experiment: Experiment
    workdir: Workdir
    run: str
    store: Any
    directory: Any
    restore_from: Path | None = None
    coordinator: str = ""
    ladder: Mapping[str, Any] = field(default_factory=dict)
    secrets: Mapping[str, str] = field(default_factory=dict, repr=False)


class Runnable(Protocol):
    """An actor, a reanalyser, an inference server or an evaluator."""

    def run(self) -> None:
        """Works until `stop` is called."""
        ...

    def stop(self) -> None:
        """Ends `run`; thread-safe, returns at once."""
        ...


@dataclass(eq=False)
class Process:
    """One process of a run. Its fields are sent to the node, where `build` makes the object that it runs.

    Heavy imports belong inside the methods: a process then loads only what it needs, and the driver none of it.

    Attributes:
      index: its number among those of its kind, from 0.
      attempt: differs from its predecessors', so that it does not draw their random numbers again.
      reports: metrics and log lines for the driver; `Host` sets it before `build`.
      built: what `build` has returned.
      counts: functions that give the newest counts of a worker of this process, which every `drain` fetches.
    """

    name: str
    context: RunContext
    index: int = 0
    attempt: int = 0
    reports: ReportBuffer = field(init=False, repr=False)
    built: Runnable | None = field(init=False, repr=False, default=None)
    counts: list[tuple[str, Callable[[], Mapping[str, float]]]] = field(init=False, repr=False, default_factory=list)

    @cached_property
    def book(self) -> AddressBook:
        """The addresses of shards and inference servers, which a thread of this process asks the directory for."""
        return AddressBook(partial(ask, self.context.directory))

    def build(self) -> Runnable | None:
        """Makes the object that this process runs; None if it only answers calls."""
        raise NotImplementedError

    def run(self) -> None:
        """Works until stopped; returns at once if the process only answers calls."""
        if self.built is not None:
            self.built.run()

    def stop(self) -> None:
        """Asks `run` to end; thread-safe, returns at once."""
        if self.built is not None:
            self.built.stop()

    def refresh(self) -> None:
        """Adds reports that the driver's `drain` is about to fetch."""


@dataclass(frozen=True, kw_only=True)
class Handle:
    """What a process holds of another `kind`: how it reaches its processes, and an edge of the figure."""

    kind: str
    receives: str = ""
    """What comes from there."""
    sends: str = ""
    """What goes there."""


@dataclass(frozen=True, kw_only=True)
class Replay(Handle):
    """The replay shards."""

    kind: str = "replay"

    def addresses(self, process: Process, rank: int = 0, hosts: int = 1) -> Callable[[], list[str]]:
        """Waits until the shards listen; returns a function that gives their current addresses, by index.

        Of several learner `hosts`, that of a rank reads every so many shards; other processes use all of them.
        """
        names = [f"replay-{index}" for index in range(process.context.experiment.replay_shards)]
        # The driver waits as long: with less, a replay that takes longer to restore could never be resumed.
        return process.book.await_servers(names[rank::hosts], BUILD_TIMEOUT_S)


@dataclass(frozen=True, kw_only=True)
class Parameters(Handle):
    """The parameters that the learner publishes."""

    kind: str = "learner"
    receives: str = "parameters"

    def source(self, process: Process) -> ParamSource:
        """The client of the parameter store."""
        from podzero.runtime.params import RayParamSource

        context, damaged = process.context, {"count/damaged_publications": 1.0}
        report = partial(process.reports.report, process.name, damaged)
        return RayParamSource(context.store, context.workdir.published, report)


@dataclass(frozen=True, kw_only=True)
class Servers(Handle):
    """The inference servers, in processes of their own or beside the learner."""

    receives: str = "policies, values"
    sends: str = "positions"

    def addresses(self, process: Process) -> Callable[[], Mapping[str, str]]:
        """A function that gives the addresses of those that are up, by name."""
        return partial(process.book.present, "inference")


@dataclass(frozen=True, kw_only=True)
class Snapshots(Handle):
    """The snapshots that the learner writes."""

    kind: str = "learner"
    receives: str = "snapshots"

    def folder(self, process: Process) -> Path:
        """The folder that holds them by step."""
        return process.context.workdir.snapshots


class Host:
    """The Ray actor that holds a process."""

    def __init__(self, process: Process) -> None:
        self.process = process
        os.environ.update(process.context.secrets)
        prepare_jax()  # nodes that joined have variables of their own
        # For `examined`: Linux may let only its parents read the memory of a process.
        ctypes.CDLL(None).prctl(0x59616D61, ctypes.c_ulong(-1), 0, 0, 0)  # PR_SET_PTRACER, PR_SET_PTRACER_ANY
        process.reports = ReportBuffer(process.name)
        logger = logging.getLogger("podzero")
        logger.setLevel(logging.INFO)
        logger.addHandler(process.reports)
        use_graphs(nvidia_driver())
        self._failure: Exception | None = None
        began = time.monotonic()
        try:
            code = process.context.workdir.code
            store_of(code).get(code)
            process.built = process.build()
        except Exception as failure:
            # `ready` raises it: Ray would report an exception here as a dead process, without its type.
            self._failure = failure
        else:
            log.info("built in %.1f s", time.monotonic() - began)
        self._freed_memory = FreedMemory() if "jax" in sys.modules else None

    def ready(self) -> None:
        """Returns once the process is built."""
        if self._failure is not None:
            raise self._failure

    def drain(self) -> list[MetricsReport | LogReport]:
        """Metrics and log lines since the last call; also returns freed memory to the system."""
        if self._failure is None:
            self.process.refresh()
            reports = self.process.reports
            if time.monotonic() - reports.reported_at > SILENT_S and (stage := waits_in()):
                reports.report(self.process.name, {f"time/{stage}": 1.0})
        if self._freed_memory is not None:
            self._freed_memory.give_back()
        # Also those of a worker that waits, and of one that has ended: its own reports do not come then.
        counts = [MetricsReport(time.time(), worker, dict(told())) for worker, told in self.process.counts]
        return self.process.reports.drain() + [report for report in counts if report.metrics]

    def trace(self, folder: Path, seconds: float) -> None:
        """Writes a profiler trace of the next `seconds` below `folder`, which xprof and TensorBoard read."""
        import jax

        jax.profiler.start_trace(folder)
        try:
            time.sleep(seconds)
        finally:
            jax.profiler.stop_trace()


@cache
def hosted(process: type[Process]) -> type[Host]:
    """`Host` with the name of a process class, which `ps` and Ray show, and its public methods."""
    methods = {
        name: _forwarded(name)
        for name in dir(process)
        if not name.startswith("_") and name not in ("build", "refresh") and callable(getattr(process, name))
    }
    return type(process.__name__, (Host,), methods)


def _forwarded(method: str) -> Callable[..., Any]:
    def call(self: Host, *args: Any) -> Any:
        self.ready()
        return getattr(self.process, method)(*args)

    call.__name__ = method
    return call


def own_devices(name: str, section: str, resources: Mapping[str, float]) -> list[jax.Device]:
    """All devices of a process, for which a section of the experiment reserves `resources`."""
    import jax

    start_cudnn(nvidia_driver())
    reserved = [resource for resource in resources if resource in ("GPU", "TPU")]
    if reserved and jax.default_backend() == "cpu":
        raise NoAccelerator(
            f"{name} has reserved a {reserved[0]} ({section}.resources), but JAX found only CPUs: the extra for it is "
            "missing there (`uv sync --inexact --extra cuda` or `--extra tpu`), or another process holds the chips"
        )
    return list(jax.local_devices())


class FreedMemory:
    """Returns the memory of compilations to the system: XLA frees about 150 MB, which glibc would keep."""

    def __init__(self, trim: Callable[[], object] = lambda: ctypes.CDLL(None).malloc_trim(0)) -> None:
        """Starts as if a program had just been compiled; `trim` (glibc's) returns empty pages to the system."""
        import jax

        self._trim = trim
        self._compiled_at: float | None = time.monotonic()
        jax.monitoring.register_event_duration_secs_listener(self._heard)

    def give_back(self) -> None:
        """Trims once after compilations have ceased for a while; call it now and then."""
        if self._compiled_at is not None and time.monotonic() - self._compiled_at > _QUIET_S:
            self._compiled_at = None
            self._trim()

    def _heard(self, event: str, duration_secs: float, **_: str | int) -> None:
        del duration_secs
        if event == _COMPILED:
            self._compiled_at = time.monotonic()
