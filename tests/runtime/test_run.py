"""The driver's loop, with workers and a saver that the test controls."""

import json
import logging
import threading
import time
from pathlib import Path
from types import SimpleNamespace

import pytest
from fake_cluster import PENDING, FakeRemoteActor, learner_group, save_shard, saves_learner

from podzero.core.errors import ClusterError
from podzero.files.directory_lock import TakenOver
from podzero.files.workdir import Workdir, read_json
from podzero.learner import CheckpointMismatch
from podzero.runtime import run as module
from podzero.runtime.checkpoints import Checkpoint, checkpoints, newest_checkpoint
from podzero.runtime.cluster.placement import MissingNodes
from podzero.runtime.cluster.remote import NodeLost, WorkerDied
from podzero.runtime.monitoring.goodput import PaidTime
from podzero.runtime.monitoring.monitor import Monitor
from podzero.runtime.monitoring.reports import LogReport, MetricsReport, PreemptionNotice
from podzero.runtime.run import STOPPED, Run
from podzero.runtime.saving import Saver
from podzero.runtime.start import LastCheckpointFailed
from podzero.runtime.stopping import StopSignals
from podzero.runtime.workers import LearnerGroup, RunFailed, Worker


class FakeSupervisor:
    """Workers that report what the test wants, for a number of rounds of the loop."""

    def __init__(self, rounds=3, reports=()):
        self.rounds, self.reports = rounds, list(reports)
        self.learner = learner_group(FakeRemoteActor("learner", run=PENDING, checkpoint=saves_learner(8), snapshot=8))
        self.learner.begin()
        trains = property(lambda learner: self.rounds > 0)
        self.learner.__class__ = type("Learner", (LearnerGroup,), {"working": trains})
        self.shards = SimpleNamespace(actors=[FakeRemoteActor("replay-0", checkpoint=save_shard)])
        self.evaluator = None
        self.ladder = {}
        self.started_evaluator_in = None
        self.failure = None
        self.killed = False
        self.ended = []
        self.failures, self.silent = SimpleNamespace(failing={}), {}
        self.actors = SimpleNamespace(workers={}, wanted=0, fit=dict)
        self.paid = PaidTime(time.monotonic())
        self.shares = []
        self.restarted = []
        """The steps of the checkpoints from which the learner was restarted."""
        self.learner.advance = self.shares.append
        self.judgement = {"run": PENDING, "drain": []}
        """What the evaluator answers."""

    def listen(self):
        self.rounds -= 1
        yield from self.reports
        if self.failure is not None:
            failure, self.failure = self.failure, None
            raise failure

    def reconcile(self, newest):
        ended, self.ended = self.ended, []
        return ended

    def traceable(self):
        return [worker.actor for worker in self.learner.workers.values()]

    def start(self, checkpoint):
        self.rounds = 3

    def drop_learner(self):
        pass

    def restart_learner(self, checkpoint, waited_s):
        self.restarted.append(checkpoint.step if checkpoint else 0)

    def learner_built(self):
        return True

    def train(self):
        self.rounds = 3

    def start_evaluator(self):
        self.started_evaluator_in = threading.current_thread()
        self.evaluator = Worker(FakeRemoteActor("evaluator", ladder={"rounds": 1}, **self.judgement))

    def stop_actors(self):
        return [MetricsReport(time.time(), "actor-0", {"count/games": 100.0})]

    def stop_learner(self):
        return []

    def judge_last(self, step):
        """An evaluator that judges until the test ends its work."""
        self.start_evaluator()
        self.evaluator.work = self.evaluator.actor.begin("run")
        self.evaluator.actor.begin("stop", step)
        return self.evaluator

    def stop_evaluator(self):
        self.evaluator = None

    def kill(self):
        self.killed = True


@pytest.fixture(autouse=True)
def no_pauses(monkeypatch):
    monkeypatch.setattr(module, "TICK_S", 0.01)
    monkeypatch.setattr("podzero.runtime.failures.FIRST_PAUSE_S", 0.01)


