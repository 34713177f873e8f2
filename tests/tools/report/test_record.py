"""What a report reads: lines of metrics, as columns over the training time, and messages of the log."""

import json
import os
import threading

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from run_files import BEGAN, evaluation, line

from podzero.files.workdir import Workdir, WorkdirError
from podzero.runtime.monitoring.metrics import move_lost_lines
from podzero.tools.report import record as module
from podzero.tools.report.figures import MAX_BINS, SHORTEST_PAUSE_S, Bins, MetricCurves, Timeline
from podzero.tools.report.record import History, MetricsTail, RunReader, events, read_events

# Lines of metrics as columns: workers apart, gaps as NaN, damaged lines counted and left out.


def history_of(*lines):
    history = History()
    for one in lines:
        history.add_line(one)
    return history


def test_values_of_all_workers_of_a_kind_are_in_the_order_of_time():
    history = history_of(
        line("actor-0", 1, 0, a__b=1.0), line("actor-0", 5, 2, a__b=3.0), line("actor-1", 3, 1, a__b=2.0)
    )
    values = history.values("actor", "a/b")
    np.testing.assert_array_equal(values.times - BEGAN, [1, 3, 5])
    np.testing.assert_array_equal(values.steps, [0, 1, 2])
    np.testing.assert_array_equal(values.values, [1, 2, 3])


def test_the_band_of_a_curve_has_the_least_and_greatest_value_of_lines_of_single_workers_and_of_all():
    history = history_of(
        line("actor-0", 1, 0, a__b=4.0), line("actor", 2, 1, a__b=3.0, a__b_min=1.0, a__b_max=8.0, a__b_p99=7.0)
    )
    curve = MetricCurves(history).gauge("actor", "a/b", "b")
    assert (curve.known, curve.low, curve.high) == ([3.5], [1.0], [8.0])


def test_a_metric_that_some_lines_lack_is_nan_there():
    history = history_of(
        line("learner", 1, 0, x=1.0), line("learner", 2, 0, y=5.0), line("learner", 3, 0, x=2.0, y=6.0)
    )
    table = history.workers["learner"]
    np.testing.assert_array_equal(table.column("x"), [1, np.nan, 2])
    np.testing.assert_array_equal(table.column("y"), [np.nan, 5, 6])
    np.testing.assert_array_equal(table.column("z"), [np.nan] * 3)


def test_values_that_are_no_finite_numbers_are_left_out():
    damaged = json.dumps(
        {"t": 1.0, "step": 0, "worker": "learner", "metrics": {"a": None, "b": "x", "c": True, "d": 1}}
    )
    history = history_of(
        damaged.encode(), b'{"t": 2, "step": 0, "worker": "learner", "metrics": {"e": 1e999, "f": NaN}}'
    )
    assert history.names("learner") == {"d"}
    assert history.damaged_lines == 0


@pytest.mark.parametrize(
    "text",
    [
        b"", b"{", b"\xff\xfe\x00", b"[1, 2]", b"null", b'"text"', b'{"t": 1}', b"[" * 100_000,
        b'{"t": "x", "step": 0, "worker": "a", "metrics": {}}',
        b'{"t": 1e300, "step": 0, "worker": "a", "metrics": {}}',
        b'{"t": NaN, "step": 0, "worker": "a", "metrics": {}}',
        b'{"t": 1, "step": Infinity, "worker": "a", "metrics": {}}',
        b'{"t": 1, "step": 0, "worker": ["a"], "metrics": {}}',
        b'{"t": 1, "step": 0, "worker": "a", "metrics": [1]}',
        b'{"t": 1' + b"0" * 400 + b', "step": 0, "worker": "a", "metrics": {}}',
    ],
)  # fmt: skip
def test_a_damaged_line_is_counted_and_left_out(text):
    history = history_of(text, line("learner", 1, 0, x=1.0))
    assert history.damaged_lines == 1
    assert list(history.workers) == ["learner"]


# A metrics file that grows, is replaced, or ends in half a line.


def losses(history):
    return history.values("learner", "loss").values.tolist()


@pytest.fixture
def file(tmp_path):
    return tmp_path / "metrics.jsonl"


def append(file, data):
    with file.open("ab") as opened:
        opened.write(data)


def test_a_missing_file_is_an_empty_history(file):
    assert not MetricsTail(file).read().workers


def test_half_a_line_at_the_end_is_read_once_it_is_complete(file):
    first, second = line("learner", 1, 1, loss=1.0), line("learner", 2, 2, loss=2.0)
    append(file, first + b"\n" + second[:20])
    metrics = MetricsTail(file)
    assert losses(metrics.read()) == [1.0]
    assert metrics.read().damaged_lines == 0
    append(file, second[20:] + b"\n")
    assert losses(metrics.read()) == [1.0, 2.0]


