"""Plans of launches: KubeRay accepts their files, which agree with the experiment and docs/tpu.md."""

import copy
import math
import re
import shutil
from pathlib import Path

import jsonschema
import pytest
import yaml
from cloud_tools import SITE

from podzero.config import load, parse
from podzero.core.errors import ConfigError
from podzero.launch.targets import gke, machines, plan, queued

TARGETS = {"gke": gke, "queued": queued}
SLICES = {"v4-32": 4, "v5e-4": 1, "v5e-16": 4, "v5e-64": 16, "v5p-16": 2, "v6e-16": 4}
"""Slices and their hosts as Google's pages list them."""


@pytest.fixture(autouse=True)
def _sample_size_is_known(monkeypatch):
    monkeypatch.setattr(machines, "sample_bytes", lambda experiment: 1000)


def experiment(*overrides, slice_name="v5e-16"):
    return load("connect_four", [f"cluster.slice={slice_name}", "replay.shards=16", *overrides])


def gke_file(config, site=SITE):
    things = list(yaml.safe_load_all(gke.plan(config, site).files["cluster.yaml"]))
    return {thing["kind"]: thing for thing in things}


def settings(config, site=SITE):
    lines = queued.plan(config, site).files["queued.env"].splitlines()
    return {name: value.strip("'") for name, _, value in (line.partition("=") for line in lines)}


def test_the_accounts_of_the_guide_are_those_of_the_machines():
    guide = (Path(__file__).parents[2] / "docs/tpu.md").read_text()
    worker = SITE.worker_account.partition("@")[0]
    assert f"gcloud iam service-accounts create {worker}\n" in guide
    assert f"serviceAccount:{worker}@$PROJECT.iam.gserviceaccount.com" in guide
    granted = set(re.findall(r"--role (roles/\S+)[^\n]*\\\n\s+--member serviceAccount:" + worker, guide))
    assert granted == {
        "roles/artifactregistry.reader",
        "roles/container.defaultNodeServiceAccount",
        "roles/tpu.admin",
    }


def test_several_slices_are_replicas_on_gke_and_refused_by_queued():
    two = experiment("cluster.slices=2", slice_name="v5e-16")
    _, chips = gke_file(two)["RayJob"]["spec"]["rayClusterSpec"]["workerGroupSpecs"]
    assert (chips["replicas"], chips["numOfHosts"]) == (2, 4)
    assert gke.plan(two, SITE).machines[-1].startswith("2 x v5litepod-16: 4 hosts")
    with pytest.raises(ConfigError, match=r"cluster\.slices 2: .*podzero launch gke"):
        queued.plan(two, SITE)


@pytest.mark.parametrize("spot", [False, True])
@pytest.mark.parametrize("name", SLICES)
def test_the_job_has_only_known_fields_and_agrees_with_the_slice(name, spot):
    config = experiment(slice_name=name)
    things = gke_file(config, plan.Site(**{**vars(SITE), "spot": spot}))
    job = things["RayJob"]
    jsonschema.validate(job, schema())
    cluster = job["spec"]["rayClusterSpec"]
    actors, chips = cluster["workerGroupSpecs"]
    for group in (actors, chips):
        assert group["replicas"] == group["minReplicas"] == group["maxReplicas"] > 0
        selector = group["template"]["spec"]["nodeSelector"]
        assert ("cloud.google.com/gke-spot" in selector) is spot
    assert (chips["numOfHosts"], chips["replicas"], actors["numOfHosts"]) == (SLICES[name], 1, 1)
    tpu = config.cluster.tpu
    (container,) = chips["template"]["spec"]["containers"]
    assert container["resources"]["limits"] == container["resources"]["requests"]
    assert int(container["resources"]["limits"]["google.com/tpu"]) * chips["numOfHosts"] == tpu.chips
    topology = chips["template"]["spec"]["nodeSelector"]["cloud.google.com/gke-tpu-topology"]
    assert f"{tpu.chip.name}:{topology}" == tpu.topology


