import dataclasses
import json
import math
import os
import time
from contextlib import nullcontext

import pytest

from podzero.config import load
from podzero.files.workdir import Workdir, WorkdirError
from podzero.runtime.monitoring.goodput import PaidTime
from podzero.runtime.monitoring.monitor import Monitor
from podzero.runtime.monitoring.status import RunStatus, duration, read_status, record_paid, spent, write_status

STATUS = RunStatus(
    "small", "training", 61.5, step=128, rating=3.5, scores={"random": 0.75}, shares={"actor": {"search": 0.9}}
)


@pytest.fixture
def workdir(tmp_path):
    workdir = Workdir(tmp_path)
    workdir.open(load("tic_tac_toe"))
    return workdir


def test_a_written_status_is_read_back(workdir):
    write_status(workdir, STATUS)
    found = read_status(workdir)
    assert found.status == STATUS
    assert not found.alive


def test_fields_of_another_version_are_ignored():
    tree = json.loads(STATUS.to_json()) | {"from_the_future": 1}
    del tree["scores"]
    assert RunStatus.from_tree(tree) == dataclasses.replace(STATUS, scores={})


def test_nan_and_infinity_become_null():
    status = dataclasses.replace(STATUS, loss=math.nan, scores={"random": math.inf})
    assert RunStatus.from_tree(json.loads(status.to_json())) == dataclasses.replace(STATUS, scores={})


def test_the_words_of_a_status_hold_nothing_that_a_terminal_acts_on():
    clear = "\x1b[2J"
    tree = json.loads(STATUS.to_json()) | {"name": clear, "bottleneck": clear, "scores": {clear: 0.5}}
    tree |= {"failing": {clear: clear}, "silent": {clear: 60.0}, "shares": {clear: {clear: 0.5}}}
    found = RunStatus.from_tree(tree)
    shown = "\\x1b[2J"
    assert (found.name, found.bottleneck, found.failing) == (shown, shown, {shown: shown})
    assert [*found.scores, *found.silent, *found.shares, *found.shares[shown]] == [shown] * 4


def test_a_run_is_alive_while_its_directory_is_locked_and_reading_does_not_lock(workdir):
    write_status(workdir, STATUS)
    assert workdir.holder() is None
    with workdir.lock():
        assert workdir.holder().pid == os.getpid()
        assert read_status(workdir).summary.startswith("running")
    assert workdir.holder() is None
    workdir.lock().close()


def test_an_interrupted_run_is_told_from_one_that_ended(workdir):
    write_status(workdir, STATUS)
    os.utime(workdir.status_file, (0, 0))
    found = read_status(workdir)
    assert "training" in found.summary
    assert not found.summary.startswith("running")
    assert found.age_s > 1e9
    write_status(workdir, dataclasses.replace(STATUS, phase="ended"))
    assert read_status(workdir).summary.startswith("ended")


def test_a_live_run_without_a_status_is_starting(workdir):
    with workdir.lock():
        assert read_status(workdir).status.phase == "starting"


def test_a_new_run_is_starting_before_its_experiment_is_written(tmp_path):
    workdir = Workdir(tmp_path / "new")
    with workdir.lock():
        found = read_status(workdir)
    assert (found.status.phase, found.status.name, found.alive) == ("starting", "new", True)


def test_a_run_that_never_started_is_called_that(workdir):
    with pytest.raises(WorkdirError, match="never started"):
        read_status(workdir)


@pytest.mark.parametrize("text", ["", '{"name": "x"', '{"step": 3}', "[1]", "null"])
@pytest.mark.parametrize("alive", [True, False])
def test_a_damaged_status_is_called_damaged(workdir, text, alive):
    workdir.status_file.write_text(text)
    with workdir.lock() if alive else nullcontext():
        with pytest.raises(WorkdirError, match=r"status\.json is damaged"):
            read_status(workdir)


@pytest.mark.parametrize(
    ("seconds", "words"),
    [(0.2, "0 s"), (59.4, "59 s"), (59.6, "1 min 00 s"), (200, "3 min 20 s"), (3600, "1 h 00 min"), (-5, "0 s")],
)
def test_durations_are_in_words(seconds, words):
    assert duration(seconds) == words


def test_an_old_status_of_a_live_run_shows_no_rate_and_names_the_driver(workdir):
    moving = dataclasses.replace(STATUS, steps_per_s=33.0, step_s=0.03, samples_per_s=9.0, bottleneck="none")
    write_status(workdir, moving)
    with workdir.lock():
        assert read_status(workdir).status == moving
        os.utime(workdir.status_file, (time.time() - 100, time.time() - 100))
        old = read_status(workdir).status
        assert (old.steps_per_s, old.step_s, old.samples_per_s, old.shares, old.bottleneck) == (0.0, None, 0.0, {}, "")
        assert 99 < old.silent["driver"] < 160
        assert (old.step, old.rating) == (STATUS.step, STATUS.rating)
        write_status(workdir, dataclasses.replace(moving, phase="starting"))
        os.utime(workdir.status_file, (time.time() - 100, time.time() - 100))
        assert read_status(workdir).status.silent == {}, "it waits for workers or nodes"


def test_the_hours_of_all_attempts_are_counted_by_the_directory_also_of_those_that_do_not_start(tiny, tmp_path):
    """As those of a job on Kubernetes, whose deadline counts anew for each: two are killed, one finds no nodes."""
    workdir, experiment = Workdir(tmp_path), tiny("stop.hours=2")
    workdir.open(experiment)
    for _ in range(2):
        monitor = Monitor(experiment, 0.0, paid=PaidTime(0.0, spent(workdir)))
        write_status(workdir, monitor.status(3600.0))
    record_paid(workdir, PaidTime(0.0, spent(workdir)).seconds(1800.0))
    assert sum(spent(workdir).values()) == 2.5 * 3600
    assert Monitor(experiment, 0.0, paid=PaidTime(0.0, spent(workdir))).share_passed(0.0) == 1.0
    assert read_status(workdir).status.hours == 2.5
