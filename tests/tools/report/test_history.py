"""Lines of metrics as columns: workers apart, gaps as NaN, damaged lines counted and left out."""

import json

import numpy as np
import pytest
from run_files import BEGAN, line

from podzero.tools.report.history import History


def history_of(*lines):
    history = History()
    for one in lines:
        history.add_line(one)
    return history


def test_values_of_all_workers_of_a_kind_are_in_the_order_of_time():
    history = history_of(
        line("actor-0", 1, 0, a__b=1.0), line("actor-0", 5, 2, a__b=3.0), line("actor-1", 3, 1, a__b=2.0)
    )
    values = history.values("actor", "a/b")
    np.testing.assert_array_equal(values.times - BEGAN, [1, 3, 5])
    np.testing.assert_array_equal(values.steps, [0, 1, 2])
    np.testing.assert_array_equal(values.values, [1, 2, 3])


def test_a_metric_that_some_lines_lack_is_nan_there():
    history = history_of(
        line("learner", 1, 0, x=1.0), line("learner", 2, 0, y=5.0), line("learner", 3, 0, x=2.0, y=6.0)
    )
    table = history.workers["learner"]
    np.testing.assert_array_equal(table.column("x"), [1, np.nan, 2])
    np.testing.assert_array_equal(table.column("y"), [np.nan, 5, 6])
    np.testing.assert_array_equal(table.column("z"), [np.nan] * 3)


def test_values_that_are_no_finite_numbers_are_left_out():
    damaged = json.dumps(
        {"t": 1.0, "step": 0, "worker": "learner", "metrics": {"a": None, "b": "x", "c": True, "d": 1}}
    )
    history = history_of(
        damaged.encode(), b'{"t": 2, "step": 0, "worker": "learner", "metrics": {"e": 1e999, "f": NaN}}'
    )
    assert history.names("learner") == {"d"}
    assert history.damaged_lines == 0


@pytest.mark.parametrize(
    "text",
    [
        b"", b"{", b"\xff\xfe\x00", b"[1, 2]", b"null", b'"text"', b'{"t": 1}', b"[" * 100_000,
        b'{"t": "x", "step": 0, "worker": "a", "metrics": {}}',
        b'{"t": 1e300, "step": 0, "worker": "a", "metrics": {}}',
        b'{"t": NaN, "step": 0, "worker": "a", "metrics": {}}',
        b'{"t": 1, "step": Infinity, "worker": "a", "metrics": {}}',
        b'{"t": 1, "step": 0, "worker": ["a"], "metrics": {}}',
        b'{"t": 1, "step": 0, "worker": "a", "metrics": [1]}',
        b'{"t": 1' + b"0" * 400 + b', "step": 0, "worker": "a", "metrics": {}}',
    ],
)  # fmt: skip
def test_a_damaged_line_is_counted_and_left_out(text):
    history = history_of(text, line("learner", 1, 0, x=1.0))
    assert history.damaged_lines == 1
    assert list(history.workers) == ["learner"]
