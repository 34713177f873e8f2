"""Starts Ray: a cluster of one node on this machine; keeps signals for the driver away from Ray."""

from __future__ import annotations

import logging
import math
import os
import resource
import secrets
import signal
import socket
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import AbstractContextManager, ExitStack, closing, contextmanager, suppress
from functools import partial
from types import FrameType
from typing import Any

import psutil
from ray._common import utils as common
from ray._private import accelerators, ray_constants, services, utils, worker
from ray._private.authentication.authentication_token_setup import AuthenticationTokenLoader, Config
from ray._private.node import Node
from ray.cluster_utils import Cluster as RayNodes

from podzero.core.errors import ClusterError, ConfigError
from podzero.runtime.cluster.preflight import check_session_folder, session_folder

log = logging.getLogger(__name__)

OBJECT_STORE_BYTES = 256 * 2**20
"""Object store of a cluster started here: enough for a few versions of a network that trains on one machine."""
LOOPBACK = "127.0.0.1"
"""The address of a node started here: Ray's processes then listen nowhere else."""
Handler = Callable[[int, FrameType | None], Any]
"""A signal handler of Python's."""
EXIT_S = 10.0
"""Longest wait for Ray's processes at the end; one of them may wait for itself for ever, in the library's own exit."""
_KILL_S = 5.0
_POLL_S = 0.05
START_ATTEMPTS = 3
"""Attempts to start a cluster on this machine."""
LEAST_FILES = 1024
"""Files that each process of a run must be able to open at once; with a tenth of it Ray does not even start."""

RAY_SETTINGS = {
    "RAY_USAGE_STATS_ENABLED": "0",
    # By default Ray's head remembers the last 100,000 calls of actors, which take 250 MB after three hours.
    "RAY_task_events_report_interval_ms": "0",
    # By default each process of Ray writes statistics of its event loops to its log every minute.
    "RAY_event_stats": "0",
    # By default each also collects metrics, which nothing here reads and for which its memory grows slowly.
    "RAY_enable_metrics_collection": "0",
    # By default each log of Ray, of which every process has one, may take 600 MB.
    "RAY_ROTATION_MAX_BYTES": str(4 * 2**20),
    "RAY_ROTATION_BACKUP_COUNT": "1",
    # By default Ray hides all accelerators from processes that reserve none, such as a learner on one machine.
    "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0",
}
"""Environment variables of a cluster started here, unless the user has set them."""


@contextmanager
def _replaced(*attributes: tuple[Any, str, Any]) -> Iterator[None]:
    """In this context, attributes of Ray's modules, each given as object, name and value, have these values."""
    before = [(owner, name, getattr(owner, name)) for owner, name, _ in attributes]
    for owner, name, value in attributes:
        setattr(owner, name, value)
    try:
        yield
    finally:
        for owner, name, value in before:
            setattr(owner, name, value)


def separate_signals() -> AbstractContextManager[None]:
    """In this context, Ray's processes start in sessions of their own, and Ray keeps the caller's SIGTERM handler.

    A terminal sends signals to the driver's whole process group; processes in other sessions do not receive them. Ray's
    own SIGTERM handler would end Ray's processes, and the driver would wait for their answers in vain.
    """
    set_handler = utils.set_sigterm_handler

    def set_if_default(handler: Any) -> None:
        if signal.getsignal(signal.SIGTERM) is signal.SIG_DFL:
            set_handler(handler)

    popen = partial(services.ConsolePopen, start_new_session=True)
    return _replaced((services, "ConsolePopen", popen), (utils, "set_sigterm_handler", set_if_default))


