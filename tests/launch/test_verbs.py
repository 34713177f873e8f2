"""What a launch asks about a run or does to it later, and what it checks first; with stand-ins for the tools."""

import pytest
from cloud_tools import BODIES, TRAIN, calls, stand_in, words

from podzero.launch.targets import plan

TOOLS = {"gke": "kubectl", "queued": "gcloud"}


@pytest.mark.parametrize("target", TOOLS)
def test_the_state_of_a_run_is_that_which_its_head_sees(podzero, tools, tmp_path, states, head, target):
    states("ACTIVE")
    stand_in(tools, "podzero", f'if [[ $1 == status ]]; then echo "training step 7"; fi\n{TRAIN}')
    head("start")
    code, out, err = podzero(*words(target, "--status"))
    assert (code, err) == (0, "")
    assert "training step 7" in out
    assert calls(tmp_path)[-1] == "podzero status /mnt/podzero/connect-four"


@pytest.mark.parametrize("follow", [[], ["-f"]])
@pytest.mark.parametrize("target", TOOLS)
def test_logs_are_shown_once_or_followed(podzero, tools, tmp_path, target, follow):
    assert podzero(*words(target, "--logs", *follow))[0] == 0
    (asked,) = calls(tmp_path)
    assert ("logs job/podzero-connect-four" if target == "gke" else "run.sh logs /mnt/podzero/connect-four") in asked
    assert ("--follow" in asked) is bool(follow)


@pytest.mark.parametrize("target", TOOLS)
def test_a_run_is_ended_with_its_checkpoint_and_nothing_is_deleted_from_here(
    podzero, tools, tmp_path, states, head, target
):
    states("ACTIVE")
    head("start")
    code, _, err = podzero(*words(target, "--stop"))
    assert code == 0, err
    assert "saved" in (head.folder / "LOGFILE").read_text()
    assert not any(" delete " in call for call in calls(tmp_path))
    assert head("running").returncode == 1


def test_without_a_head_the_job_says_how_the_run_has_ended(podzero, tools, tmp_path):
    stand_in(tools, "kubectl", "")
    assert podzero(*words("gke", "--status"))[0] == 0
    _, job, log = calls(tmp_path)
    assert job.endswith("get rayjob podzero-connect-four")
    assert "logs job/podzero-connect-four" in log


@pytest.mark.parametrize("verb", ["--status", "--logs", "--stop"])
@pytest.mark.parametrize(
    ("says", "remedy"),
    [
        ("error: You must be logged in to the server (Unauthorized)", "gcloud auth login"),
        ("ERROR: Reauthentication failed. cannot prompt during non-interactive execution.", "gcloud auth login"),
        ('error: context "gke_x" does not exist', "get-credentials"),
    ],
)
def test_an_error_of_a_tool_comes_with_its_code_its_words_and_what_to_do(podzero, tools, verb, says, remedy):
    stand_in(tools, "kubectl", f"echo '{says}' >&2; exit 9")
    code, _, err = podzero(*words("gke", verb))
    assert code == 2
    assert "code 9" in err
    assert says in err
    assert remedy in err


def test_a_tool_that_does_not_answer_is_waited_for_within_bounds(podzero, tools, monkeypatch):
    monkeypatch.setitem(plan.LIMITS_S, "status", 0.3)
    stand_in(tools, "kubectl", "sleep 2")
    code, _, err = podzero(*words("gke", "--status"))
    assert code == 2
    assert "within 0.3 s" in err


def test_a_missing_tool_is_named(podzero, tools, tmp_path, monkeypatch):
    monkeypatch.setenv("PATH", str(tools))
    (tools / "kubectl").unlink()
    code, _, err = podzero(*words("gke", "--status"))
    assert code == 2
    assert "missing on this machine: kubectl" in err


def test_a_dry_run_prints_the_command(podzero, tools, tmp_path):
    code, out, _ = podzero(*words("queued", "--stop", "--dry-run"))
    assert (code, out) == (0, "cd runs/launch/connect-four-queued && bash queued.sh stop\n")
    assert calls(tmp_path) == []


@pytest.mark.parametrize("options", [["--status", "--stop"], ["--down", "--logs"], ["-f"], ["--status", "-f"]])
def test_options_that_exclude_each_other_are_refused(podzero, tools, tmp_path, options):
    assert podzero(*words("gke", *options))[0] == 2
    assert calls(tmp_path) == []


SLICE = {"gke": "machine-types describe ct5lp-hightpu-4t", "queued": "accelerator-types describe v5litepod-16"}
CREATES = (" apply ", " create ")


@pytest.mark.parametrize("target", TOOLS)
@pytest.mark.parametrize(
    ("asks", "named"),
    [
        ("slice", "cluster.slice"),
        ("slice", "--zone europe-west4-b"),
        ("images describe", "--image europe-west4"),
    ],
)
def test_what_does_not_exist_is_named_before_anything_is_created(podzero, tools, tmp_path, states, target, asks, named):
    asks = SLICE[target] if asks == "slice" else asks
    says = "ERROR: (gcloud) The resource was not found"
    stand_in(tools, "gcloud", f'if [[ $* == *"{asks}"* ]]; then echo "{says}" >&2; exit 1; fi\n{BODIES["gcloud"]}')
    code, _, err = podzero(*words(target))
    assert code == 2
    assert named in err
    assert says in err
    assert "nothing was created" in err
    assert not any(word in call for call in calls(tmp_path) for word in CREATES)


@pytest.mark.parametrize(("found", "code"), [("podzero", 0), ("another", 2), ("", 0)])
def test_a_share_that_filestore_knows_by_another_name_is_refused(podzero, tools, tmp_path, states, found, code):
    """A server that is not one of Filestore's may be any NFS server."""
    stand_in(tools, "gcloud", f'if [[ $* == *"filestore "* ]]; then echo "{found}"; fi\n{BODIES["gcloud"]}')
    ended, _, err = podzero(*words("queued"))
    assert ended == code
    assert ("--share 10.0.0.2:/podzero" in err) is (code == 2)
    assert any(" create " in call for call in calls(tmp_path)) is (code == 0)


def test_expired_credentials_are_found_by_the_checks(podzero, tools, tmp_path):
    stand_in(tools, "gcloud", 'echo "ERROR: Please run: $ gcloud auth login" >&2; exit 1')
    code, _, err = podzero(*words("gke"))
    assert code == 2
    assert "Log in: gcloud auth login" in err
    assert len(calls(tmp_path)) == 1
