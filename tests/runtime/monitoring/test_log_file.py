"""The log file of a run: tracebacks, stderr of C++ libraries, bounded size."""

import io
import logging
import os
import pickle
import subprocess
import sys

import pytest

from podzero.runtime.monitoring import log_file
from podzero.runtime.monitoring.log_file import log_to_file, of_process, read_log
from podzero.runtime.monitoring.reports import LogReport, ReportBuffer, log_report
from podzero.runtime.monitoring.view import PlainView

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
        log_report(log, LogReport("learner", logging.INFO, "compiled"))
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
        log_report(log, LogReport("actor-0", logging.ERROR, "failed", "\x1b[36mray::ActorProcess.run()\x1b[39m"))
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


LOG = """\
2026-01-01 10:00:00,001 INFO actor-0 starts on node 752fca70 at 127.0.0.1
2026-01-01 10:00:01,001 INFO actor-1: built in 15.3 s
2026-01-01 10:00:02,001 INFO stderr: a library speaks
2026-01-01 10:00:03,001 ERROR actor-0: broke
Traceback (most recent call last):
  File "x.py", line 1
2026-01-01 10:00:04,001 WARNING the workers could not start
""".splitlines()


@pytest.mark.parametrize(
    ("process", "level", "numbers"),
    [
        (None, logging.INFO, [0, 1, 2, 3, 4, 5, 6]),
        (None, logging.WARNING, [3, 4, 5, 6]),
        ("actor-0", logging.INFO, [0, 3, 4, 5]),
        ("actor", logging.INFO, [0, 1, 3, 4, 5]),
        ("actor", logging.ERROR, [3, 4, 5]),
        ("driver", logging.INFO, [0, 2, 6]),
        ("learner", logging.INFO, []),
    ],
)
def test_the_log_of_a_process_has_its_records_with_tracebacks_and_what_the_driver_says_of_it(process, level, numbers):
    assert list(of_process(LOG, process, level)) == [LOG[number] for number in numbers]


def test_a_line_of_a_log_holds_nothing_that_a_terminal_acts_on():
    line = "2026-01-01 00:00:00,000 INFO actor-0: says\t\x1b]0;x\x07 é"
    assert list(of_process([line], None, logging.INFO)) == [line.replace("\x1b", "\\x1b").replace("\x07", "\\x07")]


def test_a_log_is_read_with_its_rotated_files_and_followed_over_a_rotation(tmp_path, monkeypatch):
    monkeypatch.setattr(log_file, "FOLLOW_EVERY_S", 0.0)
    path = tmp_path / "train.log"
    path.with_name("train.log.1").write_text("a\n")
    path.write_text("b\nha")

    def append(text):
        with path.open("a") as file:
            file.write(text)

    def rotate():
        path.replace(path.with_name("train.log.1"))
        path.write_text("d\n")

    events = [lambda: append("lf\nc\n"), lambda: None, rotate, lambda: append("e\n")]

    def follow():
        if not events:
            return False
        events.pop(0)()
        return True

    assert list(read_log(path, follow)) == ["a", "b", "half", "c", "d", "e"]
    assert list(read_log(path)) == ["b", "half", "c", "d", "e"]


def test_a_log_that_was_rotated_at_the_end_is_read_to_its_end(tmp_path):
    path = tmp_path / "train.log"
    path.write_text("a\n")

    def follow():
        if not path.with_name("train.log.1").exists():
            path.replace(path.with_name("train.log.1"))
            path.write_text("b\n")
        return False

    assert list(read_log(path, follow)) == ["a", "b"]
