"""Whole runs with real Ray and real Reverb, as small as they get."""

from __future__ import annotations

import json
import os
import signal

import pytest
from open_doors import doors_of, family, sockets_of

import podzero
from podzero.files.workdir import Workdir, WorkdirError
from podzero.networks.snapshots import snapshot_steps
from podzero.runtime.checkpoints import checkpoints
from podzero.runtime.monitoring.status import read_status
from podzero.runtime.run import STOPPED
from podzero.runtime.train import train

pytestmark = pytest.mark.timeout(900)
STEPS = 600
"""Steps of the first run: their samples take an actor longer than a driver takes to look at the processes again."""


def metrics(workdir, worker, name):
    """(step, value) of a metric of a worker, in the order of the lines."""
    lines = [json.loads(line) for line in workdir.metrics_file.read_text().splitlines()]
    return [
        (line["step"], line["metrics"][name]) for line in lines if line["worker"] == worker and name in line["metrics"]
    ]


@pytest.fixture(scope="module")
def first_run(tmp_path_factory, tiny, watch, running):
    """A run of `STEPS` steps whose actor is killed as soon as there is one.

    An actor that is killed later may have written all samples of these steps, and the run ends without another one.
    """

    def kill_the_actor(status):
        seen.update(sockets_of(family()) - before)
        found = running("ray::ActorProcess")
        for process in found:
            process.kill()
        return bool(found)

    before = sockets_of(family())  # of other tests in this process
    seen = set()
    workdir = Workdir(tmp_path_factory.mktemp("run") / "tiny")
    watcher = watch(kill_the_actor)
    watcher.sockets = seen
    reason, _ = train(
        tiny(f"stop.steps={STEPS}", "stop.minutes=12", "checkpoint.every_minutes=60"), workdir.root, None, watcher
    )
    return workdir, watcher, reason


def test_a_run_ends_at_its_steps_with_a_checkpoint_a_snapshot_and_metrics(first_run):
    workdir, watcher, reason = first_run
    assert "steps" in reason
    assert [checkpoint.step for checkpoint in checkpoints(workdir)] == [STEPS]
    assert snapshot_steps(workdir.snapshots)[-1] == STEPS
    phases = [status.phase for status in watcher.statuses]
    assert sorted(set(phases), key=phases.index)[-2:] == ["stopping", "ended"]
    assert {"collecting", "training"} & set(phases)
    found = read_status(workdir)
    assert not found.alive
    assert found.status.phase == "ended"
    assert found.status.games > 0
    assert metrics(workdir, "learner", "learner/loss")
    assert metrics(workdir, "replay", "replay/size")[-1][1] >= 64


def test_a_killed_actor_is_replaced_and_counted(first_run):
    _, watcher, _ = first_run
    assert watcher.statuses[-1].restarts == 1
    assert any(line.startswith("actor-0 failed") for line in watcher.lines)


def test_the_log_holds_tracebacks_and_the_screen_neither_them_nor_lines_of_ray(first_run, capfd):
    workdir, watcher, _ = first_run
    assert "Traceback" in workdir.log_file.read_text() or "WorkerDied" in workdir.log_file.read_text()
    assert not any("Traceback" in line for line in watcher.lines)
    assert capfd.readouterr().err == ""


def test_its_sockets_are_those_of_the_list_of_doors(first_run):
    _, watcher, _ = first_run
    assert len(watcher.sockets) > 5
    assert [socket for socket in watcher.sockets if not doors_of(socket)] == []


def test_no_process_is_left_behind(first_run, running):
    del first_run
    assert running("ray::") == []
    assert running("raylet") == []


def test_the_limiter_keeps_samples_per_insert(first_run):
    """With 8 samples per insert, min_size 64 and tolerance 128: 8 * inserted - sampled stays in 512 +- 128."""
    workdir, _, _ = first_run
    inserted = metrics(workdir, "replay", "replay/inserted")[-1][1]
    sampled = metrics(workdir, "replay", "replay/sampled")[-1][1]
    assert sampled >= STEPS * 16
    assert 512 - 128 <= 8 * inserted - sampled <= 512 + 128


@pytest.mark.slow
def test_a_resumed_run_continues_where_it_stopped_and_judges_its_last_snapshot(first_run, tiny, watch):
    workdir, _, _ = first_run
    before = checkpoints(workdir)[0]
    earlier = [size for _, size in metrics(workdir, "replay", "replay/size")]
    watcher = watch()
    judged = ("evaluation.final_minutes=5", "evaluation.games=2", "evaluation.positions=10")
    reason, _ = train(tiny(f"stop.steps={STEPS + 40}", *judged), workdir.root, None, watcher)
    assert "steps" in reason
    steps = [status.step for status in watcher.statuses]
    assert steps == sorted(steps)
    assert steps[0] == before.step
    assert checkpoints(workdir)[0].step == STEPS + 40
    assert checkpoints(workdir)[0].counters["games"] >= before.counters["games"]
    assert checkpoints(workdir)[0].counters["nodes_s"] > before.counters["nodes_s"]
    assert "judging" in [status.phase for status in watcher.statuses]
    assert read_status(workdir).status.rated_step == STEPS + 40
    assert f"@{STEPS + 40}" in checkpoints(workdir)[0].ladder["ratings"]
    sizes = [size for _, size in metrics(workdir, "replay", "replay/size")][len(earlier) :]
    assert min(sizes) >= earlier[-1]
    losses = metrics(workdir, "learner", "learner/loss")
    assert [step for step, _ in losses] == sorted(step for step, _ in losses)


