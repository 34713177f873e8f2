"""A run that loses its learner, over a cluster in memory: the learner restarts alone, and all others go on."""

from __future__ import annotations

import json
import logging
from concurrent.futures import Future
from unittest.mock import Mock

import pytest
from fake_cluster import PENDING, saves_learner

from podzero.core.errors import ClusterError, ConfigError
from podzero.files.directory_lock import TakenOver
from podzero.files.workdir import Workdir, step_folder
from podzero.learner import CheckpointDamaged, CheckpointMismatch, TrainingDiverged
from podzero.replay.errors import PortTaken
from podzero.runtime import failures, start
from podzero.runtime.checkpoints import checkpoints
from podzero.runtime.cluster.placement import MissingNodes
from podzero.runtime.cluster.remote import NodeLost, WorkerDied
from podzero.runtime.kinds import LearnerProcess
from podzero.runtime.monitoring.reports import MetricsReport
from podzero.runtime.run import STOPPED
from podzero.runtime.start import Resumption
from podzero.runtime.supervisor import Supervisor
from podzero.runtime.workers import RunFailed, WouldFailAgain


@pytest.fixture(autouse=True)
def short_pauses(monkeypatch):
    monkeypatch.setattr(failures, "FIRST_PAUSE_S", 0.001)
    monkeypatch.setattr(failures, "LONGEST_PAUSE_S", 0.002)
    monkeypatch.setattr(start, "LOOK_EVERY_S", 0.001)


def names(cluster):
    return [process.name for process in cluster.processes]


def lose_learner(cluster, loss=None):
    """The learner dies; the next one has nothing left to do."""
    cluster.named("learner").die(loss or NodeLost("learner is gone"))
    cluster.answers[LearnerProcess]["run"] = None


def save(run, step):
    """Writes a checkpoint with replay."""
    run._supervisor.learner.leader.actor.answers["checkpoint"] = saves_learner(step)
    run._saver.write_checkpoint(run._save_state())


@pytest.mark.parametrize("loss", [NodeLost("learner is gone"), WorkerDied("learner is gone: SIGKILL")])
def test_only_the_learner_restarts_and_the_others_keep_what_they_have(make_run, tmp_path, loss):
    run, cluster, signals, view = make_run()
    save(run, 40)
    before, alive = names(cluster), cluster.alive()
    context = cluster.started["replay-0"].context
    lose_learner(cluster, loss)
    assert "steps" in run.until_end(signals)
    assert names(cluster) == [*before, "learner"]
    killed = [line for line in cluster.history if line.endswith("killed") and "check" not in line]
    assert killed[0] == "learner killed"
    assert set(alive) >= {"actor-0", "replay-0"}
    restarted = cluster.started["learner"].context
    assert (restarted.store, restarted.directory, restarted.run) == (context.store, context.directory, context.run)
    assert restarted.restore_from == checkpoints(Workdir(tmp_path))[0].folder
    assert cluster.started["learner"].attempt == 1
    context.store.forget.remote.assert_called_once()
    assert view.statuses[-1].restarts == 1


def test_the_run_goes_back_to_the_learners_checkpoint_and_its_counters_go_on(make_run, tmp_path, caplog):
    caplog.set_level(logging.INFO, logger="podzero")
    phases = []
    run, cluster, signals, view = make_run(lambda status: phases.append((status.phase, status.step)))
    save(run, 40)
    for step in (16, 40, 55):
        run.handle([MetricsReport(0.0, "learner", {"learner/step": float(step)})])
        run.handle([MetricsReport(0.0, "actor-0", {"count/games": 2.0})])
    for step in (32, 48):
        step_folder(Workdir(tmp_path).snapshots, step).mkdir(parents=True)
    lose_learner(cluster)
    run.until_end(signals)
    run.close()
    assert ("starting", 40) in phases
    assert phases[-1] == ("ended", 40)
    assert (view.statuses[-1].games, view.statuses[-1].restarts) == (6, 1)
    assert any("from step 40: 15 steps" in message for message in caplog.messages)
    lines = [json.loads(line) for line in Workdir(tmp_path).metrics_file.read_text().splitlines()]
    assert max(line["step"] for line in lines) == 40
    assert {"count/restarts": 1.0} in [line["metrics"] for line in lines if line["worker"] == "learner"]
    assert (tmp_path / "metrics.lost.jsonl").exists()
    assert sorted(path.name for path in Workdir(tmp_path).snapshots.iterdir()) == ["000000032", "lost-000000048"]


