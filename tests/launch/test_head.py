"""The script on the head of a cluster: a run starts once, outlives its connection, and ends with its checkpoint."""

import os
import re
import subprocess
import time
from typing import get_args

import pytest
from cloud_tools import TRAIN, calls, stand_in

from podzero.launch.targets.plan import template
from podzero.runtime.monitoring.status import Phase, RunStatus
from podzero.runtime.monitoring.view import status_line


def test_a_run_starts_once_and_ends_with_its_checkpoint(head, tmp_path):
    assert head("running").returncode == 1
    assert head("start").returncode == 0
    again = head("start")
    assert again.returncode == 0
    assert "a run is under way" in again.stdout
    assert head("running").returncode == 0
    (train,) = calls(tmp_path)
    assert train == (
        f"podzero train {head.folder}/experiment.yaml --address 127.0.0.1:6379 --workdir /mnt/podzero/x --view plain"
    )
    assert head("status").returncode == 0
    assert calls(tmp_path) == ["podzero status /mnt/podzero/x"]
    assert head("stop").returncode == 0
    assert "saved" in (head.folder / "LOGFILE").read_text()
    until = time.monotonic() + 20
    while (head.folder / "PIDFILE").exists():  # removed by the process that waits for the run
        assert time.monotonic() < until
        time.sleep(0.05)
    assert head("stop").returncode == 0


def test_a_run_gets_the_variables_that_were_sent_and_the_head_keeps_none(head, tools, tmp_path):
    stand_in(tools, "podzero", 'echo "${API_KEY:-none} ${workdir:-none}" >>"$HEAD/told"\n' + TRAIN)
    sent = head.folder / "VARIABLES"
    assert head("receive", given="export API_KEY=$'two\\nlines'\nexport workdir=mine\n").returncode == 0
    assert sent.stat().st_mode & 0o077 == 0
    assert head("start", "API_KEY", "workdir").returncode == 0
    assert not sent.exists()
    assert (head.folder / "told").read_text() == "two\nlines mine\n"
    assert calls(tmp_path)[-1].endswith("--workdir /mnt/podzero/x --view plain --env=API_KEY --env=workdir")
    # Those for a run that is under way already are not kept for another one.
    assert head("receive", given="export API_KEY=late\n").returncode == 0
    assert head("start", "API_KEY").returncode == 0
    assert not sent.exists()


def test_a_stop_that_takes_too_long_leaves_the_run_to_its_checkpoint(head, monkeypatch):
    (head.folder / "SAVED").unlink()
    monkeypatch.setenv("STOP_TIMEOUT", "1")
    head("start")
    stopped = head("stop")
    assert stopped.returncode == 1
    assert "may still be writing its checkpoint" in stopped.stderr
    assert "writes a checkpoint first" in stopped.stdout
    assert head("running").returncode == 0
    (head.folder / "SAVED").touch()
    monkeypatch.setenv("STOP_TIMEOUT", "60")
    assert head("stop").returncode == 0
    assert "saved" in (head.folder / "LOGFILE").read_text()


@pytest.mark.parametrize("code", ["3", "1", "137"])
def test_a_stop_fails_where_the_run_ends_without_its_last_checkpoint(head, monkeypatch, code):
    monkeypatch.setenv("TRAIN_CODE", code)
    head("start")
    stopped = head("stop")
    assert stopped.returncode == 1
    assert f"ended with code {code}, without its last checkpoint" in stopped.stderr
    assert "saved" in stopped.stderr, "the end of the log"
    assert head("stop").returncode == (1 if code == "3" else 0)
    monkeypatch.setenv("TRAIN_CODE", "0")
    head("start")
    assert head("stop").returncode == 0


def test_a_run_that_ends_at_once_is_shown_as_a_failure(head, tools):
    stand_in(tools, "podzero", 'echo "podzero: no such thing" >&2; exit 2')
    done = head("start")
    assert done.returncode == 1
    assert "no such thing" in done.stdout
    assert "ended with code 2" in done.stdout
    assert "the run ended before training began" in done.stderr


def slow(text):
    """A `podzero` that says `text` when it starts, and trains two seconds later."""
    return f'echo "{text}"; sleep 2; {TRAIN.strip()}'


def test_a_start_waits_until_the_run_trains(head, tools):
    stand_in(tools, "podzero", slow("checking the environment"))
    done = head("start")
    assert done.returncode == 0, done.stderr
    assert "waiting for training to begin (0 of 30 s)" in done.stdout
    assert "training has begun: [0:05] training  step 1" in done.stdout


def test_a_start_that_takes_too_long_says_what_the_run_waits_for_and_leaves_it_alone(head, tools, monkeypatch):
    stand_in(tools, "podzero", slow("waiting for nodes to join: 3 of 4 hosts"))
    monkeypatch.setenv("START_TIMEOUT", "1")
    done = head("start")
    assert done.returncode == 1
    assert "still starting: waiting for nodes to join: 3 of 4 hosts" in done.stderr
    assert head("running").returncode == 0


def test_a_failure_before_training_ends_the_wait_at_once(head, tools):
    stand_in(tools, "podzero", 'echo "[0:01] filling replay  step 0"; sleep 1; echo "out of memory"; exit 2')
    done = head("start")
    assert done.returncode == 1
    assert "out of memory" in done.stdout


def test_what_a_start_waits_for_is_the_line_that_podzero_prints():
    (pattern,) = re.findall(r"grep -q '(.*)' \"\$log\"", template("run.sh"))
    for phase in get_args(Phase):
        found = re.search(pattern, status_line(RunStatus("x", phase, elapsed_s=5000.0)))
        assert (found is not None) == (phase == "training")


def test_a_run_survives_the_connection_that_started_it(head):
    script = f"bash {head.folder}/run.sh start /mnt/podzero/x"
    starter = subprocess.Popen(["bash", "-c", script], start_new_session=True, stdout=subprocess.DEVNULL)
    starter.wait(timeout=30)
    os.killpg(starter.pid, 1)  # SIGHUP, as when a terminal goes away
    time.sleep(0.2)
    assert head("running").returncode == 0
