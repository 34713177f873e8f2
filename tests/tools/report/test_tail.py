"""A metrics file that grows, is replaced, or ends in half a line."""

import os
import threading

import pytest
from run_files import line

from podzero.runtime.monitoring.metrics import move_lost_lines
from podzero.tools.report import tail
from podzero.tools.report.tail import MetricsTail
from podzero.workdir import Workdir


def losses(history):
    return history.values("learner", "loss").values.tolist()


@pytest.fixture
def file(tmp_path):
    return tmp_path / "metrics.jsonl"


def append(file, data):
    with file.open("ab") as opened:
        opened.write(data)


def test_a_missing_file_is_an_empty_history(file):
    assert MetricsTail(file).read().empty


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
    monkeypatch.setattr(tail.History, "add_line", lambda self, one: read.append(one))
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


def test_a_line_without_end_takes_no_memory_and_is_one_damaged_line(file, monkeypatch):
    monkeypatch.setattr(tail, "LONGEST_LINE", 1000)
    monkeypatch.setattr(tail, "CHUNK_BYTES", 300)
    append(file, b"\x00" * 10_000 + b"\n" + line("learner", 1, 1, loss=1.0) + b"\n")
    metrics = MetricsTail(file)
    assert losses(metrics.read()) == [1.0]
    assert metrics.read().damaged_lines == 1


def test_chunks_may_end_anywhere(file, monkeypatch):
    monkeypatch.setattr(tail, "CHUNK_BYTES", 7)
    append(file, b"".join(line("learner", t, t, loss=float(t)) + b"\n" for t in range(1, 20)))
    history = MetricsTail(file).read()
    assert losses(history) == list(range(1, 20))
    assert history.damaged_lines == 0


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
