"""A run that loses a learner node, and the end of a run, over a cluster in memory."""

from __future__ import annotations

import threading
from contextlib import nullcontext

import pytest
from fake_cluster import PENDING, cpu_node, saves_learner

from podzero.cluster.remote import ClusterError, NodeLost, WorkerDied
from podzero.driver import recovery, saving
from podzero.driver import run as run_module
from podzero.driver.checkpoints import checkpoints
from podzero.driver.learner_group import RunFailed
from podzero.driver.nodes import NodesAbsent
from podzero.driver.processes import LearnerProcess
from podzero.driver.run import STOPPED, LastCheckpointFailed, Run
from podzero.driver.saving import Saver
from podzero.driver.stop_signals import StopSignals
from podzero.errors import ConfigError
from podzero.replay import PortTaken
from podzero.workdir import Workdir


@pytest.fixture
def make_run(make_supervisor, no_wait, tmp_path, experiment, watch, monkeypatch):
    """Makes a run whose learner trains, its cluster, its signals, and its view, which calls `act`."""
    monkeypatch.setattr(run_module, "TICK_S", 0.0)
    runs, savers = [], []

    def make(act=None):
        workdir, stopping, view = Workdir(tmp_path), no_wait(), watch(act)
        supervisor, cluster = make_supervisor(cpu_node("home", 4), stopping=stopping)
        cluster.answers[LearnerProcess] |= {"checkpoint": saves_learner(40), "snapshot": -1}
        supervisor.start(None)
        saver = Saver(experiment(), workdir)
        savers.append(saver)
        runs.append(Run(experiment(), workdir, supervisor, view, saver))
        runs[-1].begin(None)
        return runs[-1], cluster, StopSignals(stopping), view

    yield make
    for run in runs:
        run.close()
    for saver in savers:
        saver.close()


def learner_dies_with_its_node(cluster):
    cluster.named("learner").die(NodeLost("learner is gone"))


RECOVERABLE = [
    NodeLost("learner-1 is gone: a second preemption"),
    WorkerDied("learner is gone: killed while it was built"),
    NodesAbsent("waited for nodes"),
    ClusterError("waited for a free chip"),
    PortTaken("shard 0 cannot listen on port 7"),
    RuntimeError("the coordination service is unavailable"),
]


def test_a_recovery_survives_every_error_that_may_pass(make_run):
    run, cluster, signals, view = make_run()
    coming = iter([*RECOVERABLE, None])
    cluster.answers[LearnerProcess]["ready"] = lambda: next(coming)
    cluster.answers[LearnerProcess]["run"] = None  # the restarted learner has nothing left to do
    learner_dies_with_its_node(cluster)
    assert "steps" in run.until_end(signals)
    assert len(signals.event.waits) == len(RECOVERABLE)
    assert signals.event.waits == sorted(signals.event.waits)
    assert max(signals.event.waits) <= recovery.LONGEST_PAUSE_S
    assert view.statuses[-1].restarts == 1


def test_a_recovery_waits_for_nodes_however_often(make_run):
    run, cluster, signals, _ = make_run()
    passing = [NodesAbsent("waited for nodes"), NodeLost("learner-1 is gone with its node")]
    coming = iter([*passing * 2 * recovery.MAX_FAILURES, None])
    cluster.answers[LearnerProcess]["ready"] = lambda: next(coming)
    cluster.answers[LearnerProcess]["run"] = None
    learner_dies_with_its_node(cluster)
    assert "steps" in run.until_end(signals)


@pytest.mark.parametrize(
    "failure",
    [
        PortTaken("shard 0 cannot listen on port 7"),
        WorkerDied("learner is gone: killed while it was built"),
        ClusterError("waited 1800 s for learner to be built"),
    ],
)
def test_a_recovery_that_fails_again_and_again_ends_the_run_with_the_last_error(make_run, failure):
    run, cluster, signals, view = make_run()
    cluster.answers[LearnerProcess]["ready"] = failure
    learner_dies_with_its_node(cluster)
    with pytest.raises(RunFailed, match=str(failure)):
        run.until_end(signals)
    assert len(signals.event.waits) == recovery.MAX_FAILURES
    assert view.statuses[-1].phase == "ended"
    assert cluster.alive() == []


def test_an_error_of_the_user_ends_a_recovery_at_once(make_run):
    run, cluster, signals, _ = make_run()
    cluster.answers[LearnerProcess]["ready"] = ConfigError("learner.batch_size 15 is not divided by the 2 devices")
    learner_dies_with_its_node(cluster)
    with pytest.raises(ConfigError):
        run.until_end(signals)
    assert signals.event.waits == []


def test_a_recovery_ends_when_the_run_is_stopped(make_run):
    run, cluster, signals, _ = make_run()

    def stop():
        signals.event.set()
        return ClusterError("waited for nodes")

    cluster.answers[LearnerProcess]["ready"] = stop
    learner_dies_with_its_node(cluster)
    assert run.until_end(signals) == STOPPED


def test_a_run_ends_with_a_checkpoint(make_run, tmp_path):
    run, cluster, signals, view = make_run()
    cluster.named("learner").last("run").end(None)
    run.until_end(signals)
    assert [checkpoint.step for checkpoint in checkpoints(Workdir(tmp_path))] == [40]
    assert view.statuses[-1].phase == "ended"


@pytest.mark.parametrize(
    ("method", "failure"),
    [
        ("checkpoint", TimeoutError("waited 600 s for learner to write a checkpoint")),
        ("checkpoint", OSError("no space left on device")),
        ("checkpoint", WorkerDied("learner is gone")),
        ("stop", ClusterError("waited 30 s for learner")),
        ("drain", ValueError("the metrics are no numbers")),
    ],
)
def test_an_error_while_the_run_ends_is_logged_and_the_run_still_ends(make_run, caplog, method, failure):
    run, cluster, signals, view = make_run()
    cluster.named("learner").last("run").end(None)
    cluster.named("learner").answers[method] = failure
    with pytest.raises(LastCheckpointFailed) if method == "checkpoint" else nullcontext():
        assert "steps" in run.until_end(signals)
    assert view.statuses[-1].phase == "ended"
    assert any(record.exc_info and record.exc_info[1] is failure for record in caplog.records)


def test_a_checkpoint_under_way_that_never_ends_does_not_keep_the_run_from_ending(make_run, monkeypatch, tmp_path):
    """`concurrent.futures` raises TimeoutError for it."""
    monkeypatch.setattr(saving, "FIRST_SNAPSHOT_S", 0.0)
    monkeypatch.setattr(saving, "FINISH_TIMEOUT_S", 0.05)
    under_way, release = threading.Event(), threading.Event()

    def snapshot():
        under_way.set()
        release.wait(60)
        return PENDING

    def end(status):
        if under_way.is_set():
            cluster.named("learner").last("run").end(None)
            cluster.named("learner").answers["snapshot"] = 40
        return under_way.is_set()

    run, cluster, signals, view = make_run(end)
    cluster.named("learner").answers["snapshot"] = snapshot
    try:
        assert "steps" in run.until_end(signals)
    finally:
        release.set()
    assert view.statuses[-1].phase == "ended"
    assert [checkpoint.step for checkpoint in checkpoints(Workdir(tmp_path))] == [40]