@pytest.mark.parametrize(
    ("path", "value"),
    [
        (("spec", "backofLimit"), 4),
        (("spec", "activeDeadlineSeconds"), 3600.5),
        (("spec", "rayClusterSpec", "workerGroupSpecs", 1, "numOfHost"), 4),
        (("spec", "rayClusterSpec", "workerGroupSpecs", 1, "replicas"), "1"),
        (("spec", "rayClusterSpec", "headGroupSpec", "rayStartParams", "num-cpus"), 0),
        (("spec", "rayClusterSpec", "authOptions", "mode"), "none"),
    ],
)
def test_the_schema_of_jobs_finds_what_is_wrong(path, value):
    cluster = copy.deepcopy(gke_file(experiment())["RayJob"])
    inner = cluster
    for step in path[:-1]:
        inner = inner[step]
    inner[path[-1]] = value
    with pytest.raises(jsonschema.ValidationError):
        jsonschema.validate(cluster, schema())


def schema():
    return yaml.safe_load((Path(__file__).parent / "rayjob.yaml").read_text())


def test_everything_that_pods_mount_is_in_the_same_file():
    things = gke_file(experiment())
    name = things["RayJob"]["metadata"]["name"]
    assert {thing["metadata"]["name"] for thing in things.values()} == {name}
    assert things["PersistentVolume"]["spec"]["nfs"] == {"server": "10.0.0.2", "path": "/podzero"}
    assert things["PersistentVolume"]["spec"]["persistentVolumeReclaimPolicy"] == "Retain"
    assert things["PersistentVolumeClaim"]["spec"]["volumeName"] == name
    for pod, secret in zip(pods(things), ({"variables"}, set(), set()), strict=True):
        expected, (container,) = {"share", "run-files"} | secret, pod["spec"]["containers"]
        assert expected == {mount["name"] for mount in container["volumeMounts"]}
        assert expected == {volume["name"] for volume in pod["spec"]["volumes"]}
        assert pod["metadata"]["labels"] == {"podzero": name}
    assert set(things["ConfigMap"]["data"]) == {"experiment.yaml", "run.sh"}


@pytest.mark.parametrize(
    ("name", "accelerator", "runtime"),
    [
        ("v4-32", "v4-32", "tpu-ubuntu2204-base"),
        ("v5e-16", "v5litepod-16", "v2-alpha-tpuv5-lite"),
        ("v5p-16", "v5p-16", "v2-alpha-tpuv5"),
        ("v6e-16", "v6e-16", "v2-alpha-tpuv6e"),
    ],
)
def test_the_tpu_api_is_asked_for_the_slice_by_its_names(name, accelerator, runtime):
    config = experiment("actors.count=20", slice_name=name)
    found = settings(config)
    assert (found["ACCELERATOR"], found["RUNTIME"]) == (accelerator, runtime)
    assert int(found["HOSTS"]) == config.cluster.learner_hosts


def test_a_generation_that_the_tpu_api_lacks_is_refused_there():
    config = experiment("actors.count=20", slice_name="tpu7x-8")
    with pytest.raises(ConfigError, match=r"no tpu7x .*podzero launch gke"):
        settings(config)


def test_a_bare_slice_plays_on_its_own_hosts():
    config = experiment("actors.count=200")
    resolved = parse(yaml.safe_load(queued.plan(config, SITE).files["experiment.yaml"]), "experiment.yaml")
    assert resolved.cluster.actors_on_tpu_hosts
    assert resolved.actors == config.actors
    with pytest.raises(ConfigError, match=r"lower actors\.count"):
        queued.plan(experiment("actors.count=300"), SITE)
    with pytest.raises(ConfigError, match=r"lower replay\.capacity"):
        queued.plan(experiment("replay.capacity=900000000"), SITE)


