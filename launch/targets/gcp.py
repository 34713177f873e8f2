"""Google Cloud through Ray's cluster launcher: a head, a pool of CPU machines for actors and replay, a TPU slice.

To Ray's launcher a whole slice is one node: it runs its commands on every host of it.
"""

from __future__ import annotations

from typing import Any

from podzero.config import Experiment
from podzero.errors import ConfigError
from podzero.launch.targets.machines import Pool, TpuHosts, cpu_pool, tpu_hosts
from podzero.launch.targets.plan import (
    CARGO,
    MOUNT,
    TOKEN,
    Plan,
    Site,
    Step,
    cargo,
    name_of,
    run_on_head,
    to_yaml,
    workdir_of,
)  # fmt: skip

HEAD_MACHINE = "n2-standard-8"
WORKER_MACHINES = (2, 4, 8, 16, 32, 48, 64, 80, 96, 128)
"""The sizes of Google's `n2-standard` machines, in CPUs."""
DISK_GB = 100
OS_IMAGE = "projects/ubuntu-os-cloud/global/images/family/ubuntu-2204-lts"
SCOPES = ["https://www.googleapis.com/auth/cloud-platform"]


def plan(experiment: Experiment, site: Site) -> Plan:
    """The launch of `experiment`.

    Raises:
      ConfigError: no slice is set, there are no such workers, or an actor does not fit on one.
    """
    if site.worker_cpus not in WORKER_MACHINES:
        sizes = ", ".join(map(str, WORKER_MACHINES))
        raise ConfigError(f"--worker-cpus {site.worker_cpus}: n2-standard machines have {sizes} CPUs")
    config = cluster(experiment, site, cpu_pool(experiment, site.worker_cpus), tpu_hosts(experiment))
    workdir = workdir_of(experiment, site)

    def head(verb: str) -> tuple[str, ...]:
        return ("ray", "exec", "cluster.yaml", run_on_head(verb, workdir))

    return Plan(
        files={"cluster.yaml": to_yaml(config), **cargo(experiment)},
        up=(
            TOKEN,
            Step(("ray", "up", "--yes", "cluster.yaml"), "bring up the head, which brings up the others"),
            Step(head("start"), "start the run; it waits for machines that are still on their way"),
        ),
        watch=(
            Step(head("status"), "what the run does"),
            Step(head("log"), "its log, until Ctrl-C"),
            Step(("ray", "exec", "cluster.yaml", "ray status"), "which machines have joined"),
        ),
        down=(
            Step(head("stop"), "end the run with a savepoint"),
            Step(("ray", "down", "--yes", "cluster.yaml"), "give all machines back"),
        ),
        tools=("ray", "ssh", "rsync", "openssl"),
        modules=("googleapiclient",),
    )


def cluster(experiment: Experiment, site: Site, pool: Pool, hosts: TpuHosts) -> dict[str, Any]:
    """The file of Ray's cluster launcher, as a tree."""
    name = name_of(experiment)
    return {
        "cluster_name": name,
        "max_workers": pool.workers + 1,
        "provider": {
            "type": "gcp",
            "project_id": site.project,
            "region": site.region,
            "availability_zone": site.zone,
            "cache_stopped_nodes": False,
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
                f"--env RAY_AUTH_TOKEN_PATH={CARGO}/token",
            ],
        },
        "head_node_type": "head",
        "available_node_types": {
            "head": {
                "resources": {"CPU": 0},
                "node_config": _machine(site, HEAD_MACHINE) | {"serviceAccounts": _account(site)},
            },
            "actors": {
                "min_workers": pool.workers,
                "max_workers": pool.workers,
                "resources": {"CPU": pool.cpus},
                "node_config": _machine(site, f"n2-standard-{pool.cpus}", spot=site.spot)
                | {"serviceAccounts": _account(site)},
            },
            "slice": {
                "min_workers": 1,
                "max_workers": 1,
                "resources": {"CPU": hosts.cpus, "TPU": hosts.chips},
                "node_config": _slice(site, hosts),
            },
        },
        "file_mounts": {CARGO: "."},
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


def _machine(site: Site, kind: str, spot: bool = False) -> dict[str, Any]:
    """A machine of Compute Engine."""
    subnet = f"projects/{site.project}/regions/{site.region}/subnetworks/{site.subnet}"
    machine: dict[str, Any] = {
        "machineType": kind,
        "disks": [
            {
                "boot": True,
                "autoDelete": True,
                "type": "PERSISTENT",
                "initializeParams": {"diskSizeGb": DISK_GB, "sourceImage": OS_IMAGE},
            }
        ],
        "networkInterfaces": [
            {"subnetwork": subnet, "accessConfigs": [{"name": "External NAT", "type": "ONE_TO_ONE_NAT"}]}
        ],
    }
    if spot:
        machine["scheduling"] = {"provisioningModel": "SPOT", "instanceTerminationAction": "DELETE"}
    return machine


def _slice(site: Site, hosts: TpuHosts) -> dict[str, Any]:
    """A slice of Cloud TPU."""
    tpu: dict[str, Any] = {
        "acceleratorType": hosts.accelerator_type,
        "runtimeVersion": hosts.generation.runtime,
        "networkConfig": {"network": site.network, "subnetwork": site.subnet, "enableExternalIps": True},
        "serviceAccount": {"email": site.account, "scope": SCOPES},
    }
    if site.spot:
        tpu["schedulingConfig"] = {"spot": True}
    return tpu


def _account(site: Site) -> list[dict[str, Any]]:
    return [{"email": site.account, "scopes": SCOPES}]


def _prepare(site: Site) -> list[str]:
    """What each machine does before its container starts: Docker, the shared storage, access to the image."""
    apt = "sudo apt-get -o DPkg::Lock::Timeout=300"
    commands = [
        f"{apt} update -q && {apt} install -q -y nfs-common",
        f"command -v docker || {apt} install -q -y docker.io",
        "sudo usermod -aG docker $USER",
        f"sudo mkdir -p {MOUNT} && (mountpoint -q {MOUNT} || sudo mount -o hard,nolock {site.share} {MOUNT})",
    ]
    if site.registry:
        commands.append(f"gcloud auth configure-docker {site.registry} --quiet")
    return commands
