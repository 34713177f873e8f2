"""A run whose workers all restart, learners that fail, and the end of a run, over a cluster in memory."""

from __future__ import annotations

import json
import threading
from contextlib import nullcontext
from unittest.mock import Mock

import pytest
from fake_cluster import PENDING

from podzero.core.errors import ClusterError, ConfigError
from podzero.files.directory_lock import TakenOver
from podzero.files.storage import StorageError
from podzero.files.workdir import Workdir
from podzero.learner import CheckpointMismatch, TrainingDiverged
from podzero.learner.hosts import HostLost
from podzero.replay import ReplayTimeout
from podzero.replay.errors import PortTaken
from podzero.runtime import failures as failures_module
from podzero.runtime import run as run_module
from podzero.runtime import saving
from podzero.runtime.checkpoints import checkpoints
from podzero.runtime.cluster.placement import ClusterEnded, HeldByOthers, NodesAbsent
from podzero.runtime.cluster.remote import NodeLost, WorkerDied
from podzero.runtime.failures import LearnerFailures, first_start
from podzero.runtime.kinds import EvaluatorProcess, LearnerProcess
from podzero.runtime.monitoring.reports import MetricsReport
from podzero.runtime.run import STOPPED
from podzero.runtime.start import LastCheckpointFailed, LearnerRestart
from podzero.runtime.supervisor import Supervisor
from podzero.runtime.workers import LearnerFailed, RunFailed


@pytest.fixture
def held(monkeypatch):
    """A cluster in which other processes of the run hold what a lost learner would need to restart alone."""

    def refuse(restart):
        raise HeldByOthers("actors hold the last CPUs")

    monkeypatch.setattr(LearnerRestart, "advance", refuse)


def learner_dies_with_its_node(cluster):
    cluster.named("learner").die(NodeLost("learner is gone"))


RECOVERABLE = [
    NodeLost("learner-1 is gone: a second preemption"),
    WorkerDied("learner is gone: killed while it was built"),
    NodesAbsent("waited for nodes"),
    ClusterError("waited for a free chip"),
    PortTaken("shard 0 cannot listen on port 7"),
    RuntimeError("the coordination service is unavailable"),
    ConfigError("tpu-1 is a host of v5e-16, but JAX finds only cpu devices there: another process uses the chips"),
]


@pytest.mark.usefixtures("held")
def test_a_recovery_survives_every_error_that_may_pass(make_run):
    run, cluster, signals, view = make_run()
    cluster.answers[LearnerProcess]["ready"] = lambda: [*RECOVERABLE, None][len(signals.event.waits)]
    cluster.answers[LearnerProcess]["run"] = None  # the restarted learner has nothing left to do
    learner_dies_with_its_node(cluster)
    assert "steps" in run.until_end(signals)
    assert len(signals.event.waits) == len(RECOVERABLE)
    assert signals.event.waits == sorted(signals.event.waits)
    assert max(signals.event.waits) <= failures_module.LONGEST_PAUSE_S
    assert view.statuses[-1].restarts == 1


@pytest.mark.usefixtures("held")
def test_a_recovery_ends_once_another_process_works_in_the_directory(make_run):
    run, cluster, signals, _ = make_run()
    begun = []

    def ready():
        begun.append(True)
        run._check_held = Mock(side_effect=TakenOver("process 7 on elsewhere works there"))
        raise NodesAbsent("waited for nodes")

    cluster.answers[LearnerProcess]["ready"] = ready
    learner_dies_with_its_node(cluster)
    with pytest.raises(TakenOver):
        run.until_end(signals)
    assert (len(begun), cluster.alive()) == (1, [])


def test_a_recovery_ends_at_once_where_no_node_can_join(make_run):
    run, cluster, signals, view = make_run()
    cluster.answers[LearnerProcess]["ready"] = ClusterEnded("Ray has ended on this machine")
    learner_dies_with_its_node(cluster)
    with pytest.raises(ClusterEnded):
        run.until_end(signals)
    assert signals.event.waits == []
    assert view.statuses[-1].phase == "ended"


