"""The script on the head of a cluster: a run starts once, outlives its connection, and ends with its checkpoint."""

import os
import re
import signal
import subprocess
import time
from contextlib import suppress
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


def test_a_run_gets_the_variables_that_were_sent_and_the_head_keeps_them_no_longer_than_it(head, tools, tmp_path):
    stand_in(tools, "podzero", 'echo "${API_KEY:-none} ${workdir:-none}" >>"$HEAD/told"\n' + TRAIN)
    sent = head.folder / "VARIABLES"
    assert head("receive", given="export API_KEY=$'two\\nlines'\nexport workdir=mine\n").returncode == 0
    assert sent.stat().st_mode & 0o077 == 0
    assert head("start", "API_KEY", "workdir").returncode == 0
    assert sent.exists(), "the run may have to start again"
    assert (head.folder / "told").read_text() == "two\nlines mine\n"
    assert calls(tmp_path)[-1].endswith("--workdir /mnt/podzero/x --view plain --env=API_KEY --env=workdir")
    # Those for a run that is under way already are not kept for another one.
    assert head("receive", given="export API_KEY=late\n").returncode == 0
    assert head("start", "API_KEY").returncode == 0
    assert not sent.exists()
    head("stop")


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
    (pattern,) = re.findall(r"grep -qs '(.*)' \"\$log\"", template("run.sh"))
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


def fails_with(*codes):
    """A `podzero` whose runs end with these codes, one after the other, and then train."""
    return f"""
if [[ $1 == train ]]; then
  n=$(cat "$HEAD/n" 2>/dev/null || echo 0); codes=({" ".join(codes)}); echo $((n + 1)) >"$HEAD/n"
  if ((n < ${{#codes[@]}})); then exit "${{codes[n]}}"; fi
fi
{TRAIN.strip()}"""


@pytest.mark.parametrize("codes", [["4"], ["1", "137", "4"]])
def test_the_same_command_is_given_again_after_failures_that_may_pass(head, tools, tmp_path, codes):
    stand_in(tools, "podzero", fails_with(*codes))
    done = head("start")
    assert done.returncode == 0, done.stdout + done.stderr
    trains = [call for call in calls(tmp_path) if call.startswith("podzero train")]
    assert len(trains) == len(codes) + 1
    assert len(set(trains)) == 1
    head("stop")


@pytest.mark.parametrize("code", ["0", "2", "3"])
def test_it_is_not_given_again_after_the_end_or_a_failure_for_good(head, tools, tmp_path, code):
    stand_in(tools, "podzero", fails_with(code))
    assert head("start").returncode == 1
    assert len(calls(tmp_path)) == 1


def test_failures_in_a_row_are_bounded(head, tools, tmp_path, monkeypatch):
    monkeypatch.setenv("MOST_TRIES", "3")
    stand_in(tools, "podzero", fails_with(*["4"] * 9))
    assert head("start").returncode == 1
    assert len(calls(tmp_path)) == 3
    assert "failed 3 times in a row" in (head.folder / "LOGFILE").read_text()


def test_a_stop_also_ends_the_pause_before_the_next_start(head, tools, monkeypatch):
    monkeypatch.setenv("FIRST_PAUSE", "600")
    monkeypatch.setenv("START_TIMEOUT", "1")
    stand_in(tools, "podzero", fails_with("4"))
    assert head("start").returncode == 1
    assert head("running").returncode == 0
    head("stop")
    assert head("running").returncode == 1


@pytest.mark.parametrize(("code", "ends_with"), [("0", 0), ("2", 0), ("3", 0), ("4", 4), ("1", 1)])
def test_a_job_fails_only_where_another_attempt_may_help(head, tools, monkeypatch, code, ends_with):
    monkeypatch.setenv("MOST_TRIES", "1")
    stand_in(tools, "podzero", fails_with(code))
    job = head("job")
    assert job.returncode == ends_with
    assert f"ended with code {code}" in job.stdout


@pytest.fixture
def begin(head):
    """Starts a verb of `run.sh` that goes on; at the end of the test its whole process group is ended."""
    begun = []

    def start(*arguments):
        begun.append(subprocess.Popen(["bash", str(head.folder / "run.sh"), *arguments], start_new_session=True))
        return begun[-1]

    yield start
    for process in begun:
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()


@pytest.mark.parametrize(("asked", "ends_with"), [("stop", 0), ("signal", 143)])
def test_a_job_that_somebody_stops_has_ended_and_one_whose_machine_ends_goes_on_elsewhere(
    head, begin, asked, ends_with
):
    job = begin("job", "/mnt/podzero/x")
    assert head("await").returncode == 0
    if asked == "stop":
        assert head("stop").returncode == 0
    else:
        os.killpg(job.pid, signal.SIGTERM)  # as Ray does, to all of its processes
    assert job.wait(30) == ends_with
    assert "saved" in (head.folder / "LOGFILE").read_text()


def test_a_notice_ends_the_run_with_its_checkpoint_and_is_heard_by_the_other_processes(head):
    head("start")
    assert head("notice").returncode == 0
    assert (head.folder / "NOTICE").exists()
    assert "saved" in (head.folder / "LOGFILE").read_text()
    assert head("running").returncode == 1


def test_a_notice_lasts_until_no_process_of_the_container_holds_state(head, begin):
    for pid, process in ((7, "ray::ActorProcess"), (8, "ray::LearnerProcess.run"), (9, "bash")):
        (head.folder / "PROC" / str(pid)).mkdir(parents=True)
        (head.folder / "PROC" / str(pid) / "cmdline").write_text(f"{process}\0")
    notice = begin("notice")
    with pytest.raises(subprocess.TimeoutExpired):
        notice.wait(1.5)
    (head.folder / "PROC/8/cmdline").unlink()
    assert notice.wait(30) == 0


def test_a_head_whose_container_starts_again_begins_its_run_again(head, begin, tools, tmp_path):
    stand_in(tools, "ray", "")
    (head.folder / "PIDFILE.begun").write_text("/mnt/podzero/x API_KEY\n")
    (head.folder / "PIDFILE").write_text(f"{os.getpid()}\n")  # a process of the earlier container had this number
    node = begin("node", "sleep", "1000")
    assert head("await").returncode == 0
    (train,) = [call for call in calls(tmp_path) if call.startswith("podzero train")]
    assert train.endswith("--workdir /mnt/podzero/x --view plain --env=API_KEY")
    node.terminate()
    assert node.wait(30) == 143
    assert "saved" in (head.folder / "LOGFILE").read_text()


def test_the_first_process_of_other_containers_is_ray_alone(head, begin):
    assert begin("node", "bash", "-c", "exit 7").wait(30) == 7
    assert head("running").returncode == 1
