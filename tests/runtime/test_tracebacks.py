"""A failure in another process: its whole traceback is in the log file, one line of it on the screen."""

import logging

import pytest

from podzero.runtime.cluster.remote import WorkerDied
from podzero.runtime.monitoring.log_file import log_to_file
from podzero.runtime.worker import Worker

log = logging.getLogger("podzero.test")


def failing_class():
    """A class inside a function, since Ray's workers cannot import this module."""

    class Failing:
        def __init__(self, name):
            self._name = name

        def run(self):
            self._search()

        def _search(self):
            raise ValueError(f"{self._name} chose no move")

    return Failing


def test_the_failure_of_a_method_brings_the_traceback_of_its_process(ray_cluster, tmp_path, watch):
    actor = ray_cluster.spawn(failing_class(), "actor-0", cpus=0, environment={})
    try:
        worker = Worker(actor, actor.begin("run"))
        with pytest.raises(ValueError, match="actor-0 chose no move"):
            worker.work.result(120)
        view = watch()
        with view, log_to_file(tmp_path / "log"):
            log.warning("actor-0 failed", exc_info=worker.ended())
    finally:
        actor.kill()
    text = (tmp_path / "log").read_text()
    assert "in _search" in text
    assert "ValueError: actor-0 chose no move" in text
    assert "\x1b" not in text
    (line,) = view.lines
    assert line.endswith("ValueError: actor-0 chose no move")
    assert "\n" not in line


def test_the_death_of_a_process_is_one_line_on_the_screen(tmp_path, watch):
    view = watch()
    with view, log_to_file(tmp_path / "log"):
        log.warning("actor-0 failed", exc_info=WorkerDied("actor-0 is gone: it died\n\tpid: 7\n\tthe node is alive"))
    assert view.lines == ["actor-0 failed: WorkerDied: actor-0 is gone: it died"]
    assert "the node is alive" in (tmp_path / "log").read_text()
