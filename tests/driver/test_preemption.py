"""The announced end of a machine: heard from a metadata server, answered by a savepoint."""

from __future__ import annotations

import logging
import pickle
import queue
import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from types import SimpleNamespace
from urllib.parse import parse_qs, urlsplit

import pytest

from podzero.driver import preemption
from podzero.driver.preemption import metadata_host, watch_for_notices
from podzero.driver.savepoints import savepoints
from podzero.driver.train import Run, train
from podzero.monitoring.reports import LogReport, PreemptionNotice, ReportBuffer
from podzero.workdir import Workdir

PREEMPTED, MAINTENANCE = "instance/preempted", "instance/maintenance-event"
QUIET = {PREEMPTED: "FALSE", MAINTENANCE: "NONE"}


class MetadataServer(ThreadingHTTPServer):
    """Answers as Google's does: a request that knows the present state waits until it changes."""

    daemon_threads = True

    def __init__(self):
        super().__init__(("127.0.0.1", 0), _Handler)
        self.values = dict(QUIET)
        self.changed = threading.Condition()
        self.status = 200
        self.asked = []

    @property
    def address(self):
        return f"127.0.0.1:{self.server_port}"

    def set(self, key, value):
        with self.changed:
            self.values[key] = value
            self.changed.notify_all()

    def asked_for(self, key):
        return [query for asked, query in self.asked if asked == key]


class _Handler(BaseHTTPRequestHandler):
    def do_GET(self):
        url = urlsplit(self.path)
        key, query = url.path.removeprefix("/computeMetadata/v1/"), parse_qs(url.query)
        self.server.asked.append((key, query))
        if self.headers["Metadata-Flavor"] != "Google":
            return self.send_error(403)
        if self.server.status != 200:
            return self.send_error(self.server.status)
        with self.server.changed:
            self.server.changed.wait_for(
                lambda: self.server.values[key] != query["last_etag"][0], timeout=float(query["timeout_sec"][0])
            )
            value = self.server.values[key]
        self.send_response(200)
        self.send_header("ETag", value)
        self.end_headers()
        return self.wfile.write(value.encode())

    def log_message(self, *args):
        pass


@pytest.fixture
def server(monkeypatch):
    with MetadataServer() as server:
        threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05}, daemon=True).start()
        monkeypatch.setenv("GCE_METADATA_HOST", server.address)
        yield server
        server.status = 404  # ends the watchers
        for key in QUIET:
            server.set(key, "gone")
        server.shutdown()


@pytest.fixture
def quick(monkeypatch):
    """Times of a server that is near and of a test that has none to lose."""
    for name, seconds in {"HOLD_S": 1, "ANSWER_TIMEOUT_S": 2.0, "PAUSE_S": 0.05, "LONGEST_PAUSE_S": 0.2}.items():
        monkeypatch.setattr(preemption, name, seconds)


@pytest.fixture
def notices(server, quick):
    """What the watchers said."""
    said = queue.Queue()
    assert len(watch_for_notices(said.put)) == 2
    return said


def wait_until(condition, timeout_s=20.0):
    until = time.monotonic() + timeout_s
    while not condition():
        assert time.monotonic() < until
        time.sleep(0.02)


def test_a_preemption_is_announced_once(server, notices):
    wait_until(lambda: len(server.asked_for(PREEMPTED)) >= 2)
    assert notices.empty()
    server.set(PREEMPTED, "TRUE")
    assert "preempted" in notices.get(timeout=20)
    before = len(server.asked_for(PREEMPTED))
    wait_until(lambda: len(server.asked_for(PREEMPTED)) >= before + 2)
    assert notices.empty()


def test_the_end_for_maintenance_is_announced_each_time_and_a_migration_is_not(server, notices):
    for value in ("MIGRATE_ON_HOST_MAINTENANCE", "NONE", "TERMINATE_ON_HOST_MAINTENANCE", "NONE"):
        wait_until(lambda: server.asked_for(MAINTENANCE))
        server.asked.clear()
        server.set(MAINTENANCE, value)
        wait_until(lambda value=value: [value] in [query["last_etag"] for query in server.asked_for(MAINTENANCE)])
    assert "maintenance" in notices.get(timeout=20)
    assert notices.empty()
    server.set(MAINTENANCE, "TERMINATE_ON_HOST_MAINTENANCE")
    assert "maintenance" in notices.get(timeout=20)


def test_a_preemption_that_was_announced_before_anybody_asked_is_heard(server, quick):
    server.set(PREEMPTED, "TRUE")
    said = queue.Queue()
    watch_for_notices(said.put)
    assert "preempted" in said.get(timeout=20)


def test_a_request_waits_at_the_server_while_nothing_changes(server, notices):
    wait_until(lambda: len(server.asked_for(PREEMPTED)) == 2)
    time.sleep(0.5)  # of the second that the server holds a request back
    assert len(server.asked_for(PREEMPTED)) == 2
    assert notices.empty()


def test_a_server_that_fails_for_a_while_is_asked_again(server, notices):
    server.status = 503
    wait_until(lambda: len(server.asked_for(PREEMPTED)) >= 4)
    assert notices.empty()
    server.set(PREEMPTED, "TRUE")
    server.status = 200
    assert "preempted" in notices.get(timeout=20)


