"""Commands take the address of a run in a bucket in place of its directory."""

import json

import pytest
from fake_bucket import on_machine, use_fake_bucket

from podzero.config import load
from podzero.core.errors import ConfigError
from podzero.files.copies import Copies
from podzero.files.workdir import Workdir, split_step
from podzero.launch.train import check_startable, find_start
from podzero.runtime.monitoring.status import RunStatus, write_status

ADDRESS = "gs://b/run"


@pytest.fixture
def run(monkeypatch, tmp_path):
    """A run that has ended, as another machine sees it."""
    use_fake_bucket(monkeypatch, tmp_path / "there")
    workdir, experiment = Workdir(ADDRESS, works=True), load("tic_tac_toe", ["learner.batch_size=64"])
    with workdir.lock() as lock:
        workdir.replace_copy()
        workdir.open(experiment)
        workdir.log_file.write_text("2026-11-28 02:46:36,123 INFO actor-0: has played\n")
        write_status(workdir, RunStatus("tic_tac_toe", "ended", elapsed_s=60.0, step=70))
        Copies(workdir.root, lock.check).close()
    on_machine(monkeypatch, tmp_path / "here")
    return experiment


@pytest.mark.parametrize("config", [ADDRESS, "gs:/b/run", "tic_tac_toe"])
def test_a_run_is_resumed_by_its_address(run, config):
    named = config != "tic_tac_toe"
    found = find_start(config, [] if named else ["learner.batch_size=64"], None if named else ADDRESS)
    assert Workdir(found.root).root == Workdir(ADDRESS).root
    assert found.experiment == run
    check_startable(found.experiment, Workdir(found.root))


def test_an_address_may_name_a_step(run):
    assert split_step(f"{ADDRESS}@7")[1] == 7
    assert split_step(ADDRESS)[1] is None
    assert split_step("gs://b/none@7") is None


def test_status_and_logs_are_read_there(run, command):
    code, out, _ = command("status", ADDRESS, "--json")
    found = json.loads(out)
    assert (code, found["step"], found["alive"]) == (0, 70, False)
    assert "actor-0: has played" in command("logs", ADDRESS)[1]
    assert "--follow" in command("logs", ADDRESS, "-f")[2]


def test_learners_on_several_hosts_need_a_folder_that_they_share(run):
    with pytest.raises(ConfigError, match="several hosts"):
        check_startable(load("connect_four", ["cluster.hosts=2", "replay.shards=2"]), Workdir("gs://b/other"))
