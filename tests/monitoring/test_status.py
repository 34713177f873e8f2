import dataclasses
import json
import math
import os

import pytest

from podzero.config import load
from podzero.monitoring.status import RunStatus, duration, is_locked, read_status, write_status
from podzero.workdir import Workdir, WorkdirError

STATUS = RunStatus(
    "small", "training", 61.5, step=128, rating=3.5, scores={"random": 0.75}, shares={"actor": {"search": 0.9}}
)


@pytest.fixture
def workdir(tmp_path):
    workdir = Workdir(tmp_path)
    workdir.open(load("tic_tac_toe"))
    return workdir


def test_what_is_written_is_what_is_read(workdir):
    write_status(workdir, STATUS)
    found = read_status(workdir)
    assert found.status == STATUS
    assert not found.alive


def test_fields_of_another_version_are_passed_over():
    tree = json.loads(STATUS.to_json()) | {"from_the_future": 1}
    del tree["scores"]
    assert RunStatus.from_tree(tree) == dataclasses.replace(STATUS, scores={})


def test_figures_that_are_no_number_become_null():
    status = dataclasses.replace(STATUS, loss=math.nan, scores={"random": math.inf})
    assert RunStatus.from_tree(json.loads(status.to_json())) == dataclasses.replace(STATUS, scores={"random": None})


def test_a_run_is_alive_while_its_directory_is_locked_and_looking_does_not_lock(workdir):
    write_status(workdir, STATUS)
    assert not is_locked(workdir)
    with workdir.lock():
        assert is_locked(workdir)
        assert read_status(workdir).words.startswith("running")
    assert not is_locked(workdir)
    workdir.lock().close()


def test_a_run_that_was_cut_off_is_told_from_one_that_ended(workdir):
    write_status(workdir, STATUS)
    os.utime(workdir.status_file, (0, 0))
    found = read_status(workdir)
    assert "cut off while training" in found.words
    assert found.age_s > 1e9
    write_status(workdir, dataclasses.replace(STATUS, phase="ended"))
    assert read_status(workdir).words.startswith("ended")


def test_a_run_that_has_said_nothing_yet_is_starting_if_it_lives(workdir):
    with workdir.lock():
        assert read_status(workdir).status.phase == "starting"


@pytest.mark.parametrize("text", [None, "", '{"name": "x"', '{"step": 3}'])
def test_a_directory_that_never_ran_or_is_damaged_is_told_as_such(workdir, text):
    if text is not None:
        workdir.status_file.write_text(text)
    with pytest.raises(WorkdirError, match=r"no readable status\.json"):
        read_status(workdir)


@pytest.mark.parametrize(
    ("seconds", "words"),
    [(0.2, "0 s"), (59.4, "59 s"), (59.6, "1 min 00 s"), (200, "3 min 20 s"), (3600, "1 h 00 min"), (-5, "0 s")],
)
def test_durations_read_as_people_say_them(seconds, words):
    assert duration(seconds) == words