def test_a_run_whose_head_on_this_machine_has_ended_saves_and_ends_before_ray_ends_it(make_run, tmp_path):
    run, cluster, signals, view = make_run()
    cluster.ended = lambda: True
    with pytest.raises(ClusterEnded, match="the same command"):
        run.until_end(signals)
    assert [found.step for found in checkpoints(Workdir(tmp_path))] == [40]
    assert view.statuses[-1].phase == "ended"


@pytest.mark.usefixtures("held")
def test_a_recovery_waits_for_nodes_however_often(make_run):
    run, cluster, signals, _ = make_run()
    passing = [NodesAbsent("waited for nodes"), NodeLost("learner-1 is gone with its node")]
    coming = iter([*passing * 2 * failures_module.MAX_FAILURES, None])
    cluster.answers[LearnerProcess]["ready"] = lambda: next(coming)
    cluster.answers[LearnerProcess]["run"] = None
    learner_dies_with_its_node(cluster)
    assert "steps" in run.until_end(signals)


@pytest.mark.usefixtures("held")
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
    assert len(signals.event.waits) == failures_module.MAX_FAILURES
    assert view.statuses[-1].phase == "ended"
    assert cluster.alive() == []


@pytest.mark.usefixtures("held")
def test_a_checkpoint_of_another_network_ends_a_recovery_at_once(make_run):
    run, cluster, signals, _ = make_run()
    cluster.answers[LearnerProcess]["ready"] = CheckpointMismatch("another network")
    learner_dies_with_its_node(cluster)
    with pytest.raises(CheckpointMismatch):
        run.until_end(signals)
    assert signals.event.waits == []


@pytest.mark.usefixtures("held")
def test_a_recovery_waits_for_checkpoints_that_are_not_seen_for_a_moment(make_run, tmp_path, monkeypatch):
    run, cluster, signals, _ = make_run()
    folder, started = Workdir(tmp_path).checkpoints, []
    run._saver.write_checkpoint(run._save_state())
    folder.rename(tmp_path / "aside")
    start = Supervisor.start
    monkeypatch.setattr(
        Supervisor, "start", lambda self, found: (started.append(found and found.step), start(self, found))
    )
    signals.event._meanwhile = lambda: len(signals.event.waits) == 2 and (tmp_path / "aside").rename(folder)
    cluster.answers[LearnerProcess]["run"] = None
    learner_dies_with_its_node(cluster)
    assert "steps" in run.until_end(signals)
    assert (started, len(signals.event.waits)) == ([40], 2)
    assert [path.name for path in folder.iterdir()] == ["000000040"]


@pytest.mark.usefixtures("held")
def test_checkpoints_that_stay_away_end_a_recovery(make_run, tmp_path):
    run, cluster, signals, _ = make_run()
    run._saver.write_checkpoint(run._save_state())
    Workdir(tmp_path).checkpoints.rename(tmp_path / "aside")
    learner_dies_with_its_node(cluster)
    with pytest.raises(RunFailed, match="one of step 40"):
        run.until_end(signals)
    assert len(signals.event.waits) == failures_module.MAX_FAILURES


@pytest.mark.usefixtures("held")
def test_the_parameters_of_lost_workers_are_not_given_to_those_that_follow(make_run):
    run, cluster, signals, _ = make_run()
    before, agent = cluster.started["learner"].context.store, cluster.agents["home"]
    cluster.answers[LearnerProcess]["run"] = None
    learner_dies_with_its_node(cluster)
    run.until_end(signals)
    assert agent.killed
    stores = {cluster.started[name].context.store for name in ("replay-0", "learner")}
    assert len(stores) == 1
    assert before not in stores


@pytest.mark.usefixtures("held")
def test_a_recovery_ends_when_the_run_is_stopped(make_run):
    run, cluster, signals, _ = make_run()

    def stop():
        signals.event.set()
        return ClusterError("waited for nodes")

    cluster.answers[LearnerProcess]["ready"] = stop
    learner_dies_with_its_node(cluster)
    assert run.until_end(signals) == STOPPED


