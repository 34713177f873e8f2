"""Launches carried out with stand-ins for the cloud's tools: what is run, in which order, what a failure does."""

import os
import shlex
import subprocess
import sys
import time
from pathlib import Path

import pytest
import yaml

from podzero.config import load
from podzero.launch import cli
from podzero.launch.targets import machines, perform, plan, queued

SITE = plan.Site(
    project="my-project", zone="europe-west4-b", image="europe-west4-docker.pkg.dev/my-project/podzero/podzero:1",
    share="10.0.0.2:/podzero",
)  # fmt: skip
OPTIONS = ["--project", SITE.project, "--zone", SITE.zone, "--image", SITE.image, "--share", SITE.share]
TOOLS = ("gcloud", "kubectl", "ray", "ssh", "rsync")


@pytest.fixture
def tools(tmp_path, monkeypatch):
    """A folder of programs that only write down how they were called; first on the path."""
    folder = tmp_path / "tools"
    folder.mkdir()
    for tool in TOOLS:
        stand_in(folder, tool, "")
    monkeypatch.setenv("PATH", f"{folder}:/usr/bin:/bin")
    monkeypatch.setenv("CALLS", str(tmp_path / "calls"))
    monkeypatch.setattr(machines, "sample_bytes", lambda experiment: 1000)
    monkeypatch.chdir(tmp_path)
    return folder


def stand_in(folder, tool, body):
    path = folder / tool
    path.write_text(f'#!/usr/bin/env bash\necho "{tool} $*" >> "$CALLS"\n{body}\n')
    path.chmod(0o755)


def calls(tmp_path):
    path = tmp_path / "calls"
    found = path.read_text().splitlines() if path.exists() else []
    path.unlink(missing_ok=True)
    return found


@pytest.fixture
def podzero(monkeypatch, capfd):
    """Runs `podzero launch`; returns exit code, standard output, standard error."""

    def run(*arguments):
        monkeypatch.setattr(sys, "argv", ["podzero", "launch", *arguments])
        with pytest.raises(SystemExit) as ended:
            cli.main()
        out, err = capfd.readouterr()
        return ended.value.code or 0, out, err

    return run


def words(target, *more):
    return [target, "connect_four", "cluster.slice=v5e-16", "replay.shards=4", *OPTIONS, *more]


@pytest.mark.parametrize("target", ["gcp", "gke"])
def test_a_launch_does_what_its_dry_run_prints(podzero, tools, tmp_path, target):
    code, printed, _ = podzero(*words(target, "--dry-run"))
    assert code == 0
    assert calls(tmp_path) == []
    assert not (tmp_path / "runs").exists()
    code, _, err = podzero(*words(target))
    assert code == 0, err
    performed = calls(tmp_path)
    assert performed[-1].endswith("run.sh start /mnt/podzero/connect-four")
    folder = tmp_path / "runs/launch" / f"connect-four-{target}"
    written = {path.name: path.read_bytes() for path in folder.iterdir()}
    for path in folder.iterdir():
        if path.name != "token":
            path.unlink()
    subprocess.run(["bash"], input=printed, text=True, check=True, timeout=60)
    assert calls(tmp_path) == performed
    assert {path.name: path.read_bytes() for path in folder.iterdir()} == written


def test_the_way_up_and_down_on_kubernetes(podzero, tools, tmp_path):
    podzero(*words("gke"))
    assert [" ".join(call.split()[:3]) for call in calls(tmp_path)] == [
        "gcloud container clusters", "kubectl apply --filename", "kubectl wait --for=condition=RayClusterProvisioned",
        "kubectl exec service/podzero-connect-four-head-svc",
    ]  # fmt: skip
    podzero(*words("gke", "--down"))
    stop, delete = calls(tmp_path)
    assert stop.endswith("run.sh stop /mnt/podzero/connect-four")
    assert delete == "kubectl delete --filename cluster.yaml --ignore-not-found"


def test_the_token_is_made_once_seen_by_nobody_else_and_never_printed(podzero, tools, tmp_path):
    _, out, _ = podzero(*words("gcp"))
    folder = tmp_path / "runs/launch/connect-four-gcp"
    token = (folder / "token").read_text()
    assert len(token) == 64
    assert (folder / "token").stat().st_mode & 0o077 == 0
    assert token not in out
    assert (folder / ".gitignore").read_text() == "*\n"
    podzero(*words("gcp"))
    assert (folder / "token").read_text() == token
    assert token not in podzero(*words("gcp", "--dry-run"))[1]


