"""The files of metrics: complete lines, one value per step after a resumption, bounded size, failed writes."""

import json
import logging
import math
import os
import sys
from types import ModuleType

import pytest

from podzero.config import load
from podzero.files.workdir import Workdir
from podzero.runtime.monitoring.metrics import (
    LOST_FILE,
    RESOLUTION,
    WAITING_BYTES,
    WARN_EVERY_S,
    AppendFile,
    MetricsLog,
    WriteAttempts,
    move_lost_lines,
)


@pytest.fixture
def workdir(tmp_path):
    workdir = Workdir(tmp_path)
    workdir.open(load("tic_tac_toe"))
    return workdir


def lines(path):
    return [json.loads(line) for line in path.read_text().splitlines()]


def steps(path):
    return [line["step"] for line in lines(path)]


def add_losses(log, *steps):
    for step in steps:
        log.add("learner", {"learner/loss": step / 10}, step, elapsed_s=float(step))


def fill(workdir, *steps):
    log = MetricsLog(workdir)
    add_losses(log, *steps)
    log.close(steps[-1])


@pytest.fixture
def event_accumulator(monkeypatch):
    # TensorBoard's reader works without TensorFlow, which is slow to import, if a module of this name exists.
    monkeypatch.setitem(sys.modules, "tensorboard.compat.notf", ModuleType("notf"))
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    def read(folder):
        events = EventAccumulator(str(folder))
        events.Reload()
        return events

    return read


def test_a_report_is_a_line_with_time_step_worker_and_metrics(workdir):
    log = MetricsLog(workdir)
    log.add("learner", {"learner/loss": 1.5, "learner/step": 8}, 8, elapsed_s=1.0)
    log.add("actor-0", {"count/moves": 64}, 8, elapsed_s=1.0)
    log.flush()
    first, second = lines(workdir.metrics_file)
    assert first.pop("t") > 0
    assert first == {"step": 8, "worker": "learner", "metrics": {"learner/loss": 1.5, "learner/step": 8.0}}
    assert (second["worker"], second["metrics"]) == ("actor", {"count/moves": 64.0})


def test_nan_and_infinity_become_null(workdir):
    log = MetricsLog(workdir)
    log.add("learner", {"learner/loss": math.nan, "learner/value_loss": math.inf}, 1, elapsed_s=1.0)
    log.close(1)
    (line,) = lines(workdir.metrics_file)
    assert line["metrics"] == {"learner/loss": None, "learner/value_loss": None}


def test_after_a_resumption_each_step_has_one_line_and_the_others_are_kept_apart(workdir):
    fill(workdir, 10, 20, 30, 40)
    log = MetricsLog(workdir, resume_step=20)
    log.add("learner", {"learner/loss": 9.0}, 30, elapsed_s=30.0)
    log.close(30)
    assert steps(workdir.metrics_file) == [10, 20, 30]
    assert steps(workdir.root / LOST_FILE) == [30, 40]
    assert lines(workdir.metrics_file)[-1]["metrics"] == {"learner/loss": 9.0}


def test_a_run_that_starts_again_without_a_checkpoint_moves_all_lines(workdir):
    fill(workdir, 0, 10)
    fill(workdir, 0)
    assert steps(workdir.metrics_file) == [0]
    assert steps(workdir.root / LOST_FILE) == [0, 10]


def test_lost_lines_of_several_crashes_are_kept_up_to_a_size(workdir, monkeypatch):
    fill(workdir, 10, 20)
    move_lost_lines(workdir, 10)
    workdir.metrics_file.write_text('{"step": 21}\n')
    move_lost_lines(workdir, 10)
    assert steps(workdir.root / LOST_FILE) == [20, 21]
    monkeypatch.setattr("podzero.runtime.monitoring.metrics.LOST_BYTES", 10)
    workdir.metrics_file.write_text('{"step": 22}\n')
    move_lost_lines(workdir, 10)
    assert steps(workdir.root / LOST_FILE) == [22]


def test_without_lost_lines_there_is_no_file_for_them(workdir):
    fill(workdir, 10, 20)
    move_lost_lines(workdir, 20)
    assert not (workdir.root / LOST_FILE).exists()


