"""A TPU slice through queued resources, with stand-ins for `gcloud`: requested once, awaited, joined, deleted."""

import shlex

import pytest
import yaml
from cloud_tools import BODIES, OPTIONS, SITE, calls, stand_in, words

from podzero.config import load
from podzero.launch.targets import machines, plan, queued


def made(tmp_path, verb):
    """The calls of `gcloud compute tpus queued-resources VERB`."""
    return [call for call in calls(tmp_path) if f"queued-resources {verb} " in call]


def test_a_slice_is_requested_awaited_joined_and_deleted(podzero, tools, tmp_path, states):
    states("NOT_FOUND", "WAITING_FOR_RESOURCES", "PROVISIONING", "ACTIVE")
    code, _, err = podzero(*words("queued", "--spot"))
    assert code == 0, err
    everything = calls(tmp_path)
    create = shlex.split(next(call for call in everything if "queued-resources create" in call))
    for words_of_create in (
        ["--accelerator-type", "v5litepod-16"], ["--runtime-version", "v2-alpha-tpuv5-lite"], ["--spot"],
        ["--node-id", "podzero-connect-four"], ["--project", "my-project"], ["--zone", "europe-west4-b"],
    ):  # fmt: skip
        assert " ".join(words_of_create) in " ".join(create)
    assert sum("queued-resources describe" in call for call in everything) == 4
    heads = [call for call in everything if "ray start --head" in call]
    others = [call for call in everything if "ray start --address 10.0.0.9:6379" in call]
    assert [("--worker 0 " in call) for call in heads] == [True]
    assert [("--worker 1-3 " in call) for call in others] == [True]
    assert "docker run --detach --restart on-failure:20 --name podzero " in heads[0]
    assert "docker run --detach --restart on-failure:20 --name podzero " in others[0]
    assert everything.index(heads[0]) < everything.index(others[0])
    assert "systemd-run" in everything[-2], "the slice goes back also if the run ends before it trains"
    assert "queued-resources delete podzero-connect-four" in everything[-2]
    assert everything[-1].endswith("run.sh start /mnt/podzero/connect-four")
    assert podzero(*words("queued", "--down"))[0] == 0
    stop, delete = [call for call in calls(tmp_path) if "describe" not in call]
    assert "run.sh stop" in stop
    assert "queued-resources delete podzero-connect-four" in delete
    assert "--force" in delete


def test_the_hosts_have_no_external_addresses_and_their_own_service_account(podzero, tools, tmp_path, states):
    podzero(*words("queued"))
    everything = calls(tmp_path)
    (create,) = [call for call in everything if "queued-resources create" in call]
    assert "--internal-ips" in create
    assert f"--service-account {SITE.worker_account} " in create
    reached = [call for call in everything if " ssh " in call or " scp " in call]
    assert len(reached) > 3
    assert all("--tunnel-through-iap" in call for call in reached)


@pytest.mark.parametrize("state", ["WAITING_FOR_RESOURCES", "ACTIVE"])
def test_a_launch_goes_on_with_the_slice_that_was_requested_before(podzero, tools, tmp_path, states, state):
    states(state, "ACTIVE")
    code, out, err = podzero(*words("queued"))
    assert code == 0, err
    assert f"podzero-connect-four was requested before and is {state}" in out
    everything = calls(tmp_path)
    assert not any("queued-resources create" in call for call in everything)
    assert everything[-1].endswith("run.sh start /mnt/podzero/connect-four")


def test_a_launch_goes_on_after_a_failure_in_its_middle(podzero, tools, tmp_path, states):
    stand_in(tools, "gcloud", 'if [[ $* == *"ray start"* ]]; then exit 1; fi\n' + BODIES["gcloud"])
    assert podzero(*words("queued"))[0] == 2
    assert len(made(tmp_path, "create")) == 1
    stand_in(tools, "gcloud", BODIES["gcloud"])
    code, _, err = podzero(*words("queued"))
    assert code == 0, err
    assert made(tmp_path, "create") == []


def test_failed_queries_do_not_end_the_wait(podzero, tools, states):
    states(
        "NOT_FOUND",
        "WAITING_FOR_RESOURCES",
        "UNAVAILABLE",
        "UNAVAILABLE",
        "WAITING_FOR_RESOURCES",
        "UNAVAILABLE",
        "ACTIVE",
    )
    code, _, err = podzero(*words("queued"))
    assert code == 0, err
    assert err.count("warning: waiting for podzero-connect-four to be ACTIVE") == 3
    assert "failure 2 of 12" in err
    assert "failure 3 of 12" not in err
    assert "UNAVAILABLE: The service is unavailable." in err