def test_the_first_failure_ends_a_launch_and_is_named(podzero, tools, tmp_path):
    stand_in(tools, "kubectl", "[[ $1 != wait ]]")
    code, _, err = podzero(*words("gke"))
    assert code == 2
    assert "kubectl wait --for=condition=RayClusterProvisioned raycluster/podzero-connect-four" in err
    assert "may cost money" in err
    assert not any("exec" in call for call in calls(tmp_path))


def test_a_teardown_goes_on_after_a_failure(podzero, tools, tmp_path):
    stand_in(tools, "kubectl", "[[ $1 != exec ]]")
    code, _, err = podzero(*words("gke", "--down"))
    assert code == 2
    assert "kubectl exec" in err
    assert any(call.startswith("kubectl delete") for call in calls(tmp_path))


def test_a_missing_tool_is_named_before_anything_is_run(podzero, tools, tmp_path, monkeypatch):
    monkeypatch.setenv("PATH", str(tools))
    (tools / "kubectl").unlink()
    code, _, err = podzero(*words("gke"))
    assert code == 2
    assert "missing on this machine: kubectl" in err
    assert not (tmp_path / "runs").exists()
    monkeypatch.setattr(perform.importlib.util, "find_spec", lambda name: None)
    code, _, err = podzero(*words("gcp"))
    assert "the Python module googleapiclient" in err
    assert calls(tmp_path) == []


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (["gke", "connect_four", "cluster.slice=v5e-16", "replay.shards=4"], "must also be told: --project"),
        (["gke", "connect_four", *OPTIONS], "set cluster.slice"),
        (["gke", "conect_four", *OPTIONS], "did you mean 'connect_four'"),
        (["aws", "connect_four"], "'gcp', 'gke', 'queued'"),
    ],
)
def test_what_a_person_forgot_is_one_message_and_code_2(podzero, arguments, expected):
    code, out, err = podzero(*arguments)
    assert (code, out) == (2, "")
    assert expected in " ".join(err.replace("│", " ").split())
    assert "Traceback" not in err


GCLOUD = """
case "$*" in
  *"queued-resources describe"*) head -n 1 "$STATES"; sed -i 1d "$STATES" ;;
  *"tpu-vm describe"*) echo 10.0.0.9 ;;
esac"""


@pytest.fixture
def slice_queue(tools, tmp_path, monkeypatch):
    """A stand-in of gcloud that answers with the given states of the queue, one a call."""

    def answer(*states):
        stand_in(tools, "gcloud", GCLOUD)
        (tmp_path / "states").write_text("".join(f"{state}\n" for state in states))
        monkeypatch.setenv("STATES", str(tmp_path / "states"))
        monkeypatch.setenv("POLL", "0")

    return answer


def test_a_bare_slice_is_asked_for_awaited_joined_and_given_back(podzero, tools, tmp_path, slice_queue):
    slice_queue("WAITING_FOR_RESOURCES", "PROVISIONING", "ACTIVE")
    code, _, err = podzero(*words("queued", "--spot"))
    assert code == 0, err
    made = calls(tmp_path)
    create = shlex.split(made[0])
    for words_of_create in (
        ["--accelerator-type", "v5litepod-16"], ["--runtime-version", "v2-alpha-tpuv5-lite"], ["--spot"],
        ["--node-id", "podzero-connect-four"], ["--project", "my-project"], ["--zone", "europe-west4-b"],
    ):  # fmt: skip
        assert " ".join(words_of_create) in " ".join(create)
    assert sum("queued-resources describe" in call for call in made) == 3
    heads = [call for call in made if "ray start --head" in call]
    others = [call for call in made if "ray start --address 10.0.0.9:6379" in call]
    assert [("--worker 0 " in call) for call in heads] == [True]
    assert [("--worker 1-3 " in call) for call in others] == [True]
    assert made.index(heads[0]) < made.index(others[0])
    assert made[-1].endswith("run.sh start /mnt/podzero/connect-four")
    podzero(*words("queued", "--down"))
    stop, delete = calls(tmp_path)
    assert "run.sh stop" in stop
    assert "queued-resources delete podzero-connect-four" in delete
    assert "--force" in delete