@pytest.mark.usefixtures("held")
def test_a_recovery_that_waits_for_nodes_ends_when_the_hours_of_the_run_are_over(make_run):
    run, cluster, signals, _ = make_run(stop={"hours": 1.0})

    def an_hour_passes():
        run._monitor._nodes.before = 3600.0
        signals.event.due_at = 0.0
        return NodesAbsent("waited for nodes")

    cluster.answers[LearnerProcess]["ready"] = an_hour_passes
    learner_dies_with_its_node(cluster)
    assert run.until_end(signals) == "stop.hours=1 is reached"
    assert signals.number == 0


def test_a_run_whose_hours_are_over_writes_a_last_checkpoint(make_run, tmp_path):
    run, _, signals, _ = make_run(lambda status: None, stop={"hours": 1e-9})
    signals.event.due_at = 0.0
    assert run.until_end(signals) == "stop.hours=1e-09 is reached"
    assert [found.step for found in checkpoints(Workdir(tmp_path))] == [40]


def test_actors_that_have_stopped_are_not_wanted_again(make_run):
    run, cluster, signals, view = make_run()
    cluster.named("learner").last("run").end(None)
    run.until_end(signals)
    assert (run._supervisor.actors.wanted, cluster.alive("actor")) == (0, [])
    assert (view.statuses[0].actors, view.statuses[-1].actors, view.statuses[-1].actors_wanted) == (2, 0, 0)


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
    cluster.answers[EvaluatorProcess]["run"] = None  # it judges the last snapshot at once
    try:
        assert "steps" in run.until_end(signals)
    finally:
        release.set()
    assert view.statuses[-1].phase == "ended"
    assert [checkpoint.step for checkpoint in checkpoints(Workdir(tmp_path))] == [40]


OF_THE_MOMENT = [
    WorkerDied("learner is gone: killed by the out-of-memory killer"),
    HostLost("learner host 1 cannot reach host 0"),
    RuntimeError("INTERNAL: a core was halted"),
]


@pytest.mark.parametrize("failure", OF_THE_MOMENT)
def test_a_learner_that_fails_is_started_again_at_once_from_the_newest_checkpoint(make_run, failure):
    run, cluster, signals, view = make_run()
    cluster.named("learner").last("run").end(failure)
    cluster.answers[LearnerProcess]["run"] = None  # the restarted learner has nothing left to do
    assert "steps" in run.until_end(signals)
    assert [process.name for process in cluster.processes].count("learner") == 2
    assert len({process.name for process in cluster.processes}) == len(cluster.processes) - 1, "no other restarts"
    assert signals.event.waits == []
    assert view.statuses[-1].restarts == 1


def test_the_learners_last_report_says_at_what_step_it_failed(make_run):
    run, cluster, signals, _ = make_run()
    learner = cluster.named("learner")
    learner.answers["drain"] = [MetricsReport(0.0, "learner", {"learner/step": 7.0})]
    learner.last("run").end(RuntimeError("INTERNAL: a core was halted"))
    cluster.answers[LearnerProcess]["run"] = RuntimeError("INTERNAL: a core was halted")
    cluster.answers[LearnerProcess]["drain"] = learner.answers["drain"]
    with pytest.raises(RunFailed, match=r"twice at step 7 .*a core was halted") as raised:
        run.until_end(signals)
    assert raised.value.exit_code == 2


@pytest.mark.parametrize(
    "failure",
    [
        TrainingDiverged(1000, 7),
        ConfigError("training does not fit into the memory of a device"),
        CheckpointMismatch("another network"),
        ReplayTimeout("replay did not answer within 600 s"),
    ],
)
def test_a_learner_that_would_fail_again_ends_the_run_at_once(make_run, failure, tmp_path):
    run, cluster, signals, view = make_run()
    cluster.named("learner").last("run").end(failure)
    with pytest.raises(RunFailed, match=f"learner failed: {str(failure)[:20]}") as raised:
        run.until_end(signals)
    assert raised.value.exit_code == 2
    diverged = isinstance(failure, TrainingDiverged)
    assert ("learner.optimizer.learning_rate=" in str(raised.value)) == diverged, "the advice suits the failure"
    assert len([process for process in cluster.processes if process.name == "learner"]) == 1
    assert checkpoints(Workdir(tmp_path)) == [], "the state of a learner that failed is not saved"
    assert view.statuses[-1].phase == "ended"


