"""Every stage of `podzero bench`, small, through the command line; how fast it was is not checked."""

import json
import math
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import pytest

from podzero.benchmarks import pages
from podzero.config import load
from podzero.core.machine import has_int8_instructions
from podzero.tools.bench import STAGES
from podzero.tools.bench.learner import DEVICES


def acting_is_consistent(found):
    assert 0 < found["steps_per_s"] < found["actor_evaluations_per_s"] / 5
    assert found["windows_per_s"] > 0
    stages = ("search", "environment", "assemble", "write", "params")
    assert 0 < sum(found[f"{stage}_share"] for stage in stages) <= 1.001


def actors_are_consistent(found):
    """They write to all shards."""
    assert [entry["actors"] for entry in found["rounds"]] == [1, 3]
    for entry in found["rounds"]:
        assert len(entry["shards"]) == 2
        assert min(entry["shards"]) > 0
        assert entry["samples_per_s"] == pytest.approx(sum(entry["shards"]))
        assert 0 < entry["machine"] <= 1.05
        assert entry["actors_cores"] > 0
    assert found["rounds"][0]["efficiency"] == 1.0
    assert found["ratio"] in (None, found["rounds"][1]["efficiency"])
    assert found["search_ms"] > 0


def learner_is_consistent(found):
    assert found["fed_samples_per_s"] == pytest.approx(16 * found["fed_steps_per_s"])


def loop_is_consistent(found):
    """Each group of shares adds up to one."""
    for shares in ("device_time", "actor_time", "learner_time", "limiter_time"):
        assert sum(found[shares].values()) == pytest.approx(1.0)
    assert found["moves_per_s"] > 0
    assert found["steps_per_s"] > 0


def mesh_is_consistent(found):
    assert found["devices"] == DEVICES == 8


def publish_is_consistent(found):
    assert found["publications"] >= 1
    assert 0 < found["acting"]["median_ms"] <= found["acting"]["p99_ms"]
    assert 0 < found["transit"]["median_ms"] <= found["transit"]["p99_ms"]
    assert found["bytes"] > 0


def replay_is_consistent(found):
    """Both ways are measured with all clients."""
    for way in ("write", "read"):
        rounds_are_consistent(found[way])
        assert found[way]["ratio_to_bare_unpacked"] > 0
    assert found["ratio"] == min(found["write"]["ratio"], found["read"]["ratio"])
    # 18 bits of the observation, 9 of legal moves, 9 policies in float16, the value and the version.
    assert found["sample_bytes"] == 3 + 2 + 9 * 2 + 4 + 4


def selfplay_is_consistent(found):
    assert found["actor_evaluations_per_s"] == pytest.approx(5 * found["moves_per_s"])
    assert found["games_per_s"] > 0


def server_is_consistent(found):
    assert list(found["actors"]) == ["1", "2"]
    for each in found["actors"].values():
        assert 0 < each["share_of_device"] <= 1.05
        assert 0 < each["fill"] <= 1
        lower = min(found["device_positions_per_s"], each["transport_positions_per_s"])
        assert each["share_of_limit"] == pytest.approx(each["positions_per_s"] / lower)
    assert found["ratio"] == min(each["share_of_limit"] for each in found["actors"].values())
    assert (found["row_bytes"], found["answer_bytes"], found["positions_per_request"]) == (3, 40, 8)


class Small(NamedTuple):
    """How a stage is measured here."""

    experiment: Callable[[Any], Any] = lambda tiny: tiny()
    """Given the fixture `tiny`."""
    seconds: float = 0.1
    constants: Mapping[str, Any] = {}
    """Of the module of the stage."""
    check: Callable[[Any], None] = lambda found: None
    """What else holds of its figures."""


