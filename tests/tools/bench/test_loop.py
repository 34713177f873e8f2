"""The loop's bench: its arithmetic by numbers computed by hand, stand-ins, and refusals; test_stages.py runs it."""

import json
from collections import Counter

import jax
import numpy as np
import pytest

from podzero.actors import ActorClients
from podzero.actors.device_actor import DeviceActor
from podzero.config import load
from podzero.core.errors import ConfigError
from podzero.runtime.params import LocalParams
from podzero.tools.bench import loop
from podzero.tools.bench.loop import (
    MEASURED,
    ChipTimes,
    Observed,
    Reported,
    chip_times,
    in_turn,
    summary,
)
from podzero.tools.bench.measuring import DeviceQueue

PUBLISHED = ("learner.publish_every=32",)


def test_in_turns_the_times_of_a_move_and_of_its_training_add_up():
    """10 ms for a move, and 4 samples of it in batches of 50 at 10 steps/s: 8 ms."""
    assert in_turn(100.0, 10.0, 4.0, 50) == pytest.approx(1 / 0.018)
    assert in_turn(233_347, 1885, 4.0, 512) == pytest.approx(118_624, rel=1e-5)


def test_the_ratio_of_a_loop_that_takes_turns_without_pauses_is_one(tiny):
    """80 moves at 20/s and 12 steps at 2/s take 10 s; each move is trained on 12 * 16 / 80 times."""
    experiment = tiny("replay.samples_per_insert=2.4")
    assert experiment.learner.batch_size == 16
    reports = [
        Reported(100.0, "actor-0", {"count/moves": 999.0}, 3),
        Reported(
            104.0, "actor-0", {"count/moves": 50.0, "time/search": 0.5, "time/write": 0.25, "time/other": 0.25}, 9
        ),
        Reported(105.0, "learner", {"time/step": 0.5, "time/other": 0.5}, 10),
        Reported(107.0, "learner", {"time/step": 0.75, "time/publish": 0.25}, 12),
        Reported(110.0, "actor-0", {"count/moves": 30.0, "time/search": 1.0}, 15),
    ]
    observed = Observed(reports, Counter(open=3, blocks_inserts=1), {"host": 1.5})
    before, after = ({"play_moves_per_s": 10.0, "train_steps_per_s": steps} for steps in (1.0, 3.0))
    found = summary(experiment, observed, [before, after])
    assert (found["play_moves_per_s"], found["train_steps_per_s"]) == (10.0, 1.5)
    found = summary(experiment, observed, [{"play_moves_per_s": 20.0, "train_steps_per_s": 2.0}])
    assert found["ratio"] == pytest.approx(1.0)
    assert found["moves_per_s"] == pytest.approx(found["in_turn_moves_per_s"]) == pytest.approx(8.0)
    assert found["samples_per_move"] == pytest.approx(2.4)
    assert found["device_time"] == pytest.approx({"play": 0.4, "train": 0.6, "idle": 0.0})
    # 4 s and 6 s of the actor, 2 s of the learner.
    assert found["actor_time"] == pytest.approx({"search": 0.8, "write": 0.1, "other": 0.1})
    assert found["learner_time"] == pytest.approx({"step": 0.75, "publish": 0.25})
    assert found["limiter_time"] == {"open": 0.75, "blocks_inserts": 0.25, "blocks_samples": 0.0}


def test_times_of_a_dispatch_pass_through_those_that_were_measured():
    (times,) = (times for text, times in MEASURED["h200"].items() if "batch_size=512" in text)
    for steps, rate in {4: 1167.1, 32: 1879.3}.items():
        experiment = load("connect_four", ["actors.games=4096", f"learner.steps_per_dispatch={steps}", *PUBLISHED])
        assert times.rates(experiment) == pytest.approx({"play_moves_per_s": 233_347, "train_steps_per_s": rate})