def failed(cause):
    """A failure of the learner with a cause."""
    failure = LearnerFailed(f"learner failed: {cause}")
    failure.__cause__ = cause
    return failure


@pytest.fixture
def failures(restart_limits):
    """Counts two failures within an hour."""
    restart_limits(learner_failures=2, window_minutes=60.0)
    return LearnerFailures()


def test_failures_within_the_window_are_counted_and_the_pause_grows(failures):
    pauses = [failures.pause_s(failed(WorkerDied(kind)), step, step, 10.0 * step) for step, kind in enumerate("ab")]
    assert pauses == [0.0, 5.0]
    with pytest.raises(RunFailed, match=r"failed 3 times .* 60 minutes .*gone: c") as raised:
        failures.pause_s(failed(WorkerDied("gone: c")), 3, 3, 30.0)
    assert raised.value.exit_code == 4


def test_failures_are_forgotten_after_the_window_if_checkpoints_were_written_in_between(failures):
    for step in range(20):
        assert failures.pause_s(failed(WorkerDied("gone")), 10 * step, 10 * step + 5, 3601.0 * step) == 0.0


def test_failures_without_a_new_checkpoint_in_between_count_however_rare_they_are(failures):
    for hours in (0, 5):
        failures.pause_s(failed(WorkerDied(f"gone after hour {'x' * hours}")), 40, 100 + hours, 3600.0 * hours)
    with pytest.raises(RunFailed, match="or without a new checkpoint"):
        failures.pause_s(failed(WorkerDied("gone")), 40, 99, 36000.0)


def test_the_same_error_at_the_same_step_ends_the_run_whatever_ids_and_addresses_it_names(failures):
    failures.pause_s(failed(WorkerDied("learner is gone: actor 0a1b2c, pid=4711, node 10.0.0.3")), 40, 48, 0.0)
    failures.pause_s(failed(WorkerDied("learner is gone: actor 77aa00, pid=12, node 10.0.0.4")), 40, 49, 10.0)
    with pytest.raises(RunFailed, match="twice at step 48 "):
        failures.pause_s(failed(WorkerDied("learner is gone: actor ffee01, pid=9, node 10.0.0.5")), 40, 48, 20.0)


@pytest.mark.parametrize(
    "message",
    [
        "learner-{} is gone: killed by the out-of-memory killer, pid={}9",
        "learner failed: learner host 0 has waited 61 s for the batches of host(s) {}",
    ],
)
def test_hosts_that_fail_one_after_the_other_at_the_same_step_are_no_repeated_failure(message):
    failures = LearnerFailures()
    for rank in range(1, 6):
        failures.pause_s(failed(WorkerDied(message.format(rank, rank))), 40, 40, 10.0 * rank)
    with pytest.raises(RunFailed, match="twice at step 40 "):
        failures.pause_s(failed(WorkerDied(message.format(3, 7))), 40, 40, 60.0)


@pytest.mark.parametrize(
    "error",
    [NodeLost("learner is gone"), PortTaken("port 7"), HostLost("host 1 did not join"), StorageError("stale handle")],
)
def test_a_first_start_that_fails_by_something_that_may_pass_is_tried_again(no_wait, error):
    outcomes, stopping = [error, "started"], no_wait()

    def start():
        outcome = outcomes.pop(0)
        if isinstance(outcome, Exception):
            raise outcome
        return outcome

    assert first_start(start, stopping) == "started"
    assert stopping.waits == [failures_module.FIRST_PAUSE_S]