@pytest.fixture
def workdir(tmp_path, tiny):
    workdir = Workdir(tmp_path)
    workdir.open(tiny())
    return workdir


@pytest.fixture
def make_run(tiny, workdir, watch):
    """Makes a run of a supervisor, with overrides of the experiment."""
    savers = []

    def make(supervisor, *overrides):
        experiment = tiny(*overrides)
        savers.append(Saver(experiment, workdir))
        run = Run(experiment, workdir, supervisor, watch(), savers[-1])
        run.begin(None)
        return run

    yield make
    for saver in savers:
        saver.close()


def moves(count):
    return [MetricsReport(time.time(), f"actor-{index}", {"count/moves": 1.0}) for index in range(count)]


def status(workdir):
    return json.loads(workdir.status_file.read_text())


def test_a_run_ends_with_a_checkpoint_and_the_last_reports(make_run, workdir):
    run = make_run(FakeSupervisor(reports=moves(2)))
    assert "steps" in run.until_end(StopSignals())
    run.close()
    assert (status(workdir)["phase"], status(workdir)["moves"], status(workdir)["games"]) == ("ended", 6, 100)
    assert checkpoints(workdir)[0].counters["games"] == 100
    lines = [json.loads(line) for line in workdir.metrics_file.read_text().splitlines()]
    assert {line["worker"] for line in lines} == {"actor", "driver"}


def test_the_last_snapshot_is_judged_before_the_end_and_the_checkpoint_has_its_rating(make_run, workdir):
    supervisor = FakeSupervisor()
    judged = MetricsReport(time.time(), "evaluator", {"evaluation/step": 8.0, "evaluation/elo": 70.0})
    written = []

    def judge():
        written.append(workdir.metrics_file.read_text())
        return [judged]

    supervisor.judgement = {"run": None, "drain": judge}
    run = make_run(supervisor, "evaluation.final_minutes=5")
    assert "steps" in run.until_end(StopSignals())
    assert '"count/games": 100.0' in written[0], "lines of training are written before the judgement"
    assert (status(workdir)["phase"], status(workdir)["rated_step"], status(workdir)["rating"]) == ("ended", 8, 70.0)
    checkpoint = newest_checkpoint(workdir)
    assert (checkpoint.step, checkpoint.ladder, checkpoint.shards[0].samples) == (8, {"rounds": 1}, 100)


@pytest.mark.parametrize("ended_by", ["limit", "signal"])
def test_the_last_judgement_ends_at_its_limit_and_with_a_signal(tiny, workdir, watch, monkeypatch, ended_by):
    now, signals, seen = [1000.0], StopSignals(), []
    monkeypatch.setattr(time, "monotonic", lambda: now[0])
    monkeypatch.setattr(time, "sleep", lambda seconds: now.__setitem__(0, now[0] + 20.0))

    def look(status):
        if status.phase == "judging":
            seen.append(status.time_left_s)
            if ended_by == "signal":
                signals.event.set()

    experiment = tiny("evaluation.final_minutes=1", "stop.minutes=")
    saver = Saver(experiment, workdir)
    run = Run(experiment, workdir, FakeSupervisor(), watch(look), saver)
    run.begin(None)
    assert "steps" in run.until_end(signals)
    saver.close()
    assert sorted(set(seen)) == ([20.0, 40.0, 60.0] if ended_by == "limit" else [60.0])
    assert status(workdir)["phase"] == "ended"


def test_a_last_judgement_that_fails_is_a_warning_and_the_run_has_ended(make_run, workdir, caplog):
    supervisor = FakeSupervisor()
    supervisor.judgement = {"run": WorkerDied("evaluator is gone"), "drain": []}
    assert "steps" in make_run(supervisor, "evaluation.final_minutes=5").until_end(StopSignals())
    (record,) = [record for record in caplog.records if record.levelno == logging.WARNING]
    assert isinstance(record.exc_info[1], WorkerDied)
    supervisor = FakeSupervisor()
    supervisor.judge_last = lambda step: (_ for _ in ()).throw(ClusterError("Ray does not answer"))
    assert "steps" in make_run(supervisor, "evaluation.final_minutes=5").until_end(StopSignals())
    assert status(workdir)["phase"] == "ended"