@pytest.mark.parametrize("torn", [b'{"t": 3.0, "step": 2', b'{"t": 3.0, "step": 20}', b"\xff\xfe", b"\n", b"[1]\n"])
def test_an_incomplete_last_line_is_dropped_at_the_resumption(workdir, torn):
    fill(workdir, 10, 20)
    with workdir.metrics_file.open("ab") as file:
        file.write(torn)
    log = MetricsLog(workdir, resume_step=20)
    add_losses(log, 21)
    log.close(21)
    assert steps(workdir.metrics_file) == [10, 20, 21]


def test_tensorboard_reads_the_same_curve_without_the_lost_steps(workdir, event_accumulator):
    fill(workdir, 10, 20, 30, 40)
    log = MetricsLog(workdir, resume_step=20)
    log.add("learner", {"learner/loss": 9.0}, 30, elapsed_s=30.0)
    log.close(30)
    events = event_accumulator(workdir.tensorboard / "learner")
    assert [(e.step, pytest.approx(e.value)) for e in events.Scalars("learner/loss")] == [
        (10, 1.0),
        (20, 2.0),
        (30, 9.0),
    ]


def report_all(log, workers, elapsed_s, step=1, **more):
    for worker in range(workers):
        metrics = {"count/moves": 2.0, "selfplay/depth": float(worker), "time/search": 0.75, "time/write": 0.25}
        log.add(f"actor-{worker}", metrics | more, step, elapsed_s)


def test_a_line_is_of_all_workers_that_those_of_the_line_before_have_reported_with(workdir):
    log = MetricsLog(workdir)
    for round_s in range(4):
        report_all(log, 100, 2.0 * round_s)
    log.close(1)
    first, *others = (line["metrics"] for line in lines(workdir.metrics_file))
    assert first == {"count/moves": 2.0, "selfplay/depth": 0.0, "time/search": 0.75, "time/write": 0.25}
    assert len(others) == 4, "one when actor-0 reports again, two when all have, and what is left at the end"
    assert sum(line["count/moves"] for line in (first, *others)) == 800
    assert [line["selfplay/depth_p99"] for line in others[1:3]] == [98, 98]


def test_a_worker_that_no_longer_reports_is_not_waited_for(workdir):
    log = MetricsLog(workdir)
    for second, workers in enumerate((2, 2, 2, 1, 1, 1, 1, 1, 1, 1)):
        report_all(log, workers, float(second))
    log.flush()
    found = lines(workdir.metrics_file)
    assert [line["metrics"].get("selfplay/depth_max", 0.0) for line in found] == [0.0, 1.0, 1.0, 1.0, 0.0, 0.0]


def test_a_restart_is_a_line_of_its_worker_alone_and_no_file_of_tensorboard(workdir):
    log = MetricsLog(workdir)
    report_all(log, 2, 0.0)
    log.add("actor-1", {"count/restarts": 1.0}, 1, 0.0)
    log.close(1)
    alone = [line["metrics"] for line in lines(workdir.metrics_file) if line["worker"] == "actor-1"]
    assert alone == [{"count/restarts": 1.0}]
    assert [folder.name for folder in workdir.tensorboard.iterdir()] == ["actor"]


def test_the_files_of_a_week_of_ten_thousand_actors_are_less_than_a_gigabyte(workdir):
    """A line has as many bytes for ten thousand workers as for ten; a week's lines follow from `RESOLUTION`."""
    more = {f"{stage}/{name}": 1 / 3 for stage in ("selfplay", "count", "time") for name in "abcdef"}
    sizes = []
    for workers in (10, 10_000):
        run = Workdir(workdir.root / str(workers))
        log = MetricsLog(run)
        for round_s in range(3):
            report_all(log, workers, 2.0 * round_s, **more)
        log.close(1)
        files = [run.metrics_file, *run.tensorboard.rglob("events*")]
        assert len(files) == 2
        sizes.append(sum(file.stat().st_size for file in files) / len(lines(run.metrics_file)))
    assert sizes[1] < 1.1 * sizes[0]
    kinds, resolved_s = 8, 2.0 / RESOLUTION
    assert kinds * sizes[1] / RESOLUTION * (1 + math.log(7 * 86_400 / resolved_s)) < 1e9