PASSING = [
    NodeLost("learner-1 is gone: a second preemption"),
    WorkerDied("learner is gone: killed while it was built"),
    ClusterError("waited for a free chip"),
    PortTaken("port 7"),
    ConfigError("tpu-1 is a host of v5e-16, but JAX finds only cpu devices there: another process uses the chips"),
]


def test_a_learner_that_is_not_built_is_started_again_and_the_others_go_on(make_run):
    run, cluster, signals, view = make_run()
    coming, before = iter([*PASSING, None]), names(cluster)
    cluster.answers[LearnerProcess]["ready"] = lambda: next(coming)
    lose_learner(cluster)
    assert "steps" in run.until_end(signals)
    assert names(cluster) == before + ["learner"] * (len(PASSING) + 1)
    assert view.statuses[-1].restarts == 1


def test_a_learner_that_can_never_be_built_ends_the_run(make_run):
    run, cluster, signals, view = make_run()
    cluster.answers[LearnerProcess]["ready"] = WorkerDied("learner is gone: killed while it was built")
    lose_learner(cluster)
    with pytest.raises(RunFailed, match="killed while it was built"):
        run.until_end(signals)
    assert view.statuses[-1].phase == "ended"


def test_a_checkpoint_of_another_network_ends_a_restart_at_once(make_run):
    run, cluster, signals, _ = make_run()
    cluster.answers[LearnerProcess]["ready"] = CheckpointMismatch("another network")
    lose_learner(cluster)
    with pytest.raises(CheckpointMismatch):
        run.until_end(signals)
    assert names(cluster).count("learner") == 2


def test_of_damaged_checkpoints_the_one_before_is_used(make_run, tmp_path):
    """One has the manifest of another learner; what is wrong with the next, only the learner finds."""
    run, cluster, signals, _ = make_run()
    save(run, 20)
    save(run, 30)
    cluster.named("learner").answers["checkpoint"] = saves_learner(40)
    run._saver._write_learner(run._save_state(), with_replay=False)
    newest, middle, oldest = checkpoints(Workdir(tmp_path))
    (newest.folder / "learner" / "manifest.json").write_text("of another")
    outcomes = iter([CheckpointDamaged("cut short"), None])
    cluster.answers[LearnerProcess]["ready"] = lambda: next(outcomes)
    lose_learner(cluster)
    cluster.answers[LearnerProcess]["checkpoint"] = saves_learner(25)
    assert "steps" in run.until_end(signals)
    assert cluster.started["learner"].context.restore_from == oldest.folder
    found = {path.name for path in Workdir(tmp_path).checkpoints.iterdir()}
    assert found == {"000000020", "000000025", f"damaged-{middle.folder.name}", f"damaged-{newest.folder.name}"}


def test_the_checkpoint_that_was_being_written_is_waited_for_and_used(make_run, tmp_path, monkeypatch):
    run, cluster, signals, _ = make_run()
    waits = iter([True, True, False])
    monkeypatch.setattr(type(run._saver), "writes_learner", property(lambda saver: next(waits, False)))

    def look(supervisor, checkpoint, waited_s):
        started.append(checkpoint and checkpoint.step)
        restart(supervisor, checkpoint, waited_s)

    started, restart = [], Supervisor.restart_learner
    monkeypatch.setattr(Supervisor, "restart_learner", look)
    save(run, 40)
    lose_learner(cluster)
    run.until_end(signals)
    assert started == [40]
    assert next(waits, None) is None


def test_a_learner_without_a_node_is_waited_for_while_actors_are_replaced(make_run, monkeypatch):
    run, cluster, signals, view = make_run()
    restart, waited = Supervisor.restart_learner, []

    def wait_in_vain(supervisor, checkpoint, waited_s):
        waited.append(1)
        if len(waited) == 1:
            cluster.named("actor-0").die(WorkerDied("actor-0 is gone"))
        if len(waited) < 4 or names(cluster).count("actor-0") < 2:
            raise MissingNodes("no host has joined")
        restart(supervisor, checkpoint, waited_s)

    monkeypatch.setattr(Supervisor, "restart_learner", wait_in_vain)
    lose_learner(cluster)
    assert "steps" in run.until_end(signals)
    assert len(waited) >= 4
    assert names(cluster).count("actor-0") == 2
    assert view.statuses[-1].restarts == 2


