"""The buffer of reports in a worker process."""

import logging
import math
import pickle
import threading

import pytest

from podzero.runtime.monitoring.reports import (
    CAPACITY,
    LogReport,
    MetricsReport,
    PreemptionNotice,
    ReportBuffer,
    merge_workers,
)


def test_reports_are_drained_in_order_and_once():
    buffer = ReportBuffer("actor-0")
    buffer.report("actor-0", {"count/moves": 1.0})
    buffer.handle(logging.makeLogRecord({"levelno": logging.WARNING, "msg": "slow %s", "args": ("disk",)}))
    metrics, record = pickle.loads(pickle.dumps(buffer.drain()))
    assert type(metrics) is MetricsReport
    assert metrics.metrics == {"count/moves": 1.0}
    assert (record.worker, record.level, record.text, record.traceback) == ("actor-0", logging.WARNING, "slow disk", "")
    assert buffer.drain() == []


def test_a_logged_exception_is_reported_with_its_traceback():
    buffer, logger = ReportBuffer("learner"), logging.Logger("podzero.learner")
    logger.addHandler(buffer)
    try:
        raise ValueError("first line\nsecond line")
    except ValueError:
        logger.exception("the step failed")
    (report,) = buffer.drain()
    assert report.text == "the step failed: ValueError: first line"
    assert report.traceback.startswith("Traceback")
    assert report.traceback.endswith("second line")


def test_a_full_buffer_drops_the_oldest_reports():
    buffer = ReportBuffer("actor-0")
    for number in range(CAPACITY + 10):
        buffer.report("actor-0", {"number": float(number)})
    reports = buffer.drain()
    assert len(reports) == CAPACITY
    assert reports[0].metrics["number"] == 10.0


def test_reports_of_several_threads_all_arrive():
    buffer = ReportBuffer("actor-0")
    threads = [threading.Thread(target=lambda: [buffer.report("actor-0", {}) for _ in range(500)]) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(buffer.drain()) == 2000


def test_a_preemption_notice_is_a_log_report_of_its_own_type():
    buffer = ReportBuffer("learner")
    buffer.announce("this node is about to be preempted")
    (notice,) = pickle.loads(pickle.dumps(buffer.drain()))
    assert type(notice) is PreemptionNotice
    assert isinstance(notice, LogReport)
    assert (notice.worker, notice.level) == ("learner", logging.WARNING)


def test_the_reports_of_several_workers_become_sums_means_and_spreads():
    merged = merge_workers([{"count/moves": 3.0, "selfplay/depth": float(depth)} for depth in range(1, 201)])
    spread = {"min": 1.0, "median": 100.0, "p99": 198.0, "max": 200.0}
    assert merged == {"count/moves": 600.0, "selfplay/depth": 100.5} | {
        f"selfplay/depth_{which}": value for which, value in spread.items()
    }


def test_the_report_of_one_worker_stays_as_it_is():
    report = {"count/moves": 3.0, "learner/loss": float("inf"), "time/step": 1.0}
    assert merge_workers([report]) == report


def test_mean_shares_of_time_add_up_to_one_though_workers_do_not_name_all_stages():
    merged = merge_workers([{"time/search": 1.0}, {"time/search": 0.5, "time/write": 0.5}, {"count/moves": 1.0}])
    assert merged == {"time/search": 0.75, "time/write": 0.25, "count/moves": 1.0}


def test_a_value_that_is_not_finite_does_not_hide_those_of_the_other_workers():
    merged = merge_workers([{"x/y": 1.0}, {"x/y": math.nan}, {"x/y": 3.0}])
    assert merged["x/y"] == merged["x/y_min"] + 1 == 2.0
    assert merge_workers([{"x/y": math.nan}, {}])["x/y"] == pytest.approx(math.nan, nan_ok=True)
