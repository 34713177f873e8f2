"""Launches on Google Cloud by Ray's cluster launcher: a head, CPU machines for actors and replay, and a TPU slice."""

from __future__ import annotations

import shlex
from typing import Any

from podzero.config import Experiment
from podzero.core.errors import ConfigError
from podzero.launch.targets.machines import Pool, TpuHosts, cpu_pool, tpu_hosts
from podzero.launch.targets.plan import (
    MOUNT,
    NO_RUN,
    NO_RUN_FAILURE,
    NOT_TRAINING,
    RUN_FILES,
    TOKEN,
    VARIABLES,
    LaunchStep,
    Plan,
    Site,
    name_of,
    only_if_found,
    run_files,
    run_on_head,
    send_variables,
    stop_on_host,
    to_yaml,
    workdir_of,
)  # fmt: skip

HEAD_MACHINE = "n2-standard-8"
WORKER_MACHINES = (2, 4, 8, 16, 32, 48, 64, 80, 96, 128)
"""The sizes of Google's `n2-standard` machines, in CPUs."""
_FIRST_AUTOSCALER = ("RAY_UP_enable_autoscaler_v2=0",)
"""Selects version 1 of Ray 2.60's autoscaler. Version 2 counts the hosts of a slice against `max_workers`, which is a
number of slices, and deletes hosts of healthy slices."""
HOST_COPIES = "/tmp/ray_tmp_mount"
"""The folder of a machine through which Ray's launcher copies files to the container."""
DISK_GB = 100
OS_IMAGE = "projects/ubuntu-os-cloud/global/images/family/ubuntu-2204-lts"
SCOPES = ["https://www.googleapis.com/auth/cloud-platform"]
"""All of Google Cloud; the service account's roles limit what a machine may do."""


def plan(experiment: Experiment, site: Site) -> Plan:
    """The plan for launching `experiment`.

    Raises:
      ConfigError: no slice is set, no machine has that number of CPUs, or an actor does not fit on a machine.
    """
    if site.worker_cpus not in WORKER_MACHINES:
        sizes = ", ".join(map(str, WORKER_MACHINES))
        raise ConfigError(f"--worker-cpus {site.worker_cpus}: n2-standard machines have {sizes} CPUs")
    pool, hosts = cpu_pool(experiment, site.worker_cpus), tpu_hosts(experiment)
    config = cluster(experiment, site, pool, hosts)
    workdir = workdir_of(experiment, site)

    def head(verb: str, *names: str) -> tuple[str, ...]:
        return ("ray", "exec", "cluster.yaml", run_on_head(verb, workdir, *names))

    def if_head_runs(command: str) -> tuple[str, ...]:
        on_host = ("ray", "exec", "--run-env", "host", "cluster.yaml", command)
        return only_if_found(_running_head(experiment, site), on_host, "no head is running, so no run is under way")

    return Plan(
        files={"cluster.yaml": to_yaml(config), **run_files(experiment)},
        machines=(f"1 {HEAD_MACHINE}: the head", f"{pool.workers} n2-standard-{pool.cpus}", hosts.words),
        up=(
            TOKEN,
            LaunchStep(
                if_head_runs(NO_RUN), "check that no run is under way: `ray up` would restart its Ray", NO_RUN_FAILURE
            ),
            LaunchStep(
                ("env", *_FIRST_AUTOSCALER, "ray", "up", "--yes", "cluster.yaml"),
                "create the head, which creates the other machines",
            ),
            *send_variables(site.env, _send(config["cluster_name"])),
            LaunchStep(
                head("start", *site.env),
                "start the run, which waits for the other machines, and wait until it trains, for at most half an hour",
                NOT_TRAINING,
            ),
        ),
        watch=(
            LaunchStep(head("status"), "show the state of the run"),
            LaunchStep(head("log"), "follow its log until Ctrl-C"),
            LaunchStep(("ray", "exec", "cluster.yaml", "ray status"), "list the machines that have joined"),
        ),
        stop=LaunchStep(
            if_head_runs(stop_on_host(workdir)), "end the run with a checkpoint and wait until it has ended"
        ),
        down=LaunchStep(
            ("ray", "down", "--yes", "cluster.yaml"),
            "delete all machines (`Docker stop failed` is harmless: only the head is reachable from here)",
        ),
        tools=("gcloud", "ray", "ssh", "rsync", "openssl"),
        modules=("googleapiclient",),
    )


def _send(name: str) -> str:
    """A command that copies the file of variables into the head's container."""
    # Ray's launcher first copies it to the machine, and leaves it there.
    copy = f"{HOST_COPIES}/{name}{VARIABLES}"
    remove = shlex.join(["ray", "exec", "--run-env", "host", "cluster.yaml", f"rm -f {copy}"])
    return f'sent=0; ray rsync-up cluster.yaml "$podzero_file" {VARIABLES} || sent=$?; {remove}; exit "$sent"'


