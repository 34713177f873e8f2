"""The buffer of reports in a worker process."""

import logging
import pickle
import threading

from podzero.runtime.monitoring.reports import CAPACITY, LogReport, MetricsReport, PreemptionNotice, ReportBuffer


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
