"""When workers restart, which nodes they avoid, and when they have failed too often: by tables and random histories."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from podzero.config import RestartsConfig
from podzero.runtime.failure_budget import FailureBudget

CONFIG = RestartsConfig(
    window_minutes=10.0, first_pause_s=5.0, longest_pause_s=60.0, node_failures=3, node_pause_minutes=20.0,
    max_failures=4, max_first_failures=2,
)  # fmt: skip
DAY_S = 86_400.0


@pytest.fixture
def budget():
    return FailureBudget(CONFIG)


def test_pauses_double_up_to_the_longest_one(budget):
    pauses = [budget.note_failure("actor-0", None, float(second)).pause_s for second in range(8)]
    assert pauses == [0.0, 5.0, 10.0, 20.0, 40.0, 60.0, 60.0, 60.0]


def test_a_worker_may_start_once_its_pause_is_over(budget):
    assert budget.may_start("actor-0", 0.0)
    budget.note_failure("actor-0", None, 100.0)
    assert budget.may_start("actor-0", 100.0)
    budget.note_failure("actor-0", None, 110.0)
    assert not budget.may_start("actor-0", 114.9)
    assert budget.may_start("actor-0", 115.0)
    assert budget.may_start("actor-1", 110.0)


def test_failures_that_lie_outside_the_window_do_not_lengthen_the_pause(budget):
    for second in (0.0, 1.0, 2.0):
        budget.note_failure("actor-0", None, second)
    budget.note_work("actor-0")
    assert budget.note_failure("actor-0", None, 599.0).pause_s == 20.0
    budget.note_work("actor-0")
    assert budget.note_failure("actor-0", None, 602.0).pause_s == 5.0  # the one at 599 s is left


def test_failures_in_a_row_lengthen_the_pause_however_far_apart_they_are(budget):
    pauses = [budget.note_failure("evaluator", None, DAY_S * day).pause_s for day in range(5)]
    assert pauses == [0.0, 5.0, 10.0, 20.0, 40.0]


def test_one_failure_a_day_is_never_too_many_for_a_worker_that_works_in_between(budget):
    for day in range(1000):
        budget.note_work("actor-0")
        assert budget.note_failure("actor-0", "a", DAY_S * day) == (1, 0.0, False)
        assert not budget.exhausted("actor-0")


def test_fewer_failures_are_too_many_before_a_kind_has_worked(budget):
    budget.note_failure("actor-0", None, 0.0)
    assert not budget.exhausted("actor-0")
    budget.note_failure("actor-0", None, 0.0)
    assert budget.exhausted("actor-0")
    budget.note_work("actor-1")  # which shows that actors can work
    assert not budget.exhausted("actor-0")
    budget.note_failure("actor-0", None, 0.0)
    assert not budget.exhausted("actor-0")
    budget.note_failure("actor-0", None, 0.0)
    assert budget.exhausted("actor-0")


def test_work_ends_the_failures_in_a_row(budget):
    for _ in range(4):
        budget.note_failure("actor-0", None, 0.0)
    budget.note_work("actor-0")
    assert (budget.in_row("actor-0"), budget.exhausted("actor-0")) == (0, False)


def test_a_kind_avoids_a_node_on_which_its_workers_keep_failing_for_a_bounded_time(budget):
    avoided = [budget.note_failure(f"actor-{index}", "a", 60.0 * index).node_avoided for index in range(3)]
    assert avoided == [False, False, True]
    assert budget.avoids("actor", "a", 120.0)
    assert budget.avoids("actor", "a", 120.0 + 1199.0)
    assert not budget.avoids("actor", "a", 120.0 + 1200.0)
    assert not budget.avoids("actor", "b", 120.0)
    assert not budget.avoids("evaluator", "a", 120.0)


def test_failures_on_a_node_count_within_the_window_only(budget):
    avoided = [budget.note_failure("actor-0", "a", 301.0 * index).node_avoided for index in range(20)]
    assert not any(avoided)  # 2 within any 600 s


def test_a_node_at_fault_is_avoided_at_once(budget):
    assert budget.note_failure("actor-0", "a", 0.0, node_at_fault=True).node_avoided
    assert budget.avoids("actor", "a", 0.0)


def test_a_node_is_avoided_anew_only_after_as_many_failures_as_at_first(budget):
    budget.note_failure("actor-0", "a", 0.0, node_at_fault=True)
    later = [budget.note_failure("actor-0", "a", 1200.0 + second).node_avoided for second in range(3)]
    assert later == [False, False, True]


EVENTS = st.lists(
    st.tuples(
        st.floats(0.0, 900.0), st.sampled_from(["actor-0", "actor-1", "evaluator"]), st.sampled_from(["a", "b", None]),
        st.booleans(), st.booleans(),
    ),
    max_size=200,
)  # fmt: skip
"""Seconds since the event before, worker, node, whether the worker failed, and whether its node was at fault."""


@given(EVENTS)
def test_pauses_and_avoided_nodes_are_bounded_in_any_history(events):
    budget, now = FailureBudget(CONFIG), 0.0
    in_row = {"actor-0": 0, "actor-1": 0, "evaluator": 0}
    for after_s, worker, node, fails, at_fault in events:
        now += after_s
        if not fails:
            budget.note_work(worker)
            in_row[worker] = 0
            continue
        in_row[worker] += 1
        restart = budget.note_failure(worker, node, now, at_fault)
        assert restart.in_row == budget.in_row(worker) == in_row[worker]
        assert 0.0 <= restart.pause_s <= CONFIG.longest_pause_s
        assert budget.may_start(worker, now + CONFIG.longest_pause_s)
        assert not budget.avoids("actor", "a", now + 60 * CONFIG.node_pause_minutes)
        assert not (restart.node_avoided and node is None)


@given(st.integers(1, 2000), st.floats(0.0, 1e6), st.floats(0.0, 1e6))
def test_pauses_never_shrink_while_failures_follow_each_other(count, first_s, longer_s):
    config = RestartsConfig(first_pause_s=first_s, longest_pause_s=first_s + longer_s)
    budget = FailureBudget(config)
    pauses = [budget.note_failure("actor-0", "a", float(second)).pause_s for second in range(min(count, 300))]
    assert pauses == sorted(pauses)
    assert pauses[-1] <= config.longest_pause_s


def test_pauses_that_shrink_are_refused():
    with pytest.raises(ValueError, match=r"first_pause_s 20 .*longest_pause_s 10"):
        RestartsConfig(first_pause_s=20.0, longest_pause_s=10.0)