def test_an_experiment_that_was_measured_on_a_chip_has_its_times():
    for batch in (512, 4096):
        experiment = load("connect_four", ["actors.games=4096", f"learner.batch_size={batch}"])
        assert chip_times(experiment, "h200").step_s > 0


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (("loop", "--stand-in", "h300"), ("h200", "v5e-16")),
        (("loop", "--stand-in", "h200"), ("actors.games=128", "actors.games=4096")),
        (("loop", "--stand-in", "h200", "actors.games=4096", "network.blocks=4"), ("blocks=4", "blocks=3")),
        (("learner", "--stand-in", "h200"), ("loop",)),
        (("loop", "--config", "cartpole"), ("actors.inference",)),
    ],
)
def test_a_loop_that_cannot_be_measured_is_refused_with_what_can(command, arguments, told):
    code, _, error = command("bench", *arguments)
    assert code == 2
    assert all(word in error for word in told)


def test_an_experiment_without_self_play_has_no_loop(tmp_path):
    experiment = load("tic_tac_toe", [f"data.records={tmp_path}"])
    with pytest.raises(ConfigError, match="nobody plays"):
        loop.bench_loop(experiment, 1.0)


def test_a_stand_in_of_a_slice_is_one_of_its_hosts():
    settings = ("learner.batch_size=64", "replay.shards=4", "replay.min_size=4096", "replay.tolerance=512")
    part = loop._of_one_host(load("tic_tac_toe", settings), 4)
    assert part.learner.batch_size == 16
    replay = part.replay
    assert (replay.shards, replay.min_size, replay.tolerance) == (1, 1024, 128)


def test_a_stand_in_plays_and_trains_one_program_after_the_other(tiny):
    """Three programs of 20 ms; JAX waits for their results as for those of a device."""
    queue, times = DeviceQueue(), ChipTimes(move_s=0.01, step_s=0.005)
    experiment = tiny("actors.inference=device", "actors.moves_per_dispatch=2", "actors.games=16")
    chips = loop._StandInRollouts(queue, times, experiment, np.zeros((loop._DISTINCT, 3), np.uint8))
    began = loop.time.perf_counter()
    for _ in range(3):
        _, _, played = chips.play({}, 0, None)
    assert jax.device_get(played).samples.tolist() == [32]
    assert loop.time.perf_counter() - began >= 0.06
    pieces = chips.take(None, None, np.array([loop._DISTINCT + 5]))
    assert [lengths.tolist() for _, lengths in pieces] == [[loop._DISTINCT], [5]]


def test_an_actor_writes_the_rows_of_a_stand_in(tiny):
    class Writer:
        rows = 0

        def write(self, samples, priorities, stopping):
            assert (samples.dtype, samples.shape[1:]) == (np.uint8, (3,))
            self.rows += len(samples)

    experiment, writer = tiny("actors.inference=device"), Writer()
    rows = np.zeros((loop._DISTINCT, 3), np.uint8)
    chips = loop._StandInRollouts(DeviceQueue(), ChipTimes(0.0, 0.0), experiment, rows)
    clients = ActorClients(LocalParams(), writer, lambda worker, metrics: None)
    actor = DeviceActor(experiment=experiment, name="actor-0", clients=clients, seed=0, chips=chips)
    actor._write(chips.take(None, None, np.array([5000])), held=8)
    assert writer.rows == 4992


@pytest.mark.slow
def test_a_loop_with_a_stand_in_is_measured_without_a_network(command, tiny, tmp_path, monkeypatch):
    """20 ms for 16 moves of 16 games, 10 ms for 4 steps."""
    monkeypatch.setattr(loop, "chip_times", lambda experiment, name: ChipTimes(0.02 / 16, 0.0025))
    config = tmp_path / "experiment.yaml"
    config.write_text(tiny("replay.tolerance=512").to_yaml())
    code, out, err = command("bench", "loop", "--config", str(config), "--stand-in", "h200", "--seconds", "2", "--json")
    assert code == 0, err
    found = json.loads(out)
    assert found["device"] == "stand-in h200"
    assert found["play_moves_per_s"] == pytest.approx(16 * 16 / 0.02, rel=0.3)
    assert 0 < found["ratio"] < 1.1
    assert found["cores"]["host"] > 0
    for shares in ("device_time", "actor_time", "learner_time", "limiter_time"):
        assert sum(found[shares].values()) == pytest.approx(1.0)
