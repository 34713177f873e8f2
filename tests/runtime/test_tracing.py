"""Traces of running processes: asked for by a file, begun and collected by the driver, whoever dies meanwhile."""

import threading
import time

import jax
import jax.numpy as jnp
import pytest
from fake_cluster import PENDING, FakeRemoteActor

from podzero.files.workdir import Workdir
from podzero.runtime import tracing
from podzero.runtime.cluster.remote import WorkerDied
from podzero.runtime.process import Host, Process, RunContext
from podzero.runtime.tracing import NotTraced, Tracer, request_trace


@pytest.fixture
def workdir(tmp_path):
    return Workdir(tmp_path / "run")


@pytest.fixture
def run(workdir):
    """Starts a driver in a thread that traces these processes until the end of the test."""
    ended, threads = threading.Event(), []

    def begin(*processes):
        def drive():
            tracer = Tracer(workdir)
            with workdir.lock():
                begun.set()
                while not ended.wait(0.01):
                    tracer.advance(processes)

        begun = threading.Event()
        threads.append(threading.Thread(target=drive))
        threads[0].start()
        assert begun.wait(20)

    yield begin
    ended.set()
    for thread in threads:
        thread.join()


def test_each_process_writes_its_trace_into_a_folder_of_its_own(run, workdir):
    actors = [FakeRemoteActor("learner"), FakeRemoteActor("actor-0")]
    run(*actors)
    found = request_trace(workdir, 2.0)
    assert found.processes == {"learner": None, "actor-0": None}
    assert [actor.last("trace").args for actor in actors] == [(found.folder / actor.name, 2.0) for actor in actors]
    assert not workdir.trace_file.exists()


def test_a_dead_process_and_a_silent_one_are_named_and_the_others_traced(run, workdir, monkeypatch):
    monkeypatch.setattr(tracing, "SLACK_S", 0.1)
    dead = FakeRemoteActor("actor-0", trace=WorkerDied("actor-0 is gone"))
    run(FakeRemoteActor("learner"), dead, FakeRemoteActor("actor-1", trace=PENDING))
    found = request_trace(workdir, 0.1).processes
    assert found["learner"] is None
    assert found["actor-0"] == "actor-0 is gone"
    assert "waited" in found["actor-1"]


def test_without_a_single_trace_the_reasons_are_raised(run, workdir):
    run(FakeRemoteActor("learner", trace=RuntimeError("traced already")))
    with pytest.raises(NotTraced, match="learner: traced already"):
        request_trace(workdir, 0.1)


def test_what_is_not_running_or_does_not_answer_is_not_traced(workdir, monkeypatch):
    monkeypatch.setattr(tracing, "NOTICE_S", 0.0)
    monkeypatch.setattr(tracing, "SLACK_S", 0.0)
    with pytest.raises(NotTraced, match="not running"):
        request_trace(workdir, 0.1)
    with workdir.lock(), pytest.raises(NotTraced, match="has not answered"):
        request_trace(workdir, 0.1)
    assert not workdir.trace_file.exists()


@pytest.mark.parametrize("text", ["", "[]", '{"name": 3}', '{"name": "a"}'])
def test_a_damaged_request_is_no_request(workdir, text):
    workdir.root.mkdir()
    workdir.trace_file.write_text(text)
    actor = FakeRemoteActor("learner")
    Tracer(workdir).advance([actor])
    assert actor.calls == []


class Nothing(Process):
    def build(self):
        pass


def test_the_trace_of_a_process_has_what_its_threads_do(tmp_path):
    context = RunContext(experiment=None, workdir=None, run="", store=None, directory=None)
    process = Nothing("actor-0", context)
    host, done = Host(process), threading.Event()

    def work():
        while not done.is_set():
            jax.block_until_ready(jnp.ones(8) + 1)
            time.sleep(0.01)

    worker = threading.Thread(target=work)
    worker.start()
    host.trace(tmp_path / "actor-0", 0.2)
    done.set()
    worker.join()
    (file,) = (tmp_path / "actor-0").rglob("*.xplane.pb")
    assert list(jax.profiler.ProfileData.from_file(str(file)).planes)
