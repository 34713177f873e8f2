"""Runs side by side: settings that differ, values after equal time of training, curves over one another."""

import csv
import json
import re

import numpy as np
import pytest
from run_files import evaluation, line, lines_of

from podzero.core.errors import ConfigError
from podzero.files.workdir import WorkdirError
from podzero.tools.report.comparison import ABSENT, compare, overlaid
from podzero.tools.report.curves import make_curves
from podzero.tools.report.page import make_comparison
from podzero.tools.report.record import read_runs


def losses(seconds, *values):
    """Losses that change by equal steps of time."""
    return [line("learner", seconds * k / len(values) + 1, k, learner__loss=value) for k, value in enumerate(values)]


@pytest.fixture
def records(make_run):
    """A run of 10 minutes with two evaluations, and one of 20 minutes with a later evaluation."""
    short = [*lines_of(600), evaluation(310, 20, keeps_value=0.5), evaluation(510, 40, keeps_value=0.6)]
    long = [*lines_of(1200), evaluation(410, 20, keeps_value=0.7), evaluation(1010, 90, keeps_value=0.9)]
    runs = {"a": make_run(short, folder="a"), "b": make_run(long, folder="b", overrides=["seed=1", "stop.minutes=9"])}
    return read_runs([str(run.root) for run in runs.values()])


def row(comparison, what):
    (found,) = [values for name, values in comparison.values.items() if what in name]
    return found


def test_runs_are_compared_at_the_end_of_the_shorter_one(records):
    found = compare(records)
    assert found.hours == pytest.approx(600 / 3600, abs=0.01)
    assert "After 9 min 55 s" in found.tables()[-1].caption
    short, long = row(found, "keep the value")
    assert (short.value, long.value) == (0.6, 0.7)
    assert short.low < 0.6 < short.high
    steps = [value.value for value in row(found, "learner steps")]
    assert steps[0] == pytest.approx(steps[1], abs=2)
    rates = [value.value for value in row(found, "Moves and samples: moves")]
    np.testing.assert_allclose(rates, 20.0, rtol=0.1)


def test_only_settings_that_differ_are_listed(records):
    assert {name: values for name, values in compare(records).settings.items() if name != "stop.minutes"} == {
        "seed": [0, 1]
    }


def test_a_loss_is_that_of_the_end_of_the_common_time(make_run):
    runs = [
        make_run(losses(600, 9.0, 8.0, *[1.0] * 18), folder="a"),
        make_run(losses(1200, *[2.0] * 20, *[0.0] * 20), folder="b"),
    ]
    (short, long) = row(compare(read_runs([str(run.root) for run in runs])), "Loss: total")
    assert (short.value, long.value) == (1.0, 2.0)


def test_what_only_one_run_has_is_absent_in_the_others(make_run):
    runs = [make_run(lines_of(300), folder="a"), make_run(folder="b", config="cartpole", status=False)]
    found = compare(read_runs([str(run.root) for run in runs]))
    assert [value and value.value for value in row(found, "Loss: total")] == [2.0, None]
    assert found.settings["network.channels"][1] == ABSENT
    json.dumps(found.to_tree(), allow_nan=False)


def test_curves_of_all_runs_are_in_one_figure_each_at_its_own_points(records):
    figures = {figure.title: figure for section in overlaid(records) for figure in section.figures}
    loss = figures["Loss"]
    assert [curve.label for curve in loss.curves] == list(records)
    first, second = (np.isfinite(curve.values) for curve in loss.curves)
    assert not (first & second).any()
    assert loss.axes.hours[first].max() == pytest.approx(loss.axes.hours[second].max() / 2, rel=0.1)
    assert len(figures["Moves and samples"].curves) == 6
    assert not any(title.startswith("Where the time goes") for title in figures)


def test_the_page_has_the_tables_and_every_figure(records):
    page = make_comparison(records)
    assert re.findall(r"<h2>(.*?)</h2>", page)[:3] == ["Side by side", "Strength", "Learning"]
    data = json.loads(re.search(r'<script type="application/json" id="data">(.*?)</script>', page, re.DOTALL)[1])
    assert len(data["figures"]) == len(re.findall(r"<h3>", page))


