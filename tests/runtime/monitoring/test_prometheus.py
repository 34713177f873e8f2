"""Prometheus reads the newest values and the sums of counts."""

import urllib.request

import pytest
from prometheus_client.parser import text_string_to_metric_families

from podzero.errors import ConfigError
from podzero.runtime.monitoring.prometheus import PrometheusWriter, metric_name
from podzero.runtime.monitoring.reports import MetricsReport


@pytest.fixture
def writer():
    writer = PrometheusWriter("127.0.0.1:0", "a run")
    yield writer
    writer.close()


def scraped(writer):
    with urllib.request.urlopen(f"http://127.0.0.1:{writer.port}/metrics", timeout=60) as answer:
        families = text_string_to_metric_families(answer.read().decode())
        return {
            (sample.name, sample.labels["worker"]): sample.value for family in families for sample in family.samples
        }


def test_gauges_are_replaced_and_counts_are_summed_up(writer):
    for step, size, moves in ((1, 10.0, 5.0), (2, 20.0, 7.0)):
        writer.write(MetricsReport(0.0, "actor-0", {"replay/size": size, "count/moves": moves}), step)
    writer.write(MetricsReport(0.0, "actor-1", {"count/moves": 1.0}), 2)
    found = scraped(writer)
    assert found["podzero_replay_size", "actor-0"] == 20.0
    assert found["podzero_moves_total", "actor-0"] == 12.0
    assert found["podzero_moves_total", "actor-1"] == 1.0
    assert found["podzero_step", "actor-0"] == 2.0


def test_values_that_are_not_finite_and_odd_names_are_taken(writer):
    metrics = {"learner/loss": float("nan"), "evaluation/score_mcts:100": 0.5, "count/x": float("nan"), "count/y": -1.0}
    writer.write(MetricsReport(0.0, "learner", metrics), 1)
    assert scraped(writer)["podzero_evaluation_score_mcts_100", "learner"] == 0.5


def test_a_closed_endpoint_releases_its_port(writer):
    port = writer.port
    writer.close()
    PrometheusWriter(f"127.0.0.1:{port}", "another").close()


def test_a_port_that_is_in_use_is_refused(writer):
    with pytest.raises(ConfigError, match=r"metrics\.prometheus"):
        PrometheusWriter(f"127.0.0.1:{writer.port}", "another")


def test_names_are_letters_digits_and_underscores():
    assert metric_name("time/wait_replay") == "podzero_time_wait_replay"
    assert metric_name("evaluation/score_@5!") == "podzero_evaluation_score_5"
