"""The account of paid time: events and seconds made by hand, and any sequence of events."""

import json
import math
import time
from contextlib import suppress

import psutil
import pytest
from hypothesis import given
from hypothesis import strategies as st

from podzero.config import load
from podzero.files.workdir import Workdir
from podzero.runtime.driver_process import DriverProcess, TrainingFailed
from podzero.runtime.monitoring.goodput import CAUSES, SILENT_S, PaidTime, largest_first, learner_shares
from podzero.runtime.monitoring.monitor import Monitor
from podzero.runtime.monitoring.status import RunStatus, read_status


def known(seconds):
    return {cause: pytest.approx(spent) for cause, spent in seconds.items() if spent}


def test_a_run_that_is_killed_and_goes_on_by_hand():
    """20 s start, 5 of them for nodes; 10 s compilation; 100 s, of which a checkpoint after 40 s of training keeps
    40 s; killed. The next driver starts for 8 s, restores for 3 s of them, trains 30 s and writes a last checkpoint."""
    paid = PaidTime(0.0)
    paid.restart(0.0, 20.0)
    paid.move("start", "wait_nodes", 5.0)
    paid.divide({"compile": 1.0}, 30.0)
    paid.divide({"training": 0.5, "wait_actors": 0.5}, 110.0)
    kept_s = paid.seconds(110.0)["training"]
    paid.divide({"training": 1.0}, 130.0)
    killed = paid.seconds(130.0)
    assert killed == dict.fromkeys(CAUSES, 0.0) | {
        "start": 15, "wait_nodes": 5, "compile": 10, "training": 60, "wait_actors": 40,
    }  # fmt: skip
    paid = PaidTime(1000.0, json.loads(RunStatus("x", "training", 1.0, paid_s=killed).to_json())["paid_s"])
    paid.restart(kept_s, 1008.0)
    paid.move("start", "restore", 3.0)
    paid.divide({"training": 1.0}, 1038.0)
    paid.enter("checkpoint", 1038.0)
    ended = paid.seconds(1042.0)
    assert ended == dict.fromkeys(CAUSES, 0.0) | {
        "start": 20, "wait_nodes": 5, "compile": 10, "restore": 3, "checkpoint": 4, "training": 70, "lost": 20,
        "wait_actors": 40,
    }  # fmt: skip
    assert sum(ended.values()) == 130 + 42
    assert largest_first(ended)[:2] == [("training", 70 / 172), ("wait actors", 40 / 172)]


def test_time_since_the_last_report_counts_as_that_report_divided_it_and_a_silent_learner_as_idle():
    paid = PaidTime(0.0)
    paid.divide({"training": 0.75, "wait_replay": 0.25}, 8.0)
    assert paid.seconds(12.0)["training"] == 9.0
    assert paid.seconds(8.0 + SILENT_S + 5.0)["idle"] == 5.0
    late = 8.0 + SILENT_S + 32.0
    paid.divide({"training": 1.0}, late)
    assert {"training": 6.0 + SILENT_S + 32.0, "idle": 0.0}.items() <= paid.seconds(late).items()


def test_a_phase_that_the_driver_knows_lasts_until_the_next_one_however_long():
    paid = PaidTime(0.0)
    paid.enter("wait_nodes", 10.0)
    paid.enter("idle", 5000.0)
    assert paid.seconds(5001.0) == dict.fromkeys(CAUSES, 0.0) | {"start": 10.0, "wait_nodes": 4990.0, "idle": 1.0}


def test_a_checkpoint_that_does_not_say_what_it_keeps_loses_nothing():
    paid = PaidTime(0.0, {"training": 50.0})
    paid.restart(math.inf, 0.0)
    assert paid.seconds(0.0)["training"] == 50.0
    paid.restart(0.0, 0.0)
    assert paid.seconds(0.0)["lost"] == 50.0


@pytest.mark.parametrize(
    ("stages", "busy", "blocked", "expected"),
    [
        # The devices execute while the loop waits for the next samples: only the rest is a wait, by actors who write
        # all that they make.
        ({"wait_replay": 0.9, "step": 0.1}, 0.6, 0.0, {"training": 0.6, "wait_actors": 0.4}),
        # Both sides wait a quarter of the time: so much of the learner's wait is replay's.
        ({"wait_replay": 0.4, "step": 0.6}, 0.2, 0.25, {"training": 0.6, "wait_actors": 0.3, "wait_replay": 0.1}),
        ({"wait_hosts": 0.5, "step": 0.3, "publish": 0.2}, 0.0, 1.0, {"training": 0.5, "wait_replay": 0.5}),
        (
            {"compile": 0.8, "checkpoint": 0.1, "other": 0.1},
            0.0,
            0.0,
            {"compile": 0.8, "checkpoint": 0.1, "other": 0.1},
        ),
        ({"a stage of a later version": 1.0}, 0.5, 0.0, {"training": 0.5, "other": 0.5}),
        ({"step": 1.0}, 0.7, 0.0, {"training": 1.0}),
    ],
)
def test_the_learners_time_is_divided_by_what_its_devices_and_its_loop_did(stages, busy, blocked, expected):
    assert {cause: share for cause, share in learner_shares(stages, busy, blocked).items() if share} == known(expected)