def test_the_end_of_a_run_is_that_of_its_workers_and_its_last_checkpoint(make_run, workdir, clock):
    supervisor, save = FakeSupervisor(), saves_learner(8)

    def lasts(seconds, what):
        clock[0] += seconds
        return what

    supervisor.stop_actors = lambda: lasts(5.0, [])
    supervisor.learner.leader.actor.answers["checkpoint"] = lambda folder, timeout_s: lasts(3.0, save(folder))
    make_run(supervisor).until_end(StopSignals())
    paid_s = status(workdir)["paid_s"]
    assert (paid_s["idle"], paid_s["checkpoint"]) == (5.0, 3.0)


def test_a_run_that_a_signal_ends_judges_nothing(make_run):
    supervisor, signals = FakeSupervisor(), StopSignals()
    supervisor.judge_last = lambda step: pytest.fail("was asked")
    signals.event.set()
    assert make_run(supervisor, "evaluation.final_minutes=5").until_end(signals) == STOPPED


def test_workers_that_fail_are_in_status_and_metrics(make_run, workdir):
    supervisor = FakeSupervisor()
    supervisor.ended, failing = ["evaluator"], {"evaluator": "once: gnugo is not installed"}
    supervisor.failures.failing = failing
    run = make_run(supervisor)
    run.until_end(StopSignals())
    run.close()
    assert (status(workdir)["restarts"], status(workdir)["failing"]) == (1, failing)
    lines = [json.loads(line) for line in workdir.metrics_file.read_text().splitlines()]
    assert [line["metrics"] for line in lines if line["worker"] == "evaluator"] == [{"count/restarts": 1.0}]


def test_a_shard_that_restarts_with_less_is_counted_with_what_it_lost(make_run, workdir):
    counts = [{"replay/inserted": n, "replay/size": n, "replay/sampled": 0.0} for n in (0.0, 500.0, 120.0)]
    supervisor = FakeSupervisor(1, [MetricsReport(time.time(), "replay-0", found) for found in counts])
    run = make_run(supervisor)
    supervisor.ended = ["replay-0"]
    run.until_end(StopSignals())
    assert (status(workdir)["restarts"], status(workdir)["ledger"]["samples"]["lost_with_shards"]) == (1, 380)


def test_a_run_whose_directory_was_taken_over_ends_and_writes_nothing(tiny, workdir, watch):
    supervisor, saver, taken = FakeSupervisor(rounds=10**6, reports=moves(2)), Saver(tiny(), workdir), []

    def check():
        if taken:
            raise TakenOver("process 7 on elsewhere works there")

    def take(status):
        run._files.wait(20.0)
        workdir.metrics_file.unlink(missing_ok=True)
        workdir.status_file.write_text("theirs")
        taken.append(status)

    run = Run(tiny(), workdir, supervisor, watch(take), saver, check_held=check)
    run.begin(None)
    with pytest.raises(TakenOver):
        run.until_end(StopSignals())
    run.close()
    saver.close()
    assert workdir.status_file.read_text() == "theirs"
    assert checkpoints(workdir) == []
    assert not workdir.metrics_file.exists()


def test_the_work_of_a_round_does_not_grow_faster_than_the_reports(make_run, monkeypatch):
    """The aggregation over all workers is made as often for a thousand reports as for ten."""
    calls, made = [], Monitor.status
    monkeypatch.setattr(Monitor, "status", lambda self, now, silent=(): calls.append(now) or made(self, now, silent))
    counts = []
    for reports in (10, 1000):
        calls.clear()
        make_run(FakeSupervisor(reports=moves(reports))).until_end(StopSignals())
        counts.append(len(calls))
    assert counts[0] == counts[1]


