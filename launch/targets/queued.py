"""Launches on a TPU slice alone, by Cloud TPU's queued resources; actors and replay run on the slice's hosts."""

from __future__ import annotations

import shlex

from podzero.config import Experiment
from podzero.core.errors import ConfigError
from podzero.launch.targets.machines import TpuHosts, memory_gib, tpu_hosts
from podzero.launch.targets.plan import (
    MOUNT,
    NOT_TRAINING,
    RUN_FILES,
    LaunchStep,
    Plan,
    Site,
    checks,
    deadline_s,
    name_of,
    run_files,
    run_on_head,
    send_variables,
    template,
    workdir_of,
)  # fmt: skip
from podzero.runtime.program import reserved_cpus

_TOKEN = LaunchStep(
    ("bash", "-c", "umask 077; test -s token || openssl rand -hex 32 | tr -d '\\n' > token"),
    "make the token that every process of the Ray cluster must present; only this folder and the machines hold it",
)
_IN_CONTAINER = "sudo docker exec podzero"
"""Prefix of a machine's shell commands that run in its container."""
_NO_RUN = f"! {_IN_CONTAINER} {run_on_head('running')}"
"""A command for the head's shell that succeeds if no run is under way, or no container is running."""
_NO_RUN_FAILURE = (
    "A run is under way on this cluster, or the head did not answer: see the output above. The machines and their Ray "
    "cluster were not changed. If the head did not answer, launch again; to start another run, launch with --down first"
)


def plan(experiment: Experiment, site: Site) -> Plan:
    """The plan for launching `experiment`."""
    hosts = tpu_hosts(experiment)
    if hosts.slices > 1:
        raise ConfigError(
            f"cluster.slices {hosts.slices}: `queued` creates one slice; launch with `podzero launch gke`, or set "
            "cluster.slices=1"
        )
    _check_room(experiment, hosts)
    resolved = experiment.changed(cluster={"actors_on_tpu_hosts": True})
    workdir, copied = workdir_of(experiment, site), run_files(resolved)
    settings = _environment(experiment, site, hosts, " ".join(copied))
    return Plan(
        files={"queued.env": settings, "queued.sh": template("queued.sh")} | copied,
        checks=checks(site, f"compute tpus accelerator-types describe {hosts.accelerator_type}"),
        machines=(hosts.words,),
        up=(
            _TOKEN,
            _step("create", why="request the slice, unless it was requested before"),
            _step("await", why="wait until the slice exists, which takes minutes or days"),
            _step("check", why="check that no run goes on: a new Ray cluster would end it", failure=_NO_RUN_FAILURE),
            _step("prepare", why="mount the share, fetch the image and copy the experiment, on every host"),
            _step("join", why="start the Ray cluster on all hosts"),
            *send_variables(site.env, 'bash queued.sh send "$podzero_file"'),
            _step("release", why="let the head delete the slice once the run has ended for good, unless it is kept"),
            _step(
                "run",
                "start",
                workdir,
                *site.env,
                why="start the run and wait until it trains, for at most half an hour",
                failure=NOT_TRAINING,
            ),
        ),
        status=_step("run", "status", workdir, why="show the state of the run"),
        logs=_step("run", "logs", workdir, why="show its log; with --follow until Ctrl-C"),
        stop=_step("stop", why="end the run with a checkpoint and wait until it has ended"),
        down=_step("delete", why="delete the slice and its request"),
        tools=("bash", "gcloud", "openssl"),
    )


def _step(*verb: str, why: str, failure: str = "") -> LaunchStep:
    return LaunchStep(("bash", "queued.sh", *verb), why, failure)


def _environment(experiment: Experiment, site: Site, hosts: TpuHosts, files: str) -> str:
    values = {
        "NAME": name_of(experiment),
        "PROJECT": site.project,
        "ZONE": site.zone,
        "ACCELERATOR": hosts.accelerator_type,
        "RUNTIME": hosts.runtime,
        "HOSTS": hosts.number,
        "IMAGE": site.image,
        "REGISTRY": site.registry,
        "FILES": files,
        "SHARE": site.share,
        "MOUNT": MOUNT,
        "NETWORK": site.network,
        "SUBNET": site.subnet,
        "ACCOUNT": site.worker_account,
        "SPOT": "yes" if site.spot else "",
        "RELEASE": "" if site.keep else "yes",
        "MOST_SECONDS": deadline_s(experiment) or 365 * 86400,
        "NO_RUN": _NO_RUN,
        # Without a container, or without `run.sh` in it, there is no run.
        "STOP": f"! {_IN_CONTAINER} test -e {RUN_FILES}/run.sh || "
        f"{_IN_CONTAINER} {run_on_head('stop', workdir_of(experiment, site))}",
    }
    return "".join(f"{name}={shlex.quote(str(value))}\n" for name, value in values.items())


def _check_room(experiment: Experiment, hosts: TpuHosts) -> None:
    """Checks that the slice's hosts have enough CPUs and memory, since there are no other machines."""
    cpus = sum(reserved_cpus(experiment))
    if cpus > hosts.number * hosts.cpus:
        raise ConfigError(
            f"actors, reanalysers and evaluator reserve {cpus:g} CPUs, but the {hosts.number} hosts of "
            f"{hosts.slice.short_name} have {hosts.number * hosts.cpus}: lower actors.count, or launch with a CPU pool "
            "(gke)"
        )
    memory = memory_gib(experiment)
    if memory > hosts.number * hosts.memory_gib:
        raise ConfigError(
            f"actors and replay need about {memory:,.0f} GiB, but the {hosts.number} hosts of {hosts.slice.short_name} "
            f"have {hosts.number * hosts.memory_gib:,}: lower replay.capacity or actors.count"
        )
