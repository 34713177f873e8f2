"""Each bench with small sizes: it runs, and returns consistent rates; how fast it was is not checked."""

import math
import threading
import time
from typing import get_args

import numpy as np
import pytest

from podzero.config import load
from podzero.envs import spec_of
from podzero.errors import ConfigError
from podzero.inference import has_int8_instructions
from podzero.launch.tools import Stage
from podzero.tools.bench import server
from podzero.tools.bench.acting import bench_acting
from podzero.tools.bench.actor_rates import ReportTotals
from podzero.tools.bench.actors import _rounds, bench_actors, record
from podzero.tools.bench.analyze import bench_analyze
from podzero.tools.bench.bare_reverb import one_sample_items
from podzero.tools.bench.broadcast import bench_broadcast
from podzero.tools.bench.child_processes import BenchError, child_process
from podzero.tools.bench.inputs import random_samples
from podzero.tools.bench.int8 import bench_int8
from podzero.tools.bench.learner import bench_learner
from podzero.tools.bench.mesh import DEVICES, bench_mesh
from podzero.tools.bench.moves import moves_per_version
from podzero.tools.bench.publish import bench_publish
from podzero.tools.bench.replay import bench_replay
from podzero.tools.bench.reverb_client import items_of
from podzero.tools.bench.rounds import compare
from podzero.tools.bench.selfplay import bench_selfplay
from podzero.tools.bench.server import bench_server
from podzero.tools.bench.simulators import bench_simulators
from podzero.tools.bench.tree import bench_tree


def test_parameters_arrive_in_self_play_as_often_as_in_training():
    """16 steps of 512 samples, each of which is trained on twice: 4,096 positions, 32 moves of 128 games."""
    assert moves_per_version(load("connect_four_int8")) == 32
    assert moves_per_version(load("connect_four_int8", ["actors.count=4"])) == 8
    assert moves_per_version(load("connect_four_int8", ["actors.count=1000"])) == 1


@pytest.mark.slow
def test_positions_are_analyzed_beside_the_bare_forward_pass(tiny):
    found = bench_analyze(tiny(), 0.1)
    assert len(found["analyze_rounds"]) == len(found["bare_rounds"]) >= 1
    assert found["positions_per_s"] == pytest.approx(found["analyze_evaluations_per_s"] / (found["simulations"] + 1))
    assert 0 < found["ratio"] < math.inf


@pytest.mark.slow
def test_the_learner_is_measured_with_and_without_replay(tiny):
    found = bench_learner(tiny(), 0.1)
    assert len(found["fed_rounds"]) == len(found["device_rounds"]) >= 1
    assert found["fed_steps_per_s"] > 0
    assert found["fed_samples_per_s"] == pytest.approx(16 * found["fed_steps_per_s"])
    assert 0 < found["ratio"] < math.inf


@pytest.mark.slow
def test_the_learner_by_openvino_takes_turns_with_xla(tiny):
    found = bench_learner(tiny("learner.cpu_convolutions=openvino"), 0.1)
    assert len(found["fed_rounds"]) == len(found["xla_rounds"]) >= 1
    assert found["ratio_to_xla"] > 0


@pytest.mark.slow
@pytest.mark.parametrize("samples_per_item", [8, 32])
def test_replay_is_written_and_read_by_all_clients(tiny, samples_per_item):
    found = bench_replay(tiny(f"replay.samples_per_item={samples_per_item}", "replay.tolerance=512"), 0.1)
    for way in ("write", "read"):
        rounds = [found[way][f"{side}_rounds"] for side in ("podzero", "bare_packed", "bare_unpacked")]
        assert len(rounds[0]) == len(rounds[1]) == len(rounds[2]) >= 1
        assert min(map(min, rounds)) > 0
        assert found[way]["ratio_to_bare_unpacked"] > 0
    assert found["ratio"] == min(found["write"]["ratio"], found["read"]["ratio"]) > 0
    assert found["sample_bytes"] == 3 * 3 * 2 + 9 + 9 * 4 + 4 + 4


