"""`podzero plan`: what it prints, and what it refuses."""

import json

import pytest

from podzero.config import load
from podzero.core.errors import ConfigError
from podzero.tools.compile.waiting import rates
from podzero.tools.plan.cli import machines_of, system_of
from podzero.tools.plan.rates import Rates

NAME = "slices/go_9x9_v5e_16"


@pytest.fixture(autouse=True)
def _few_events(monkeypatch):
    monkeypatch.setattr("podzero.tools.plan.simulation.EVENTS", 4_000)


def planned(command, *arguments):
    code, out, error = command("plan", *arguments, "--json")
    return code, json.loads(out), error


def test_a_slice_whose_chips_play_does_what_the_launch_says(command):
    found = planned(command, NAME, "--hours", "2", "cluster.price_per_hour=30")[1]
    expected = rates(load(NAME))
    assert found["moves_per_s"] == pytest.approx(expected.moves_per_s, rel=0.01)
    assert found["learner_time"]["training"] == pytest.approx(expected.training, abs=0.01)
    assert found["price"] == 60.0
    assert found["steps"] == pytest.approx(2 * 3600 * found["steps_per_s"], rel=0.01)
    assert "chips" in found["bottleneck"]


def test_a_budget_buys_its_hours_and_a_limit_its_own(command):
    """The first limit that is reached ends the run."""
    both = ["--hours", "1", "--budget", "60"]
    assert planned(command, NAME, *both, "cluster.price_per_hour=30")[1]["hours"] == 1.0
    assert planned(command, NAME, "--budget", "60", "cluster.price_per_hour=30")[1]["hours"] == pytest.approx(2.0)
    found = planned(command, NAME, "stop.minutes=90", "stop.steps=1000000")[1]
    assert found["hours"] == 1.5
    assert found["hours_to"]["stop.steps=1000000"] == pytest.approx(1.5 * 1e6 / found["steps"])


def test_power_is_told_where_it_was_published(command):
    """16 chips of 170 W."""
    found = planned(command, "slices/go_9x9_v4_32", "--hours", "1")[1]
    assert found["energy_of_chips_kwh"] == pytest.approx(2.72)
    assert "unknown" in planned(command, NAME, "--hours", "1")[1]["energy_of_chips_kwh"]


def test_lost_machines_cost_steps(command):
    faulty = planned(command, NAME, "--hours", "50", "--mtbf", "20", "--repair", "30")[1]
    assert faulty["lost_machines"] > 0
    assert faulty["steps"] < planned(command, NAME, "--hours", "50")[1]["steps"]


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--slice", "v5e-17"], "v5e-16"),
        (["--budget", "10"], "cluster.price_per_hour"),
        (["--budget", "0.001", "cluster.price_per_hour=30"], "--budget"),
        (["search.simulations=128"], "podzero compile"),
        (["--rates", "absent.json"], "--rates absent.json"),
        (["--repair", "5"], "--mtbf"),
    ],
)
def test_bad_input_is_refused_with_what_to_do(command, arguments, words):
    code, found, _ = planned(command, NAME, *arguments)
    assert code == 2
    assert words in found["error"]


def test_actors_must_fit_on_the_machines_that_there_are():
    """Four hosts of 112 CPUs."""
    slice_ = ["cluster.slice=v5e-16", "replay.shards=4", "cluster.actors_on_tpu_hosts=true", "actors.cpus=1"]
    assert machines_of(load("go_9x9", [*slice_, "actors.count=400"]), Rates())[1] == 4
    with pytest.raises(ConfigError, match="448"):
        machines_of(load("go_9x9", [*slice_, "actors.count=500"]), Rates())
    with pytest.raises(ConfigError, match="lower actors"):
        machines_of(load("connect_four", ["actors.count=4"]), Rates(cores=2.0))
    with pytest.raises(ConfigError, match="--slice"):
        machines_of(load("connect_four"), Rates())


def test_actors_are_spread_evenly_over_the_machines_that_are_rented():
    """1,000 actors of one CPU with 4 shards: 63 machines or more of 16 CPUs."""
    overrides = ["cluster.slice=v5e-16", "replay.shards=4", "actors.count=1000", "actors.cpus=1"]
    experiment, known = load("go_9x9", overrides), Rates(0.1, 5.0)
    nodes = system_of(experiment, known, machines_of(experiment, known)[1]).nodes
    assert sum(node.number for node in nodes) == 1_000
    assert {node.number for node in nodes} <= {15, 16}
