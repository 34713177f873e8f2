"""Metrics of the agents that come with podzero."""

from podzero.benchmarks.zoo_agent import thinned


def line(t, worker="actor-0", step=0, **metrics):
    return {
        "t": t,
        "step": step,
        "worker": worker,
        "metrics": {name.replace("_", "/"): x for name, x in metrics.items()},
    }


def test_the_reports_of_a_minute_become_one_line_for_each_worker():
    lines = [line(0.2, count_games=3, loss=1.23456), line(1, "learner"), line(59, step=7, count_games=2, loss=1.11111)]
    found = list(thinned([*lines, line(61, step=9, count_games=1.0)]))
    assert [(one["t"], one["worker"], one["step"]) for one in found] == [
        (0, "actor-0", 7), (61, "actor-0", 9), (1, "learner", 0),
    ]  # fmt: skip
    assert found[0]["metrics"] == {"count/games": 5, "loss": 1.111}