@pytest.mark.parametrize("state", ["UNAVAILABLE", "NOT_FOUND"])
def test_the_wait_ends_when_the_state_stays_unknown(podzero, tools, tmp_path, states, state):
    states("NOT_FOUND", "WAITING_FOR_RESOURCES", state)
    code, _, err = podzero(*words("queued"))
    assert code == 2
    assert "gave up waiting for podzero-connect-four to be ACTIVE" in err
    assert "bash queued.sh await" in err
    everything = calls(tmp_path)
    assert sum("queued-resources describe" in call for call in everything) == 2 + 12
    assert not any(" ssh " in call for call in everything)


def test_the_pauses_between_failed_queries_grow_to_ten_minutes(podzero, tools, states, monkeypatch):
    monkeypatch.setenv("POLL", "30")
    stand_in(tools, "sleep", "")
    states("NOT_FOUND", "UNAVAILABLE")
    _, _, err = podzero(*words("queued"))
    pauses = [int(line.split()[-2]) for line in err.splitlines() if "next query in" in line]
    assert pauses[:4] == [60, 120, 240, 480]
    assert set(pauses[4:]) == {600}


def test_the_wait_in_the_queue_is_bounded(podzero, tools, states, monkeypatch):
    states("NOT_FOUND", "WAITING_FOR_RESOURCES")
    monkeypatch.setenv("POLL", "1")
    monkeypatch.setenv("QUEUE_TIMEOUT", "2")
    code, _, err = podzero(*words("queued"))
    assert code == 2
    assert "gave up waiting for podzero-connect-four to be ACTIVE after 2 s" in err


@pytest.mark.parametrize("state", ["FAILED", "SUSPENDED"])
@pytest.mark.parametrize("before", ["NOT_FOUND", "WAITING_FOR_RESOURCES"])
def test_a_slice_that_will_not_come_ends_the_launch(podzero, tools, tmp_path, states, before, state):
    states(before, state)
    code, _, err = podzero(*words("queued"))
    assert code == 2
    assert "launch with --down, then launch again" in err
    assert not any(" ssh " in call for call in calls(tmp_path))


def test_a_slice_of_one_host_starts_no_others(podzero, tools, tmp_path, states):
    code, _, err = podzero("queued", "connect_four", "cluster.slice=v5e-4", *OPTIONS, "--yes")
    assert code == 0, err
    everything = calls(tmp_path)
    assert sum("ray start" in call for call in everything) == 1
    assert not any("--spot" in call for call in everything)


@pytest.mark.parametrize(
    ("state", "deleted"), [("SUSPENDED", True), ("WAITING_FOR_RESOURCES", True), ("NOT_FOUND", False)]
)
def test_a_slice_without_hosts_is_deleted_without_ending_a_run(podzero, tools, tmp_path, states, state, deleted):
    states(state)
    code, _, err = podzero(*words("queued", "--down"))
    assert code == 0, err
    everything = calls(tmp_path)
    assert not any(" ssh " in call for call in everything)
    assert any("queued-resources delete" in call for call in everything) is deleted


def test_a_slice_that_is_kept_is_not_deleted_by_its_head(podzero, tools, tmp_path, states):
    assert podzero(*words("queued", "--keep"))[0] == 0
    everything = calls(tmp_path)
    assert not any("systemd-run" in call for call in everything)
    assert any("systemctl stop podzero-release" in call for call in everything), "what an earlier launch began"


def test_the_script_gets_every_setting_that_it_asks_for(monkeypatch):
    monkeypatch.setattr(machines, "sample_bytes", lambda experiment: 1000)
    config = load("connect_four", ["cluster.slice=v5e-16", "replay.shards=4"])
    text = queued.plan(config, SITE).files["queued.env"]
    given = {line.partition("=")[0] for line in text.splitlines()}
    script = plan.template("queued.sh")
    asked = {word.split("?")[0].rstrip(":") for word in script.split('"${')[1:] if "?" in word.split("}")[0]}
    assert asked == given
    assert yaml.safe_load(queued.plan(config, SITE).files["experiment.yaml"])["cluster"]["slice"] == "v5e-16"
