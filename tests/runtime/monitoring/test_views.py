import dataclasses
import io
import logging
import os
import re
import time

import psutil
from rich.console import Console

from podzero.runtime.monitoring.status import RunStatus
from podzero.runtime.monitoring.view import STARTING, LiveView, PlainView

NEW = RunStatus("connect_four", "starting", 3.0)


def test_the_plain_view_prints_changes_at_once_and_otherwise_every_ten_seconds(monkeypatch):
    present = [0.0]
    monkeypatch.setattr("podzero.runtime.monitoring.view.time.monotonic", lambda: present[0])
    out = io.StringIO()
    collecting = dataclasses.replace(NEW, phase="collecting")
    with PlainView(out) as view:
        for at, status in [
            (0, NEW), (1, NEW), (2, collecting), (3, dataclasses.replace(collecting, games=1)),
            (4, dataclasses.replace(collecting, games=2)), (14, dataclasses.replace(collecting, games=3)),
        ]:  # fmt: skip
            present[0] = float(at)
            view.show(status)
    found = re.findall(r"(starting up|filling replay).*games (\d)", out.getvalue())
    assert found == [("starting up", "0"), ("filling replay", "0"), ("filling replay", "1"), ("filling replay", "3")]


def test_the_clock_counts_from_the_start_of_the_process():
    """Its imports count, which end before there is a view."""
    age_s = time.time() - psutil.Process().create_time()
    out = io.StringIO()
    with PlainView(out) as view:
        view.show(dataclasses.replace(NEW, elapsed_s=0.0))
    minutes, seconds = map(int, re.search(r"\[(\d+):(\d+) since the command\]", out.getvalue()).groups())
    assert 60 * minutes + seconds >= round(age_s)


def test_a_view_shows_log_records_while_it_is_open():
    out = io.StringIO()
    with PlainView(out):
        logging.getLogger("podzero.launch").warning("actor-1 died")
    logging.getLogger("podzero.launch").warning("after the run")
    assert out.getvalue().splitlines()[1:] == ["warning: actor-1 died"]


def test_the_live_view_leaves_the_newest_status_on_the_screen():
    out = io.StringIO()
    console = Console(file=out, width=100, force_terminal=True, color_system=None)
    with LiveView(console) as view:
        deadline = time.monotonic() + 60
        while STARTING not in out.getvalue():
            assert time.monotonic() < deadline
            time.sleep(0.01)
        view.show(NEW)
        view.show(dataclasses.replace(NEW, phase="training", step=12_344))
        logging.getLogger("podzero").warning("a shard is full")
    assert "step 12,344" in out.getvalue()
    assert "a shard is full" in out.getvalue()


def test_the_plain_view_goes_on_when_the_disk_of_its_output_is_full():
    with open("/dev/full", "w") as out, PlainView(out) as view:
        view.show(NEW)
        view.log(logging.INFO, "stopping")
        print("the end", file=out, flush=True)


def test_the_plain_view_goes_on_when_its_reader_has_gone():
    """As `tee` of `podzero train | tee log` does at Ctrl-C, before the run has written its checkpoint."""
    reader, writer = os.pipe()
    with os.fdopen(writer, "w") as out, PlainView(out) as view:
        view.show(NEW)
        assert os.read(reader, 4096)
        os.close(reader)
        view.log(logging.INFO, "stopping")
        view.show(dataclasses.replace(NEW, phase="stopping"))
        print("the end", file=out, flush=True)


def test_the_live_view_goes_on_when_its_terminal_is_closed():
    terminal, ours = os.openpty()
    with os.fdopen(ours, "w") as out:
        with LiveView(Console(file=out, width=100, force_terminal=True)) as view:
            view.show(NEW)
            os.close(terminal)
        print("the end", file=out, flush=True)
