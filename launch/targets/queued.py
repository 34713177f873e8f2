"""A bare slice, without Kubernetes and without further machines, asked for through Cloud TPU's queued resources.

Actors and replay live on the CPUs of the slice's own hosts.
"""

from __future__ import annotations

import shlex

from podzero.cluster.placement import reserved_cpus
from podzero.config import Experiment
from podzero.errors import ConfigError
from podzero.launch.targets.machines import TpuHosts, memory_gib, tpu_hosts
from podzero.launch.targets.plan import MOUNT, TOKEN, Plan, Site, Step, cargo, name_of, template, workdir_of


def plan(experiment: Experiment, site: Site) -> Plan:
    """The launch of `experiment`.

    Raises:
      ConfigError: no slice is set, or its hosts cannot hold the actors and replay.
    """
    hosts = tpu_hosts(experiment)
    _check_room(experiment, hosts)
    cluster = experiment.cluster.model_copy(update={"actors_on_tpu_hosts": True})
    resolved = experiment.model_copy(update={"cluster": cluster})
    workdir = workdir_of(experiment, site)
    return Plan(
        files={"queued.env": _environment(experiment, site, hosts), "queued.sh": template("queued.sh")}
        | cargo(resolved),
        up=(
            TOKEN,
            _step("create", "ask for the slice"),
            _step("await", "wait for it, for minutes or days"),
            _step("prepare", "storage, image and experiment onto every host"),
            _step("join", "make the hosts one Ray cluster"),
            _step(f"run start {workdir}", "start the run"),
        ),
        watch=(_step(f"run status {workdir}", "what the run does"), _step(f"run log {workdir}", "its log")),
        down=(
            _step(f"run stop {workdir}", "end the run with a savepoint"),
            _step("delete", "give the slice back"),
        ),
        tools=("bash", "gcloud", "openssl"),
    )


def _step(verb: str, why: str) -> Step:
    return Step(("bash", "queued.sh", *verb.split()), why)


def _environment(experiment: Experiment, site: Site, hosts: TpuHosts) -> str:
    values = {
        "NAME": name_of(experiment),
        "PROJECT": site.project,
        "ZONE": site.zone,
        "ACCELERATOR": hosts.accelerator_type,
        "RUNTIME": hosts.generation.runtime,
        "HOSTS": hosts.number,
        "IMAGE": site.image,
        "REGISTRY": site.registry,
        "SHARE": site.share,
        "MOUNT": MOUNT,
        "NETWORK": site.network,
        "SUBNET": site.subnet,
        "ACCOUNT": site.account,
        "SPOT": "yes" if site.spot else "",
    }
    return "".join(f"{name}={shlex.quote(str(value))}\n" for name, value in values.items())


def _check_room(experiment: Experiment, hosts: TpuHosts) -> None:
    """The slice's hosts are all the machines there are."""
    cpus = sum(reserved_cpus(experiment))
    if cpus > hosts.number * hosts.cpus:
        raise ConfigError(
            f"actors, reanalysers and evaluator reserve {cpus:g} CPUs, the {hosts.number} hosts of "
            f"{hosts.slice.short_name} have {hosts.number * hosts.cpus}: lower actors.count, or launch with a CPU pool "
            "(gcp, gke)"
        )
    memory = memory_gib(experiment)
    if memory > hosts.number * hosts.memory_gib:
        raise ConfigError(
            f"actors and replay take about {memory:,.0f} GiB, the {hosts.number} hosts of {hosts.slice.short_name} "
            f"have {hosts.number * hosts.memory_gib:,}: lower replay.capacity or actors.count"
        )
