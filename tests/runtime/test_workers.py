"""Workers that fail: the hosts of a learner, the order in which they end, and tracebacks of other processes."""

from __future__ import annotations

import logging
import time
from pathlib import Path
from types import SimpleNamespace

import pytest
from fake_cluster import PENDING, FakeRemoteActor, done_of, learner_group

from podzero.core.errors import ClusterError
from podzero.core.waiting import in_thread
from podzero.runtime import workers
from podzero.runtime.cluster.remote import NodeLost, WorkerDied
from podzero.runtime.monitoring.log_file import log_to_file
from podzero.runtime.workers import CHECKPOINT_TIMEOUT_S, LearnerFailed, Worker


@pytest.fixture(autouse=True)
def short_waits(monkeypatch, at_once):
    monkeypatch.setattr(workers, "in_thread", at_once)
    monkeypatch.setattr(workers, "BLAME_TIMEOUT_S", 0.2)
    monkeypatch.setattr(workers, "POLL_S", 0.01)
    monkeypatch.setattr(workers.Call, "done_of", done_of)


@pytest.fixture
def make_group():
    """Makes a group that trains; returns it, its remote actors by rank, and the calls that were made, in order."""

    def make(hosts, **answers):
        history = []
        names = ["learner", *(f"learner-{rank}" for rank in range(1, hosts))]
        actors = [
            FakeRemoteActor(name, f"node-{name}", history, **({"run": PENDING, "drain": []} | answers))
            for name in names
        ]
        learner = learner_group(*actors)
        learner.begin()
        history.clear()
        return learner, actors, history

    return make


def test_a_group_works_until_host_0_has_ended(make_group):
    learner, (first, second), _ = make_group(2)
    assert learner.working
    second.last("run").end(None)
    assert learner.working
    first.last("run").end(None)
    assert not learner.working


def test_host_0_alone_is_told_the_share_of_the_run_by_one_call_at_a_time(make_group):
    learner, (first, _), history = make_group(2, advance=PENDING)
    for share in (0.25, 0.5):
        learner.advance(share)
    assert history == ["learner advance"]
    first.last("advance").end(None)
    learner.advance(0.75)
    assert history == ["learner advance"] * 2
    assert first.last("advance").args == (0.75,)


def test_a_group_that_has_not_begun_does_not_work():
    assert not learner_group(FakeRemoteActor("learner")).working


@pytest.mark.parametrize("rank", [0, 1, 2])
def test_an_error_of_any_host_while_it_is_built_is_raised_though_the_others_wait_for_it(make_group, rank):
    learner, actors, _ = make_group(3, ready=PENDING)
    actors[rank].answers["ready"] = ValueError("the mesh does not fit")
    with pytest.raises(ValueError, match="the mesh does not fit"):
        learner.await_ready()


def test_hosts_that_are_never_built_are_named(make_group, monkeypatch):
    monkeypatch.setattr(workers, "BUILD_TIMEOUT_S", 0.0)
    learner, actors, _ = make_group(3, ready=PENDING)
    actors[1].answers["ready"] = None
    with pytest.raises(ClusterError, match=r"^waited 0 s for learner, learner-2 "):
        learner.await_ready()


def test_a_node_lost_while_learners_are_built_is_raised_instead_of_the_processes_that_died_of_it(make_group):
    learner, actors, _ = make_group(2)
    actors[0].answers["ready"] = WorkerDied("learner is gone: SIGABRT")
    actors[1].answers["ready"] = NodeLost("learner-1 is gone with its node")
    with pytest.raises(NodeLost, match="learner-1"):
        learner.await_ready()


@pytest.mark.parametrize("rank", [0, 1])
def test_an_error_of_the_program_on_any_host_is_a_failure_of_the_learner_with_its_message(make_group, rank):
    learner, actors, _ = make_group(2)
    actors[rank].last("run").end(FloatingPointError("the loss is NaN"))
    name = actors[rank].name
    with pytest.raises(LearnerFailed, match=f"^{name} failed: .*NaN$"):
        assert learner.working


