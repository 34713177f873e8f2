"""What the processes of a run do in their own process, without Ray."""

from __future__ import annotations

from concurrent.futures import Future
from pathlib import Path
from types import SimpleNamespace

import pytest

from podzero.replay.errors import ReplayRestoreError, ReplayTimeout, WrongServer
from podzero.runtime import processes, producers
from podzero.runtime.checkpoints import SavedShard
from podzero.runtime.cluster.remote import BUILD_TIMEOUT_S
from podzero.runtime.monitoring.reports import LogReport, MetricsReport
from podzero.runtime.processes import SILENT_DRAINS, LearnerProcess, ReplayProcess


@pytest.fixture
def checkpoint():
    """The future of the next checkpoint, and the learner's process that is asked for it."""
    future = Future()

    class Process(LearnerProcess):
        def _build(self):
            self._learner = SimpleNamespace(request_checkpoint=lambda folder: future)

    return future, Process("learner")


def test_a_checkpoint_that_takes_too_long_names_the_worker_and_the_time(checkpoint):
    _, process = checkpoint
    with pytest.raises(TimeoutError, match=r"waited 0\.05 s for learner"):
        process.checkpoint(Path("saves"), 0.05)


def test_a_checkpoint_is_answered_by_its_step(checkpoint):
    future, process = checkpoint
    future.set_result(40)
    assert process.checkpoint(Path("saves"), 0.05) == 40


def test_a_failed_checkpoint_raises_the_learners_own_error(checkpoint):
    future, process = checkpoint
    future.set_exception(TimeoutError("waited for replay"))
    with pytest.raises(TimeoutError, match="waited for replay"):
        process.checkpoint(Path("saves"), 0.05)


def test_an_error_of_the_constructor_keeps_its_type():
    class Broken(LearnerProcess):
        def _build(self):
            raise ValueError("the mesh does not fit")

    with pytest.raises(ValueError, match="the mesh does not fit"):
        Broken("learner").ready()


class Shards:
    """Remote actors of shards that note how long each is waited for."""

    def __init__(self):
        self.node, self.waits = "home", []

    def ask(self, method, timeout_s=0.0):
        self.waits.append(timeout_s)
        return f"{method}:{len(self.waits)}"


def test_actors_wait_for_a_shard_as_long_as_the_driver_does():
    """Otherwise a replay that restores for longer could never be resumed from."""
    shard = Shards()
    producers._addresses([shard])
    assert shard.waits == [BUILD_TIMEOUT_S]


def test_the_learner_waits_for_a_shard_as_long_as_the_driver_does(monkeypatch):
    shard = Shards()
    monkeypatch.setattr(processes, "watch_for_notices", lambda announce: None)
    monkeypatch.setattr("podzero.learner.join", lambda membership, experiment: None)
    monkeypatch.setattr("podzero.runtime.build.learner_parts", lambda experiment: (None, None, None))

    def stop(addresses, *_):
        raise InterruptedError(addresses)

    monkeypatch.setattr("podzero.replay.make_reader", stop)
    experiment = SimpleNamespace(cluster=SimpleNamespace(learner_hosts=1, tpu=None))
    arguments = dict.fromkeys(("store", "directory", "snapshots", "restore_from"))
    process = LearnerProcess("l", rank=0, coordinator="", experiment=experiment, shards=[shard], **arguments)
    with pytest.raises(InterruptedError):
        process.ready()
    assert shard.waits == [BUILD_TIMEOUT_S]


@pytest.fixture
def shard():
    """The process of a replay shard whose server answers from a list: metrics, or an exception that it raises."""

    class Process(ReplayProcess):
        def _build(self):
            self.answers = []
            self._server = SimpleNamespace(info=self._answer)

        def _answer(self):
            answer = self.answers.pop(0)
            if isinstance(answer, Exception):
                raise answer
            return answer

    return Process("replay-0")


def test_a_shard_that_is_slow_to_answer_keeps_its_other_reports_and_goes_on(shard):
    slow = ReplayTimeout("replay at 10.0.0.1:7 did not answer within 30 s")
    for _ in range(2):  # the count begins anew after an answer
        shard.answers = [slow] * (SILENT_DRAINS - 1) + [{"replay/size": 3.0}]
        logged = [shard.drain()[-1].text for _ in range(SILENT_DRAINS - 1)]
        assert all("did not answer within 30 s" in text for text in logged)
        (report,) = shard.drain()
        assert report.metrics == {"replay/size": 3.0}


def test_a_shard_that_never_answers_fails(shard):
    shard.answers = [ReplayTimeout("replay did not answer")] * SILENT_DRAINS
    for _ in range(SILENT_DRAINS - 1):
        shard.drain()
    with pytest.raises(ReplayTimeout):
        shard.drain()


@pytest.fixture
def restored(monkeypatch):
    """Starts the process of a shard whose saved contents in the folders `damaged` are so; each has 70 samples."""

    def start(contents, damaged=()):
        def serve(experiment, spec, shard, restore_from=None, host=""):
            if restore_from in damaged:
                raise ReplayRestoreError(f"{restore_from} is cut short")
            size = 70 if restore_from else 0
            return SimpleNamespace(folder=restore_from, limits=lambda: SimpleNamespace(size=size), info=dict)

        monkeypatch.setattr("podzero.envs.spec_of", lambda env: None)
        monkeypatch.setattr("podzero.replay.ReplayServer", serve)
        monkeypatch.setattr(processes, "own_address", lambda: "here")
        return ReplayProcess("replay-1", experiment=SimpleNamespace(env=None), shard=1, contents=contents)

    return start


NEW, OLD = SavedShard(Path("20"), 100), SavedShard(Path("10"), 70)


@pytest.mark.parametrize(
    ("damaged", "found", "missing", "said"),
    [
        ([], Path("20"), None, ""),
        ([Path("20")], Path("10"), 30.0, "replay-1 goes on with the older contents of 10: 30 of 100 of the samples"),
        ([Path("20"), Path("10")], None, 100.0, "replay-1 goes on empty: 100 of 100 of the samples of 20 are missing"),
    ],
)
def test_a_shard_takes_the_newest_contents_that_are_whole_and_counts_what_is_missing(
    restored, damaged, found, missing, said
):
    process = restored([NEW, OLD], damaged)
    process.ready()
    assert process._server.folder == found
    reports = process.drain()
    counted = [report.metrics for report in reports if isinstance(report, MetricsReport) and report.metrics]
    assert counted == ([] if missing is None else [{"count/damaged_shards": 1.0, "count/missing_samples": missing}])
    assert said in " ".join(report.text for report in reports if isinstance(report, LogReport))


def test_another_server_at_the_port_of_a_shard_is_a_failure_at_once(shard):
    shard.answers = [WrongServer("another server answers")]
    with pytest.raises(WrongServer):
        shard.drain()
