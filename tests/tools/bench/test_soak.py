"""What the stage soak makes of its samples."""

import json

import numpy as np
import pytest

from podzero.runtime.monitoring.goodput import CAUSES
from podzero.runtime.monitoring.status import RunStatus
from podzero.tools.bench.faults import WORKERS
from podzero.tools.bench.soak import (
    Sample,
    disk_bytes,
    fit,
    goodput,
    kills,
    part_of,
    series,
    slopes,
    write_sample,
)


def hours(values):
    """Points over two hours."""
    return list(zip(np.linspace(0, 7200, len(values)), values, strict=True))


def test_noise_is_flat_and_what_doubles_within_a_week_is_not():
    rng = np.random.default_rng(0)
    noise = rng.normal(500e6, 1e6, 300)
    assert fit(hours(noise))["flat"]
    grows = fit(hours(noise + np.linspace(0, 100e6, 300)))
    assert not grows["flat"]
    assert grows["per_hour"] == pytest.approx(50e6, rel=0.1)
    assert grows["low"] < grows["per_hour"] < grows["high"]


def test_one_jump_in_the_middle_of_a_run_is_no_growth_for_ever_but_a_leak_of_descriptors_is():
    assert fit(hours([40.0] * 300))["per_hour"] == 0.0
    assert not fit(hours(np.repeat(np.arange(40, 70), 10).astype(float)))["flat"]


def test_slopes_leave_out_the_warm_up_and_what_records_the_run_is_not_judged():
    def values(t):
        warm = 1e6 * min(t, 900)  # grows for a quarter of an hour
        return {"learner rss_bytes": 1e8 + warm, "workdir metrics bytes": t, "learner processes": 1.0}

    found = slopes([Sample(float(t), values(t), None, False) for t in range(0, 7200, 20)])
    assert found["warm_up_s"] == 900.0
    assert found["flat"]
    assert found["slopes"]["workdir metrics bytes"]["per_hour"] == pytest.approx(3600)
    assert set(found["slopes"]) == {"learner rss_bytes", "workdir metrics bytes"}


def sample(t, faults=False, **seconds):
    paid = dict.fromkeys(CAUSES, 0.0) | seconds
    return Sample(t, {}, RunStatus("x", "training", t, paid_s=paid, step=int(10 * t), steps_per_s=10.0), faults)


def test_goodput_counts_waits_by_design_but_not_those_while_a_fault_is_open():
    samples = [
        sample(50.0, training=30.0, wait_actors=10.0),
        sample(80.0, faults=True, training=40.0, wait_actors=25.0),
        sample(100.0, training=50.0, wait_actors=30.0, lost=5.0),
    ]
    found = goodput(samples, samples[-1].status.paid_s, 100.0)
    assert found["training"] == 0.5
    assert found["goodput"] == pytest.approx(0.5 + 0.30 - 0.15)
    assert found["pace"] == pytest.approx(1.0)


def test_kills_are_of_workers_and_follow_from_the_seed():
    found = [(fault.at_s, fault.kind) for fault in kills(60, 10, seed=1)]
    assert [at_s for at_s, _ in found] == [600.0 * number for number in range(1, 6)]
    assert {kind for _, kind in found} <= set(WORKERS)
    assert found == [(fault.at_s, fault.kind) for fault in kills(60, 10, seed=1)]
    assert not list(kills(60, None, seed=1))


def test_the_parts_of_a_working_directory_are_measured(tmp_path):
    (tmp_path / "a").mkdir()
    (tmp_path / "a" / "file").write_bytes(b"x" * 10_000)
    assert disk_bytes(tmp_path) >= 10_000
    assert disk_bytes(tmp_path / "missing") == 0
    names = ("metrics.jsonl", "metrics.lost.jsonl", "train.log", "status.json", "checkpoints")
    assert [part_of(name) for name in names] == ["metrics", "metrics", "logs", "rest", "checkpoints"]


def test_series_have_at_most_some_values_and_are_json():
    found = series([sample(float(t)) for t in range(1000)])
    assert 0 < len(found["seconds"]) <= 60
    assert len(found["step"]) == len(found["seconds"])
    json.dumps(found)


def test_samples_are_kept_as_they_come(tmp_path):
    told = [sample(1.0, training=1.0), Sample(2.0, {"all threads": 3.0}, None, True)]
    for one in told:
        write_sample(one, tmp_path / "samples")
    first, second = map(json.loads, (tmp_path / "samples").read_text().splitlines())
    assert RunStatus.from_tree(first["status"]) == told[0].status
    assert second == told[1]._asdict()