def test_storage_that_hangs_keeps_only_the_learner_waiting(make_run, monkeypatch):
    """One actor is replaced before it answers where to start from, the other one before the learner may train."""
    asked = []

    def hang(name, work, patience_s):
        del name, patience_s
        asked.append((Future(), work))
        return asked[-1][0]

    def look(_):
        for number, (answer, work) in enumerate(asked):
            if not answer.done() and names(cluster).count(f"actor-{number}") == 2:
                answer.set_result(work())
            elif not answer.done():
                cluster.named(f"actor-{number}").die(WorkerDied("it is gone"))

    run, cluster, signals, _ = make_run(look)
    monkeypatch.setattr(start, "in_thread", hang)
    lose_learner(cluster)
    assert "steps" in run.until_end(signals)
    assert names(cluster)[-3:] == ["actor-0", "learner", "actor-1"]
    begun = [line for line in cluster.history if line in ("actor-1 run", "learner run")]
    assert begun[-2:] == ["actor-1 run", "learner run"]


def test_a_signal_while_the_learner_is_away_ends_the_run_and_saves_replay(make_run, tmp_path):
    run, cluster, signals, _ = make_run()
    save(run, 40)
    (before,) = checkpoints(Workdir(tmp_path))

    def stop():
        signals.event.set()
        return PENDING

    cluster.answers[LearnerProcess]["ready"] = stop
    lose_learner(cluster)
    assert run.until_end(signals) == STOPPED
    (after,) = checkpoints(Workdir(tmp_path))
    assert (after.step, after.folder) == (40, before.folder)
    assert after.shard(0)[0].folder != before.shard(0)[0].folder
    assert cluster.alive("learner") == []


def test_a_learner_that_dies_unnoticed_before_a_stop_takes_no_contents_of_replay_along(make_run, tmp_path):
    run, cluster, signals, _ = make_run()
    save(run, 40)
    (before,) = checkpoints(Workdir(tmp_path))
    signals.event.set()
    cluster.named("learner").answers["stop"] = WorkerDied("learner is gone")
    cluster.named("learner").die(WorkerDied("learner is gone"))
    assert run.until_end(signals) == STOPPED
    (after,) = checkpoints(Workdir(tmp_path))
    assert (after.step, after.whole) == (40, True)
    assert after.shard(0)[0].folder != before.shard(0)[0].folder


def test_replay_is_saved_while_the_learner_is_away(make_run, tmp_path):
    """It is built only once replay's contents are in the checkpoint."""

    def build(_):
        learner = cluster.named("learner")
        if "ready" in learner.answers and checkpoints(Workdir(tmp_path))[0].shards != before.shards:
            learner.last("ready").end(None)

    run, cluster, signals, _ = make_run(build)
    save(run, 40)
    (before,) = checkpoints(Workdir(tmp_path))
    cluster.answers[LearnerProcess]["ready"] = PENDING
    run._saver.request_checkpoint()
    lose_learner(cluster)
    assert "steps" in run.until_end(signals)
    assert [found.step for found in checkpoints(Workdir(tmp_path))] == [40]


def test_a_run_that_fails_through_its_learner_saves_replay(make_run, tmp_path):
    run, cluster, signals, _ = make_run()
    save(run, 40)
    (before,) = checkpoints(Workdir(tmp_path))
    cluster.named("learner").last("run").end(TrainingDiverged(1000, 50))
    with pytest.raises(WouldFailAgain):
        run.until_end(signals)
    (after,) = checkpoints(Workdir(tmp_path))
    assert after.step == 40
    assert after.shard(0)[0].folder != before.shard(0)[0].folder
    assert "learner checkpoint" not in cluster.history[cluster.history.index("replay-0 checkpoint") + 1 :]


def test_a_run_whose_checkpoints_are_not_seen_for_a_moment_waits_for_them(make_run, tmp_path, monkeypatch):
    run, cluster, signals, _ = make_run()
    save(run, 40)
    folder, looks = Workdir(tmp_path).checkpoints, []
    folder.rename(tmp_path / "aside")

    def look(*args, **options):
        looks.append(1)
        if len(looks) == 3:
            (tmp_path / "aside").rename(folder)
        return Resumption(*args, **options)

    monkeypatch.setattr(start, "Resumption", look)
    lose_learner(cluster)
    assert "steps" in run.until_end(signals)
    assert cluster.started["learner"].context.restore_from == step_folder(folder, 40)


def test_a_restart_ends_once_another_process_works_in_the_directory(make_run):
    run, cluster, signals, _ = make_run()
    run._check_held = Mock(side_effect=TakenOver("process 7 on elsewhere works there"))
    lose_learner(cluster)
    with pytest.raises(TakenOver):
        run.until_end(signals)
    assert names(cluster).count("learner") == 1
