"""Launches on Google Kubernetes Engine by KubeRay: a RayCluster with a CPU group and a multi-host TPU group.

This needs an Autopilot cluster with the Ray operator. Autopilot creates the nodes for the pods and deletes them later.
"""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from importlib.metadata import version
from typing import Any

import yaml

from podzero.config import Experiment
from podzero.launch.targets.machines import Pool, TpuHosts, cpu_pool, disk_gib, tpu_hosts
from podzero.launch.targets.plan import (
    MOUNT,
    NOT_TRAINING,
    RUN_FILES,
    LaunchStep,
    Plan,
    Site,
    name_of,
    run_files,
    run_on_head,
    send_variables,
    workdir_of,
)  # fmt: skip

HEAD = {"cpu": "4", "memory": "16Gi"}
_RUNNING = ("--field-selector", "status.phase=Running", "--output", "name")
_SPOT = {"cloud.google.com/gke-spot": "true"}
_NOT_EVICTED = {"cluster-autoscaler.kubernetes.io/safe-to-evict": "false"}
"""Keeps Autopilot from evicting a pod to scale down and, for seven days, to upgrade its node; not for spot pods
(https://cloud.google.com/kubernetes-engine/docs/how-to/extended-duration-pods)."""
SHARE_OF_HOST = 0.75
"""Share of a TPU host's CPUs and memory that its pod requests; Kubernetes' own pods need the rest."""


