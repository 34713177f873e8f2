"""`podzero train`: starts a run in a new working directory, or resumes the one that it holds."""

from __future__ import annotations

import json
import logging
import platform
import re
import time
from collections.abc import Iterable, Mapping, Sequence
from contextlib import ExitStack, suppress
from functools import partial
from importlib.metadata import version
from pathlib import Path
from types import MappingProxyType
from typing import Any, NamedTuple

from podzero.config import ChanceGameConfig, Experiment, GameConfig, Layers, OwnGameConfig
from podzero.core.errors import ConfigError
from podzero.core.machine import usable_cpus
from podzero.files.copies import Copies
from podzero.files.players import keep_teacher
from podzero.files.store import store_of
from podzero.files.workdir import Workdir, write_atomically
from podzero.runtime.cluster.placement import MEMORY, Node
from podzero.runtime.cluster.preflight import CPU_ONLY, RUN_VARIABLE
from podzero.runtime.cluster.ray_cluster import connect
from podzero.runtime.cluster.remote import current_node_id
from podzero.runtime.failures import first_start
from podzero.runtime.monitoring.alarm import open_alarm
from podzero.runtime.monitoring.goodput import PaidTime
from podzero.runtime.monitoring.log_file import log_to_file
from podzero.runtime.monitoring.status import record_paid, spent
from podzero.runtime.monitoring.view import TerminalView
from podzero.runtime.monitoring.writers import start_writers
from podzero.runtime.program import program
from podzero.runtime.run import STOPPED, Run
from podzero.runtime.saving import Saver
from podzero.runtime.start import start_workers
from podzero.runtime.stopping import StopSignals
from podzero.runtime.supervisor import Supervisor

log = logging.getLogger(__name__)

_ACCELERATORS = ("TPU", "GPU")
_ACCELERATOR_TYPE = "ray.io/accelerator-type"
"""Ray's label for the kind of a node's accelerators."""
_NAME = re.compile(r"[A-Za-z_]\w*", re.ASCII)
"""A name of an environment variable."""


class End(NamedTuple):
    """The end of a run that did not fail."""

    reason: str
    signal: int
    """The number of the signal that ended it; 0 if a limit was reached."""


def train(
    experiment: Experiment,
    root: str | Path,
    address: str | None,
    view: TerminalView,
    step: int | None = None,
    layers: Layers | None = None,
    secrets: Mapping[str, str] = MappingProxyType({}),
    packages: Sequence[str] = (),
) -> End:
    """Runs an experiment until one of its limits is reached, a signal arrives, or it fails.

    If the working directory holds checkpoints of this experiment, the run resumes from one of them.

    Args:
      experiment: what to run.
      root: the working directory.
      address: `host:port` of a Ray cluster to join; None starts one on this machine.
      view: shows the status.
      step: the step of the checkpoint to resume from; None takes the newest usable one.
      layers: the files that the experiment was read from; the working directory records what it inherits.
      secrets: environment variables that all processes get, by name.
      packages: requirements to install on nodes, beside those of the lock file, with `cluster.install_environment`.

    Raises:
      WorkdirError, ConfigError, ClusterError, RunFailed: the run cannot start or continue; the message says why.
      LastCheckpointFailed: the run ended in order, but its last checkpoint could not be written.
    """
    workdir, began = Workdir(root, works=True), time.monotonic()
    with ExitStack() as stack:
        signals = stack.enter_context(StopSignals())
        lock = stack.enter_context(workdir.lock())
        workdir.replace_copy()
        if store_of(workdir.root).remote:
            stack.callback(Copies(workdir.root, lock.check).close)
        workdir.check(experiment)
        stack.enter_context(log_to_file(workdir.log_file))
        stack.enter_context(view)
        alarm = stack.enter_context(open_alarm(experiment.metrics.alert, workdir.root.name))
        # A driver that was killed had written its status within the last seconds.
        paid = PaidTime(began, before := spent(workdir))
        if (most := experiment.most_hours) is not None:
            # A little later than `Run` finds the limit reached, which names it.
            signals.event.due_at = began + 3600 * most - sum(before.values()) + 1
        try:
            with signals.interrupting():  # whatever has started until then is ended by the stack
                if address is None and experiment.has_self_play:
                    from podzero.replay.process import server_python

                    server_python()  # builds the replay server's environment if it is missing, before anything waits
                writers = start_writers(experiment, workdir)
                for writer in writers:
                    stack.callback(writer.close)
                cpus = sum(kind.count * kind.cpus for kind in program(experiment))
                extras = environment_extras(experiment)
                cluster = stack.enter_context(connect(address, cpus, extras, packages))
                log.info("Ray has started; replay, learner and actors are started and build their programs")
                keep_teacher(experiment, workdir)
                experiment = workdir.keep_code(experiment)
                home = current_node_id()
                supervisor = Supervisor(cluster, experiment, workdir, signals.event, home, secrets, paid)
                stack.callback(supervisor.kill)
                checkpoint = first_start(lambda: start_workers(supervisor, workdir, step), signals.event)
                # Written last: a failed start leaves no trace.
                workdir.open(experiment, checkpoint.step if checkpoint else 0, layers)
                record_hardware(workdir, cluster.nodes(), home)
                saver = Saver(experiment, workdir)
                saver.confirm = partial(lock.check, True)
                stack.callback(saver.close)
                run = Run(experiment, workdir, supervisor, view, saver, writers, lock.check, alarm.look)
                stack.callback(run.close)
                run.begin(checkpoint)
        except (KeyboardInterrupt, Exception) as end:
            record_paid(workdir, paid.seconds(time.monotonic()))
            if isinstance(end, KeyboardInterrupt):
                return End(STOPPED, signals.number)
            raise
        reason = run.until_end(signals)
        alarm.tell(f"has ended: {reason}")
        return End(reason, signals.number if reason == STOPPED else 0)