def test_of_errors_of_all_hosts_that_of_the_first_is_raised(make_group):
    learner, actors, _ = make_group(3)
    for actor in actors:
        actor.last("run").end(FloatingPointError(f"NaN at {actor.name}"))
    with pytest.raises(LearnerFailed, match=r"^learner failed: NaN at learner$"):
        assert learner.working


def test_hosts_that_live_on_after_another_one_died_are_not_waited_for(make_group, monkeypatch):
    """They wait for it inside a program, until JAX gives up after a minute."""
    monkeypatch.setattr(workers, "BLAME_TIMEOUT_S", 60.0)
    # Not `time.sleep` itself, which threads of other tests call.
    clock = SimpleNamespace(monotonic=time.monotonic, sleep=lambda seconds: pytest.fail("waited"))
    monkeypatch.setattr(workers, "time", clock)
    learner, actors, _ = make_group(3)
    actors[1].die(WorkerDied("learner-1 is gone: out of memory"))
    actors[1].last("run").end(WorkerDied("learner-1 is gone: out of memory"))
    with pytest.raises(LearnerFailed, match=r"^learner-1 .*: out of memory$"):
        assert learner.working


def test_a_lost_node_is_raised_instead_of_the_error_that_it_caused_on_another_host(make_group):
    learner, actors, _ = make_group(3)
    actors[0].last("run").end(RuntimeError("host 0 has waited 60 s for the batches of host(s) 2"))
    actors[2].die(NodeLost("learner-2 is gone: its node died"))
    with pytest.raises(NodeLost, match=r"^learner-2 .*: its node died$"):
        assert learner.working


def test_a_node_that_ray_declares_dead_only_after_another_host_failed_is_waited_for_without_holding_the_loop(
    make_group, monkeypatch
):
    monkeypatch.setattr(workers, "BLAME_TIMEOUT_S", 60.0)
    monkeypatch.setattr(workers, "in_thread", in_thread)
    learner, actors, _ = make_group(2)
    actors[0].last("run").end(RuntimeError("Gloo: connection reset by peer"))
    actors[1].answers["ready"] = PENDING
    assert [learner.working for _ in range(3)] == [True] * 3
    assert not learner.can_save
    actors[1].die(NodeLost("learner-1 is gone"))
    with pytest.raises(NodeLost, match="learner-1 is gone"):
        learner._loss.result(60)
    with pytest.raises(NodeLost, match="learner-1 is gone"):
        assert learner.working


def test_a_host_that_does_not_tell_why_another_one_failed_is_waited_for_only_so_long(make_group):
    learner, actors, _ = make_group(2)
    actors[1].answers["ready"] = PENDING
    actors[0].last("run").end(RuntimeError("Gloo: connection reset by peer"))
    with pytest.raises(LearnerFailed, match=r"^learner failed: Gloo"):
        assert learner.working


@pytest.mark.parametrize("rank", [0, 1])
def test_the_last_reports_of_host_0_come_with_a_failure_if_it_still_answers(make_group, rank):
    learner, actors, _ = make_group(2)
    actors[0].answers["drain"] = ["its step"]
    actors[rank].last("run").end(FloatingPointError("NaN"))
    with pytest.raises(LearnerFailed) as raised:
        assert learner.working
    assert raised.value.reports == ["its step"]


def test_a_lost_node_is_raised_at_once(make_group):
    learner, actors, _ = make_group(2)
    actors[1].last("run").end(NodeLost("learner-1 is gone"))
    with pytest.raises(NodeLost, match="learner-1 is gone"):
        assert learner.working


def test_a_lost_node_is_raised_instead_of_the_processes_that_died_of_it(make_group):
    """jax ends the processes of the hosts that are left when it notices that one is missing."""
    learner, actors, _ = make_group(3)
    actors[0].last("run").end(WorkerDied("learner is gone: SIGABRT"))
    actors[1].die(WorkerDied("learner-1 is gone: SIGABRT"))
    actors[2].die(NodeLost("learner-2 is gone: its node died"))
    with pytest.raises(NodeLost, match="learner-2"):
        assert learner.working


def test_a_dead_process_is_raised_instead_of_the_error_that_it_caused_on_another_host(make_group):
    learner, actors, _ = make_group(2)
    actors[0].last("run").end(RuntimeError("Gloo: connection reset by peer"))
    actors[1].die(WorkerDied("learner-1 is gone: out of memory"))
    with pytest.raises(LearnerFailed, match=r"^learner-1 .*: out of memory$"):
        assert learner.working