@pytest.mark.parametrize("state", ["FAILED", "SUSPENDED"])
def test_a_slice_that_will_not_come_ends_the_launch(podzero, tools, tmp_path, slice_queue, state):
    slice_queue("WAITING_FOR_RESOURCES", state)
    code, _, err = podzero(*words("queued"))
    assert code == 2
    assert "bash queued.sh await" in err
    assert not any("tpu-vm ssh" in call for call in calls(tmp_path))


def test_a_slice_of_one_host_starts_no_others(podzero, tools, tmp_path, slice_queue):
    slice_queue("ACTIVE")
    code, _, err = podzero("queued", "connect_four", "cluster.slice=v5e-4", *OPTIONS)
    assert code == 0, err
    made = calls(tmp_path)
    assert sum("ray start" in call for call in made) == 1
    assert "--spot" not in made[0]


@pytest.fixture
def head(tools, tmp_path, monkeypatch):
    """The head of a cluster, with a stand-in of `podzero` that trains until it is told to stop."""
    body = 'if [[ $1 == train ]]; then trap "echo saved; exit 0" TERM; sleep 60 & wait $!; fi'
    stand_in(tools, "podzero", body)
    for name, text in plan.cargo(load("connect_four")).items():
        (tmp_path / name).write_text(text)
    for name in ("LOGFILE", "PIDFILE"):
        monkeypatch.setenv(name, str(tmp_path / name))
    monkeypatch.setenv("SETTLE", "2")

    def run(verb):
        return subprocess.run(
            ["bash", str(tmp_path / "run.sh"), verb, "/mnt/podzero/x"],
            capture_output=True, text=True, timeout=60, check=False,
        )  # fmt: skip

    yield run
    run("stop")


def test_a_run_on_the_head_starts_once_and_ends_with_its_savepoint(head, tmp_path):
    assert head("start").returncode == 0
    assert "under way here already" in head("start").stdout
    (train,) = calls(tmp_path)
    assert train == (
        f"podzero train {tmp_path}/experiment.yaml --address 127.0.0.1:6379 --workdir /mnt/podzero/x --view plain"
    )
    assert head("status").returncode == 0
    assert calls(tmp_path) == ["podzero status /mnt/podzero/x"]
    assert head("stop").returncode == 0
    assert "saved" in (tmp_path / "LOGFILE").read_text()
    until = time.monotonic() + 20
    while (tmp_path / "PIDFILE").exists():  # removed by whoever waits for the run
        assert time.monotonic() < until
        time.sleep(0.05)
    assert head("stop").returncode == 0


def test_a_run_that_ends_at_once_is_shown_as_a_failure(head, tools, tmp_path):
    stand_in(tools, "podzero", 'echo "podzero: no such thing" >&2; exit 2')
    done = head("start")
    assert done.returncode == 1
    assert "no such thing" in done.stdout
    assert "ended with code 2" in done.stdout


def test_a_run_survives_the_connection_that_started_it(head, tmp_path):
    script = f"bash {tmp_path}/run.sh start /mnt/podzero/x"
    starter = subprocess.Popen(["bash", "-c", script], start_new_session=True, stdout=subprocess.DEVNULL)
    starter.wait(timeout=30)
    os.killpg(starter.pid, 1)  # SIGHUP, as when a terminal goes away
    time.sleep(0.2)
    assert "under way here already" in head("start").stdout


@pytest.mark.parametrize("name", ["run.sh", "queued.sh"])
def test_shell_scripts_are_clean(name):
    checker = Path(sys.executable).parent / "shellcheck"
    done = subprocess.run(
        [str(checker), str(plan.HERE / name)], capture_output=True, text=True, timeout=60, check=False
    )
    assert done.returncode == 0, done.stdout


def test_the_script_gets_every_setting_that_it_asks_for(monkeypatch):
    monkeypatch.setattr(machines, "sample_bytes", lambda experiment: 1000)
    config = load("connect_four", ["cluster.slice=v5e-16", "replay.shards=4"])
    text = queued.plan(config, SITE).files["queued.env"]
    given = {line.partition("=")[0] for line in text.splitlines()}
    script = plan.template("queued.sh")
    asked = {word.split("?")[0].rstrip(":") for word in script.split('"${')[1:] if "?" in word.split("}")[0]}
    assert asked == given
    assert yaml.safe_load(queued.plan(config, SITE).files["experiment.yaml"])["cluster"]["slice"] == "v5e-16"
