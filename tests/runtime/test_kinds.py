"""What the processes of a run do in their own process, without Ray."""

from __future__ import annotations

import ctypes
import math
import os
import queue
import threading
import time
from concurrent.futures import Future
from pathlib import Path
from types import SimpleNamespace

import jax
import numpy as np
import pytest
import zmq
from number_server import Running, client_of, expected, rows_of

from podzero.actors import ActorClients
from podzero.config import ClusterConfig, load
from podzero.core.waiting import Wait
from podzero.files.storage import SHARD_MANIFEST, digest_of
from podzero.files.workdir import Workdir
from podzero.replay.errors import ReplayRestoreError, ReplayTimeout, WrongServer
from podzero.runtime import kinds
from podzero.runtime.checkpoints import SavedShard
from podzero.runtime.cluster.remote import BUILD_TIMEOUT_S
from podzero.runtime.kinds import LearnerProcess, ReplayProcess, running_beside, set_slices
from podzero.runtime.monitoring.reports import LogReport, MetricsReport
from podzero.runtime.process import FreedMemory, Host, Process, Replay, RunContext, hosted


def context(experiment=None, **parts):
    return RunContext(experiment, Workdir("run"), "run", "the store", "the directory", **parts)


def host(process):
    """The process as Ray holds it."""
    return hosted(type(process))(process)


def test_variables_of_a_node_that_change_what_jax_computes_are_undone_before_a_process_is_built(monkeypatch):
    class Building(Process):
        def build(self):
            found.append(os.environ.get("JAX_ENABLE_X64"))

    found = []
    monkeypatch.setenv("JAX_ENABLE_X64", "1")
    host(Building("actor-0", context()))
    assert found == [None]


def test_libtpu_is_told_of_the_slices_that_train_now_whatever_the_machine_was_told_before(monkeypatch):
    stale = {"COORDINATOR_ADDRESS": "10.0.0.9", "PORT": "1", "NUM_SLICES": "3", "SLICE_ID": "2"}
    for name, value in stale.items():
        monkeypatch.setenv(f"MEGASCALE_{name}", value)

    def told(slices, rank):
        set_slices(ClusterConfig(slice="v5e-16", slices=slices), rank, "10.0.1.0:4321")
        return tuple(os.environ[f"MEGASCALE_{name}"] for name in ("COORDINATOR_ADDRESS", "NUM_SLICES", "SLICE_ID"))

    assert [told(2, rank) for rank in (3, 4)] == [("10.0.1.0", "2", "0"), ("10.0.1.0", "2", "1")]
    assert told(1, 3) == ("10.0.1.0", "1", "0")
    for name in stale:
        monkeypatch.delenv(f"MEGASCALE_{name}")
    set_slices(ClusterConfig(slice="v5e-16"), 3, "10.0.1.0:4321")
    assert "MEGASCALE_NUM_SLICES" not in os.environ


@pytest.mark.parametrize(("driver", "graphs"), [("580.65.06", True), (None, False)])
def test_programs_of_a_process_with_a_gpu_become_graphs_and_those_of_no_other(monkeypatch, driver, graphs):
    monkeypatch.setenv("XLA_FLAGS", "")
    monkeypatch.setattr("podzero.runtime.process.nvidia_driver", lambda: driver)
    host(Process("actor-0", context()))
    assert ("+CONVOLUTION,+WHILE" in os.environ["XLA_FLAGS"]) == graphs


def test_an_actor_on_the_learners_devices_tells_it_of_each_program_that_has_ended(monkeypatch):
    monkeypatch.setattr("podzero.runtime.kinds.actor_clients", lambda *_: ActorClients(None, None, None))
    monkeypatch.setattr("podzero.actors.build.make_actor", lambda *arguments, **_: arguments[3])
    ended, experiment = [], load("tic_tac_toe", ["actors.inference=device"])
    replay = SimpleNamespace(addresses=lambda _: None)
    process = LearnerProcess("learner", context(experiment), replay=replay)
    process.reports = SimpleNamespace(report=None)
    process.learner = SimpleNamespace(step=0, device_clock=SimpleNamespace(ended=lambda *told: ended.append(told)))
    (clients,) = process._make_beside(None)
    clients.executed(3.0)
    assert ended == [("play", 3.0)]


def test_what_becomes_of_an_actors_samples_is_told_also_while_it_waits_and_after_it_has_ended():
    class Playing(Process):
        def build(self):
            self.counts.append(("actor-0", lambda: {"count/samples/confirmed": news.pop()} if news else {}))

    news = [2.0, 1.0]
    playing = host(Playing("actor-0", context()))
    for told in ([{"count/samples/confirmed": 1.0}], [{"count/samples/confirmed": 2.0}], []):
        assert [found.metrics for found in playing.drain() if isinstance(found, MetricsReport)] == told


