"""Launches on Google Kubernetes Engine by KubeRay: a RayJob on a CPU group and a multi-host TPU group.

This needs an Autopilot cluster with the Ray operator. Autopilot creates the nodes for the pods and deletes them later.
"""

from __future__ import annotations

from importlib.metadata import version
from typing import Any

import yaml

from podzero.config import Experiment
from podzero.launch.targets.machines import Pool, TpuHosts, cpu_pool, disk_gib, tpu_hosts
from podzero.launch.targets.plan import (
    MOUNT,
    NOT_TRAINING,
    RUN_FILES,
    STOP_S,
    LaunchStep,
    Plan,
    Site,
    checks,
    deadline_s,
    gcloud,
    name_of,
    run_files,
    run_on_head,
    send_variables,
    shell,
    workdir_of,
)  # fmt: skip

HEAD = {"cpu": "4", "memory": "16Gi"}
_RUNNING = "--field-selector=status.phase=Running --sort-by=.metadata.creationTimestamp --output=name"
_UNTIL_RUNNING = "--for=jsonpath={.status.jobDeploymentStatus}=Running --timeout=3600s"
_SPOT = {"cloud.google.com/gke-spot": "true"}
_NOT_EVICTED = {"cluster-autoscaler.kubernetes.io/safe-to-evict": "false"}
"""Keeps Autopilot from evicting a pod to scale down and, for seven days, to upgrade its node; not for spot pods
(https://cloud.google.com/kubernetes-engine/docs/how-to/extended-duration-pods)."""
RETRIES = 20
"""How often KubeRay makes a new cluster for a run that has lost its head, or failed too often on one."""
SPOT_GRACE_S = 25
"""Seconds from the notice of a spot pod's end until it is killed; Kubernetes gives it no more."""
_SECRETS = "/srv/variables"
"""Where the head mounts the variables of `--env`, which a Secret holds: a new head needs them too."""
_HEAD_ENV = [
    # Ray gives a job that is to end three seconds by default, too few for the last checkpoint.
    {"name": "RAY_JOB_STOP_WAIT_TIME_S", "value": str(STOP_S)},
    {"name": "VARIABLES", "value": f"{_SECRETS}/variables"},
]
SHARE_OF_HOST = 0.75
"""Share of a TPU host's CPUs and memory that its pod requests; Kubernetes' own pods need the rest."""