@pytest.mark.parametrize("target", TARGETS)
def test_the_experiment_travels_complete(target):
    config = experiment("learner.batch_size=1024", "name=Some Experiment")
    launch = TARGETS[target].plan(config, SITE)
    data = launch.files if target != "gke" else gke_file(config)["ConfigMap"]["data"]
    arrived = parse(yaml.safe_load(data["experiment.yaml"]), "experiment.yaml")
    assert arrived.model_dump(exclude={"cluster"}) == config.model_dump(exclude={"cluster"})
    assert plan.name_of(config) == "podzero-some-experiment"


@pytest.mark.parametrize("target", TARGETS)
def test_the_files_that_an_experiment_names_travel_with_it(target, tmp_path):
    for folder in ("nets", "losses"):
        (tmp_path / folder).mkdir()
        (tmp_path / folder / "my part.py").write_text(f"def make(): return '{folder}'\n")
    config = experiment(
        f"network={{name: '{tmp_path}/nets/my part.py:make'}}",
        f"learner.objective={{name: '{tmp_path}/losses/my part.py:make'}}",
    )
    launch = TARGETS[target].plan(config, SITE)
    data = launch.files if target != "gke" else gke_file(config)["ConfigMap"]["data"]
    if target == "queued":
        assert set(settings(config)["FILES"].split()) == set(data) - {"queued.env", "queued.sh"}
    head = tmp_path / "head"
    head.mkdir()
    for name, text in data.items():
        (head / name).write_text(text)
    shutil.rmtree(tmp_path / "nets")
    arrived = load(str(head / "experiment.yaml"))
    for part, folder in ((arrived.network, "nets"), (arrived.learner.objective, "losses")):
        assert Path(part.place.rpartition(":")[0]).read_text() == f"def make(): return '{folder}'\n"


@pytest.mark.parametrize("target", TARGETS)
def test_no_plan_holds_a_secret_and_every_cluster_asks_for_a_token(target):
    launch = TARGETS[target].plan(experiment(), SITE)
    text = "\n".join(launch.files.values())
    assert "RAY_AUTH_TOKEN=" not in text
    assert "RAY_AUTH_MODE=token" in text or "mode: token" in text
    assert "token" not in launch.files


def test_replay_that_takes_more_memory_than_the_actors_bring_makes_the_pool_larger():
    small = machines.cpu_pool(experiment("actors.count=16", "actors.cpus=1"), 16)
    large = machines.cpu_pool(experiment("actors.count=16", "actors.cpus=1", "replay.capacity=1000000000"), 16)
    assert small.workers == math.ceil((16 * machines.ACTOR_GIB + 16 * machines.SHARD_GIB + 0.2) / 64)
    assert large.workers * large.memory_gib > 1e12 / 2**30


def test_the_pool_holds_all_actors():
    assert machines.cpu_pool(experiment("actors.count=100", "actors.cpus=2"), 16).workers == math.ceil(100 / 8)


def test_where_fewer_actors_may_do_the_pool_shrinks_with_them():
    job = gke_file(experiment("actors.count=64", "actors.cpus=1", "actors.min_count=16"))["RayJob"]
    jsonschema.validate(job, schema())
    spec = job["spec"]["rayClusterSpec"]
    actors, chips = spec["workerGroupSpecs"]
    assert actors["replicas"] - actors["minReplicas"] == (64 - 16) // SITE.worker_cpus
    assert actors["replicas"] == actors["maxReplicas"]
    assert chips["minReplicas"] == chips["maxReplicas"]
    assert spec["enableInTreeAutoscaling"]


def test_the_pool_has_room_for_the_cpus_of_replay():
    few, many = (
        machines.cpu_pool(experiment("actors.count=64", "actors.cpus=1", f"replay.cpus={cpus}"), 16) for cpus in (0, 1)
    )
    assert 16 * (many.workers - few.workers) >= experiment().replay.shards


