"""The log file of a run: tracebacks, stderr of C++ libraries, bounded size."""

import io
import logging
import os
import pickle
import subprocess
import sys

import pytest

from podzero.runtime.monitoring import log_file
from podzero.runtime.monitoring.log_file import log_to_file
from podzero.runtime.monitoring.reports import LogReport, ReportBuffer, log_report
from podzero.runtime.monitoring.terminal import PlainView

log = logging.getLogger("podzero.somewhere")


def fail_deep_down():
    raise ValueError("no such move\nsecond line")


@pytest.fixture
def worker_report():
    """The report of a failure that a worker logged, as it arrives in the driver."""
    logger, buffer = logging.Logger("podzero.actors"), ReportBuffer("actor-3")
    logger.addHandler(buffer)
    try:
        fail_deep_down()
    except ValueError:
        logger.exception("the game is dropped")
    (report,) = pickle.loads(pickle.dumps(buffer.drain()))
    return report


def test_the_file_holds_a_workers_traceback_and_the_screen_one_line(tmp_path, worker_report):
    screen = io.StringIO()
    with PlainView(screen), log_to_file(tmp_path / "log"):
        screen.truncate(0)
        log_report(log, worker_report)
    text = (tmp_path / "log").read_text()
    assert "in fail_deep_down" in text
    assert 'raise ValueError("no such move' in text
    (line,) = screen.getvalue().strip("\0\n").splitlines()
    assert "actor-3" in line
    assert "the game is dropped" in line
    assert line.endswith("ValueError: no such move")


def test_a_report_without_an_exception_has_no_traceback(tmp_path):
    with log_to_file(tmp_path / "log"):
        log_report(log, LogReport(0.0, "learner", logging.INFO, "compiled"))
    (line,) = (tmp_path / "log").read_text().splitlines()
    assert line.endswith("INFO learner: compiled")


def test_a_failure_that_the_driver_logs_is_a_traceback_in_the_file_and_a_line_on_the_screen(tmp_path):
    screen = io.StringIO()
    with PlainView(screen), log_to_file(tmp_path / "log"):
        try:
            fail_deep_down()
        except ValueError as failure:
            log.warning("actor-0 failed", exc_info=failure)
    assert "in fail_deep_down" in (tmp_path / "log").read_text()
    assert screen.getvalue().endswith("warning: actor-0 failed: ValueError: no such move\n")


def test_an_error_that_ends_the_run_leaves_its_traceback_in_the_file_only(tmp_path):
    screen = io.StringIO()
    with pytest.raises(ValueError, match="no such move"):
        with PlainView(screen), log_to_file(tmp_path / "log"):
            fail_deep_down()
    assert "in fail_deep_down" in (tmp_path / "log").read_text()
    assert "no such move" not in screen.getvalue()


def test_tracebacks_of_ray_lose_their_colors(tmp_path):
    with log_to_file(tmp_path / "log"):
        log_report(log, LogReport(0.0, "actor-0", logging.ERROR, "failed", "\x1b[36mray::ActorProcess.run()\x1b[39m"))
    text = (tmp_path / "log").read_text()
    assert "\x1b" not in text
    assert "ray::ActorProcess.run()" in text


def test_stderr_of_libraries_goes_into_the_file_until_the_end(tmp_path, capfd):
    with log_to_file(tmp_path / "log"):
        os.write(2, b"[E 1 2] gcs_rpc_client.h: Failed to connect to GCS\n")
        print("a Python library", file=sys.__stderr__, flush=True)
        subprocess.run([sys.executable, "-c", "import os; os.write(2, b'a child process')"], check=True)
    os.write(2, b"after the run\n")
    assert capfd.readouterr().err == "after the run\n"
    text = (tmp_path / "log").read_text()
    for words in ("Failed to connect to GCS", "a Python library", "a child process"):
        assert words in text


def test_the_log_takes_bounded_space(tmp_path, monkeypatch):
    monkeypatch.setattr(log_file, "FILE_BYTES", 10_000)
    with log_to_file(tmp_path / "log"):
        for number in range(2000):
            log.info("record %d %s", number, "x" * 50)
    sizes = [path.stat().st_size for path in tmp_path.iterdir()]
    assert len(sizes) == 1 + log_file.OLD_FILES
    assert max(sizes) <= 10_000
    assert "record 1999" in (tmp_path / "log").read_text()


def test_on_a_full_disk_records_are_dropped_without_tracebacks_on_the_screen(tmp_path, full_disk, capfd):
    screen = io.StringIO()
    with PlainView(screen), log_to_file(tmp_path / "log"):
        log.info("before")
        full_disk(50)
        for _ in range(5):
            log.info("x" * 60)
        full_disk(None)
        log.info("after")
    assert capfd.readouterr().err == ""
    assert screen.getvalue().count("x" * 60) == 5
    text = (tmp_path / "log").read_text()
    assert "before" in text
    assert "after" in text
