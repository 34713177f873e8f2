"""Lines of standard input: read ahead, and those that are no text."""

import io
import sys

import pytest

from podzero.core.reading import read_ahead, standard_input


def test_bytes_that_are_no_text_spoil_their_own_line_alone(monkeypatch):
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(b'{"id": "\xff"}\n{"id": 2}\n'), encoding="utf-8"))
    assert list(standard_input()) == ['{"id": "\ufffd"}\n', '{"id": 2}\n']


def test_empty_lines_are_left_out_and_the_end_comes_last():
    waiting = read_ahead(["a\n", "\n", "b\n"], limit=10)
    assert [waiting.get(timeout=5) for _ in range(3)] == ["a\n", "b\n", None]


def test_an_error_of_the_input_comes_last():
    def lines():
        yield "a\n"
        raise OSError("gone")

    waiting = read_ahead(lines(), limit=10)
    assert waiting.get(timeout=5) == "a\n"
    with pytest.raises(OSError, match="gone"):
        raise waiting.get(timeout=5)


def test_a_byte_order_mark_before_the_first_line_is_no_text(monkeypatch):
    marked = io.TextIOWrapper(io.BytesIO(b'\xef\xbb\xbf{"id": 1}\n\xef\xbb\xbf\n'), encoding="latin-1")
    monkeypatch.setattr(sys, "stdin", marked)
    assert list(standard_input()) == ['{"id": 1}\n', "\ufeff\n"]


def test_a_closed_standard_input_has_no_lines(monkeypatch):
    monkeypatch.setattr(sys, "stdin", None)
    assert list(standard_input()) == []
