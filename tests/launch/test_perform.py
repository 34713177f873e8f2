"""Launches with stand-ins for the cloud's tools: what is run, in which order, and what is left alone."""

import subprocess
import sys
from pathlib import Path

import pytest
from cloud_tools import BODIES, OPTIONS, TRAIN, calls, stand_in, words

from podzero.launch.targets import plan

CONTEXT = "--context gke_my-project_europe-west4_podzero"


@pytest.mark.parametrize("target", ["gke", "queued"])
def test_a_launch_does_what_its_dry_run_prints(podzero, tools, tmp_path, states, target):
    states("ACTIVE")
    code, printed, _ = podzero(*words(target, "--dry-run"))
    assert code == 0
    assert calls(tmp_path) == []
    assert not (tmp_path / "runs").exists()
    code, _, err = podzero(*words(target))
    assert code == 0, err
    performed = calls(tmp_path)
    last = {"gke": "await", "queued": "start"}[target]
    assert performed[-1].endswith(f"run.sh {last} /mnt/podzero/connect-four")
    folder = tmp_path / "runs/launch" / f"connect-four-{target}"
    written = {path.name: path.read_bytes() for path in folder.iterdir()}
    for path in folder.iterdir():
        if path.name not in {"token", ".gitignore"}:
            path.unlink()
    subprocess.run(["bash"], input=printed, text=True, check=True, timeout=60)
    assert calls(tmp_path) == performed
    assert {path.name: path.read_bytes() for path in folder.iterdir()} == written


@pytest.mark.parametrize("options", [["--down"], ["--down", "--force"]])
def test_a_teardown_does_what_its_dry_run_prints(podzero, tools, tmp_path, options):
    _, printed, _ = podzero(*words("gke", *options, "--dry-run"))
    assert calls(tmp_path) == []
    assert podzero(*words("gke", *options))[0] == 0
    performed = calls(tmp_path)
    subprocess.run(["bash"], input=printed, text=True, check=True, timeout=60)
    assert calls(tmp_path) == performed


def test_the_commands_on_kubernetes(podzero, tools, tmp_path, head):
    assert podzero(*words("gke"))[0] == 0
    found = [call for call in calls(tmp_path) if not call.startswith("podzero ")]
    access = next(call for call in found if call.startswith("gcloud container clusters get-credentials podzero "))
    others = found[found.index(access) + 1 :]
    assert all(call.startswith(f"kubectl {CONTEXT} ") for call in others)
    assert [call.split()[3] for call in others] == ["get", "apply", "wait", "get", "exec"]
    assert podzero(*words("gke", "--down"))[0] == 0
    query, stop, delete, _ = calls(tmp_path)
    assert query.startswith(f"kubectl {CONTEXT} get pods")
    assert stop.endswith("run.sh stop /mnt/podzero/connect-four")
    assert delete == f"kubectl {CONTEXT} delete --filename cluster.yaml --ignore-not-found"


def test_the_token_is_made_once_seen_by_nobody_else_and_never_printed(podzero, tools, tmp_path, states):
    _, out, _ = podzero(*words("queued"))
    folder = tmp_path / "runs/launch/connect-four-queued"
    token = (folder / "token").read_text()
    assert len(token) == 64
    assert (folder / "token").stat().st_mode & 0o077 == 0
    assert token not in out
    for command in (["git", "init", "--quiet"], ["git", "check-ignore", "--quiet", "token"]):
        subprocess.run(command, cwd=folder, timeout=60, check=True)
    states("ACTIVE")
    podzero(*words("queued"))
    assert (folder / "token").read_text() == token
    assert token not in podzero(*words("queued", "--dry-run"))[1]


def test_the_first_failure_ends_a_launch_and_is_named(podzero, tools, tmp_path):
    stand_in(tools, "kubectl", "[[ $3 != wait ]]")
    code, _, err = podzero(*words("gke"))
    assert code == 2
    assert f"kubectl {CONTEXT} wait --for=jsonpath={{.status.jobDeploymentStatus}}=Running" in err
    assert "may cost money" in err
    assert not any("exec" in call for call in calls(tmp_path))


@pytest.mark.parametrize("target", ["gke", "queued"])
def test_a_launch_whose_run_does_not_train_fails_and_says_how_to_look(podzero, tools, states, head, target):
    states("ACTIVE")
    stand_in(tools, "podzero", 'echo "podzero: nothing to train" >&2; exit 2')
    code, out, err = podzero(*words(target))
    assert code == 2
    assert "nothing to train" in out
    assert "Training has not begun" in err
    assert "--status" in err


SECRET = "s3cret value's"


@pytest.fixture
def secret(monkeypatch, tmp_path):
    """A variable for the run, and a folder of its own for temporary files."""
    monkeypatch.setenv("API_KEY", SECRET)
    monkeypatch.setenv("TMPDIR", str(tmp_path / "temporary"))
    (tmp_path / "temporary").mkdir()