def test_a_status_that_cannot_be_written_does_not_end_the_run(make_run, workdir, monkeypatch, caplog):
    caplog.set_level(logging.WARNING, logger="podzero")
    monkeypatch.setattr(module, "STATUS_EVERY_S", 0.0)
    workdir.status_file.mkdir()
    supervisor = FakeSupervisor(rounds=10)
    assert "steps" in make_run(supervisor).until_end(StopSignals())
    (warning,) = caplog.messages
    assert "status.json" in warning


def test_metrics_that_cannot_be_written_do_not_end_the_run(make_run, workdir, monkeypatch, caplog):
    caplog.set_level(logging.WARNING, logger="podzero")
    monkeypatch.setattr("podzero.runtime.monitoring.metrics.FLUSH_EVERY_S", 0.0)
    workdir.metrics_file.mkdir()
    run = make_run(FakeSupervisor(rounds=10, reports=moves(2)))
    assert "steps" in run.until_end(StopSignals())
    (warning,) = caplog.messages
    assert "metrics.jsonl" in warning


def test_storage_that_hangs_holds_up_neither_the_loop_nor_the_end_of_a_run(make_run, monkeypatch):
    monkeypatch.setattr(module, "FILES_TIMEOUT_S", 0.1)
    monkeypatch.setattr(module, "PHASE_TIMEOUT_S", 0.1)
    gate = threading.Event()
    monkeypatch.setattr(module, "write_status", lambda workdir, status: gate.wait(60))
    supervisor, signals = FakeSupervisor(rounds=10**6, reports=moves(2)), StopSignals()
    threading.Timer(0.5, signals.event.set).start()
    with pytest.raises(LastCheckpointFailed, match="storage has not answered"):
        make_run(supervisor).until_end(signals)
    assert supervisor.rounds < 10**6 - 1, "workers were heard meanwhile"
    gate.set()


def test_the_learner_is_told_in_every_round_how_far_the_run_has_come(make_run):
    supervisor = FakeSupervisor(reports=[MetricsReport(time.time(), "actor-0", {"count/games": 1.0})])
    make_run(supervisor, "stop.steps=1000000", "stop.games=4").until_end(StopSignals())
    assert supervisor.shares == [0.25, 0.5, 0.75]


def test_processes_are_traced_when_a_file_asks_for_it(make_run, workdir):
    supervisor = FakeSupervisor(rounds=100)
    workdir.trace_file.write_text('{"name": "first", "seconds": 2}')
    make_run(supervisor).until_end(StopSignals())
    (learner,) = supervisor.traceable()
    assert learner.last("trace").args == (workdir.traces / "first" / "learner", 2)
    assert read_json(workdir.traces / "first" / "processes.json") == {"learner": None}


def test_a_last_checkpoint_that_cannot_be_written_is_an_error_with_a_code_of_its_own(make_run, workdir, caplog):
    workdir.checkpoints.write_text("a file instead of a folder")
    with pytest.raises(LastCheckpointFailed, match="last checkpoint could not be written") as end:
        make_run(FakeSupervisor()).until_end(StopSignals())
    assert end.value.exit_code == 3
    (record,) = [record for record in caplog.records if record.levelno == logging.ERROR]
    assert isinstance(record.exc_info[1], OSError)
    assert status(workdir)["phase"] == "ended"


def test_workers_that_do_not_stop_in_order_do_not_keep_the_last_checkpoint_from_being_written(make_run, workdir):
    supervisor = FakeSupervisor()

    def fail():
        raise ClusterError("waited 30 s for learner")

    supervisor.stop_actors = supervisor.stop_learner = fail
    assert "steps" in make_run(supervisor).until_end(StopSignals())
    assert checkpoints(workdir)[0].step == 8


def test_the_evaluator_starts_in_the_main_thread_after_the_first_snapshot(make_run, monkeypatch):
    monkeypatch.setattr("podzero.runtime.saving.FIRST_SNAPSHOT_S", 0.0)
    supervisor = FakeSupervisor(rounds=200)
    run = make_run(supervisor)
    run.until_end(StopSignals())
    assert supervisor.started_evaluator_in is threading.main_thread()