def environment_extras(experiment: Experiment) -> list[str] | None:
    """The optional dependencies to install on all nodes; None if nothing is to be installed."""
    if not experiment.cluster.install_environment:
        return None
    envs = [] if isinstance(experiment.env, GameConfig | ChanceGameConfig | OwnGameConfig) else ["envs"]
    openvino = ["openvino"] if experiment.uses_openvino else []
    return envs + openvino + (["tpu"] if experiment.cluster.tpu else [])


def read_secrets(names: Iterable[str], environment: Mapping[str, str]) -> dict[str, str]:
    """The values of environment variables that all processes of a run get, such as a key to a service, by name.

    They travel as an argument of the processes. They are not in Ray's `runtime_env`, which Ray writes into its logs,
    nor in the working directory, nor in the arguments of a program, which `ps` shows; nor is a value in an error here.
    """
    found = {}
    for name in names:
        if "=" in name:
            raise ConfigError(
                f"--env {name.partition('=')[0]}=...: expected a name alone, since others could see a value there; "
                "export the variable before, and give its name"
            )
        if not _NAME.fullmatch(name):
            raise ConfigError(f"--env {name}: expected the name of an environment variable, such as API_KEY")
        if name in CPU_ONLY or name == RUN_VARIABLE or name.startswith("RAY_"):
            raise ConfigError(f"--env {name}: podzero and Ray set this variable themselves for each process")
        if name not in environment:
            raise ConfigError(f"--env {name}: this variable is not set here; set it before: export {name}=VALUE")
        found[name] = environment[name]
    return found


def record_hardware(workdir: Workdir, nodes: Sequence[Node], home: str) -> None:
    """Writes the hardware of the run's nodes into the hardware file; `home` is the id of the driver's.

    The preflight check ensures that all nodes have the driver's versions.
    """
    driver = {
        "processor": processor(Path("/proc/cpuinfo")),
        "podzero": version("podzero"),
        "Python": platform.python_version(),
        "JAX": version("jax"),
    }
    # A cluster started here has more CPUs than the machine if the run's processes share them.
    here = float(usable_cpus())
    found = [_node(node, min(here, node.cpus) if node.id == home else node.cpus) for node in nodes]
    try:
        write_atomically(workdir.hardware_file, json.dumps({"driver": driver, "nodes": found}) + "\n")
    except OSError as error:  # it is for reports alone
        log.warning("cannot write %s; training continues: %s", workdir.hardware_file, error)


def processor(cpu_info: Path) -> str:
    """The CPU's name from a file like `/proc/cpuinfo`, or its architecture."""
    with suppress(OSError):
        if found := re.search(r"^model name\s*:(.*)", cpu_info.read_text(encoding="utf-8"), re.MULTILINE):
            return found[1].strip()
    return platform.machine()


def _node(node: Node, cpus: float) -> dict[str, Any]:
    kind = node.labels.get(_ACCELERATOR_TYPE)
    found = {kind or name: node.resources[name] for name in _ACCELERATORS if node.resources.get(name)}
    return {
        "host": node.host,
        "cpus": cpus,
        "memory_gib": round(node.resources.get(MEMORY, 0.0) / 2**30, 1),
        "accelerators": {name: int(count) for name, count in found.items()},
    }