def left_behind(folder):
    """The files below a folder that hold the secret."""
    return [file for file in folder.rglob("*") if file.is_file() and b"s3cret" in file.read_bytes()]


@pytest.mark.parametrize("target", ["gke", "queued"])
def test_a_run_gets_variables_of_this_machine_that_nothing_shows_or_keeps(
    podzero, tools, tmp_path, states, head, secret, target
):
    states("ACTIVE")
    stand_in(tools, "podzero", 'if [[ $1 == train ]]; then rev <<<"$API_KEY" >"$HEAD/told"; fi\n' + TRAIN)
    code, printed, _ = podzero(*words(target, "--env", "API_KEY", "--dry-run"))
    assert code == 0
    code, out, err = podzero(*words(target, "--env", "API_KEY"))
    assert code == 0, err
    assert (head.folder / "told").read_text().strip() == SECRET[::-1]
    everything = calls(tmp_path)
    assert any("--env=API_KEY" in call for call in everything)
    assert "s3cret" not in printed + out + err + "\n".join(everything)
    assert left_behind(tmp_path) == [head.folder / "VARIABLES"]  # in memory, as long as the run
    head("stop")
    assert left_behind(tmp_path) == []
    assert list((tmp_path / "temporary").iterdir()) == []


@pytest.mark.parametrize("target", ["gke", "queued"])
def test_variables_that_do_not_arrive_end_the_launch_and_are_kept_nowhere(
    podzero, tools, tmp_path, states, head, secret, target
):
    states("ACTIVE")
    tool, sending = {"gke": ("kubectl", "secret"), "queued": ("gcloud", "receive")}[target]
    stand_in(tools, tool, f"if [[ $* == *{sending}* ]]; then exit 7; fi\n{BODIES[tool]}")
    code, _, err = podzero(*words(target, "--env", "API_KEY"))
    assert code == 2
    assert "ended with code 7" in err
    assert head("running").returncode == 1
    assert "s3cret" not in err
    assert list((tmp_path / "temporary").iterdir()) == []


def test_a_variable_that_is_not_set_is_refused_before_anything_is_run(podzero, tools, tmp_path):
    code, _, err = podzero(*words("gke", "--env", "NO_SUCH_KEY"))
    assert code == 2
    assert "NO_SUCH_KEY" in err
    assert calls(tmp_path) == []
    assert podzero(*words("gke", "--env", "NO_SUCH_KEY", "--down"))[0] == 0


RESTARTS = {"queued": "ray start "}
"""The calls that would restart Ray."""


@pytest.mark.parametrize("target", RESTARTS)
def test_a_launch_leaves_the_ray_cluster_of_a_live_run_alone(podzero, tmp_path, states, head, target):
    states("ACTIVE")
    assert head("start").returncode == 0
    calls(tmp_path)
    code, out, err = podzero(*words(target))
    assert code == 2
    assert "a run is under way, as process" in out
    assert "A run is under way on this cluster" in err
    assert "--status" in err
    assert "launch with --down first" in err
    assert not any(RESTARTS[target] in call for call in calls(tmp_path))
    assert head("running").returncode == 0
    head("stop")
    code, _, err = podzero(*words(target))
    assert code == 0, err
    assert any(RESTARTS[target] in call for call in calls(tmp_path))


@pytest.mark.parametrize("target", RESTARTS)
def test_a_head_that_does_not_answer_counts_as_one_with_a_live_run(podzero, tools, tmp_path, states, head, target):
    states("ACTIVE")
    tool = "gcloud"
    stand_in(tools, tool, 'if [[ $* == *"run.sh running"* ]]; then exit 255; fi\n' + BODIES[tool])
    code, _, err = podzero(*words(target))
    assert code == 2
    assert "the head did not answer" in err
    assert not any(RESTARTS[target] in call for call in calls(tmp_path))


DELETES = {"gke": " delete ", "queued": "queued-resources delete "}
"""The calls that delete machines."""


@pytest.mark.parametrize("target", DELETES)
def test_no_machine_is_deleted_while_a_checkpoint_is_written(podzero, tmp_path, states, head, monkeypatch, target):
    states("ACTIVE")
    (head.folder / "SAVED").unlink()
    monkeypatch.setenv("STOP_TIMEOUT", "1")
    head("start")
    code, _, err = podzero(*words(target, "--down"))
    assert code == 2
    assert "no machine was deleted" in err
    assert "--down --force" in err
    assert not any(DELETES[target] in call for call in calls(tmp_path))
    (head.folder / "SAVED").touch()
    monkeypatch.setenv("STOP_TIMEOUT", "60")
    code, _, err = podzero(*words(target, "--down"))
    assert code == 0, err
    assert "saved" in (head.folder / "LOGFILE").read_text()
    assert any(DELETES[target] in call for call in calls(tmp_path))