class RecordingSaver:
    """Keeps the state of the first write, and a copy of it."""

    newest, writes_learner = None, False

    def __init__(self):
        self.state = None
        self.requests = []

    @property
    def due(self):
        return self.state is None

    def begin(self, checkpoint=None):
        pass

    def metrics(self):
        return {}

    def start(self, state):
        self.state = state
        self.copy = (dict(state.counters), list(state.shards), state.evaluator)

    def request_checkpoint(self):
        self.requests.append(1)

    def finished(self):
        return None

    def wait(self):
        pass

    def write_checkpoint(self, state):
        return 0


def test_a_write_still_asks_the_learner_that_was_killed_since(tiny, workdir, watch):
    supervisor, saver = FakeSupervisor(reports=moves(1)), RecordingSaver()
    run = Run(tiny(), workdir, supervisor, watch(), saver)
    run.begin(None)
    run.until_end(StopSignals())
    killed = supervisor.learner.actors
    supervisor.learner.kill()
    assert supervisor.learner.actors == []
    assert saver.state.learner.actors == killed


def test_what_a_write_reads_does_not_change_while_the_run_goes_on(tiny, workdir, watch):
    class Changing(FakeSupervisor):
        def listen(self):
            self.shards.actors.append(FakeRemoteActor("replay-1"))
            self.start_evaluator()
            return super().listen()

    saver = RecordingSaver()
    run = Run(tiny(), workdir, Changing(reports=moves(1)), watch(), saver)
    run.begin(None)
    run.until_end(StopSignals())
    state = saver.state
    assert (dict(state.counters), list(state.shards), state.evaluator) == saver.copy
    assert state.counters["moves"] == 1


def test_a_preemption_notice_is_followed_by_a_checkpoint(make_run, workdir):
    notice = PreemptionNotice("learner", logging.WARNING, "this node is about to be preempted")
    supervisor = FakeSupervisor(rounds=10**6, reports=[notice])
    found = []

    def end_once_saved():
        until = time.monotonic() + 20
        while not found and time.monotonic() < until:
            found.extend(workdir.checkpoints.glob("0*"))
            time.sleep(0.02)
        supervisor.rounds = 0

    watcher = threading.Thread(target=end_once_saved)
    watcher.start()
    make_run(supervisor, "checkpoint.every_minutes=60").until_end(StopSignals())
    watcher.join()
    assert found


def test_an_ordinary_warning_of_a_worker_is_logged_and_saves_nothing(tiny, workdir, watch, caplog):
    caplog.set_level(logging.WARNING, logger="podzero")
    saver = RecordingSaver()
    run = Run(tiny(), workdir, FakeSupervisor(), watch(), saver)
    run.begin(None)
    run.handle([LogReport("learner", logging.WARNING, "the loss is high", "Traceback: deep down")])
    (record,) = caplog.records
    assert record.getMessage() == "learner: the loss is high"
    assert record.exc_text == "Traceback: deep down"
    assert saver.requests == []


def test_after_the_loss_of_a_node_the_run_goes_on_and_counts_a_restart(make_run, workdir):
    supervisor = FakeSupervisor()
    supervisor.failure = NodeLost("learner is gone with its node")
    assert "steps" in make_run(supervisor).until_end(StopSignals())
    assert (supervisor.restarted, supervisor.killed) == ([0], False)
    assert status(workdir)["restarts"] == 1