@pytest.mark.slow
def test_self_play_takes_turns_with_the_bare_forward_pass(tiny, monkeypatch):
    monkeypatch.setattr("podzero.actors.selfplay.REPORT_EVERY_S", 0.1)
    found = bench_selfplay(tiny(), 0.6)
    assert len(found["actor_rounds"]) == len(found["bare_rounds"]) >= 1
    assert found["actor_evaluations_per_s"] == pytest.approx(5 * found["moves_per_s"])
    assert found["games_per_s"] > 0
    assert 0 < found["ratio"] < math.inf


def test_every_stage_is_measured_here():
    assert {f"bench_{stage}" for stage in get_args(Stage)} <= set(globals())


def test_a_game_on_the_host_takes_turns_with_the_same_game_in_jax(tiny):
    found = bench_simulators(tiny(), 0.1)
    assert len(found["host_rounds"]) == len(found["jax_rounds"]) >= 1
    assert min(found["host_rounds"] + found["jax_rounds"]) > 0
    assert 0 < found["ratio"] < math.inf


def test_a_game_that_is_only_in_jax_is_refused(tiny):
    with pytest.raises(ConfigError, match="games that are both in JAX and in OpenSpiel: connect_four"):
        bench_simulators(tiny("env.name=hex"), 0.1)


@pytest.mark.slow
@pytest.mark.skipif(not has_int8_instructions(), reason="this CPU has no int8 instructions")
def test_self_play_in_int8_takes_turns_with_float32_and_with_plain_mctx(tiny):
    found = bench_int8(tiny("search.algorithm=gumbel"), 0.1)
    assert len(found["int8_rounds"]) == len(found["float32_rounds"]) == len(found["plain_rounds"]) >= 1
    assert min(found["int8_rounds"] + found["float32_rounds"] + found["plain_rounds"]) > 0
    assert 0 < found["ratio"] < math.inf
    assert 0 < found["ratio_to_plain"] < math.inf


def test_what_plain_mctx_cannot_play_is_refused(tiny, monkeypatch):
    monkeypatch.setattr("podzero.tools.bench.int8.has_int8_instructions", lambda: True)
    with pytest.raises(ConfigError, match=r"search\.algorithm=gumbel"):
        bench_int8(tiny("search.algorithm=puct"), 0.1)


def test_a_cpu_without_int8_instructions_is_not_measured(tiny, monkeypatch):
    monkeypatch.setattr("podzero.tools.bench.int8.has_int8_instructions", lambda: False)
    with pytest.raises(ConfigError, match="no int8 instructions"):
        bench_int8(tiny(), 0.1)


@pytest.mark.slow
def test_publications_reach_an_actor_and_a_listener(tiny):
    found = bench_publish(tiny(), 3.0)
    assert found["publications"] >= 1
    assert 0 < found["acting"]["median_ms"] <= found["acting"]["p99_ms"]
    assert 0 < found["transit"]["median_ms"] <= found["transit"]["p99_ms"]
    assert found["bytes"] > 0
    assert found["ratio"] > 0


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_a_publication_is_sent_once_to_a_node_for_all_its_readers(tiny):
    """Two processes with two readers each on one node besides the publisher's, and parameters of 0.9 MB."""
    found = bench_broadcast(tiny("network.channels=96", "network.blocks=2"), 3.0, nodes=1, readers=2)
    assert (found["nodes"], found["reader_processes"], found["readers"]) == (1, 2, 4)
    assert found["missed"] == 0
    assert found["received_per_publication"] == [pytest.approx(found["bytes"], rel=0.01)]
    assert found["ratio"] == pytest.approx(1.0, rel=0.01)
    assert 0 < found["each"]["median_ms"] <= found["last"]["p99_ms"]


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_a_mesh_takes_turns_with_one_device(tiny):
    found = bench_mesh(tiny("learner.augment=false"), 0.1)
    assert found["devices"] == DEVICES == 8
    assert len(found["mesh_rounds"]) == len(found["one_device_rounds"]) >= 1
    assert min(found["mesh_rounds"] + found["one_device_rounds"]) > 0
    assert 0 < found["ratio"] < math.inf


