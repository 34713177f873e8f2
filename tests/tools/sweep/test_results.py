"""The table of a sweep, by numbers computed by hand."""

import json
import math

import pytest

from podzero.tools.sweep.cli import RunResult, measures_of, summarize, tables


def result(rate, seed, value, state="finished"):
    values = {} if value is None else {"rating": value}
    measured_at = dict.fromkeys(values, 90)
    return RunResult(f"rate{rate}-seed{seed}", {"rate": rate}, seed, state, 10.0, 100, values, measured_at)


def test_differences_are_paired_by_seed():
    runs = [
        *(result("1", seed, value) for seed, value in (("0", 10.0), ("1", 20.0), ("2", 30.0))),
        *(result("2", seed, value) for seed, value in (("0", 11.0), ("1", 22.0), ("2", 33.0))),
    ]
    first, second = summarize(runs)["combinations"]
    assert (first["mean"], first["spread"], first["difference"]) == (20.0, 10.0, None)
    assert (second["mean"], second["spread"]) == (22.0, 11.0)
    # Differences 1, 2, 3: their standard deviation is 1, and t for 2 degrees of freedom is 4.303.
    assert second["difference"]["mean"] == 2.0
    assert second["difference"]["high"] == pytest.approx(2.0 + 4.303 / math.sqrt(3), abs=1e-3)
    assert second["difference"]["pairs"] == 3


def test_only_finished_runs_that_have_a_partner_are_compared():
    runs = [
        result("1", "0", 10.0),
        result("1", "1", 99.0, "stopped early"),
        result("2", "0", 13.0),
        result("2", "1", 50.0),
        result("3", "0", 7.0, "given up: it broke"),
        result("3", "1", None),
    ]
    first, second, third = summarize(runs)["combinations"]
    assert (first["values"], second["values"], third["values"]) == ([10.0], [13.0, 50.0], [])
    assert second["difference"] == {"mean": 3.0, "low": None, "high": None, "pairs": 1}
    assert third["difference"] is None


def test_tables_name_what_was_given_up_and_json_has_null_for_what_is_not_known():
    found = summarize([result("1", "0", 10.0), result("2", "0", None, "given up: it broke")])
    combinations, runs = tables(found)
    assert [row[0] for row in combinations.rows] == ["rate=1", "rate=2"]
    assert "it broke" in runs.rows[1][1]
    tree = json.loads(json.dumps(found, allow_nan=False))
    assert [one["mean"] for one in tree["combinations"]] == [10.0, None]


def test_each_measure_of_a_judgement_is_compared_by_seed():
    band = {"keeps_value": 0.75, "value_error": 0.5}
    found = {
        "keeps_value": 0.875,
        "bands": {"plies 0 to 9": band},
        "network": {"keeps_value": 0.5, "value_error": 0.25, "bands": {"plies 0 to 9": band | {"keeps_value": 0.625}}},
    }
    measures = measures_of(found | {"games": found})
    assert measures["all plies: keeps the value"] == measures["strong games, all plies: keeps the value"] == 0.875
    assert measures["plies 0 to 9: keeps the value"] == 0.75
    assert (measures["all plies: value error"], measures["plies 0 to 9: value error"]) == (0.25, 0.5)
    runs = [result("1", "0", 10.0)._replace(judged={"all": 0.5}), result("2", "0", 12.0)._replace(judged={"all": 0.75})]
    _, judged, _ = tables(summarize([*runs, result("2", "1", 9.0)]))
    assert [row[:4] for row in judged.rows] == [("all", "rate=1", "1 of 1", "0.5"), ("all", "rate=2", "1 of 2", "0.75")]
    assert judged.rows[1][-1].startswith("+0.25")


def test_the_step_of_each_value_is_said_and_that_compared_runs_differ_in_it():
    runs = [result("1", "0", 10.0), result("1", "1", None), result("2", "0", 13.0)]
    combinations, table = tables(summarize(runs))
    assert [row[-1] for row in table.rows] == ["90", "\N{EN DASH}", "90"]
    assert "--steps" not in combinations.caption
    later = runs[2]._replace(measured_at={"rating": 296})
    assert "from 90 to 296" in tables(summarize([*runs[:2], later]))[0].caption


def test_the_most_comparable_measure_is_taken_unless_another_is_asked_for():
    run = RunResult("run", {}, "", "finished", 1.0, 1, {"rating": 5.0, "keeps_value": 0.9}, {})
    assert summarize([run])["combinations"][0]["mean"] == 0.9
    assert summarize([run], "rating")["combinations"][0]["mean"] == 5.0
    assert summarize([run], "mean_return")["combinations"][0]["values"] == []
