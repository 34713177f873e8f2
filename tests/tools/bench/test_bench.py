"""What the benches are made of: rounds, rates, refusals and bounds; test_stages.py runs them."""

import multiprocessing
import threading
import time

import numpy as np
import pytest

from podzero.actors import ActorClients
from podzero.actors.clients import ActorLoop
from podzero.config import load
from podzero.core.errors import ConfigError
from podzero.envs import spec_of
from podzero.inference.serving.messages import Identity
from podzero.tools.bench import replay, selfplay, server
from podzero.tools.bench.actors import measure_counts, record
from podzero.tools.bench.measuring import BenchError, answer, child_process, compare, random_samples
from podzero.tools.bench.publish import spread
from podzero.tools.bench.replay import one_sample_items
from podzero.tools.bench.reverb_client import items_of
from podzero.tools.bench.selfplay import (
    Reports,
    bench_acting,
    bench_int8,
    bench_selfplay,
    between_reports,
    moves_per_version,
    next_report,
)


def test_parameters_arrive_in_self_play_as_often_as_in_training():
    """16 steps of 512 samples, each of which is trained on twice: 4,096 positions, 32 moves of 128 games."""
    assert moves_per_version(load("connect_four_int8")) == 32
    assert moves_per_version(load("connect_four_int8", ["actors.count=4"])) == 8
    assert moves_per_version(load("connect_four_int8", ["actors.count=1000"])) == 1


@pytest.mark.parametrize(("stage", "instead"), [("broadcast", "expected one of"), ("selfpaly", "selfplay")])
def test_a_stage_that_is_gone_or_unknown_is_refused_with_what_to_use(command, stage, instead):
    code, _, error = command("bench", stage)
    assert code == 2
    assert instead in error


def test_a_cpu_without_int8_instructions_is_not_measured(tiny, monkeypatch):
    monkeypatch.setattr("podzero.tools.bench.selfplay.has_int8_instructions", lambda: False)
    with pytest.raises(ConfigError, match="no int8 instructions"):
        bench_int8(tiny(), 0.1)


def test_a_recording_holds_the_moves_of_all_games(tiny):
    moves, seconds = record(tiny(), 3)
    assert moves.policy.shape == (3, 16, 9)
    assert moves.done.shape == (3, 16)
    assert (moves.policy[~moves.legal] == 0).all()
    assert seconds > 0


def test_numbers_of_actors_that_do_not_start_in_time_are_left_out(monkeypatch):
    class Process:
        """One that starts two actors, but not four."""

        def send(self, count):
            self.count = count

        def receive(self, timeout_s):
            assert 0 < timeout_s <= 9.0
            if self.count > 2:
                raise BenchError("silent")

    monkeypatch.setattr(
        "podzero.tools.bench.actors.measure_round", lambda players, servers, count, seconds: {"actors": count}
    )
    assert measure_counts([Process()], [], (1, 2, 4, 8), 0.1, 9.0) == [{"actors": 1}, {"actors": 2}]
    with pytest.raises(BenchError, match="silent"):
        measure_counts([Process()], [], (4, 8), 0.1, 9.0)


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
    with pytest.raises(ConfigError, match=r"tic_tac_toe.*podzero bench selfplay"):
        bench_acting(tiny(), 0.1)


def test_actors_that_ask_servers_are_refused_by_the_bench_of_self_play(tiny):
    with pytest.raises(ConfigError, match=r"inference=server.*podzero bench server"):
        bench_selfplay(tiny("actors.inference=server"), 0.1)


def test_rates_are_measured_between_reports():
    reports = Reports()
    reports.put((50.0, {"time/search": 0.1, "count/moves": 7}))  # compilation
    reports.put((52.0, {"time/search": 0.5, "time/write": 0.25, "count/moves": 100, "count/samples": 50}))
    reports.put((60.0, {"time/search": 1.0, "count/moves": 400, "acting/mean_return": 9.0}))
    # 2 s of which half were search and a quarter writing, then 8 s of search.
    assert between_reports(reports, 9.0) == pytest.approx(
        {"time/search": 0.9, "time/write": 0.05, "count/moves": 50.0, "count/samples": 5.0}
    )