def test_waiting_for_nodes_is_no_training_and_shows_in_the_status(make_run, workdir, monkeypatch):
    """Neither `stop.minutes` nor the cost runs on while no node is there, nor `stop.minutes` before the first step."""
    now = [1000.0]
    monkeypatch.setattr(time, "monotonic", lambda: now[0])
    monkeypatch.setattr(time, "sleep", lambda seconds: None)
    waiting = []

    class Waiting(FakeSupervisor):
        def listen(self):
            now[0] += 10.0
            yield MetricsReport(time.time(), "learner", {"learner/step": 24.0})
            yield from super().listen()

        def restart_learner(self, checkpoint, waited_s):
            waiting.append(status(workdir))
            now[0] += 3600.0
            super().restart_learner(checkpoint, waited_s)

    supervisor = Waiting()
    run = make_run(supervisor)
    supervisor.failure = NodeLost("learner is gone with its node")
    assert "steps" in run.until_end(StopSignals())
    (while_waiting,) = waiting
    assert (while_waiting["phase"], while_waiting["elapsed_s"]) == ("starting", 10.0)
    assert status(workdir)["elapsed_s"] == 40.0


def test_a_run_that_is_stopped_while_it_waits_for_nodes_does_not_count_the_wait(make_run, workdir, monkeypatch):
    now = [1000.0]
    monkeypatch.setattr(time, "monotonic", lambda: now[0])
    signals, supervisor = StopSignals(), FakeSupervisor()
    supervisor.failure = NodeLost("learner is gone with its node")

    def wait_in_vain(checkpoint, waited_s):
        now[0] += 3600.0
        signals.event.set()
        raise MissingNodes("nodes did not join")

    supervisor.restart_learner = wait_in_vain
    assert make_run(supervisor).until_end(signals) == STOPPED
    assert (status(workdir)["phase"], status(workdir)["elapsed_s"]) == ("ended", 0.0)


def test_an_error_of_the_user_during_a_recovery_ends_the_run_in_its_status_as_well(make_run, workdir):
    supervisor = FakeSupervisor()
    supervisor.failure = NodeLost("learner is gone with its node")

    def refuse(checkpoint, waited_s):
        raise CheckpointMismatch("another network")

    supervisor.restart_learner = refuse
    with pytest.raises(CheckpointMismatch):
        make_run(supervisor).until_end(StopSignals())
    assert status(workdir)["phase"] == "ended"


def test_a_signal_ends_the_recovery(make_run, workdir):
    signals, supervisor = StopSignals(), FakeSupervisor()
    supervisor.failure = NodeLost("learner is gone with its node")
    supervisor.drop_learner = signals.event.set
    assert make_run(supervisor).until_end(signals) == STOPPED
    assert status(workdir)["phase"] == "ended"


def test_a_failed_run_says_where_it_resumes_and_where_the_log_is(make_run, workdir):
    supervisor = FakeSupervisor()
    supervisor.failure = RunFailed("the learner failed: the loss is nan")
    with pytest.raises(RunFailed, match="the loss is nan") as raised:
        make_run(supervisor).until_end(StopSignals())
    assert str(workdir.log_file) in str(raised.value)


def test_what_was_trained_after_the_checkpoint_is_lost_once_all_workers_start_again_from_it(make_run, clock):
    """40 s of training in the checkpoint, 15 s after it; 9 s until the workers work again, 2 of them for nodes."""
    supervisor = FakeSupervisor()
    run = make_run(supervisor)

    def trains(seconds):
        clock[0] += seconds
        run.handle([MetricsReport(0.0, "learner", {"learner/step": 8, "time/step": 1.0})])

    trains(40.0)
    saved = Checkpoint(8, Path("8"), run._save_state().counters, {}, [])
    trains(15.0)
    run._enter("starting")
    clock[0] += 7.0
    supervisor.paid.enter("wait_nodes", clock[0])
    clock[0] += 2.0
    run.begin(saved)
    trains(20.0)
    paid_s = run._monitor.status(clock[0]).paid_s
    assert {cause: seconds for cause, seconds in paid_s.items() if seconds} == {
        "training": 60.0, "lost": 15.0, "start": 7.0, "wait_nodes": 2.0
    }  # fmt: skip
    run.begin(None)
    assert run._monitor.status(clock[0]).paid_s["lost"] == 75.0, "nothing is kept without a checkpoint"
