"""Writers of metrics: they never stop or delay a run, repeat what failed within bounds, and name missing packages."""

import logging
import threading
import time

import pytest

from podzero.config import MetricsConfig, load
from podzero.core.errors import ConfigError
from podzero.files.workdir import Workdir
from podzero.runtime.monitoring import writers as module
from podzero.runtime.monitoring.metrics import MetricsLog
from podzero.runtime.monitoring.reports import MetricsReport
from podzero.runtime.monitoring.writers import BackgroundWriter, check_packages, start_writers


class Kept:
    """A writer that keeps what it gets, and fails as often as it should."""

    def __init__(self, failures=0):
        self.failures = failures
        self.steps = []
        self.closed = False

    def write(self, report, step):
        if self.failures:
            self.failures -= 1
            raise ConnectionError("no answer")
        self.steps.append(step)

    def close(self):
        self.closed = True


def report(**metrics):
    return MetricsReport(1.5, "learner", metrics)


@pytest.fixture(autouse=True)
def no_pauses(monkeypatch):
    monkeypatch.setattr(module, "FIRST_PAUSE_S", 0.001)
    monkeypatch.setattr(module, "LONGEST_PAUSE_S", 0.001)


@pytest.fixture
def warnings(caplog):
    caplog.set_level(logging.INFO, logger="podzero")
    return lambda: [record.message for record in caplog.records if record.levelno >= logging.WARNING]


def threads_of(writer):
    return [thread for thread in threading.enumerate() if thread.name == f"metrics-{writer}"]


def until(condition):
    deadline = time.monotonic() + 60
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.01)


def test_reports_arrive_in_order_before_the_writer_is_closed(warnings):
    kept = Kept()
    writer = BackgroundWriter("test", lambda: kept)
    for step in range(100):
        writer.write(report(), step)
    writer.close()
    assert kept.steps == list(range(100))
    assert kept.closed
    assert warnings() == []


def test_a_failed_write_is_repeated_and_warned_about_once(warnings):
    kept = Kept(failures=5)
    writer = BackgroundWriter("test", lambda: kept)
    writer.write(report(), 1)
    writer.write(report(), 2)
    until(lambda: kept.steps == [1, 2])
    writer.close()
    (warning,) = warnings()
    assert "test" in warning
    assert "no answer" in warning


def test_a_writer_that_cannot_be_made_is_tried_again(warnings):
    kept, attempts = Kept(), []

    def make():
        attempts.append(1)
        if len(attempts) < 3:
            raise ConnectionError("no answer")
        return kept

    writer = BackgroundWriter("test", make)
    writer.write(report(), 1)
    until(lambda: kept.steps == [1])
    writer.close()
    assert len(attempts) == 3
    assert len(warnings()) == 1


def test_a_writer_that_always_fails_is_given_up(monkeypatch, warnings):
    monkeypatch.setattr(module, "MAX_FAILURES", 7)
    kept = Kept(failures=10**9)
    writer = BackgroundWriter("test", lambda: kept)
    writer.write(report(), 1)
    until(lambda: not threads_of("test"))
    assert 10**9 - kept.failures == 7
    writer.write(report(), 2)
    writer.close()
    assert len(warnings()) == 2


def test_a_writer_that_hangs_delays_neither_reports_nor_the_end(monkeypatch, warnings):
    monkeypatch.setattr(module, "CLOSE_TIMEOUT_S", 0.1)
    released = threading.Event()

    class Hanging(Kept):
        def write(self, report, step):
            released.wait(60)

    writer = BackgroundWriter("test", Hanging)
    for step in range(3 * module.QUEUE_REPORTS):
        writer.write(report(), step)
    writer.close()
    assert "lost" in warnings()[0]
    released.set()


def test_a_writer_that_hangs_gets_the_newest_reports_afterwards():
    kept, released = Kept(), threading.Event()

    class HangingAtFirst(Kept):
        def write(self, report, step):
            released.wait(60)
            kept.write(report, step)

    writer = BackgroundWriter("test", HangingAtFirst)
    reports = 3 * module.QUEUE_REPORTS
    for step in range(reports):
        writer.write(report(), step)
    released.set()
    writer.close()
    assert kept.steps[-module.QUEUE_REPORTS :] == list(range(reports - module.QUEUE_REPORTS, reports))
    assert len(kept.steps) <= module.QUEUE_REPORTS + 1


def test_a_run_that_never_reports_is_announced_nowhere():
    writer = BackgroundWriter("test", lambda: pytest.fail("was made"))
    writer.close()
    assert not threads_of("test")


def test_writers_get_the_lines_of_the_metrics_file(tmp_path):
    workdir, kept = Workdir(tmp_path), Kept()
    workdir.open(load("tic_tac_toe"))
    log = MetricsLog(workdir, writers=[kept])
    log.add("learner", {"learner/loss": 1.0}, 3, elapsed_s=1.0)
    log.add("learner", {"learner/loss": 1.0}, 4, elapsed_s=2.0)
    log.close(5)
    assert kept.steps == [3, 4]


@pytest.mark.parametrize("setting", ["wandb", "mlflow"])
def test_a_missing_package_is_refused_with_the_command_that_installs_it(monkeypatch, setting):
    monkeypatch.setattr(module, "find_spec", lambda name: None)
    with pytest.raises(ConfigError, match=f"uv sync --inexact --extra {setting}"):
        check_packages(MetricsConfig(**{setting: "project"}))
    check_packages(MetricsConfig())


def test_no_writer_is_started_by_default(tmp_path):
    assert start_writers(load("tic_tac_toe"), Workdir(tmp_path)) == []


@pytest.mark.parametrize(
    ("given", "address"),
    [("9400", "127.0.0.1:9400"), ("0.0.0.0:9400", "0.0.0.0:9400")],
)
def test_the_address_of_prometheus_is_this_machine_unless_it_says_more(given, address):
    assert load("tic_tac_toe", [f"metrics.prometheus={given}"]).metrics.prometheus == address


@pytest.mark.parametrize(
    "given",
    ["metrics.prometheus=here", "metrics.prometheus=99999", "metrics.prometheus=a:b:9400", "metrics.wandb=a/b/c"],
)
def test_wrong_targets_are_refused(given):
    with pytest.raises(ConfigError, match=given.partition("=")[0]):
        load("tic_tac_toe", [given])