def test_without_self_play_one_machine_is_left_for_the_evaluator():
    supervised = experiment("data.records=records", "actors.count=64", "replay.capacity=1000000000")
    assert machines.cpu_pool(supervised, 16).workers == 1
    assert machines.memory_gib(supervised) == 0


def test_the_size_of_a_sample_is_asked_of_the_game(monkeypatch):
    monkeypatch.undo()
    # The 18 bits of an observation, the 9 of legal moves, a policy of nine float16, value and version.
    assert machines.sample_bytes(load("tic_tac_toe")) == 3 + 2 + 18 + 4 + 4


def test_what_is_searched_again_is_kept_and_paid_for_as_well(monkeypatch):
    monkeypatch.undo()
    again = ["replay.capacity=80000", "reanalyse.share=0.5", "reanalyse.capacity=20000", "reanalyse.count=3"]
    experiment = load("tic_tac_toe", again)
    # A state of 64 bytes with outcome, lambda-return and version for each sample; every fourth sample is refreshed.
    assert machines.sample_bytes(experiment) == 31 + (64 + 4 + 4 + 1 + 4) + 31 / 4
    few, many = load("tic_tac_toe", [*again, "reanalyse.share=0"]), experiment
    assert machines.memory_gib(many) - machines.memory_gib(few) >= 3 * machines.ACTOR_GIB
    assert machines.cpu_pool(many, 2).workers > machines.cpu_pool(few, 2).workers


@pytest.mark.parametrize("target", TARGETS)
def test_an_experiment_without_a_slice_is_refused(target):
    with pytest.raises(ConfigError, match=r"cluster\.slice.*v5e-16"):
        TARGETS[target].plan(load("connect_four"), SITE)


def test_eight_chips_of_a_flat_torus_are_one_machine():
    hosts = machines.tpu_hosts(experiment(slice_name="v5e-8"))
    assert (hosts.number, hosts.chips, hosts.cpus) == (1, 8, 224)
    hosts = machines.tpu_hosts(experiment(slice_name="v5e-16"))
    assert (hosts.number, hosts.chips, hosts.cpus) == (4, 4, 112)


def test_workers_that_are_too_small_are_refused():
    with pytest.raises(ConfigError, match="raise --worker-cpus"):
        gke.plan(experiment("actors.cpus=5"), plan.Site(**{**vars(SITE), "worker_cpus": 4}))


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"project": None, "share": None}, r"--project my-project --share 10\.0\.0\.2:/podzero"),
        ({"zone": "europe-west4"}, "--zone europe-west4: expected something like europe-west4-b"),
        ({"share": "10.0.0.2"}, "--share"),
        ({"share": "gs://bucket/x"}, r"--share gs://bucket/x: expected something like 10\.0\.0\.2:/podzero"),
        ({"share": "10.0.0.2:/x; rm -rf"}, "--share"),
        ({"workdir": "/tmp/here"}, "--workdir /tmp/here: expected something like /mnt/podzero"),
        ({"workdir": "/mnt/podzero/../x"}, "--workdir"),
    ],
)
def test_an_incomplete_or_impossible_site_is_refused(changes, words):
    with pytest.raises(ConfigError, match=words):
        plan.check(plan.Site(**{**vars(SITE), **changes}), "gke")


def test_a_complete_site_passes():
    plan.check(SITE, "gke")
    assert (SITE.region, SITE.registry) == ("europe-west4", "europe-west4-docker.pkg.dev")
    assert plan.Site(image="docker.io/somebody/podzero").registry == ""


def pods(things):
    cluster = things["RayJob"]["spec"]["rayClusterSpec"]
    return [cluster["headGroupSpec"]["template"], *(group["template"] for group in cluster["workerGroupSpecs"])]