def test_a_recording_holds_the_moves_of_all_games(tiny):
    moves, seconds = record(tiny(), 3)
    assert moves.policy.shape == (3, 16, 9)
    assert moves.done.shape == (3, 16)
    assert (moves.policy[~moves.legal] == 0).all()
    assert seconds > 0


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_actors_write_to_all_shards(tiny):
    found = bench_actors(tiny(), 4.0, counts=(1, 3), shards=2, processes=2)
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


def test_numbers_of_actors_that_do_not_start_in_time_are_left_out(monkeypatch):
    class Process:
        """One that starts two actors, but not four."""

        def send(self, count):
            self.count = count

        def receive(self, timeout_s):
            assert 0 < timeout_s <= 9.0
            if self.count > 2:
                raise BenchError("silent")

    monkeypatch.setattr("podzero.tools.bench.actors._round", lambda players, servers, count, seconds: {"actors": count})
    assert _rounds([Process()], [], (1, 2, 4, 8), 0.1, 9.0) == [{"actors": 1}, {"actors": 2}]
    with pytest.raises(BenchError, match="silent"):
        _rounds([Process()], [], (4, 8), 0.1, 9.0)


@pytest.mark.parametrize("auxiliary", [[], ["network.auxiliary=true"]])
def test_the_bare_client_stores_the_fields_that_an_experiment_has(tiny, auxiliary):
    experiment = tiny(*auxiliary)
    spec = spec_of(experiment.env)
    layout, samples = one_sample_items(experiment, spec), random_samples(experiment, spec, 3)
    items = items_of(layout.rows(samples), layout.columns)
    assert ("outcome" in [name for name, _, _ in layout.columns]) == bool(auxiliary)
    assert len(items) == 3
    for index, item in enumerate(items):
        assert [(name, list(field.shape), field.dtype.name) for name, field in item.items()] == layout.columns
        np.testing.assert_array_equal(item["policy_target"], samples.policy_target[index])


def test_a_game_is_refused_by_the_bench_of_environment_actors(tiny):
    with pytest.raises(ConfigError, match="tic_tac_toe is a game: measure its actor with podzero bench selfplay"):
        bench_acting(tiny(), 0.1)


@pytest.mark.slow
def test_acting_takes_turns_with_the_bare_search(monkeypatch):
    monkeypatch.setattr("podzero.actors.environments.REPORT_EVERY_S", 0.1)
    found = bench_acting(load("cartpole", ["actors.games=4", "search.simulations=4"]), 0.6)
    assert len(found["actor_rounds"]) == len(found["bare_rounds"]) >= 1
    assert 0 < found["steps_per_s"] < found["actor_evaluations_per_s"] / 5
    assert found["windows_per_s"] > 0
    stages = ("search", "environment", "assemble", "write", "params")
    assert 0 < sum(found[f"{stage}_share"] for stage in stages) <= 1.001
    assert 0 < found["ratio"] < math.inf


def test_rates_are_measured_between_reports(monkeypatch):
    now = [0.0]
    monkeypatch.setattr("podzero.tools.bench.actor_rates.time.perf_counter", lambda: now[0])
    totals = ReportTotals()
    reports = [
        (52.0, {"time/search": 0.5, "time/write": 0.25, "count/moves": 100, "count/samples": 50}),
        (60.0, {"time/search": 1.0, "count/moves": 400, "acting/mean_return": 9.0}),
    ]
    now[0] = 50.0
    totals("actor-0", {"time/search": 0.1, "count/moves": 7})  # compilation

    def next_report():
        now[0], metrics = reports.pop(0)
        totals("actor-0", metrics)

    totals.next_report = next_report
    # 2 s of which half were search and a quarter writing, then 8 s of search.
    assert totals.measure(9.0) == pytest.approx(
        {"time/search": 0.9, "time/write": 0.05, "count/moves": 50.0, "count/samples": 5.0}
    )


def test_the_wait_for_a_report_is_bounded(monkeypatch):
    totals = ReportTotals()
    timer = threading.Timer(0.05, totals, ("actor-0", {"count/moves": 1}))
    timer.start()
    totals.next_report()
    timer.join()
    monkeypatch.setattr("podzero.tools.bench.actor_rates._REPORT_S", 0.01)
    with pytest.raises(BenchError, match=r"the actor has not reported for 0\.01 s"):
        totals.next_report()


