"""What a report takes from the log: warnings, errors and starts, equal ones together, the newest first."""

from podzero.tools.report import record as module
from podzero.tools.report.record import events, read_events

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
