"""Whole reports: self-contained, small, and made from whatever files there are."""

import json
import re
import threading
from html.parser import HTMLParser

import pytest
from run_files import evaluation, line, lines_of

from podzero.files.workdir import Workdir, WorkdirError
from podzero.runtime.monitoring.status import RunStatus, write_status
from podzero.tools.report.page import make_report
from podzero.tools.report.record import RunReader


def report_of(workdir):
    return make_report(RunReader(workdir).read())


def headings(page):
    return re.findall(r"<h2>(.*?)</h2>", page)


def data_of(page):
    return json.loads(re.search(r'<script type="application/json" id="data">(.*?)</script>', page, re.DOTALL)[1])


class Resources(HTMLParser):
    """Collects what a page would load."""

    def __init__(self):
        super().__init__()
        self.found = []

    def handle_starttag(self, tag, attrs):
        self.found += [value for name, value in attrs if name in ("src", "href", "action") and value[:1] != "#"]


def test_the_page_of_a_run_has_all_sections_with_data(make_run):
    ladder = {"results": [{"first": "@20", "second": "random", "wins": 4, "draws": 0, "losses": 0}], "ratings": {}}
    lines = [*lines_of(600), evaluation(400, 20, elo=100.0, elo_error=30.0, keeps_value=0.5)]
    page = report_of(make_run(lines, ladder=ladder, log="2026-01-01 10:00:00,001 WARNING careful\n"))
    assert headings(page) == [
        "Overview", "Strength", "Learning", "Replay and policy age", "Throughput", "Games of the actors", "Settings",
        "Faults and restarts",
    ]  # fmt: skip
    assert "careful" in page
    assert "@20" in page
    titles = re.findall(r"<h3>(.*?)<", page)
    assert len(data_of(page)["figures"]) == len(titles)
    assert {"Rating ", "Loss", "Policy age ", "Where the time goes: learner "} <= set(titles)


def test_the_page_loads_nothing_from_elsewhere(make_run):
    page = report_of(make_run(lines_of(300)))
    resources = Resources()
    resources.feed(page)
    assert resources.found == []
    assert "url(" not in page
    assert "default-src &#39;none&#39;" in page


def test_text_of_a_run_cannot_become_part_of_the_page(make_run):
    evil = "</script><script>alert(1)</script>"
    log = f"2026-01-01 10:00:00,001 WARNING {evil}\n"
    ladder = {"results": [{"first": evil, "second": "random", "wins": 1, "draws": 0, "losses": 0}]}
    lines = [*lines_of(100), evaluation(90, 5, **{f"score_{evil}": 0.5})]
    page = report_of(make_run(lines, log=log, ladder=ladder))
    assert evil not in page
    assert "alert(1)" in page
    labels = [curve["label"] for figure in data_of(page)["figures"] for curve in figure["curves"]]
    assert evil in labels


def test_an_empty_run_has_a_report_without_figures(make_run):
    page = report_of(make_run(status=False))
    assert headings(page) == ["Overview", "Settings"]
    assert "has not started" in page
    assert data_of(page)["figures"] == []


def test_what_the_paid_time_went_into_stands_in_hours_and_shares(make_run):
    workdir = make_run()
    paid_s = {"training": 5400.0, "wait_actors": 1800.0, "idle": 0.0}
    write_status(workdir, RunStatus("connect_four", "ended", 600.0, paid_s=paid_s, goodput=0.75))
    rows = re.findall(r"<td[^>]*>(.*?)</td>", report_of(workdir).partition("What the paid time went into")[2])
    assert rows[:6] == ["training", "1.50", "75.0%", "wait actors", "0.50", "25.0%"]


def test_a_directory_without_a_run_is_refused(tmp_path):
    with pytest.raises(WorkdirError, match="working directory"):
        RunReader(Workdir(tmp_path)).read()


def test_damaged_files_leave_a_report_of_the_others(make_run):
    whole = lines_of(600)
    workdir = make_run([*whole[:50], b"\xff\x00\xfe", whole[50][:30], *whole[51:]], ladder={})
    with workdir.metrics_file.open("ab") as file:
        file.write(whole[-1][:40])
    workdir.status_file.write_text('{"name": "conn')
    workdir.hardware_file.write_text('{"nodes": [3, {"host": 1}], "driver": 4}')
    (workdir.checkpoints / "000000060" / "run.json").write_text("{")
    workdir.log_file.write_bytes(b"\x80\x81")
    page = report_of(workdir)
    assert "2 lines of metrics.jsonl" in page
    assert "Learning" in headings(page)


def test_a_status_of_another_kind_is_a_damaged_one(make_run):
    workdir = make_run(lines_of(100))
    workdir.status_file.write_text("[1, 2]")
    assert "status.json is damaged" in report_of(workdir)


def test_metrics_that_nobody_expects_are_harmless(make_run):
    lines = [
        line("x" * 1000, 1, -5, **{"a/b" * 100: 1e200}),
        line("learner", 2, 10**15, learner__loss=-1e250, learner__step=-3.0, time__step=7.0),
        line("evaluator", 3, 1, evaluation__step=1e200, evaluation__elo=1.0, evaluation__keeps_value=7.0),
        line("actor-0", -1e9, 0, count__games=-4.0, count__moves=1e250),
        line("replay", 9e10, 0, replay__size=0.0),
    ]
    assert "Learning" in headings(report_of(make_run(lines)))


def test_hardware_and_cost_are_shown_if_they_are_known(make_run):
    workdir = make_run(lines_of(100))
    node = {"host": "10.0.0.1", "cpus": 8.0, "memory_gib": 31.5, "accelerators": {"TPU-V5E": 4}}
    workdir.hardware_file.write_text(json.dumps({"driver": {"processor": "a processor"}, "nodes": [node]}))
    status = json.loads(workdir.status_file.read_text()) | {"cost": 12.5, "chips": 4, "hosts": 1}
    workdir.status_file.write_text(json.dumps(status))
    page = report_of(workdir)
    for text in ("10.0.0.1", "31.5", "4 TPU-V5E", "a processor", "12.50", "4 device(s) on 1 host(s)"):
        assert text in page


def test_a_run_that_is_written_meanwhile_always_has_a_report(make_run):
    workdir = make_run()
    content = b"".join(one + b"\n" for one in lines_of(20_000))
    done = threading.Event()

    def write():
        with workdir.metrics_file.open("ab") as file:
            for start in range(0, len(content), 65_537):
                file.write(content[start : start + 65_537])
                file.flush()
        done.set()

    writer = threading.Thread(target=write)
    reader = RunReader(workdir)
    writer.start()
    while not done.is_set():
        assert "<h1>" in make_report(reader.read())
    writer.join()
    record = reader.read()
    assert record.history.damaged_lines == 0
    assert make_report(record).count("<figure>") == report_of(workdir).count("<figure>") > 10


def test_the_report_of_a_day_is_small(make_run):
    """Ten actors, a report every 17 s, as after a day (`monitoring.metrics.RESOLUTION`)."""
    lines = [one.replace(b"actor-0", b"actor-%d" % k) for k in range(10) for one in lines_of(24 * 3600, actors=1)[::2]]
    lines += [evaluation(60 * k, 6 * k, elo=float(k), elo_error=20.0, keeps_value=0.5) for k in range(0, 1440, 5)]
    page = report_of(make_run(lines))
    assert len(page.encode()) < 1_000_000
