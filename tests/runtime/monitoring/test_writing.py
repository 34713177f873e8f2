"""Writes that fail for a while, as on a full disk."""

import logging
import os

import pytest

from podzero.runtime.monitoring.writing import WAITING_BYTES, WARN_EVERY_S, AppendFile, WriteAttempts


def test_a_write_that_was_cut_off_leaves_complete_records_only(tmp_path, full_disk):
    file = AppendFile(tmp_path / "new" / "records", header=b"head\n")
    file.add(b"one\n")
    file.flush()
    full_disk(12)
    file.add(b"two\n")
    with pytest.raises(OSError, match="too large"):
        file.flush()
    assert file.path.stat().st_size == 12, "a part of the record was written"
    full_disk(None)
    file.add(b"three\n")
    file.flush()
    assert file.path.read_bytes() == b"head\none\ntwo\nthree\n"


def test_an_existing_file_grows_without_another_header(tmp_path):
    path = tmp_path / "records"
    path.write_bytes(b"old\n")
    file = AppendFile(path, header=b"head\n")
    file.add(b"new\n")
    file.flush()
    file.flush()
    assert path.read_bytes() == b"old\nnew\n"


def test_records_that_cannot_be_written_take_bounded_memory(tmp_path):
    file = AppendFile(tmp_path / "records")
    record = b"x" * 2**16
    for _ in range(2 * WAITING_BYTES // len(record)):
        file.add(record)
    file.add(b"last")
    file.flush()
    content = file.path.read_bytes()
    assert len(content) <= WAITING_BYTES
    assert content.endswith(b"last")


def test_failures_are_warned_about_at_intervals(tmp_path, caplog, monkeypatch):
    caplog.set_level(logging.INFO, logger="podzero.runtime.monitoring")
    now = [1000.0]
    monkeypatch.setattr("podzero.runtime.monitoring.writing.time.monotonic", lambda: now[0])
    attempt = WriteAttempts()

    def fail():
        raise OSError(28, os.strerror(28))

    for _ in range(5):
        attempt(tmp_path / "a", fail)
        attempt(tmp_path / "b", fail)
    assert len(caplog.messages) == 1
    assert os.strerror(28) in caplog.messages[0]
    now[0] += WARN_EVERY_S
    attempt(tmp_path / "a", fail)
    assert len(caplog.messages) == 2


def test_other_errors_are_raised(tmp_path):
    def fail():
        raise ValueError("a fault of the program")

    with pytest.raises(ValueError, match="a fault of the program"):
        WriteAttempts()(tmp_path, fail)