def test_pods_ask_not_to_be_evicted_but_for_spot_pods_which_cannot():
    asked = [{"cluster-autoscaler.kubernetes.io/safe-to-evict": "false"}]
    assert [pod["metadata"]["annotations"] for pod in pods(gke_file(experiment()))] == asked * 3
    head, *spot = pods(gke_file(experiment(), plan.Site(**{**vars(SITE), "spot": True})))
    assert head["metadata"]["annotations"] == asked[0]
    assert not any("annotations" in pod["metadata"] for pod in spot)


def test_pods_ask_for_the_disk_of_logs_and_of_a_shard(monkeypatch):
    """16 shards of 10^9 samples of 1,000 bytes: 58.2 GiB each, more than a pod may ask for; of 10^7: 0.6 GiB."""
    for capacity, gib in ((10**7, 5), (10**9, 10)):
        found = pods(gke_file(experiment(f"replay.capacity={capacity}")))
        resources = [pod["spec"]["containers"][0]["resources"] for pod in found]
        assert [each["requests"]["ephemeral-storage"] for each in resources] == [f"{gib}Gi"] * 3
        assert all(each["requests"] == each["limits"] for each in resources)


@pytest.mark.parametrize(
    ("name", "cpus", "memory_gib"),
    [("v5e-1", 24, 44), ("v5e-4", 112, 178), ("v5e-8", 224, 357), ("v6e-1", 44, 163), ("v6e-8", 180, 1341)],
)
def test_machines_with_one_and_with_eight_chips_have_sizes_of_their_own(name, cpus, memory_gib):
    hosts = machines.tpu_hosts(experiment(slice_name=name))
    assert (hosts.number, hosts.cpus, hosts.memory_gib) == (1, cpus, memory_gib)


def test_a_lost_driver_comes_back_and_machines_go_back_unless_they_are_kept():
    spec = gke_file(experiment())["RayJob"]["spec"]
    assert spec["entrypoint"] == "bash /srv/podzero/run.sh job /mnt/podzero/connect-four"
    assert spec["backoffLimit"] > 0
    assert spec["shutdownAfterJobFinishes"]
    kept = plan.Site(**{**vars(SITE), "keep": True})
    assert not gke_file(experiment(), kept)["RayJob"]["spec"]["shutdownAfterJobFinishes"]
    assert (settings(experiment())["RELEASE"], settings(experiment(), kept)["RELEASE"]) == ("yes", "")


@pytest.mark.parametrize(
    ("limits", "hours"), [([], None), (["stop.hours=5"], 5), (["stop.cost=60", "cluster.price_per_hour=20"], 3)]
)
def test_the_cloud_takes_the_machines_away_after_the_hours_and_a_last_checkpoint(limits, hours):
    deadline = gke_file(experiment(*limits))["RayJob"]["spec"].get("activeDeadlineSeconds")
    assert deadline == (hours and 3600 * hours + plan.STOP_S)
    assert int(settings(experiment(*limits))["MOST_SECONDS"]) == (deadline or 365 * 86400)


def test_pods_and_jobs_have_the_time_of_a_last_checkpoint_before_they_are_killed():
    """The scripts on the head wait as long; Kubernetes gives spot pods less than half a minute."""
    spot = plan.Site(**{**vars(SITE), "spot": True})
    assert f"STOP_TIMEOUT:-{plan.STOP_S}" in plan.template("run.sh")
    for site, expected in ((SITE, [plan.STOP_S] * 3), (spot, [plan.STOP_S, 25, 25])):
        found = pods(gke_file(experiment(), site))
        assert [pod["spec"]["terminationGracePeriodSeconds"] for pod in found] == expected
        for pod in found:
            hook = pod["spec"]["containers"][0]["lifecycle"]["preStop"]["exec"]["command"]
            assert hook == ["bash", "/srv/podzero/run.sh", "notice"]
        (head,) = found[0]["spec"]["containers"]
        assert {"name": "RAY_JOB_STOP_WAIT_TIME_S", "value": str(plan.STOP_S)} in head["env"]