def cluster(experiment: Experiment, site: Site, pool: Pool, hosts: TpuHosts) -> dict[str, Any]:
    """The cluster file for Ray's cluster launcher."""
    name = name_of(experiment)
    return {
        "cluster_name": name,
        "max_workers": pool.workers + 1,
        "provider": {
            "type": "gcp",
            "project_id": site.project,
            "region": site.region,
            "availability_zone": site.zone,
            # By default Ray only stops machines, whose disks still cost money.
            "cache_stopped_nodes": False,
            "use_internal_ips": True,
            "use_external_head_ip": True,
        },
        "auth": {"ssh_user": "ubuntu"},
        "docker": {
            "image": site.image,
            "container_name": "podzero",
            "pull_before_run": True,
            "run_options": [
                "--init",
                "--privileged",
                "--ulimit nofile=65536:65536",
                f"--volume {MOUNT}:{MOUNT}",
                "--env RAY_AUTH_MODE=token",
                f"--env RAY_AUTH_TOKEN_PATH={RUN_FILES}/token",
            ],
        },
        "head_node_type": "head",
        "available_node_types": {
            # Without CPUs, so that no worker is placed beside the driver.
            "head": {"resources": {"CPU": 0}, "node_config": _head(site)},
            "actors": {
                "min_workers": pool.workers,
                "max_workers": pool.workers,
                "resources": {"CPU": pool.cpus},
                "node_config": _worker(site, pool.cpus),
            },
            # One node for all hosts: the cluster launcher runs a node's commands on each host of a slice.
            "slice": {
                "min_workers": 1,
                "max_workers": 1,
                "resources": {"CPU": hosts.cpus, "TPU": hosts.chips},
                "node_config": _slice(site, hosts),
            },
        },
        "file_mounts": {RUN_FILES: "."},
        "initialization_commands": _prepare(site),
        "setup_commands": [],
        "head_setup_commands": [],
        "worker_setup_commands": [],
        "head_start_ray_commands": [
            "ray stop",
            "ulimit -n 65536; ray start --head --port=6379 --dashboard-host=127.0.0.1 "
            "--autoscaling-config=~/ray_bootstrap_config.yaml",
        ],
        "worker_start_ray_commands": ["ray stop", "ulimit -n 65536; ray start --address=$RAY_HEAD_IP:6379"],
    }


def _running_head(experiment: Experiment, site: Site) -> tuple[str, ...]:
    """A command that prints the head's name if the cluster launcher has set one up and it is running."""
    labels = {"ray-cluster-name": name_of(experiment), "ray-node-type": "head", "ray-node-status": "up-to-date"}
    conditions = [f"labels.{name}={value}" for name, value in labels.items()]
    assert site.project is not None
    assert site.zone is not None
    return (
        *("gcloud", "compute", "instances", "list", "--project", site.project, "--zones", site.zone),
        *("--filter", " AND ".join([*conditions, "status=RUNNING"]), "--format", "value(name)"),
    )


def _head(site: Site) -> dict[str, Any]:
    """The head, the only machine with an external address."""
    # No service account: Ray's cluster launcher then creates one that may create machines.
    machine = _machine(site, HEAD_MACHINE)
    machine["networkInterfaces"][0]["accessConfigs"] = [{"name": "External NAT", "type": "ONE_TO_ONE_NAT"}]
    return machine


def _worker(site: Site, cpus: int) -> dict[str, Any]:
    """A machine for actors and replay."""
    machine = _machine(site, f"n2-standard-{cpus}")
    machine["serviceAccounts"] = [{"email": site.worker_account, "scopes": SCOPES}]
    if site.spot:
        machine["scheduling"] = {"provisioningModel": "SPOT", "instanceTerminationAction": "DELETE"}
    return machine


def _machine(site: Site, machine_type: str) -> dict[str, Any]:
    """A Compute Engine machine without external address and without service account."""
    subnet = f"projects/{site.project}/regions/{site.region}/subnetworks/{site.subnet}"
    return {
        "machineType": machine_type,
        "disks": [
            {
                "boot": True,
                "autoDelete": True,
                "type": "PERSISTENT",
                "initializeParams": {"diskSizeGb": DISK_GB, "sourceImage": OS_IMAGE},
            }
        ],
        "networkInterfaces": [{"subnetwork": subnet}],
    }


def _slice(site: Site, hosts: TpuHosts) -> dict[str, Any]:
    """A Cloud TPU slice without external addresses."""
    tpu: dict[str, Any] = {
        "acceleratorType": hosts.accelerator_type,
        "runtimeVersion": hosts.runtime,
        "networkConfig": {"network": site.network, "subnetwork": site.subnet, "enableExternalIps": False},
        "serviceAccount": {"email": site.worker_account, "scope": SCOPES},
    }
    if site.spot:
        tpu["schedulingConfig"] = {"spot": True}
    return tpu


def _prepare(site: Site) -> list[str]:
    """Commands of each machine before its container starts: Docker, shared storage, access to the image."""
    # The updates of a new machine hold apt's lock for its first minutes.
    apt = "sudo apt-get -o DPkg::Lock::Timeout=300"
    commands = [
        f"{apt} update -q && {apt} install -q -y nfs-common",
        f"command -v docker || {apt} install -q -y docker.io",
        "sudo usermod -aG docker $USER",
        # nolock: no lock service is needed, and locks hold on one machine. Only the head locks a working directory.
        f"sudo mkdir -p {MOUNT} && (mountpoint -q {MOUNT} || sudo mount -o hard,nolock {site.share} {MOUNT})",
    ]
    if site.registry:
        commands.append(f"gcloud auth configure-docker {site.registry} --quiet")
    return commands