def test_a_workers_lines_become_sparse_and_their_counts_still_add_up(workdir, event_accumulator):
    """A worker that reports every second for 20 times as long as every report is written."""
    log, full = MetricsLog(workdir), round(1 / RESOLUTION)
    for second in range(1, 20 * full + 1):
        log.add("actor-0", {"count/moves": 1.0, "acting/version": float(second)}, second, elapsed_s=float(second))
    log.close(20 * full)
    written = lines(workdir.metrics_file)
    assert len(written) <= full * (1 + math.log(20)) * 1.05
    assert steps(workdir.metrics_file)[:full] == list(range(1, full + 1))
    assert sum(line["metrics"]["count/moves"] for line in written) == 20 * full
    assert written[-1]["metrics"]["acting/version"] == 20 * full
    assert workdir.metrics_file.stat().st_size < 200 * len(written)
    (events,) = (workdir.tensorboard / "actor").iterdir()
    assert events.stat().st_size < 200 * len(written)


def test_shares_of_time_in_a_line_are_those_of_one_report(workdir):
    log = MetricsLog(workdir)
    log.add("actor-0", {"time/search": 1.0}, 1, elapsed_s=1e6)
    log.add("actor-0", {"time/search": 0.9, "time/write": 0.1}, 2, elapsed_s=1e6 + 1)
    log.add("actor-0", {"time/search": 1.0}, 3, elapsed_s=1e6 + 2)
    log.close(3)
    assert [line["metrics"] for line in lines(workdir.metrics_file)] == [{"time/search": 1.0}, {"time/search": 1.0}]


@pytest.mark.parametrize("folder", ["metrics.jsonl", "tensorboard"])
def test_a_failed_write_is_one_warning_and_is_repeated_without_loss(workdir, folder, caplog, event_accumulator):
    """A directory or a file is where the log wants to write, until it is removed."""
    caplog.set_level(logging.INFO, logger="podzero.runtime.monitoring")
    log = MetricsLog(workdir)
    obstacle = workdir.root / folder
    if folder == "tensorboard":
        obstacle.write_text("")
    else:
        obstacle.mkdir()
    for step in (10, 20):
        add_losses(log, step)
        log.flush()
    (warning,) = caplog.messages
    assert folder in warning
    if obstacle.is_dir():
        obstacle.rmdir()
    else:
        obstacle.unlink()
    add_losses(log, 30)
    log.close(30)
    assert "again" in caplog.messages[-1]
    assert steps(workdir.metrics_file) == [10, 20, 30]
    curve = event_accumulator(workdir.tensorboard / "learner").Scalars("learner/loss")
    assert [event.step for event in curve] == [10, 20, 30]


def test_a_write_that_was_cut_off_leaves_complete_records_only(tmp_path, full_disk):
    file = AppendFile(tmp_path / "new" / "records", header=b"head\n")
    file.add(b"one\n")
    file.flush()
    full_disk(12)
    file.add(b"two\n")
    with pytest.raises(OSError, match="too large"):
        file.flush()
    assert file.path.stat().st_size == 12, "a part of the record was written"
    full_disk(None)
    file.add(b"three\n")
    file.flush()
    assert file.path.read_bytes() == b"head\none\ntwo\nthree\n"


def test_an_existing_file_grows_without_another_header(tmp_path):
    path = tmp_path / "records"
    path.write_bytes(b"old\n")
    file = AppendFile(path, header=b"head\n")
    file.add(b"new\n")
    file.flush()
    file.flush()
    assert path.read_bytes() == b"old\nnew\n"


def test_records_that_cannot_be_written_take_bounded_memory(tmp_path):
    file = AppendFile(tmp_path / "records")
    record = b"x" * 2**16
    for _ in range(2 * WAITING_BYTES // len(record)):
        file.add(record)
    file.add(b"last")
    file.flush()
    content = file.path.read_bytes()
    assert len(content) <= WAITING_BYTES
    assert content.endswith(b"last")


def test_failures_are_warned_about_at_intervals(tmp_path, caplog, monkeypatch):
    caplog.set_level(logging.INFO, logger="podzero.runtime.monitoring")
    now = [1000.0]
    monkeypatch.setattr("podzero.runtime.monitoring.metrics.time.monotonic", lambda: now[0])
    attempt = WriteAttempts()

    def fail():
        raise OSError(28, os.strerror(28))

    for _ in range(5):
        attempt(tmp_path / "a", fail)
        attempt(tmp_path / "b", fail)
    assert len(caplog.messages) == 1
    assert os.strerror(28) in caplog.messages[0]
    now[0] += WARN_EVERY_S
    attempt(tmp_path / "a", fail)
    assert len(caplog.messages) == 2


def test_other_errors_are_raised(tmp_path):
    def fail():
        raise ValueError("a fault of the program")

    with pytest.raises(ValueError, match="a fault of the program"):
        WriteAttempts()(tmp_path, fail)