@pytest.mark.parametrize("target", DELETES)
def test_no_machine_is_deleted_when_the_last_checkpoint_failed(podzero, tmp_path, states, head, monkeypatch, target):
    states("ACTIVE")
    monkeypatch.setenv("TRAIN_CODE", "3")
    head("start")
    for _ in range(2):
        code, _, err = podzero(*words(target, "--down"))
        assert code == 2
        assert "without its last checkpoint" in err
        assert "no machine was deleted" in err
        assert not any(DELETES[target] in call for call in calls(tmp_path))
    code, _, err = podzero(*words(target, "--down", "--force"))
    assert code == 0, err
    assert any(DELETES[target] in call for call in calls(tmp_path))


@pytest.mark.parametrize("target", DELETES)
def test_machines_are_deleted_under_a_run_only_by_force(podzero, tmp_path, states, head, target):
    states("ACTIVE")
    head("start")
    calls(tmp_path)
    code, _, err = podzero(*words(target, "--down", "--force"))
    assert code == 0, err
    everything = calls(tmp_path)
    assert any(DELETES[target] in call for call in everything)
    assert not any("run.sh" in call for call in everything)


@pytest.mark.parametrize("target", DELETES)
def test_machines_without_a_run_are_deleted(podzero, tools, tmp_path, states, target):
    states("ACTIVE")
    code, _, err = podzero(*words(target, "--down"))
    assert code == 0, err
    assert any(DELETES[target] in call for call in calls(tmp_path))


def test_a_deletion_that_fails_is_named(podzero, tools):
    stand_in(tools, "kubectl", "[[ $3 != delete ]]")
    code, _, err = podzero(*words("gke", "--down"))
    assert code == 2
    assert "costs money" in err
    assert f"kubectl {CONTEXT} delete" in err


def test_files_of_others_are_never_overwritten(podzero, tools, tmp_path):
    own = {".gitignore": "*.pyc\n", "cluster.yaml": "mine\n"}
    for name, text in own.items():
        (tmp_path / name).write_text(text)
    for options in ([], ["--down"]):
        code, _, err = podzero(*words("queued", "--folder", ".", *options))
        assert code == 2
        assert "--folder .: this folder holds files that podzero launch did not write" in err
    _, printed, _ = podzero(*words("queued", "--folder", ".", "--dry-run"))
    assert subprocess.run(["bash"], input=printed, text=True, check=False, timeout=60).returncode == 2
    assert {name: (tmp_path / name).read_text() for name in own} == own
    assert not (tmp_path / "token").exists()
    assert calls(tmp_path) == []


def test_a_launch_writes_to_a_new_an_empty_or_its_own_folder(podzero, tools, tmp_path, states):
    (tmp_path / "empty").mkdir()
    for folder in ("new", "empty", "new"):
        states("NOT_FOUND", "ACTIVE")
        assert podzero(*words("queued", "--folder", folder))[0] == 0
        assert (tmp_path / folder / "queued.env").is_file()


def test_a_folder_that_cannot_be_one_is_named(podzero, tools, tmp_path):
    (tmp_path / "file").touch()
    code, _, err = podzero(*words("queued", "--folder", "file"))
    assert code == 2
    assert "--folder file: cannot write there" in err
    assert "Traceback" not in err


def test_a_missing_tool_is_named_before_anything_is_run(podzero, tools, tmp_path, monkeypatch):
    monkeypatch.setenv("PATH", str(tools))
    (tools / "kubectl").unlink()
    code, _, err = podzero(*words("gke"))
    assert code == 2
    assert "missing on this machine: kubectl" in err
    assert not (tmp_path / "runs").exists()
    assert calls(tmp_path) == []


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (["gke", "connect_four", "cluster.slice=v5e-16", "replay.shards=4"], "also needs: --project"),
        (["gke", "connect_four", *OPTIONS], "set cluster.slice"),
        (["gke", "conect_four", *OPTIONS], "did you mean 'connect_four'"),
        (["gke", "connect_four", *OPTIONS, "--force"], "--down (with --force)"),
        (["aws", "connect_four"], "'gke', 'queued'"),
        (["gcp", "connect_four"], "use gke"),
    ],
)
def test_what_a_person_forgot_is_one_message_and_code_2(podzero, arguments, expected):
    code, out, err = podzero(*arguments)
    assert (code, out) == (2, "")
    assert expected in " ".join(err.replace("│", " ").split())
    assert "Traceback" not in err


def test_the_help_shows_what_paths_are_used_by_default(podzero, monkeypatch):
    monkeypatch.setenv("COLUMNS", "200")
    _, out, _ = podzero("--help")
    assert "/mnt/podzero/NAME" in out
    assert "runs/launch/NAME-TARGET" in out


@pytest.mark.parametrize("name", ["run.sh", "queued.sh"])
def test_shell_scripts_are_clean(name):
    checker = Path(sys.executable).parent / "shellcheck"
    done = subprocess.run(
        [str(checker), str(plan.HERE / name)], capture_output=True, text=True, timeout=60, check=False
    )
    assert done.returncode == 0, done.stdout