@pytest.fixture
def checkpoint():
    """The future of the next checkpoint, and the learner's process that is asked for it."""
    future = Future()

    class Saving(LearnerProcess):
        def build(self):
            self.learner = SimpleNamespace(request_checkpoint=lambda folder: future)

    return future, host(Saving("learner", context(), replay=Replay()))


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
        def build(self):
            raise ValueError("the mesh does not fit")

    broken = host(Broken("learner", context(), replay=Replay()))
    for call in (broken.ready, broken.run):
        with pytest.raises(ValueError, match="the mesh does not fit"):
            call()
    assert broken.drain() == []


@pytest.mark.parametrize("process", [ReplayProcess, LearnerProcess])
def test_the_actor_of_ray_has_the_name_and_the_calls_of_its_process(process):
    ray_class = hosted(process)
    assert issubclass(ray_class, Host)
    assert ray_class.__name__ == process.__name__
    calls = {name for name in dir(process) if not name.startswith("_")} - {"build", "refresh"}
    assert calls - {"index", "attempt", "contents", "book", "built"} <= set(dir(ray_class))
    assert not hasattr(Process("p", context()), "reports")  # which must not travel


@pytest.mark.parametrize(("part", "names"), [((), ["replay-0", "replay-1", "replay-2"]), ((1, 2), ["replay-1"])])
def test_users_of_replay_wait_for_its_shards_as_long_as_the_driver_does(part, names):
    """Otherwise a replay that restores for longer could never be resumed from."""
    book = SimpleNamespace(await_servers=lambda *asked: asked)
    experiment = SimpleNamespace(replay_shards=3)
    process = SimpleNamespace(book=book, context=context(experiment))
    assert Replay().addresses(process, *part) == (names, BUILD_TIMEOUT_S)


@pytest.fixture
def shard():
    """The process of a replay shard whose server answers from a list: metrics, or an exception that it raises."""

    answers = []

    def info():
        answer = answers.pop(0)
        if isinstance(answer, Exception):
            raise answer
        return answer

    class Answering(ReplayProcess):
        def build(self):
            self.server = SimpleNamespace(info=info)

    return host(Answering("replay-0", context())), answers


def test_a_shard_that_is_slow_to_answer_keeps_its_other_reports_and_goes_on(shard):
    shard, answers = shard
    slow = ReplayTimeout("replay at 10.0.0.1:7 did not answer within 30 s")
    answers[:] = [slow, slow, {"replay/size": 3.0}]
    logged = [shard.drain()[-1].text for _ in range(2)]
    assert all("did not answer within 30 s" in text for text in logged)
    (report,) = shard.drain()
    assert report.metrics == {"replay/size": 3.0}


class Built(Process):
    def build(self):
        pass


def test_a_process_whose_loop_waits_says_so_while_it_has_nothing_else_to_report(monkeypatch):
    monkeypatch.setattr(Wait, "looked_at", ("", -math.inf))
    actor, now = host(Built("actor-0", context())), [time.monotonic() + 100.0]
    monkeypatch.setattr("podzero.runtime.process.time.monotonic", lambda: now[0])
    actor.drain()
    Wait(stage="write").message_due()
    (report,) = actor.drain()
    assert (report.worker, report.metrics) == ("actor-0", {"time/write": 1.0})
    assert actor.drain() == [], "not in every drain"


@pytest.fixture
def restored(monkeypatch):
    """Starts the process of a shard whose saved contents in the folders `damaged` are so; each has 70 samples.

    The second value holds the names and addresses that were announced.
    """
    announced = []

    def start(contents, damaged=()):
        def serve(experiment, spec, shard, restore_from=None, host=""):
            if restore_from in damaged:
                raise ReplayRestoreError(f"{restore_from} is cut short")
            size = 70 if restore_from else 0
            limits = SimpleNamespace(size=size)
            return SimpleNamespace(folder=restore_from, limits=lambda: limits, info=dict, address=lambda: "here:7#1")

        monkeypatch.setattr("podzero.envs.spec_of", lambda env: None)
        monkeypatch.setattr("podzero.replay.ReplayServer", serve)
        monkeypatch.setattr(kinds, "own_address", lambda: "here")
        monkeypatch.setattr(
            kinds, "keep_announced", lambda directory, name, attempt, address: announced.append((name, address))
        )
        return host(ReplayProcess("replay-1", context(SimpleNamespace(env=None)), 1, contents=contents))

    return start, announced


NEW, OLD = SavedShard(Path("20"), 100), SavedShard(Path("10"), 70)


@pytest.mark.parametrize(
    ("damaged", "found", "said"),
    [
        ([], Path("20"), ""),
        ([Path("20")], Path("10"), "with the older contents of 10: 30 of 100"),
        ([Path("20"), Path("10")], None, "empty: 100 of 100"),
    ],
)
def test_a_shard_takes_the_newest_contents_that_are_whole_and_says_what_is_missing(restored, damaged, found, said):
    start, announced = restored
    shard = start([NEW, OLD], damaged)
    shard.ready()
    assert announced == [("replay-1", "here:7#1")]
    assert shard.process.server.folder == found
    reports = shard.drain()
    counted = [report.metrics for report in reports if isinstance(report, MetricsReport) and report.metrics]
    assert counted == ([{"count/damaged_shards": 1.0}] if said else [])
    assert said in " ".join(report.text for report in reports if isinstance(report, LogReport))


