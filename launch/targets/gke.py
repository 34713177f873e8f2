"""Google Kubernetes Engine through KubeRay: a RayCluster with a CPU group and a multi-host TPU group.

Written for an Autopilot cluster with the Ray operator: it makes the nodes that the pods ask for, and takes them back.
KubeRay makes the token and hands it to every container (`authOptions`, from KubeRay 1.5.1 on).
"""

from __future__ import annotations

from importlib.metadata import version
from typing import Any

from podzero.config import Experiment
from podzero.launch.targets.machines import Pool, TpuHosts, cpu_pool, tpu_hosts
from podzero.launch.targets.plan import CARGO, MOUNT, Plan, Site, Step, cargo, name_of, run_on_head, to_yaml, workdir_of

HEAD = {"cpu": "4", "memory": "16Gi"}
SHARE_OF_HOST = 0.75
"""Of a TPU host's CPUs and memory that its pod asks for: the rest is for Kubernetes' own pods."""


def plan(experiment: Experiment, site: Site) -> Plan:
    """The launch of `experiment`.

    Raises:
      ConfigError: no slice is set, or an actor does not fit on a worker.
    """
    name, workdir = name_of(experiment), workdir_of(experiment, site)
    things = [
        *_storage(name, site),
        _cargo(name, experiment),
        ray_cluster(name, site, cpu_pool(experiment, site.worker_cpus), tpu_hosts(experiment)),
    ]

    def head(verb: str) -> tuple[str, ...]:
        on_head = ("kubectl", "exec", f"service/{name}-head-svc", "--container", "ray-head", "--")
        return (*on_head, *run_on_head(verb, workdir).split())

    assert site.project is not None
    credentials = ("gcloud", "container", "clusters", "get-credentials", site.cluster)
    return Plan(
        files={"cluster.yaml": to_yaml(*things)},
        up=(
            Step((*credentials, "--project", site.project, "--location", site.region), "let kubectl find the cluster"),
            Step(("kubectl", "apply", "--filename", "cluster.yaml"), "ask for storage, pods and thereby machines"),
            Step(
                ("kubectl", "wait", "--for=condition=RayClusterProvisioned", f"raycluster/{name}", "--timeout=3600s"),
                "wait for all of them",
            ),
            Step(head("start"), "start the run"),
        ),
        watch=(
            Step(head("status"), "what the run does"),
            Step(head("log"), "its log, until Ctrl-C"),
            Step(("kubectl", "get", "pods", "--selector", f"ray.io/cluster={name}"), "which machines have joined"),
        ),
        down=(
            Step(head("stop"), "end the run with a savepoint"),
            Step(
                ("kubectl", "delete", "--filename", "cluster.yaml", "--ignore-not-found"),
                "give all machines back; what lies on the share stays there",
            ),
        ),
        tools=("gcloud", "kubectl"),
    )


def ray_cluster(name: str, site: Site, pool: Pool, hosts: TpuHosts) -> dict[str, Any]:
    """The RayCluster, as a tree."""
    actors = {"cpu": str(pool.cpus), "memory": f"{pool.memory_gib}Gi"}
    slice_host = {
        "cpu": str(int(SHARE_OF_HOST * hosts.cpus)),
        "memory": f"{int(SHARE_OF_HOST * hosts.memory_gib)}Gi",
        "google.com/tpu": str(hosts.chips),
    }
    tpu_nodes = {
        "cloud.google.com/gke-tpu-accelerator": hosts.generation.gke,
        "cloud.google.com/gke-tpu-topology": hosts.topology,
    }
    return {
        "apiVersion": "ray.io/v1",
        "kind": "RayCluster",
        "metadata": {"name": name},
        "spec": {
            "rayVersion": version("ray"),
            "authOptions": {"mode": "token"},
            "headGroupSpec": {
                "rayStartParams": {"num-cpus": "0"},
                "template": {"spec": _pod("ray-head", name, site, HEAD, {})},
            },
            "workerGroupSpecs": [
                _group("actors", pool.workers, 1, _pod("ray-worker", name, site, actors, _spot(site))),
                _group("slice", 1, hosts.number, _pod("ray-worker", name, site, slice_host, tpu_nodes | _spot(site))),
            ],
        },
    }


def _group(name: str, replicas: int, hosts: int, pod: dict[str, Any]) -> dict[str, Any]:
    """A group of workers of fixed size; each replica has `hosts` pods."""
    return {
        "groupName": name,
        "replicas": replicas,
        "minReplicas": replicas,
        "maxReplicas": replicas,
        "numOfHosts": hosts,
        "rayStartParams": {},
        "template": {"spec": pod},
    }


def _pod(container: str, name: str, site: Site, resources: dict[str, str], nodes: dict[str, str]) -> dict[str, Any]:
    """A pod with one container that sees the share and the experiment."""
    return {
        "nodeSelector": {"topology.kubernetes.io/zone": site.zone, **nodes},
        "terminationGracePeriodSeconds": 60,
        "containers": [
            {
                "name": container,
                "image": site.image,
                "resources": {"requests": dict(resources), "limits": dict(resources)},
                "volumeMounts": [
                    {"name": "share", "mountPath": MOUNT},
                    {"name": "cargo", "mountPath": CARGO, "readOnly": True},
                ],
            }
        ],
        "volumes": [
            {"name": "share", "persistentVolumeClaim": {"claimName": name}},
            {"name": "cargo", "configMap": {"name": name}},
        ],
    }


def _spot(site: Site) -> dict[str, str]:
    return {"cloud.google.com/gke-spot": "true"} if site.spot else {}


def _storage(name: str, site: Site) -> list[dict[str, Any]]:
    """The share as a volume and a claim on it; deleting both leaves its contents alone."""
    assert site.share is not None
    server, _, path = site.share.partition(":")
    common = {"accessModes": ["ReadWriteMany"], "storageClassName": ""}
    volume = {
        **common,
        "capacity": {"storage": "1Ti"},
        "persistentVolumeReclaimPolicy": "Retain",
        "mountOptions": ["hard", "nolock"],
        "nfs": {"server": server, "path": path},
    }
    claim = {**common, "resources": {"requests": {"storage": "1Ti"}}, "volumeName": name}
    return [
        {"apiVersion": "v1", "kind": "PersistentVolume", "metadata": {"name": name}, "spec": volume},
        {"apiVersion": "v1", "kind": "PersistentVolumeClaim", "metadata": {"name": name}, "spec": claim},
    ]


def _cargo(name: str, experiment: Experiment) -> dict[str, Any]:
    return {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": name}, "data": cargo(experiment)}