@pytest.mark.parametrize(
    ("errors", "attempts"),
    [
        ([ConfigError("the batch does not fit")], 1),
        ([NodesAbsent("waited 15 minutes for nodes to join")], 1),
        ([TypeError("a bug")], 1),
        ([PortTaken("port 7"), PortTaken("port 8")], 2),
        ([WorkerDied("a"), ClusterError("b"), HostLost("c")], 3),
    ],
)
def test_a_first_start_that_does_not_pass_fails_with_its_last_error(no_wait, errors, attempts):
    begun = []

    def start():
        begun.append(len(begun))
        raise errors[begun[-1]]

    with pytest.raises(type(errors[-1]), match=str(errors[-1])):
        first_start(start, no_wait())
    assert len(begun) == attempts


@pytest.mark.parametrize("failure", [RunFailed("actor-0 failed"), ClusterError("Ray is silent"), ValueError("a bug")])
def test_a_run_that_fails_while_its_learner_trains_writes_a_last_checkpoint(make_run, monkeypatch, tmp_path, failure):
    run, _, signals, view = make_run()

    def fail(supervisor, newest):
        raise failure

    monkeypatch.setattr(Supervisor, "reconcile", fail)
    with pytest.raises(type(failure), match=str(failure)):
        run.until_end(signals)
    assert [checkpoint.step for checkpoint in checkpoints(Workdir(tmp_path))] == [40]
    assert [status.phase for status in view.statuses[-2:]] == ["stopping", "ended"]


@pytest.mark.parametrize("failure", [RunFailed("actor-0 failed"), ClusterError("Ray is silent"), ValueError("a bug")])
def test_a_failed_run_says_that_its_last_checkpoint_could_not_be_written(make_run, monkeypatch, failure):
    run, cluster, signals, view = make_run()
    cluster.named("learner").answers["checkpoint"] = KeyError(8)

    def fail(supervisor, newest):
        raise failure

    monkeypatch.setattr(Supervisor, "reconcile", fail)
    with pytest.raises(type(failure)) as raised:
        run.until_end(signals)
    told = [str(raised.value), *getattr(raised.value, "__notes__", [])]
    assert "The last checkpoint could not be written: KeyError: 8" in "\n".join(told)
    assert view.statuses[-1].phase == "ended"


def test_the_last_checkpoint_of_a_failed_run_is_bounded_in_time(make_run, monkeypatch):
    monkeypatch.setattr(run_module, "LAST_SAVE_TIMEOUT_S", 0.05)
    release = threading.Event()

    def hang(folder, timeout_s):
        release.wait(60)
        return PENDING

    def fail(supervisor, newest):
        raise RunFailed("actor-0 failed")

    run, cluster, signals, view = make_run()
    cluster.named("learner").answers["checkpoint"] = hang
    monkeypatch.setattr(Supervisor, "reconcile", fail)
    try:
        with pytest.raises(RunFailed, match=r"actor-0 failed\n.*complete .*0\.05 s"):
            run.until_end(signals)
    finally:
        release.set()
    assert view.statuses[-1].phase == "ended"


def test_a_second_ctrl_c_leaves_the_phase_ended_as_well(make_run, monkeypatch):
    run, _, signals, view = make_run()

    def interrupt(supervisor, newest):
        raise KeyboardInterrupt

    monkeypatch.setattr(Supervisor, "reconcile", interrupt)
    with pytest.raises(KeyboardInterrupt):
        run.until_end(signals)
    assert view.statuses[-1].phase == "ended"


def test_a_view_that_breaks_ends_the_run_with_its_error_a_checkpoint_and_the_phase_ended(make_run, tmp_path):
    def break_down(status):
        raise ZeroDivisionError("a bug of the view")

    run, _, signals, _ = make_run(break_down)
    with pytest.raises(ZeroDivisionError, match="a bug of the view"):
        run.until_end(signals)
    assert [checkpoint.step for checkpoint in checkpoints(Workdir(tmp_path))] == [40]
    assert json.loads(Workdir(tmp_path).status_file.read_text())["phase"] == "ended"