SHARE = st.floats(0.0, 1.0)
WEIGHTS = st.dictionaries(
    st.sampled_from(["step", "wait_replay", "wait_hosts", "publish", "checkpoint", "?"]),
    st.floats(1e-6, 1.0),
    min_size=1,
)
STAGES = WEIGHTS.map(lambda weights: {stage: weight / sum(weights.values()) for stage, weight in weights.items()})
EVENT = st.one_of(
    st.tuples(st.just("enter"), st.sampled_from(sorted(CAUSES))),
    st.tuples(st.just("divide"), STAGES, SHARE, SHARE),
    st.tuples(st.just("move"), st.sampled_from(sorted(CAUSES)), st.sampled_from(sorted(CAUSES)), st.floats(-1.0, 1e6)),
    st.tuples(st.just("restart"), st.floats(0.0, 1e6)),
    st.tuples(st.just("killed")),
)


@given(st.lists(st.tuples(st.floats(0.0, 1e4), EVENT)), st.floats(0.0, 1e4))
def test_the_causes_add_up_to_the_wall_time_whatever_happens(events, last_s):
    paid, now, wall = PaidTime(7.0), 7.0, 0.0
    for passed_s, (event, *told) in events:
        now, wall = now + passed_s, wall + passed_s
        match event:
            case "divide":
                paid.divide(learner_shares(*told), now)
            case "killed":
                paid, now = PaidTime(-3.0, paid.seconds(now)), -3.0
            case "move":
                paid.move(*told)
            case _:
                getattr(paid, event)(*told, now)
    seconds = paid.seconds(now + last_s)
    assert min(seconds.values()) >= 0.0
    assert sum(seconds.values()) == pytest.approx(wall + last_s)


# What the monitor tells the account.


@pytest.fixture
def monitor():
    return Monitor(load("tic_tac_toe"), now=0.0)


def test_the_learners_wait_is_the_actors_unless_they_wait_as_well(monitor):
    monitor.add("actor-0", {"time/write": 0.25, "time/search": 0.75}, 9.0)
    monitor.add("learner", {"time/wait_states": 1.0}, 8.0)  # of a thread, while the loop is silent
    monitor.add("learner", {"learner/step": 0, "time/wait_replay": 0.8, "time/step": 0.2}, 10.0)
    monitor.enter("stopping", 10.0)
    status = monitor.status(12.0)
    spent = {cause: seconds for cause, seconds in status.paid_s.items() if seconds}
    assert spent == known({"training": 2, "wait_replay": 2, "wait_actors": 6, "checkpoint": 2})
    assert status.goodput == pytest.approx(2 / 12)
    assert monitor.counters(12.0)["training_s"] == pytest.approx(2)
    assert monitor.metrics(12.0)["goodput/wait_actors_s"] == pytest.approx(6)


def test_the_time_without_a_learner_is_that_of_its_start(monitor):
    monitor.add("learner", {"learner/step": 8, "time/step": 1.0}, 10.0)
    monitor.lose_learner(12.0)
    paid_s = monitor.status(15.0).paid_s
    assert {cause: seconds for cause, seconds in paid_s.items() if seconds} == {"training": 12.0, "start": 3.0}


def test_restored_seconds_are_taken_from_the_start_and_never_more_than_it_had():
    paid = PaidTime(0.0)
    paid.restart(0.0, 10.0)
    monitor = Monitor(load("tic_tac_toe"), 10.0, paid=paid)
    monitor.add("learner", {"count/restore_s": 4.0}, 11.0)
    assert (paid.seconds(10.0)["start"], paid.seconds(10.0)["restore"]) == (6.0, 4.0)
    monitor.add("learner", {"count/restore_s": 400.0}, 12.0)
    assert (paid.seconds(10.0)["start"], paid.seconds(10.0)["restore"]) == (0.0, 10.0)


# Two real drivers.


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_the_causes_of_a_run_that_is_killed_and_resumed_add_up_to_the_wall_time_of_its_drivers(tmp_path, tiny):
    config, workdir = tmp_path / "tiny.yaml", Workdir(tmp_path / "run")
    config.write_text(tiny("checkpoint.every_minutes=0.3", "stop.minutes=30").to_yaml())

    def start(*arguments):
        """A driver, and the time since the epoch at which it works in the directory."""
        driver = DriverProcess(workdir, arguments)
        while workdir.holder() is None:
            assert driver.running
            time.sleep(0.01)
        return driver, time.time()

    def status():
        return read_status(workdir).status if workdir.status_file.exists() else RunStatus("tiny", "starting", 0.0)

    def wall_s(began):
        return workdir.status_file.stat().st_mtime - began

    driver, first = start(str(config), "--workdir", str(workdir.root))
    while status().checkpoint_step is None or status().step < status().checkpoint_step + 40:
        assert driver.running
        time.sleep(0.5)
    driving = psutil.Process(driver.pid)
    for process in [driving, *driving.children(recursive=True)]:
        process.kill()
    with suppress(TrainingFailed):
        driver.wait(60.0)
    killed, first_s = status(), wall_s(first)
    driver, second = start(str(workdir.root), f"stop.steps={killed.checkpoint_step + 200}")
    driver.wait(600.0)
    ended = status()
    assert sum(killed.paid_s.values()) == pytest.approx(first_s, rel=0.01)
    assert sum(ended.paid_s.values()) == pytest.approx(first_s + wall_s(second), rel=0.01)
    assert ended.paid_s["other"] <= 0.01 * sum(ended.paid_s.values())
    assert {cause for cause, seconds in ended.paid_s.items() if seconds} >= {
        "start", "compile", "restore", "checkpoint", "training", "lost",
    }  # fmt: skip