def test_runs_that_cannot_be_compared_are_refused(make_run, tmp_path):
    run = str(make_run(lines_of(30)).root)
    with pytest.raises(ConfigError, match="two different runs"):
        read_runs([run, f"{run}/"])
    with pytest.raises(WorkdirError, match="holds no experiment"):
        read_runs([run, str(tmp_path)])


@pytest.fixture
def seeds(make_run):
    """Two choices of two seeds each; the second choice keeps 0.1 and 0.2 more values than the first."""
    runs = {}
    for simulations, better in ((16, (0.5, 0.6)), (32, (0.6, 0.8))):
        for seed, keeps in enumerate(better):
            rounds = [evaluation(210, 20, keeps_value=keeps), evaluation(410, 40, keeps_value=keeps + 0.1)]
            name = f"{simulations}-{seed}"
            overrides = [f"seed={seed}", f"search.simulations={simulations}"]
            runs[name] = make_run([*lines_of(600), *rounds], folder=name, overrides=overrides)
    return read_runs([str(run.root) for run in runs.values()])


def test_runs_that_differ_in_their_seed_are_one_choice_and_compared_by_pairs(seeds):
    found = compare(seeds)
    assert [list(runs.values()) for runs in found.choices.values()] == [[0, 1], [0, 1]]
    assert list(found.choices) == ["simulations=16", "simulations=32"]
    first, second = [one for one in found.over_seeds() if "all plies" in one["what"]]
    assert (first["mean"], first["iqm"], first["seeds"]) == (pytest.approx(0.65), pytest.approx(0.65), 2)
    assert first["difference"] is None
    # Pairs of 0.1 and 0.2: Student's interval of one degree of freedom is 12.7 standard errors of 0.05 wide.
    assert second["difference"]["mean"] == pytest.approx(0.15)
    assert second["difference"]["high"] == pytest.approx(0.15 + 12.706 * 0.05, rel=1e-3)
    table = found.tables()[-1]
    assert "paired by seed" in table.caption
    assert table.caption.endswith("\nA: simulations=16\nB: simulations=32")
    assert ("B", "2") in {row[1:3] for row in table.rows}
    json.dumps(found.to_tree(), allow_nan=False)


def test_runs_of_different_settings_have_no_table_over_seeds(records):
    found = compare(records)
    assert found.choices == {}
    assert found.over_seeds() == []


def test_the_curve_of_a_choice_is_the_mean_over_its_seeds_with_their_range_as_band(seeds):
    figures = {figure.title: figure for section in overlaid(seeds) for figure in section.figures}
    kept = figures["Moves that keep the value"]
    assert [curve.label for curve in kept.curves] == ["simulations=16", "simulations=32"]
    second = kept.curves[1]
    known = np.isfinite(second.values)
    np.testing.assert_allclose(second.values[known], [0.7, 0.8])
    np.testing.assert_allclose(second.low[known], [0.6, 0.7])
    np.testing.assert_allclose(second.high[known], [0.8, 0.9])
    np.testing.assert_allclose(kept.axes.steps[known], [20, 40])
    assert "mean over 2 seeds" in kept.caption
    assert kept.dots
    losses = figures["Loss"]
    assert np.isfinite(losses.curves[0].values).sum() > 10
    np.testing.assert_allclose(losses.curves[0].known, 2.0)


def test_curves_as_csv_have_a_row_for_each_value(seeds):
    rows = list(csv.DictReader(make_curves(overlaid(seeds), ".csv").decode().splitlines()))
    kept = [row for row in rows if row["figure"] == "Moves that keep the value" and "=32" in row["curve"]]
    assert [float(row["value"]) for row in kept] == [0.7, 0.8]
    assert [(row["steps"], row["low"], row["high"]) for row in kept] == [("20", "0.6", "0.8"), ("40", "0.7", "0.9")]
    rates = [row for row in rows if row["curve"].startswith("simulations=16: moves")]
    assert rates


def test_curves_as_pdf_have_a_page_for_each_figure(seeds):
    sections = overlaid(seeds)
    pdf = make_curves(sections, ".pdf", "steps")
    assert pdf.startswith(b"%PDF")
    assert re.search(rb"/Count (\d+)", pdf)[1] == b"%d" % sum(len(section.figures) for section in sections)