def test_only_what_was_added_is_read_again(file, monkeypatch):
    append(file, line("learner", 1, 1, loss=1.0) + b"\n")
    metrics = MetricsTail(file)
    metrics.read()
    read = []
    monkeypatch.setattr(module.History, "add_line", lambda self, one: read.append(one.strip()))
    append(file, line("learner", 2, 2, loss=2.0) + b"\n")
    metrics.read()
    assert read == [line("learner", 2, 2, loss=2.0)]


def test_a_file_without_its_lost_lines_is_read_anew(tmp_path):
    workdir = Workdir(tmp_path)
    append(workdir.metrics_file, b"".join(line("learner", t, t, loss=float(t)) + b"\n" for t in range(1, 5)))
    metrics = MetricsTail(workdir.metrics_file)
    assert losses(metrics.read()) == [1, 2, 3, 4]
    move_lost_lines(workdir, step=2)
    append(workdir.metrics_file, line("learner", 9, 3, loss=9.0) + b"\n")
    assert losses(metrics.read()) == [1, 2, 9]


def test_a_file_that_became_shorter_is_read_anew(file):
    append(file, b"".join(line("learner", t, t, loss=float(t)) + b"\n" for t in range(1, 5)))
    metrics = MetricsTail(file)
    metrics.read()
    os.truncate(file, len(line("learner", 1, 1, loss=1.0)) + 1)
    assert losses(metrics.read()) == [1.0]


def test_a_line_without_end_takes_no_memory_and_hides_no_other(file, monkeypatch):
    monkeypatch.setattr(module, "LONGEST_LINE", 1000)
    append(file, b"\x00" * 10_000 + b"\n" + line("learner", 1, 1, loss=1.0) + b"\n")
    metrics = MetricsTail(file)
    assert losses(metrics.read()) == [1.0]
    assert metrics.read().damaged_lines == 11


def test_a_file_that_is_written_while_it_is_read_is_read_whole(file):
    count = 3000
    lines = [line("learner", t, t, loss=float(t)) + b"\n" for t in range(count)]
    content = b"".join(lines)

    def write():
        for start in range(0, len(content), 997):
            append(file, content[start : start + 997])

    writer = threading.Thread(target=write)
    writer.start()
    metrics = MetricsTail(file)
    while writer.is_alive():
        history = metrics.read()
        assert losses(history) == [float(t) for t in range(len(losses(history)))]
    writer.join()
    assert losses(metrics.read()) == [float(t) for t in range(count)]
    assert metrics.read().damaged_lines == 0


# Hours without pauses, steps that never fall, games summed over actors.


def timeline_of(*lines):
    history = History()
    for one in lines:
        history.add_line(one)
    return Timeline(history)


def test_a_time_without_reports_is_no_training_time():
    pause = 10 * SHORTEST_PAUSE_S
    timeline = timeline_of(*(line("learner", t, 0) for t in (0, 100, 100 + pause, 200 + pause)))
    assert timeline.end_hours == 200 / 3600
    np.testing.assert_allclose(timeline.hours(np.array([BEGAN + 100, BEGAN + 150 + pause])), [100 / 3600, 150 / 3600])


def test_the_judgement_of_the_last_snapshot_is_no_training_time():
    trained = [line("learner", t, t) for t in (0, 100)]
    timeline = timeline_of(*trained, line("driver", 150, 100), evaluation(160, 100, keeps_value=0.5))
    assert timeline.end_hours == 100 / 3600
    assert timeline.at_steps(np.array([100.0])).hours == [100 / 3600]


def test_reports_of_a_year_that_are_far_apart_are_no_pause():
    """A worker's lines are at least 1/5,000 of the elapsed time apart: 1.75 hours after a year."""
    year, apart = 365 * 24 * 3600, 1 / 5000
    times = 1000.0 * (1 + apart) ** np.arange(np.log(year / 1000) / np.log1p(apart))
    assert np.diff(times).max() > 5 * SHORTEST_PAUSE_S
    timeline = timeline_of(*(line("learner", t, 0) for t in times))
    np.testing.assert_allclose(timeline.end_hours, (times[-1] - times[0]) / 3600)


def test_steps_and_games_at_a_moment():
    timeline = timeline_of(
        line("actor-0", 0, 0, count__games=4.0), line("actor-1", 0, 0, count__games=2.0),
        line("learner", 180, 10), line("actor-0", 360, 20, count__games=6.0),
    )  # fmt: skip
    axes = timeline.at_hours(np.array([0.0, 0.05, 0.1]))
    np.testing.assert_allclose(axes.steps, [0, 10, 20])
    np.testing.assert_allclose(axes.games, [6, 6, 12])


def test_the_moment_at_which_a_step_was_reached():
    timeline = timeline_of(*(line("learner", 36 * k, k, count__games=0.0) for k in range(11)))
    np.testing.assert_allclose(timeline.at_steps(np.array([0.0, 5.0, 10.0, 99.0])).hours, [0.0, 0.05, 0.1, 0.1])