def test_the_contents_of_another_checkpoint_than_the_one_named_are_refused(restored, tmp_path):
    start, _ = restored
    contents = []
    for step in ("20", "10"):
        (tmp_path / step).mkdir()
        (tmp_path / step / SHARD_MANIFEST).write_text(step)
        contents.append(SavedShard(tmp_path / step, 70, digest_of(tmp_path / step / SHARD_MANIFEST)))
    (tmp_path / "20" / SHARD_MANIFEST).write_text("of another run")
    shard = start(contents)
    shard.ready()
    assert shard.process.server.folder == tmp_path / "10"


def test_another_server_at_the_port_of_a_shard_is_a_failure_at_once(shard):
    shard, answers = shard
    answers[:] = [WrongServer("another server answers")]
    with pytest.raises(WrongServer):
        shard.drain()


@pytest.fixture
def trims(clock):
    """A clock, the times at which memory was given back, and what gives it back."""
    times = []
    return clock, times, FreedMemory(lambda: times.append(clock[0]))


def compile_something(factor):
    jax.jit(lambda x: x * factor)(np.ones(3))


def test_nothing_is_given_back_while_programs_are_compiled(trims):
    clock, times, memory = trims
    for step in range(5):
        clock[0] += 8.0
        compile_something(float(step))
        memory.give_back()
    assert times == []
    clock[0] += 11.0
    memory.give_back()
    assert times == [1051.0]


def test_it_is_given_back_once_for_each_time_of_compiling(trims):
    clock, times, memory = trims
    clock[0] = 1020.0
    for _ in range(3):
        memory.give_back()
    compile_something(0.125)
    clock[0] = 1040.0
    for _ in range(3):
        memory.give_back()
    assert times == [1020.0, 1040.0]


@pytest.mark.skipif(not hasattr(ctypes.CDLL(None), "malloc_trim"), reason="the C library is not glibc")
def test_free_pages_between_used_ones_are_given_back(clock):
    memory = FreedMemory()
    clock[0] += 11.0
    blocks = [np.ones(2**14, np.uint8) for _ in range(4000)]  # 64 MB in blocks too small for pages of their own
    del blocks[:-1]
    before = resident_mb()
    memory.give_back()
    assert resident_mb() < before - 40


def resident_mb():
    with open("/proc/self/statm") as file:
        return int(file.read().split()[1]) * 4096 / 2**20


class Actor:
    """Plays until it is stopped, or fails at once."""

    def __init__(self, failure=None, deaf=False):
        self.began, self.stopped, self.failure, self.deaf = threading.Event(), threading.Event(), failure, deaf
        self.ended = threading.Event()

    def run(self):
        self.began.set()
        if self.failure is not None:
            raise self.failure
        self.stopped.wait(10.0)
        self.ended.set()

    def stop(self):
        if not self.deaf:
            self.stopped.set()


def test_the_actor_plays_until_training_ends():
    actor = Actor()
    with running_beside(actor, fail=lambda _: None):
        assert actor.began.wait(10.0)
        assert not actor.ended.is_set()
    assert actor.ended.is_set()


def test_training_is_told_of_a_failure_of_the_actor():
    failures, failure = queue.Queue(), ValueError("no such move")
    with running_beside(Actor(failure), failures.put):
        assert failures.get(timeout=10.0) is failure


def test_an_actor_that_does_not_end_is_left_behind(monkeypatch, caplog):
    monkeypatch.setattr(kinds, "BESIDE_END_S", 0.05)
    caplog.set_level("INFO")
    actor = Actor(deaf=True)
    with running_beside(actor, fail=lambda _: None):
        assert actor.began.wait(10.0)
    assert "did not end within 0.05 s" in caplog.text
    actor.stopped.set()


def test_no_message_to_a_server_beside_the_learner_ends_training():
    serving, failures, rows = Running(start=False), queue.Queue(), rows_of(0, 4)
    stranger = zmq.Context.instance().socket(zmq.DEALER)
    stranger.setsockopt(zmq.LINGER, 0)
    stranger.connect(serving.address)
    with running_beside(serving.server, failures.put):
        for content in (b'["x", Infinity, []]', b"[" * 60_000, b'["\\ud800", 8, ["run", "hex", "", 4, 3]]'):
            stranger.send_multipart([b"hello", content])
            assert stranger.poll(20_000)
            assert stranger.recv_multipart()[0] == b"refused"
        np.testing.assert_array_equal(client_of(serving).evaluate(0, rows), expected(rows))
    assert failures.empty()
    stranger.close()