def test_the_wait_for_a_report_is_bounded(monkeypatch):
    reports = Reports()
    timer = threading.Timer(0.05, reports.put, ((1.0, {"count/moves": 1}),))
    timer.start()
    assert next_report(reports) == (1.0, {"count/moves": 1})
    timer.join()
    monkeypatch.setattr("podzero.tools.bench.selfplay.START_S", 0.01)
    with pytest.raises(BenchError, match=r"not reported for 0\.01 s"):
        next_report(reports)


def test_ratios_are_medians_over_rounds_measured_in_turn(monkeypatch):
    calls, turns = [], []
    now = [0.0]
    monkeypatch.setattr("podzero.tools.bench.measuring.time.perf_counter", lambda: now[0])

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
    monkeypatch.setattr("podzero.tools.bench.measuring.time.perf_counter", lambda: now[0])

    def measure(seconds):
        asked.append(seconds)
        now[0] += turn_took * seconds
        return 1.0

    compare({"ours": measure, "bare": measure}, "x_per_s", "", 12.0, longest_s=60.0, rounds=3)
    assert asked == [2.0] * turns


def test_turns_that_are_not_counted_are_no_longer_than_those_that_are(monkeypatch):
    now, asked = [0.0], []
    monkeypatch.setattr("podzero.tools.bench.measuring.time.perf_counter", lambda: now[0])

    def measure(seconds):
        asked.append(seconds)
        now[0] += seconds
        return 1.0

    found = replay.compare_clients(dict.fromkeys(("podzero", "bare_packed", "bare_unpacked"), measure), 1.2)
    assert asked == [pytest.approx(0.2)] * 9
    assert found["ratio"] == 1.0


def _end(parent):
    raise SystemExit(3)


def test_a_bench_whose_process_ends_says_so():
    with child_process(_end) as child, pytest.raises(BenchError, match="bench-end has ended"):
        child.receive()
    with child_process(_end) as child, pytest.raises(BenchError, match="bench-end has ended"):
        child.send(bytes(2**24))  # more than the pipe holds


def test_a_child_that_answers_too_late_ends_quietly():
    here, there = multiprocessing.Pipe()
    here.send((3,))
    answered = []

    def handle(number):
        answered.append(number)
        here.close()

    answer(there, handle)
    assert answered == [3]


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


def test_a_turn_lasts_until_the_first_answer_however_short_it_is():
    identity = Identity("run", "hex", "resnet", row_bytes=4, outputs=3)
    here, there = multiprocessing.Pipe()
    echo = threading.Thread(target=server.serve_echo, args=(identity, there))
    echo.start()
    assert server.positions_per_s(here.recv(), 1e-6, 2, np.zeros((8, 4), np.uint8), 4, identity) > 0
    here.close()  # so that it stops
    echo.join()


def test_publications_that_do_not_arrive_are_an_error_for_people():
    with pytest.raises(BenchError, match=r"measure for longer \(--seconds\)"):
        spread([])
    assert spread([0.001, 0.003]) == {"median_ms": pytest.approx(2.0), "p99_ms": pytest.approx(2.98)}


def test_an_actor_that_was_stopped_runs_again():
    """Each turn of an actor is a run of its own."""
    clients = ActorClients(selfplay._Published({}), None, lambda worker, metrics: None)

    class Counting(ActorLoop):
        rounds = 0

        def run(self):
            for _ in self.newest_params():
                self.rounds += 1
                started.set()

    actor = Counting(experiment=load("tic_tac_toe"), name="actor-0", clients=clients)
    for turn in range(2):
        started = threading.Event()
        with selfplay._running(actor):
            assert started.wait(30.0), turn