def test_a_server_that_does_not_know_the_keys_is_left_alone(server, quick, caplog):
    server.status = 404
    caplog.set_level(logging.INFO, logger="podzero")
    watchers = watch_for_notices(pytest.fail)
    for watcher in watchers:
        watcher.join(timeout=20)
    assert len(server.asked) == 2
    assert len(caplog.messages) == 2


def test_a_server_that_accepts_and_says_nothing_is_given_up_in_bounded_time(monkeypatch, quick):
    import socket

    with socket.create_server(("127.0.0.1", 0)) as silent:
        began = time.monotonic()
        with pytest.raises(TimeoutError):
            preemption._ask(f"127.0.0.1:{silent.getsockname()[1]}", PREEMPTED, "0")
    assert time.monotonic() - began < 10


def test_a_server_that_vanishes_is_no_error_and_pauses_grow(monkeypatch, quick):
    pauses = []

    class Enough(BaseException):
        pass

    def rest(seconds):
        pauses.append(seconds)
        if len(pauses) == 5:
            raise Enough

    monkeypatch.setattr(preemption, "time", SimpleNamespace(sleep=rest))
    with pytest.raises(Enough):
        preemption._watch("127.0.0.1:1", PREEMPTED, pytest.fail)
    assert pauses == [0.1, 0.2, 0.2, 0.2, 0.2]


def test_watchers_end_with_their_process(server, quick):
    assert all(watcher.daemon for watcher in watch_for_notices(print))


def test_nothing_is_asked_where_no_metadata_server_can_be_expected(tmp_path, monkeypatch):
    monkeypatch.delenv("GCE_METADATA_HOST", raising=False)
    assert metadata_host(tmp_path) is None
    monkeypatch.setattr(preemption, "metadata_host", lambda: None)
    assert watch_for_notices(pytest.fail) == []


@pytest.mark.parametrize("chip", ["accel0", "vfio/0"])
def test_a_machine_with_chips_asks_googles_server(tmp_path, monkeypatch, chip):
    monkeypatch.delenv("GCE_METADATA_HOST", raising=False)
    (tmp_path / chip).parent.mkdir(exist_ok=True)
    (tmp_path / chip).touch()
    assert metadata_host(tmp_path) == "metadata.google.internal"


def test_a_notice_travels_through_the_outbox_as_a_log_line_of_its_own_kind():
    outbox = ReportBuffer("learner")
    outbox.announce("this machine is about to be preempted")
    (item,) = pickle.loads(pickle.dumps(outbox.drain()))
    assert type(item) is PreemptionNotice
    assert isinstance(item, LogReport)
    assert (item.worker, item.level) == ("learner", logging.WARNING)


class Saves:
    """In place of the thread that saves: remembers what it was asked to do, and is done when told so."""

    def __init__(self):
        self.asked = []

    def submit(self, work):
        self.asked.append(work.__name__)
        self.running = True
        return SimpleNamespace(done=lambda: not self.running, exception=lambda: None)


@pytest.fixture
def run(tiny, tmp_path):
    run = Run(tiny("checkpoint.every_minutes=60"), Workdir(tmp_path), None, None)
    run._worker.shutdown()
    run._worker = Saves()
    run.begin(None, time.monotonic())
    run._save_when_due()
    assert run._worker.asked == []
    yield run
    run._metrics.close()


def notice(time_s, actor="learner"):
    return PreemptionNotice(time_s, actor, logging.WARNING, "this machine is about to be preempted")


def test_a_notice_is_answered_by_one_savepoint(run, caplog):
    caplog.set_level(logging.WARNING, logger="podzero")
    run._hear([notice(time.time())])
    assert caplog.messages == ["learner: this machine is about to be preempted"]
    for _ in range(3):
        run._save_when_due()
        run._worker.running = False
    assert run._worker.asked == ["_save"]


def test_hosts_that_announce_the_same_end_share_a_savepoint(run):
    given = time.time()
    run._hear([notice(given), notice(given, "learner-1")])
    run._save_when_due()
    run._hear([notice(given, "learner-2")])  # heard late: the savepoint under way began after it was given
    run._worker.running = False
    run._save_when_due()
    assert run._worker.asked == ["_save"]


def test_a_notice_given_while_saving_is_answered_by_another_savepoint(run):
    run._hear([notice(time.time())])
    run._save_when_due()
    run._hear([notice(time.time() + 1)])
    run._save_when_due()
    assert run._worker.asked == ["_save"]
    run._worker.running = False
    run._save_when_due()
    assert run._worker.asked == ["_save", "_save"]


def test_an_ordinary_warning_saves_nothing(run):
    run._hear([LogReport(time.time(), "learner", logging.WARNING, "the learner waits for the actors")])
    run._save_when_due()
    assert run._worker.asked == []


@pytest.mark.slow
def test_a_learner_whose_machine_is_about_to_go_is_saved_at_once(server, tmp_path, tiny, watch):
    """The next savepoint would be due in an hour; the run is cut off without winding down once this one is there."""
    workdir = Workdir(tmp_path / "run")

    class CutOff(BaseException):
        pass

    def act(status):
        if status.step >= 8:
            server.set(PREEMPTED, "TRUE")
        if savepoints(workdir):
            raise CutOff
        return False

    watcher = watch(act)
    with pytest.raises(CutOff):
        train(tiny("checkpoint.every_minutes=60", "stop.minutes=5"), workdir.root, None, watcher)
    (saved,) = savepoints(workdir)
    assert saved.step >= 8
    assert "learner: this machine is about to be preempted" in watcher.lines