@contextmanager
def deferred_signals() -> Iterator[None]:
    """In this context of the main thread, SIGINT, SIGTERM and SIGHUP with a handler are delivered at its end.

    If a handler raised an exception while Ray constructs its core worker, Ray would not shut that worker down, and it
    would abort the process at its end (exit code 134).
    """
    received: list[int] = []
    deferred = True

    def handle(number: int, frame: FrameType | None) -> None:
        if deferred:
            received.append(number)
        else:  # a handler has interrupted the loop that restores them
            handlers[number](number, frame)

    handlers = own_handlers()
    restore_handlers(dict.fromkeys(handlers, handle))
    try:
        yield
    finally:
        deferred = False
        restore_handlers(handlers)
        if signal.SIGTERM in received:
            signal.alarm(0)  # Ray's handler, if it was there already, would abort this process after three seconds
        if received:
            signal.raise_signal(received[0])


def own_handlers() -> dict[int, Handler]:
    """The handlers of SIGINT, SIGTERM and SIGHUP, of those that have any; none in other threads than the main one."""
    if threading.current_thread() is not threading.main_thread():
        return {}
    found = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)}
    return {int(number): handler for number, handler in found.items() if callable(handler)}


def restore_handlers(handlers: Mapping[int, Handler]) -> None:
    """Installs handlers again; Ray's library takes away that of SIGTERM when it shuts down, unseen by Python."""
    for number, handler in handlers.items():
        signal.signal(number, handler)


def allow_files() -> None:
    """Lets this process and those that it starts open `LEAST_FILES` files at once, or says that they may not."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if 0 <= hard < LEAST_FILES:  # -1 is no limit
        raise ConfigError(
            f"a process may open only {hard} files at once here, and a run needs {LEAST_FILES:,}: raise the limit, for "
            "example with `ulimit -Hn 65536` as root, or in /etc/security/limits.conf"
        )
    if 0 <= soft < LEAST_FILES:
        resource.setrlimit(resource.RLIMIT_NOFILE, (LEAST_FILES, hard))


@contextmanager
def local_cluster(cpus: float) -> Iterator[tuple[str, Callable[[], bool]]]:
    """Starts a cluster of at least `cpus` CPUs on this machine as long as the context lasts.

    Yields its address, and a function that tells whether its head has ended.
    """
    check_session_folder(session_folder())
    allow_files()
    for name, value in RAY_SETTINGS.items():
        os.environ.setdefault(name, value)
    # Otherwise `ray.init` would replace the loopback address by another one of this machine.
    with _token_required(), _replaced((ray_constants, "ENABLE_RAY_CLUSTER", False)):
        nodes = _start_node(max(cpus, float(os.cpu_count() or 1)))
        try:
            head = nodes.head_node.all_processes["gcs_server"][0].process
            yield str(nodes.address), lambda: head.poll() is not None
        finally:
            workers = _workers(nodes)
            with _unlisted():
                nodes.shutdown()
            _end(workers, EXIT_S)


def _workers(nodes: Any) -> list[psutil.Process]:
    """The processes below the raylet of a cluster started here."""
    with suppress(psutil.NoSuchProcess):
        return psutil.Process(nodes.head_node.all_processes["raylet"][0].process.pid).children(recursive=True)
    return []


def _end(processes: Iterable[psutil.Process], grace_s: float) -> None:
    """Kills the processes that have not ended after a while."""
    left = _running(processes, grace_s)
    for process in left:
        with suppress(psutil.NoSuchProcess):
            process.kill()
    _running(left, _KILL_S)


def _running(processes: Iterable[psutil.Process], longest_s: float) -> list[psutil.Process]:
    """Waits for processes to end; returns those that run on. A zombie has ended: containers often have nobody who asks
    for the exit codes of orphans.
    """
    until = time.monotonic() + longest_s
    while True:
        _, left = psutil.wait_procs(list(processes), timeout=0)  # takes the exit codes of this process's children
        left = [process for process in left if _runs(process)]
        if not left or time.monotonic() >= until:
            return left
        time.sleep(_POLL_S)


def _runs(process: psutil.Process) -> bool:
    with suppress(psutil.NoSuchProcess):
        return process.is_running() and process.status() != psutil.STATUS_ZOMBIE
    return False


@contextmanager
def _token_required() -> Iterator[None]:
    """Makes Ray require a token while the context lasts, unless the environment says otherwise.

    Afterwards this process can again join clusters that use no token.
    """
    added = {"RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN": secrets.token_hex(32)}
    added = {name: value for name, value in added.items() if name not in os.environ}
    os.environ.update(added)
    _reload_ray_settings()
    try:
        yield
    finally:
        for name in added:
            os.environ.pop(name, None)
        _reload_ray_settings()


def _reload_ray_settings() -> None:
    """Makes Ray read its settings and token again; by itself it reads them only once."""
    Config.initialize("")
    AuthenticationTokenLoader.instance().reset_cache()


def _unlisted() -> AbstractContextManager[None]:
    """In this context, Ray leaves alone its record of the machine's newest cluster, which `--address auto` means."""
    return _replaced((utils, "write_ray_address", _nothing), (common, "reset_ray_address", _nothing))


