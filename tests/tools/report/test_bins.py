"""Spans of training time: bounded in number, no spike is lost, rates add up."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from podzero.tools.report.bins import MAX_BINS, Bins


@given(st.lists(st.tuples(st.floats(0, 24), st.floats(-1e6, 1e6)), min_size=1, max_size=300))
def test_the_band_holds_every_value(points):
    hours, values = np.array(sorted(points)).T
    found = Bins(24.0).envelope(hours, values)
    assert len(found.mean) == MAX_BINS
    assert np.nanmin(found.low) == values.min()
    assert np.nanmax(found.high) == values.max()
    known = ~np.isnan(found.mean)
    slack = 1e-6 * (1 + np.abs(values).max())
    assert (found.low[known] <= found.mean[known] + slack).all()
    assert (found.mean[known] <= found.high[known] + slack).all()


def test_a_short_run_has_spans_of_at_least_several_reports():
    assert len(Bins(60 / 3600).middles) == 4
    assert len(Bins(0.0).middles) == 1


def test_the_rate_of_a_count():
    hours = np.arange(1, 101) / 100
    rates = Bins(1.0).per_s(hours, np.full(100, 36.0))
    np.testing.assert_allclose(rates[5:], 1.0)


def test_the_first_count_of_a_worker_falls_at_its_time():
    rates = Bins(1.0).per_s(np.array([0.5 + 1e-6, 1.0]), np.array([15.0, 0.0]))
    assert (rates[:120] == 0).all()
    np.testing.assert_allclose(rates[120:], [1.0] + [0.0] * 119)


@given(st.lists(st.floats(0, 1000), min_size=1, max_size=200))
def test_rates_add_up_to_the_counts(counts):
    hours = np.sort(np.random.default_rng(0).uniform(0.01, 2.0, len(counts)))
    bins = Bins(2.0)
    rates = bins.per_s(hours, np.array(counts))
    np.testing.assert_allclose(rates.sum() * 3600 * 2.0 / len(bins.middles), sum(counts), atol=1e-6)