def test_an_empty_run_has_no_time():
    timeline = timeline_of()
    assert timeline.end_hours == 0
    np.testing.assert_array_equal(timeline.at_hours(np.array([0.0])).games, [0.0])


# Spans of training time: bounded in number, no spike is lost, rates add up.


@given(st.lists(st.tuples(st.floats(0, 24), st.floats(-1e6, 1e6)), min_size=1, max_size=300))
def test_the_band_holds_every_value(points):
    hours, values = np.array(sorted(points)).T
    mean, low, high = Bins(24.0).envelope(hours, values)
    assert len(mean) == MAX_BINS
    assert np.nanmin(low) == values.min()
    assert np.nanmax(high) == values.max()
    known = ~np.isnan(mean)
    slack = 1e-6 * (1 + np.abs(values).max())
    assert (low[known] <= mean[known] + slack).all()
    assert (mean[known] <= high[known] + slack).all()


def test_a_short_run_has_spans_of_at_least_several_reports():
    assert len(Bins(60 / 3600).middles) == 4
    assert len(Bins(0.0).middles) == 1


def test_the_rate_of_a_count():
    hours = np.arange(1, 101) / 100
    rates = Bins(1.0).per_s(hours, np.full(100, 36.0))
    np.testing.assert_allclose(rates[5:], 1.0)


def test_the_first_count_of_a_worker_falls_at_its_time():
    rates = Bins(1.0).per_s(np.array([0.5 + 1e-6, 1.0]), np.array([15.0, 0.0]))
    assert (rates[:120] == 0).all()
    np.testing.assert_allclose(rates[120:], [1.0] + [0.0] * 119)


@given(st.lists(st.floats(0, 1000), min_size=1, max_size=200))
def test_rates_add_up_to_the_counts(counts):
    hours = np.sort(np.random.default_rng(0).uniform(0.01, 2.0, len(counts)))
    bins = Bins(2.0)
    rates = bins.per_s(hours, np.array(counts))
    np.testing.assert_allclose(rates.sum() * 3600 * 2.0 / len(bins.middles), sum(counts), atol=1e-6)


# Of the log: warnings, errors and starts, equal ones together, the newest first.

LOG = """\
2026-01-01 10:00:00,001 INFO actor-0 starts on node 752fca70 at 127.0.0.1
2026-01-01 10:00:01,001 INFO replay-0: built in 15.3 s
2026-01-01 10:00:02,001 WARNING actor-0: samples have waited 30 s
2026-01-01 10:00:03,001 ERROR learner: broke
Traceback (most recent call last):
  File "x.py", line 1
2026-01-01 10:00:04,001 WARNING actor-0: samples have waited 60 s
"""


def test_messages_that_differ_by_numbers_only_are_one_event():
    found = events(LOG.splitlines())
    assert [(event.level, event.text, event.times) for event in found] == [
        ("WARNING", "actor-0: samples have waited 60 s", 2),
        ("ERROR", "learner: broke", 1),
        ("INFO", "actor-0 starts on node 752fca70 at 127.0.0.1", 1),
    ]
    assert found[0].last == "2026-01-01 10:00:04"


def test_the_number_and_the_length_of_events_are_bounded():
    lines = (f"2026-01-01 10:00:00,001 WARNING {'x' * k}" for k in range(1, 2000))
    found = events(lines)
    assert len(found) == module.MAX_EVENTS
    assert max(len(event.text) for event in found) == module.MAX_TEXT


def test_older_log_files_are_read_before_newer_ones(make_run):
    workdir = make_run(log="2026-01-02 10:00:00,001 WARNING new\n")
    workdir.log_file.with_name("train.log.1").write_text("2026-01-01 10:00:00,001 WARNING old\n")
    assert [event.text for event in read_events(workdir)] == ["new", "old"]


def test_a_log_of_bytes_that_are_no_text_is_read(make_run):
    workdir = make_run()
    workdir.log_file.write_bytes(b"\xff\xfe\x00\n2026-01-01 10:00:00,001 WARNING seen\n\x80")
    assert [event.text for event in read_events(workdir)] == ["seen"]


def test_only_the_end_of_a_large_log_is_read(make_run, monkeypatch):
    monkeypatch.setattr(module, "READ_BYTES", 100)
    early = "2026-01-01 10:00:00,001 WARNING early\n"
    workdir = make_run(log=early + "x" * 200 + "\n2026-01-01 11:00:00,001 WARNING late\n")
    assert [event.text for event in read_events(workdir)] == ["late"]


def test_a_run_whose_files_cannot_be_read_is_named(make_run, monkeypatch):
    workdir = make_run()

    def refuse(self):
        raise PermissionError(13, "Permission denied", "run.lock")

    monkeypatch.setattr(Workdir, "holder", refuse)
    with pytest.raises(WorkdirError, match=r"cannot read run\.lock: Permission denied"):
        RunReader(workdir).read()
