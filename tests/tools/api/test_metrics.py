"""The metrics of a run as arrays."""

import numpy as np
import pytest
from run_files import BEGAN, evaluation, line, lines_of

import podzero
from podzero.config import load
from podzero.core.errors import ConfigError
from podzero.files.workdir import Workdir, WorkdirError


@pytest.fixture
def run(tmp_path):
    """Writes a working directory with lines of metrics."""

    def write(*lines):
        workdir = Workdir(tmp_path / "run")
        workdir.open(load("connect_four"))
        if lines:
            workdir.metrics_file.write_bytes(b"".join(one + b"\n" for one in lines))
        return workdir.root

    return write


def test_a_metric_has_times_steps_and_values(run):
    found = podzero.metrics(run(line("learner", 1, 10, learner__loss=2.5), line("learner", 3, 20, learner__loss=1.5)))
    loss = found["learner/loss"]
    assert (loss.times - BEGAN).tolist() == [1, 3]
    assert loss.steps.tolist() == [10, 20]
    assert loss.values.tolist() == [2.5, 1.5]
    assert loss.values.dtype == np.float64


def test_all_workers_of_a_kind_are_one_metric_by_time(run):
    found = podzero.metrics(run(*lines_of(30)))["selfplay/plies_per_game"]
    assert (found.times - BEGAN).tolist() == [0, 5, 10, 15, 20, 25]
    assert found.values.tolist() == [20, 21, 20, 21, 20, 21]


def test_shares_of_time_and_counts_name_their_kind_of_worker(run):
    found = podzero.metrics(run(*lines_of(20), evaluation(15, 1, elo=100.0)))
    assert found["actor/time/search"].values[0] == 0.75
    assert found["learner/time/step"].values[0] == 0.9
    assert found["actor/count/games"].values.sum() == 20
    assert found["evaluation/elo"].values.tolist() == [100.0]
    assert "time/search" not in found
    assert list(found) == sorted(found)


def test_a_metric_that_several_kinds_report_names_them(run):
    found = podzero.metrics(run(line("actor-0", 1, 1, int8__cached=0.5), line("evaluator", 1, 1, int8__cached=0.25)))
    assert {name: values.values.tolist() for name, values in found.items()} == {
        "actor/int8/cached": [0.5], "evaluator/int8/cached": [0.25],
    }  # fmt: skip


def test_an_unknown_metric_is_refused_with_the_nearest_name(run):
    found = podzero.metrics(run(line("learner", 1, 10, learner__loss=2.5)))
    with pytest.raises(ConfigError, match=r"'learner/los' .*'learner/loss'\?.*: learner/loss"):
        found["learner/los"]
    assert found.get("learner/los") is None


def test_a_run_that_has_reported_nothing_has_no_metrics(run):
    found = podzero.metrics(run())
    assert found == {}
    with pytest.raises(ConfigError, match="it has reported none yet"):
        found["learner/loss"]


def test_a_folder_without_a_run_is_refused(tmp_path):
    with pytest.raises(WorkdirError, match="not a working directory"):
        podzero.metrics(tmp_path)
    with pytest.raises(ConfigError, match="no agent 'chess'"):
        podzero.metrics("zoo:chess")


def test_the_training_of_the_agents_that_come_with_podzero_can_be_read():
    loss = podzero.metrics("zoo:go_9x9")["learner/loss"]
    assert loss.steps[-1] == 3888
    assert loss.values[0] > loss.values[-1]