SMALL = {
    "acting": Small(
        lambda tiny: load("cartpole", ["actors.games=4", "search.simulations=4"]), 1.0, check=acting_is_consistent
    ),
    "actors": Small(
        seconds=4.0, constants={"COUNTS": (1, 3), "SHARDS": 2, "PROCESSES": 2}, check=actors_are_consistent
    ),
    "int8": Small(lambda tiny: tiny("search.algorithm=gumbel")),
    "learner": Small(check=learner_is_consistent),
    "loop": Small(seconds=4.0, check=loop_is_consistent),
    "mesh": Small(lambda tiny: tiny("learner.augment=false"), check=mesh_is_consistent),
    "publish": Small(seconds=3.0, check=publish_is_consistent),
    "replay": Small(lambda tiny: tiny("replay.tolerance=512"), check=replay_is_consistent),
    "selfplay": Small(seconds=1.0, check=selfplay_is_consistent),
    "server": Small(
        lambda tiny: tiny("server.batch_sizes=[8,16]"), 10.0, {"CLIENTS": (1, 2)}, server_is_consistent
    ),
}  # fmt: skip
"""Stages that are not measured as `Small()` says."""

SLOW = ("acting", "actors", "int8", "loop", "mesh", "publish", "replay", "selfplay", "server", "tree")
"""They take 10 to 50 s on two cores: they start processes that import JAX or Ray, use the TPU compiler, or compile
several searches."""


@pytest.fixture
def bench(command, tmp_path):
    """Runs `podzero bench STAGE --json` in this process; returns the object that it prints."""

    def run(stage, experiment, seconds):
        config = tmp_path / "experiment.yaml"
        config.write_text(experiment.to_yaml())
        code, out, err = command("bench", stage, "--config", str(config), "--seconds", str(seconds), "--json")
        assert (code, out.count("\n")) == (0, 1), out + err
        return json.loads(out)

    return run


@pytest.mark.timeout(900)
@pytest.mark.parametrize("stage", [pytest.param(stage, marks=[pytest.mark.slow] * (stage in SLOW)) for stage in STAGES])
def test_a_stage_prints_what_its_readers_need(bench, tiny, monkeypatch, stage):
    if stage == "int8" and not has_int8_instructions():
        pytest.skip("this CPU has no int8 instructions")
    small = SMALL.get(stage, Small())
    for name, value in small.constants.items():
        monkeypatch.setattr(f"podzero.tools.bench.{STAGES[stage]}.{name}", value)
    found = bench(stage, small.experiment(tiny), small.seconds)
    assert needed(stage) <= figures(found)
    assert found["ratio"] is None or 0 < found["ratio"] < math.inf
    rounds_are_consistent(found)
    small.check(found)


def needed(stage):
    """The names that every result of a stage in `benchmarks/results` has, of which the pages are written."""
    results = [json.loads(path.read_text()) for path in pages.RESULTS.glob("bench_*.json")]
    names = [figures(each["result"]) for each in results if each["command"].startswith(f"podzero bench {stage} ")]
    assert names, f"benchmarks/results has nothing of `podzero bench {stage}`"
    return set.intersection(*names)


def figures(found):
    """The names of figures at any depth; numbers of actors are none."""
    if isinstance(found, dict):
        return {name for name in found if not name.isdigit()}.union(*map(figures, found.values()))
    return set().union(*map(figures, found)) if isinstance(found, list) else set()


def rounds_are_consistent(found):
    """Each round has a rate of each side."""
    sides = [rates for name, rates in found.items() if name.endswith("_rounds")]
    assert len({len(rates) for rates in sides}) <= 1
    assert all(rates and min(rates) > 0 for rates in sides)


@pytest.mark.slow
def test_the_learner_by_openvino_takes_turns_with_xla(bench, tiny):
    found = bench("learner", tiny("learner.cpu_convolutions=openvino"), 0.1)
    rounds_are_consistent(found)
    assert found["xla_rounds"]
    assert found["ratio_to_xla"] > 0


@pytest.mark.slow
def test_large_items_are_written_and_read_by_all_clients(bench, tiny):
    found = bench("replay", tiny("replay.samples_per_item=32", "replay.tolerance=512"), 0.1)
    replay_is_consistent(found)