def test_ratios_are_medians_over_rounds_measured_in_turn(monkeypatch):
    calls, turns = [], []
    now = [0.0]
    monkeypatch.setattr("podzero.tools.bench.rounds.time.perf_counter", lambda: now[0])

    def side(name, rate):
        def measure(seconds):
            calls.append(name)
            turns.append(seconds)
            now[0] += seconds
            return rate * 2.0 ** ((len(calls) - 1) // 3)  # the machine becomes faster from round to round

        return measure

    found = compare({"ours": side("ours", 3.0), "bare": side("bare", 4.0), "old": side("old", 1.0)},
                    "samples_per_s", "ours over bare", 18.0, longest_s=2.0, rounds=2)  # fmt: skip
    assert turns == [2.0] * 9
    assert calls == ["old", "bare", "ours", "ours", "bare", "old", "old", "bare", "ours"]
    assert found == {
        "ratio": 0.75,
        "ratio_to_old": 3.0,
        "ratio_of": "ours over bare",
        "ours_samples_per_s": 6.0,
        "bare_samples_per_s": 8.0,
        "old_samples_per_s": 2.0,
        "ours_rounds": [3.0, 6.0, 12.0],
        "bare_rounds": [4.0, 8.0, 16.0],
        "old_rounds": [1.0, 2.0, 4.0],
    }


@pytest.mark.parametrize(
    ("turn_took", "turns"),
    [
        (1.0, 6),  # 12 s are three rounds of two turns of 2 s
        (1.4, 4),  # 11.2 s after the second round are nearer to 12 s than 16.8 s after the third
        (9.0, 2),
    ],
)
def test_a_measurement_ends_with_the_round_that_is_nearest_to_its_time(monkeypatch, turn_took, turns):
    now, asked = [0.0], []
    monkeypatch.setattr("podzero.tools.bench.rounds.time.perf_counter", lambda: now[0])

    def measure(seconds):
        asked.append(seconds)
        now[0] += turn_took * seconds
        return 1.0

    compare({"ours": measure, "bare": measure}, "x_per_s", "", 12.0, longest_s=60.0, rounds=3)
    assert asked == [2.0] * turns


def _end(parent):
    raise SystemExit(3)


def test_a_bench_whose_process_ends_says_so():
    with child_process(_end) as child, pytest.raises(BenchError, match="bench-end has ended"):
        child.receive()


@pytest.mark.slow
def test_the_trees_take_turns(tiny):
    found = bench_tree(tiny(), 0.1)
    assert len(found["dense_rounds"]) == len(found["mctx_rounds"]) >= 1
    assert found["ratio"] > 0


@pytest.mark.slow
def test_a_server_is_held_beside_its_chip_and_its_transport(tiny, monkeypatch):
    monkeypatch.setattr(server, "CLIENTS", (1, 2))
    found = bench_server(tiny("server.batch_sizes=[8,16]"), 10.0)
    assert list(found["actors"]) == ["1", "2"]
    for each in found["actors"].values():
        assert 0 < each["share_of_device"] <= 1.05
        assert 0 < each["fill"] <= 1
        lower = min(found["device_positions_per_s"], each["transport_positions_per_s"])
        assert each["share_of_limit"] == pytest.approx(each["positions_per_s"] / lower)
    assert found["ratio"] == min(each["share_of_limit"] for each in found["actors"].values())
    assert (found["row_bytes"], found["answer_bytes"], found["positions_per_request"]) == (3, 40, 8)


def test_a_stand_in_computes_one_batch_after_the_other():
    device = server.StandIn({4: 0.05, 8: 0.1}, outputs=3)
    began = time.perf_counter()
    threads = [threading.Thread(target=device.evaluate, args=(np.zeros((4, 2), np.uint8),)) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert time.perf_counter() - began >= 0.2
    assert device.evaluate(np.zeros((8, 2), np.uint8))[1].shape == (8, 3)