def plan(experiment: Experiment, site: Site) -> Plan:
    """The plan for launching `experiment`."""
    name, workdir = name_of(experiment), workdir_of(experiment, site)
    pool, hosts = cpu_pool(experiment, site.worker_cpus), tpu_hosts(experiment)
    things = [
        *_storage(name, site),
        {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": name}, "data": run_files(experiment)},
        ray_job(experiment, site, ray_cluster(name, site, pool, hosts, disk_gib(experiment))),
    ]
    # Name the context that get-credentials makes, so that no command acts on whichever cluster is the current one.
    kubectl = f"kubectl --context gke_{site.project}_{site.region}_{site.cluster}"

    def on_head(verb: str, otherwise: str) -> str:
        """Runs a verb of `run.sh` in the newest head; `otherwise` if none is running."""
        found = f"pods=$({kubectl} get pods --selector=podzero={name},ray.io/node-type=head {_RUNNING})"
        run = f"{kubectl} exec \"${{pods##*$'\\n'}}\" --container ray-head -- {run_on_head(verb, workdir)}"
        return f'{found} && if [ -n "$pods" ]; then {run}; else {otherwise}; fi'

    ended = f"{kubectl} get rayjob {name} --ignore-not-found --output=jsonpath={{.status.jobDeploymentStatus}}"
    secret = f'create secret generic {name} --from-file=variables="$podzero_file" --dry-run=client --output yaml'
    return Plan(
        files={"cluster.yaml": yaml.dump_all(things, Dumper=_ReadableDumper, sort_keys=False, width=120)},
        checks=checks(site, f"compute machine-types describe {hosts.generation.machine}-{hosts.chips}t"),
        machines=(
            f"1 pod of {HEAD['cpu']} CPUs: the head",
            f"{pool.workers} pods of {pool.cpus} CPUs and {pool.memory_gib} GiB",
            hosts.words,
        ),
        up=(
            LaunchStep(
                gcloud(f"container clusters get-credentials {site.cluster} --location {site.region}", site),
                "give kubectl access to GKE",
            ),
            shell(
                f"case $({ended}) in Complete | Failed) {kubectl} delete rayjob {name} ;; esac",
                "delete the job of an earlier run that has ended",
            ),
            *send_variables(site.env, f"{kubectl} {secret} | {kubectl} apply --filename -"),
            shell(f"{kubectl} apply --filename cluster.yaml", "create storage, pods and the job; GKE creates machines"),
            shell(f"{kubectl} wait {_UNTIL_RUNNING} rayjob/{name}", "wait until the pods are ready"),
            shell(
                on_head("await", "echo the head has ended >&2; exit 1"),
                "wait until the run trains, for at most half an hour",
                NOT_TRAINING,
            ),
        ),
        status=shell(
            on_head("status", f"{kubectl} get rayjob {name} && {kubectl} logs job/{name} --tail=20"),
            "show the state of the run",
        ),
        logs=LaunchStep(
            (*kubectl.split(), "logs", f"job/{name}", "--tail=200"),
            "show its log; with --follow until Ctrl-C",
            "The log begins once the pods are ready; --status says how far they are",
        ),
        stop=shell(
            on_head("stop", "echo 'no head is running, so no run is under way'"),
            "end the run with a checkpoint and wait until it has ended",
        ),
        kill=shell(
            f"{kubectl} delete rayjob {name} --ignore-not-found --wait=false && "
            f"{kubectl} delete pods --selector=podzero={name} --grace-period=1 --ignore-not-found",
            "delete the pods without a last checkpoint",
        ),
        down=shell(
            f"{kubectl} delete --filename cluster.yaml --ignore-not-found && "
            f"{kubectl} delete secret {name} --ignore-not-found",
            "delete the pods, after which GKE deletes their machines; files on the share stay",
        ),
        tools=("gcloud", "kubectl"),
    )


def ray_job(experiment: Experiment, site: Site, cluster: dict[str, Any]) -> dict[str, Any]:
    """The RayJob, which gives the same command again on a new cluster; its deadline counts anew for each of them."""
    limit = deadline_s(experiment)
    return {
        "apiVersion": "ray.io/v1",
        "kind": "RayJob",
        "metadata": {"name": name_of(experiment)},
        "spec": {
            "entrypoint": run_on_head("job", workdir_of(experiment, site), *site.env),
            "backoffLimit": RETRIES,
            **({} if limit is None else {"activeDeadlineSeconds": limit}),
            "shutdownAfterJobFinishes": not site.keep,
            "rayClusterSpec": cluster,
        },
    }


def ray_cluster(name: str, site: Site, pool: Pool, hosts: TpuHosts, disk_gib: int) -> dict[str, Any]:
    """The specification of the cluster; each pod requests `disk_gib` GiB of disk."""
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
    slice_pod = _pod("ray-worker", name, site, slice_host, tpu_nodes, site.spot)
    return {
        "rayVersion": version("ray"),
        # KubeRay (since 1.5.1) makes the token and gives it to every container.
        "authOptions": {"mode": "token"},
        "headGroupSpec": {
            # Without CPUs, so that no worker is placed beside the driver.
            "rayStartParams": {"num-cpus": "0"},
            "template": _pod("ray-head", name, site, disk | HEAD, {}, spot=False),
        },
        "workerGroupSpecs": [
            _group("actors", pool.workers, 1, _pod("ray-worker", name, site, actors, {}, site.spot))
            | {"minReplicas": pool.least},
            _group("slice", hosts.slices, hosts.number, slice_pod),
        ],
        "enableInTreeAutoscaling": pool.least < pool.workers,
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
    mounted: dict[str, tuple[str, dict[str, Any]]] = {
        "share": (MOUNT, {"persistentVolumeClaim": {"claimName": name}}),
        "run-files": (RUN_FILES, {"configMap": {"name": name}}),
    }
    if container == "ray-head":
        mounted["variables"] = (_SECRETS, {"secret": {"secretName": name, "optional": True}})
    spec = {
        "nodeSelector": {"topology.kubernetes.io/zone": site.zone, **nodes, **(_SPOT if spot else {})},
        "terminationGracePeriodSeconds": SPOT_GRACE_S if spot else STOP_S,
        "containers": [
            {
                "name": container,
                "image": site.image,
                "resources": {"requests": dict(resources), "limits": dict(resources)},
                "env": _HEAD_ENV if container == "ray-head" else [],
                # Before the container's first process, which is Ray, gets SIGTERM.
                "lifecycle": {"preStop": {"exec": {"command": run_on_head("notice").split()}}},
                "volumeMounts": [
                    {"name": key, "mountPath": path, **({} if key == "share" else {"readOnly": True})}
                    for key, (path, _) in mounted.items()
                ],
            }
        ],
        "volumes": [{"name": key, **source} for key, (_, source) in mounted.items()],
    }
    labels = {"labels": {"podzero": name}}
    return {"metadata": labels if spot else labels | {"annotations": _NOT_EVICTED}, "spec": spec}


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


class _ReadableDumper(yaml.SafeDumper):
    """Without anchors, and with texts of several lines as blocks."""

    def ignore_aliases(self, data: Any) -> bool:
        return True

    def represent_text(self, data: str) -> yaml.ScalarNode:
        return self.represent_scalar("tag:yaml.org,2002:str", data, style="|" if "\n" in data else None)


_ReadableDumper.add_representer(str, _ReadableDumper.represent_text)