def test_when_several_processes_died_all_are_named(make_group):
    learner, actors, _ = make_group(2)
    actors[0].last("run").end(WorkerDied("learner is gone: out of memory"))
    actors[1].die(WorkerDied("learner-1 is gone: SIGABRT"))
    with pytest.raises(LearnerFailed, match=r"^learner .*: out of memory; learner-1 .*: SIGABRT$"):
        assert learner.working


def test_a_checkpoint_begins_on_all_hosts_before_any_is_waited_for(make_group):
    learner, actors, history = make_group(3, checkpoint=40)
    assert learner.checkpoint(Path("saves/40")) == 40
    assert history == ["learner checkpoint", "learner-1 checkpoint", "learner-2 checkpoint"]
    assert all(actor.last("checkpoint").args == (Path("saves/40"), CHECKPOINT_TIMEOUT_S) for actor in actors)


@pytest.mark.parametrize("failure", [WorkerDied("learner-1 is gone"), OSError("disk full"), PENDING])
def test_a_checkpoint_that_one_host_does_not_write_fails(make_group, failure):
    learner, actors, _ = make_group(2, checkpoint=40)
    actors[1].answers["checkpoint"] = failure
    with pytest.raises(ClusterError if failure is PENDING else type(failure)):
        learner.checkpoint(Path("saves/40"))


def test_only_host_0_is_told_to_stop_and_the_last_reports_of_all_are_read(make_group):
    learner, actors, history = make_group(2)
    for actor in actors:
        actor.last("run").end(None)
        actor.answers["drain"] = [f"{actor.name} has ended"]
    assert learner.stop() == ["learner has ended", "learner-1 has ended"]
    assert history == ["learner stop", "learner drain", "learner-1 drain"]


def test_a_host_that_does_not_end_is_an_error(make_group):
    learner, actors, _ = make_group(2)
    actors[0].last("run").end(None)
    with pytest.raises(ClusterError, match=r"waited .* for 'run'"):
        learner.stop()


def test_a_host_that_fails_while_it_ends_is_a_cluster_error(make_group):
    learner, actors, _ = make_group(2)
    actors[0].last("run").end(None)
    actors[1].last("run").end(ValueError("no space left"))
    with pytest.raises(ClusterError, match=r"learner-1 .*no space left"):
        learner.stop()


def test_host_0_is_killed_last(make_group):
    learner, _, history = make_group(3)
    learner.kill()
    assert history == ["learner-2 killed", "learner-1 killed", "learner killed"]


log = logging.getLogger("podzero.test")


def failing_class():
    """A class inside a function, since Ray's workers cannot import this module."""

    class Failing:
        def run(self):
            self._search()

        def _search(self):
            raise ValueError("actor-0 chose no move")

    return Failing


def test_the_failure_of_a_method_brings_the_traceback_of_its_process(ray_cluster, tmp_path, watch):
    actor = ray_cluster.spawn(failing_class(), "actor-0", cpus=0, environment={})
    try:
        worker = Worker(actor, actor.begin("run"))
        with pytest.raises(ValueError, match="actor-0 chose no move"):
            worker.work.result(120)
        view = watch()
        with view, log_to_file(tmp_path / "log"):
            log.warning("actor-0 failed", exc_info=worker.ended())
    finally:
        actor.kill()
    text = (tmp_path / "log").read_text()
    assert "in _search" in text
    assert "ValueError: actor-0 chose no move" in text
    assert "\x1b" not in text
    (line,) = view.lines
    assert line.endswith("ValueError: actor-0 chose no move")
    assert "\n" not in line


def test_the_death_of_a_process_is_one_line_on_the_screen(tmp_path, watch):
    view = watch()
    with view, log_to_file(tmp_path / "log"):
        log.warning("actor-0 failed", exc_info=WorkerDied("actor-0 is gone: it died\n\tpid: 7\n\tthe node is alive"))
    assert view.lines == ["actor-0 failed: WorkerDied: actor-0 is gone: it died"]
    assert "the node is alive" in (tmp_path / "log").read_text()