def test_another_experiment_is_refused_in_a_used_directory(first_run, tiny, watch):
    workdir, _, _ = first_run
    with pytest.raises(WorkdirError, match=r"network\.channels: holds 4, given 5"):
        train(tiny("network.channels=5"), workdir.root, None, watch())


@pytest.mark.slow
def test_a_damaged_checkpoint_is_renamed_and_the_one_before_is_used(tmp_path, tiny, watch):
    workdir = Workdir(tmp_path / "run")
    for steps in (80, 160):
        train(tiny(f"stop.steps={steps}"), workdir.root, None, watch())
    newest = checkpoints(workdir)[0]
    manifest = newest.folder / "learner" / "manifest.json"
    manifest.write_text(manifest.read_text()[: manifest.stat().st_size // 2])
    watcher = watch()
    train(tiny("stop.steps=200", "stop.minutes=12", "checkpoint.every_minutes=60"), workdir.root, None, watcher)
    assert watcher.statuses[0].step == 80
    assert (workdir.checkpoints / f"damaged-{newest.folder.name}").is_dir()


@pytest.mark.slow
def test_a_run_goes_on_from_an_earlier_checkpoint_with_a_smaller_learning_rate(tmp_path, tiny, watch):
    """What is later is kept under other names, the metrics are cut, and the change is recorded."""
    workdir = Workdir(tmp_path / "run")
    for steps in (80, 160):
        train(tiny(f"stop.steps={steps}"), workdir.root, None, watch())
    slower = tiny("stop.steps=200", "stop.minutes=12", "learner.optimizer.learning_rate=1e-5")
    watcher = watch()
    train(slower, workdir.root, None, watcher, step=80)
    assert watcher.statuses[0].step == 80
    assert [checkpoint.step for checkpoint in checkpoints(workdir)] == [200, 80]
    assert (workdir.checkpoints / "lost-000000160" / "run.json").is_file()
    assert (workdir.snapshots / "lost-000000160").is_dir()
    steps = [step for step, _ in metrics(workdir, "learner", "learner/loss")]
    assert steps == sorted(steps)
    assert workdir.experiment() == slower
    recorded = {(record.step, record.change.setting) for record in workdir.changes()}
    assert (80, "learner.optimizer.learning_rate") in recorded


@pytest.mark.slow
def test_a_signal_ends_the_run_with_a_checkpoint(tmp_path, tiny, watch, running):
    def interrupt(status):
        if status.step:
            os.kill(os.getpid(), signal.SIGTERM)
        return bool(status.step)

    workdir = Workdir(tmp_path / "run")
    assert train(tiny(), workdir.root, None, watch(interrupt)) == (STOPPED, signal.SIGTERM)
    assert checkpoints(workdir)[0].step > 0
    assert running("ray::") == []


@pytest.mark.slow
def test_no_process_imports_files_of_the_current_folder_that_have_names_of_libraries(tmp_path, monkeypatch, tiny):
    for name in ("jax", "flax", "numpy", "ray", "reverb", "random", "types", "podzero"):
        (tmp_path / f"{name}.py").write_text("raise RuntimeError('not the library')")
    monkeypatch.chdir(tmp_path)
    run = podzero.train(tiny("stop.steps=40"), workdir=tmp_path / "run")
    run.wait()
    assert [checkpoint.step for checkpoint in checkpoints(Workdir(run.workdir))] == [40]


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_half_of_the_samples_are_reanalysed_with_newer_parameters(tmp_path, tiny, watch, running):
    """A reanalyser is killed on the way, and the run is taken up again from its checkpoint."""

    def kill_a_reanalyser(status):
        found = running("ray::ReanalysisProcess") if status.step else []
        for process in found:
            process.kill()
        return bool(found)

    workdir, watcher = Workdir(tmp_path / "run"), watch(kill_a_reanalyser)
    again = ("reanalyse.share=0.5", "actors.root_value_weight=0.5", "stop.minutes=15")
    train(tiny(*again, "stop.steps=2000"), workdir.root, None, watcher)
    assert watcher.statuses[-1].restarts == 1
    assert any(line.startswith("reanalyser-0 failed") for line in watcher.lines)

    def last(worker, name):
        return metrics(workdir, worker, name)[-1][1]

    for table in ("replay", "reanalysed"):
        assert last("replay-0", f"{table}/sampled") >= 2000 * 8
    # Half of the tolerance of 128 is less than what cannot deadlock: 8 bundles of 8, and the 8 of a batch.
    inserted, sampled = last("replay-0", "reanalysed/inserted"), last("replay-0", "reanalysed/sampled")
    assert 0 <= 8 * inserted - sampled <= 8 * 16 + 72
    assert last("replay-0", "states/size") > 64
    versions = [version for _, version in metrics(workdir, "reanalyser-0", "reanalysis/version")]
    assert versions[-1] > 0
    assert max(age for _, age in metrics(workdir, "reanalyser-0", "reanalysis/age")) > 0
    kept = last("replay-0", "states/size"), last("replay-0", "reanalysed/inserted")

    train(tiny(*again, "stop.steps=2100"), workdir.root, None, watch())
    assert last("replay-0", "states/size") >= kept[0]
    assert last("replay-0", "reanalysed/inserted") >= kept[1]
    assert running("ray::") == []