def plan(experiment: Experiment, site: Site) -> Plan:
    """The plan for launching `experiment`."""
    name, workdir = name_of(experiment), workdir_of(experiment, site)
    pool, hosts = cpu_pool(experiment, site.worker_cpus), tpu_hosts(experiment)
    things = [
        *_storage(name, site),
        {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": name}, "data": run_files(experiment)},
        ray_cluster(name, site, pool, hosts, disk_gib(experiment)),
    ]

    assert site.project is not None
    # Name the context that get-credentials makes, so that no command acts on whichever cluster is the current one.
    kubectl = ("kubectl", "--context", f"gke_{site.project}_{site.region}_{site.cluster}")
    pods = (*kubectl, "get", "pods", "--selector", f"ray.io/cluster={name}")

    def head(verb: str, *arguments: str, options: tuple[str, ...] = ()) -> tuple[str, ...]:
        on_head = (*kubectl, "exec", *options, f"service/{name}-head-svc", "--container", "ray-head", "--")
        return (*on_head, *run_on_head(verb, workdir, *arguments).split())

    running_head = (*pods[:-1], f"{pods[-1]},ray.io/node-type=head", *_RUNNING)
    stop = _only_if_found(running_head, head("stop"), "no head is running, so no run is under way")
    credentials = ("gcloud", "container", "clusters", "get-credentials", site.cluster)
    return Plan(
        files={"cluster.yaml": yaml.dump_all(things, Dumper=_ReadableDumper, sort_keys=False, width=120)},
        machines=(
            f"1 pod of {HEAD['cpu']} CPUs: the head",
            f"{pool.workers} pods of {pool.cpus} CPUs and {pool.memory_gib} GiB",
            hosts.words,
        ),
        up=(
            LaunchStep(
                (*credentials, "--project", site.project, "--location", site.region), "give kubectl access to GKE"
            ),
            LaunchStep(
                (*kubectl, "apply", "--filename", "cluster.yaml"), "create storage and pods; GKE creates their machines"
            ),
            LaunchStep(
                (*kubectl, "wait", "--for=condition=RayClusterProvisioned", f"raycluster/{name}", "--timeout=3600s"),
                "wait until all pods are ready",
            ),
            *send_variables(site.env, f'{shlex.join(head("receive", options=("--stdin",)))} <"$podzero_file"'),
            LaunchStep(
                head("start", *site.env),
                "start the run and wait until it trains, for at most half an hour",
                NOT_TRAINING,
            ),
        ),
        watch=(
            LaunchStep(head("status"), "show the state of the run"),
            LaunchStep(head("log"), "follow its log until Ctrl-C"),
            LaunchStep(pods, "list the pods of the cluster"),
        ),
        stop=LaunchStep(stop, "end the run with a checkpoint and wait until it has ended"),
        down=LaunchStep(
            (*kubectl, "delete", "--filename", "cluster.yaml", "--ignore-not-found"),
            "delete the pods, after which GKE deletes their machines; files on the share stay",
        ),
        tools=("gcloud", "kubectl"),
    )


def ray_cluster(name: str, site: Site, pool: Pool, hosts: TpuHosts, disk_gib: int) -> dict[str, Any]:
    """The RayCluster; each pod requests `disk_gib` GiB of disk."""
    disk = {"ephemeral-storage": f"{disk_gib}Gi"}
    actors = disk | {"cpu": str(pool.cpus), "memory": f"{pool.memory_gib}Gi"}
    slice_host = disk | {
        "cpu": str(int(SHARE_OF_HOST * hosts.cpus)),
        "memory": f"{int(SHARE_OF_HOST * hosts.memory_gib)}Gi",
        "google.com/tpu": str(hosts.chips),
    }
    tpu_nodes = {
        "cloud.google.com/gke-tpu-accelerator": hosts.generation.gke,
        "cloud.google.com/gke-tpu-topology": "x".join(map(str, hosts.slice.shape)),
    }
    return {
        "apiVersion": "ray.io/v1",
        "kind": "RayCluster",
        "metadata": {"name": name},
        "spec": {
            "rayVersion": version("ray"),
            # KubeRay (since 1.5.1) makes the token and gives it to every container.
            "authOptions": {"mode": "token"},
            "headGroupSpec": {
                # Without CPUs, so that no worker is placed beside the driver.
                "rayStartParams": {"num-cpus": "0"},
                "template": _pod("ray-head", name, site, disk | HEAD, {}, spot=False),
            },
            "workerGroupSpecs": [
                _group("actors", pool.workers, 1, _pod("ray-worker", name, site, actors, {}, site.spot)),
                _group("slice", 1, hosts.number, _pod("ray-worker", name, site, slice_host, tpu_nodes, site.spot)),
            ],
        },
    }


def _group(name: str, replicas: int, hosts: int, pod: dict[str, Any]) -> dict[str, Any]:
    """A worker group of fixed size, with `hosts` pods per replica."""
    return {
        "groupName": name,
        "replicas": replicas,
        "minReplicas": replicas,
        "maxReplicas": replicas,
        "numOfHosts": hosts,
        "rayStartParams": {},
        "template": pod,
    }


def _pod(
    container: str, name: str, site: Site, resources: dict[str, str], nodes: dict[str, str], spot: bool
) -> dict[str, Any]:
    """The template of a pod with one container that mounts the share and the experiment."""
    spec = {
        "nodeSelector": {"topology.kubernetes.io/zone": site.zone, **nodes, **(_SPOT if spot else {})},
        "terminationGracePeriodSeconds": 60,
        "containers": [
            {
                "name": container,
                "image": site.image,
                "resources": {"requests": dict(resources), "limits": dict(resources)},
                "volumeMounts": [
                    {"name": "share", "mountPath": MOUNT},
                    {"name": "run-files", "mountPath": RUN_FILES, "readOnly": True},
                ],
            }
        ],
        "volumes": [
            {"name": "share", "persistentVolumeClaim": {"claimName": name}},
            {"name": "run-files", "configMap": {"name": name}},
        ],
    }
    return {"spec": spec} if spot else {"metadata": {"annotations": _NOT_EVICTED}, "spec": spec}


def _storage(name: str, site: Site) -> list[dict[str, Any]]:
    """A volume for the share and a claim on it."""
    assert site.share is not None
    server, _, path = site.share.partition(":")
    # With a class, Kubernetes would make another volume for the claim. The size is required, and NFS ignores it.
    common = {"accessModes": ["ReadWriteMany"], "storageClassName": ""}
    volume = {
        **common,
        "capacity": {"storage": "1Ti"},
        # Deleting the volume keeps the files on the share.
        "persistentVolumeReclaimPolicy": "Retain",
        "mountOptions": ["hard", "nolock"],
        "nfs": {"server": server, "path": path},
    }
    claim = {**common, "resources": {"requests": {"storage": "1Ti"}}, "volumeName": name}
    return [
        {"apiVersion": "v1", "kind": "PersistentVolume", "metadata": {"name": name}, "spec": volume},
        {"apiVersion": "v1", "kind": "PersistentVolumeClaim", "metadata": {"name": name}, "spec": claim},
    ]


def _only_if_found(query: Sequence[str], command: Sequence[str], otherwise: str) -> tuple[str, ...]:
    """A command that runs `command` if `query` prints anything, else prints `otherwise`; fails if `query` fails."""
    return (
        "bash",
        "-c",
        f'found=$({shlex.join(query)}) && if [ -n "$found" ]; then {shlex.join(command)}; '
        f"else echo {shlex.quote(otherwise)}; fi",
    )


class _ReadableDumper(yaml.SafeDumper):
    """Without anchors, and with texts of several lines as blocks."""

    def ignore_aliases(self, data: Any) -> bool:
        return True

    def represent_text(self, data: str) -> yaml.ScalarNode:
        return self.represent_scalar("tag:yaml.org,2002:str", data, style="|" if "\n" in data else None)


_ReadableDumper.add_representer(str, _ReadableDumper.represent_text)