def _without_dashboard() -> AbstractContextManager[None]:
    """In this context, Ray starts no dashboard and of its agent the least: each takes a second of processor time.

    `include_dashboard` leaves out a part of the dashboard alone.
    """
    missing = "get_dashboard_dependency_error"
    return _replaced((Node, "start_api_server", _nothing), (utils, missing, lambda: ImportError("left out")))


def errors_in_log() -> AbstractContextManager[None]:
    """In this context, what Ray says of processes that it restarts goes to the log instead of the driver's screen."""
    return _replaced((worker, "print_to_stdstream", _log_lines))


def _log_lines(said: Mapping[str, Any], **_: Any) -> None:
    for line in said["lines"]:
        log.info("Ray: %.400s", line)  # advice of a page follows


def _nothing(*_: Any, **__: Any) -> None:
    """Stands in for a function of Ray's."""


def _start_node(cpus: float) -> Any:
    """Starts Ray in several attempts: a raylet gives up if its agents take more than 15 s."""
    driver = psutil.Process()
    for attempt in range(1, START_ATTEMPTS + 1):
        before = set(driver.children(recursive=True))
        try:
            with separate_signals(), _unlisted(), _without_dashboard():
                return RayNodes(initialize_head=True, head_node_args=local_node(cpus) | {"node_ip_address": LOOPBACK})
        except BaseException as failure:  # Ray raises nothing more specific
            _end(set(driver.children(recursive=True)) - before, 0.0)  # Ray leaves behind what it had started
            if not isinstance(failure, Exception):
                raise
            log.warning("Ray did not start (attempt %d of %d): %s", attempt, START_ATTEMPTS, failure)
            cause = failure
    raise ClusterError(f"Ray did not start on this machine in {START_ATTEMPTS} attempts: {cause}")


def local_node(cpus: float) -> dict[str, Any]:
    """Arguments of a Ray node on this machine.

    The agents' ports are fixed beforehand: a raylet that must learn them from a slow agent gives up after 15 s.
    """
    names = ("metrics_agent_port", "metrics_export_port", "dashboard_agent_listen_port", "runtime_env_agent_port")
    return {
        "num_cpus": math.ceil(cpus),  # Ray takes whole numbers only
        "num_gpus": _gpus(),  # `ray.cluster_utils` assumes none
        "include_dashboard": False,
        "include_log_monitor": False,  # nobody reads its output, and it takes a tenth of a core
        "no_monitor": True,  # the autoscaler
        "object_store_memory": OBJECT_STORE_BYTES,
        **dict(zip(names, free_ports(len(names)), strict=True)),
    }


def _gpus() -> int:
    """The GPUs of this machine, without those that `CUDA_VISIBLE_DEVICES` or its like hides."""
    kind: Any = accelerators.get_accelerator_manager_for_resource("GPU")
    found: int = kind.get_current_node_num_accelerators()
    visible = kind.get_current_process_visible_accelerator_ids()
    return found if visible is None else min(found, len(visible))


def free_ports(count: int) -> list[int]:
    """Ports on which no process listens at this moment."""
    with ExitStack() as stack:
        sockets = [stack.enter_context(closing(socket.socket())) for _ in range(count)]
        for one in sockets:
            one.bind(("", 0))
        return [int(one.getsockname()[1]) for one in sockets]
