import json
import math
import sys
from types import ModuleType

import pytest

from podzero.config import load
from podzero.monitoring.metrics import LOST_FILE, MetricsLog, take_back
from podzero.workdir import Workdir


@pytest.fixture
def workdir(tmp_path):
    workdir = Workdir(tmp_path)
    workdir.open(load("tic_tac_toe"))
    return workdir


def lines(path):
    return [json.loads(line) for line in path.read_text().splitlines()]


def fill(workdir, steps):
    log = MetricsLog(workdir, None)
    for step in steps:
        log.add("learner", {"learner/loss": step / 10}, step)
    log.close()


def test_every_report_is_one_line_with_time_step_role_and_figures(workdir):
    log = MetricsLog(workdir, None)
    log.add("learner", {"learner/loss": 1.5, "learner/step": 8}, 8)
    log.add("actor-0", {"count/moves": 64}, 8)
    log.flush()
    first, second = lines(workdir.metrics_file)
    assert first.pop("t") > 0
    assert first == {"step": 8, "worker": "learner", "metrics": {"learner/loss": 1.5, "learner/step": 8.0}}
    assert second["worker"] == "actor-0"
    log.close()


def test_figures_that_are_no_number_stay_valid_json(workdir):
    log = MetricsLog(workdir, None)
    log.add("learner", {"learner/loss": math.nan, "learner/value_loss": math.inf}, 1)
    log.close()
    (line,) = lines(workdir.metrics_file)
    assert line["metrics"] == {"learner/loss": None, "learner/value_loss": None}


def test_after_a_resumption_each_step_stands_once_and_nothing_is_thrown_away(workdir):
    fill(workdir, [10, 20, 30, 40])
    log = MetricsLog(workdir, resume_step=20)
    log.add("learner", {"learner/loss": 9.0}, 30)
    log.close()
    assert [line["step"] for line in lines(workdir.metrics_file)] == [10, 20, 30]
    assert [line["step"] for line in lines(workdir.root / LOST_FILE)] == [30, 40]
    assert lines(workdir.metrics_file)[-1]["metrics"] == {"learner/loss": 9.0}


def test_what_two_crashes_took_back_is_kept_from_both(workdir):
    fill(workdir, [10, 20])
    assert take_back(workdir, 10) == 1
    fill(workdir, [21])
    assert take_back(workdir, 10) == 1
    assert [line["step"] for line in lines(workdir.root / LOST_FILE)] == [20, 21]


def test_a_run_that_lost_nothing_leaves_no_file_of_losses(workdir):
    fill(workdir, [10, 20])
    assert take_back(workdir, 20) == 0
    assert not (workdir.root / LOST_FILE).exists()


@pytest.mark.parametrize("torn", [b'{"t": 3.0, "step": 2', b'{"t": 3.0, "step": 20}', b"\xff\xfe", b"\n", b"[1]\n"])
def test_a_torn_last_line_is_dropped_and_the_file_goes_on(workdir, torn):
    fill(workdir, [10, 20])
    with workdir.metrics_file.open("ab") as file:
        file.write(torn)
    log = MetricsLog(workdir, resume_step=20)
    log.add("learner", {"learner/loss": 0.5}, 21)
    log.close()
    assert [line["step"] for line in lines(workdir.metrics_file)] == [10, 20, 21]


def test_tensorboard_holds_the_same_curve_with_the_lost_part_purged(workdir, monkeypatch):
    # Its reader works without TensorFlow, which takes long to import, when it finds a module of this name.
    monkeypatch.setitem(sys.modules, "tensorboard.compat.notf", ModuleType("notf"))
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    fill(workdir, [10, 20, 30, 40])
    log = MetricsLog(workdir, resume_step=20)
    log.add("learner", {"learner/loss": 9.0}, 30)
    log.close()
    events = EventAccumulator(str(workdir.tensorboard / "learner"))
    events.Reload()
    assert [(e.step, pytest.approx(e.value)) for e in events.Scalars("learner/loss")] == [
        (10, 1.0),
        (20, 2.0),
        (30, 9.0),
    ]
