"""Ctrl-C, SIGTERM and SIGHUP at any time of a run, with real processes; notices that a node will end."""

from __future__ import annotations

import logging
import os
import queue
import signal
import socket
import subprocess
import sys
import threading
import time
from contextlib import suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from random import Random
from types import SimpleNamespace
from urllib.parse import parse_qs, urlsplit

import psutil
import pytest

from podzero.files.workdir import Workdir
from podzero.runtime import stopping
from podzero.runtime.checkpoints import checkpoints
from podzero.runtime.monitoring.status import read_status
from podzero.runtime.stopping import NotStopped, StopRequest, StopSignals, metadata_host, stop_run, watch_for_notices
from podzero.runtime.train import train

EXIT_S = 10.0
"""Longest time from a signal during the start to the end of the process."""


@pytest.fixture
def send(monkeypatch):
    monkeypatch.setattr(stopping, "REPEATED_AFTER_S", 0.2)
    before = signal.signal(signal.SIGHUP, signal.SIG_DFL)  # ignored where `nohup` started the tests
    yield lambda number: os.kill(os.getpid(), number)
    signal.signal(signal.SIGHUP, before)


SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


@pytest.mark.parametrize("number", SIGNALS)
def test_the_first_signal_sets_the_event(send, number):
    with StopSignals() as signals:
        send(number)
        send(signal.SIGTERM)
        assert signals.event.is_set()
        assert signals.number == number


def test_a_second_ctrl_c_interrupts_and_one_that_was_only_passed_on_does_not(send):
    with StopSignals():
        send(signal.SIGINT)
        send(signal.SIGINT)
        time.sleep(0.3)
        with pytest.raises(KeyboardInterrupt):
            send(signal.SIGINT)


def test_of_a_burst_of_second_ctrl_cs_one_interrupts(send):
    """A parent passes on the second Ctrl-C too, and what the first copy of it ends must not be broken off."""
    with StopSignals():
        send(signal.SIGINT)
        time.sleep(0.3)
        with pytest.raises(KeyboardInterrupt):
            send(signal.SIGINT)
        send(signal.SIGINT)


def at_each_opcode(call, act):
    """Runs `call` and, before each opcode of Python code that this executes, `act`."""

    def trace(frame, event, argument):
        frame.f_trace_opcodes = True
        act()
        return trace

    before = sys.gettrace()
    sys.settrace(trace)
    try:
        call()
    finally:
        sys.settrace(before)


@pytest.mark.timeout(30)
def test_signals_that_come_together_find_no_lock_held(send):
    """A signal interrupts the handler, or a wait for one, between any two opcodes: also where one has taken a lock."""
    with StopSignals() as signals:
        at_each_opcode(lambda: send(signal.SIGTERM), lambda: send(signal.SIGHUP))
        assert signals.event.is_set()
    with StopSignals() as signals:
        waits = (lambda: signals.event.wait(0.01), signals.event.is_set)
        for call in waits:
            at_each_opcode(call, lambda: send(signal.SIGTERM))
        assert signals.event.is_set()


@pytest.mark.timeout(30)
def test_a_wait_ends_with_the_signal(send):
    with StopSignals() as signals:
        later = threading.Timer(0.1, send, [signal.SIGTERM])
        later.start()
        assert signals.event.wait(600.0)
        later.join()
        assert not StopRequest().wait(0.01)


def test_a_second_sigterm_does_not_interrupt(send):
    with StopSignals():
        send(signal.SIGTERM)
        time.sleep(0.3)
        send(signal.SIGTERM)


def test_nohup_is_respected(send):
    signal.signal(signal.SIGHUP, signal.SIG_IGN)
    with StopSignals() as signals:
        send(signal.SIGHUP)
        assert not signals.event.is_set()


@pytest.mark.parametrize("number", SIGNALS)
def test_a_signal_interrupts_the_steps_that_may_be_broken_off(send, number):
    with StopSignals() as signals:
        with pytest.raises(KeyboardInterrupt), signals.interrupting():
            send(number)
        assert signals.event.is_set()
        with pytest.raises(KeyboardInterrupt), signals.interrupting():
            pytest.fail("began after the signal")


@pytest.mark.parametrize("number", SIGNALS)
def test_the_handlers_from_before_are_restored(send, number):
    before = signal.getsignal(number)
    with StopSignals():
        assert signal.getsignal(number) is not before
    assert signal.getsignal(number) is before


class Train:
    """`podzero train` as a shell starts it: in a process group of its own. Collects what it prints."""

    def __init__(self, workdir, *settings):
        command = [Path(sys.executable).with_name("podzero"), "train", "tic_tac_toe", "--view", "plain"]
        self.process = subprocess.Popen(
            [*command, "--workdir", workdir, "actors.count=1", *settings],
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            start_new_session=True,
            # All processes of the run inherit it.
            env=os.environ | {"PODZERO_TEST_RUN": str(workdir)},
        )
        self.workdir = Workdir(workdir)
        self.children = set()
        self.text = ""
        self.reader = threading.Thread(target=self._read)
        self.reader.start()

    def _read(self):
        for line in self.process.stdout:
            self.text += line

    def wait_for(self, condition, timeout_s=280.0):
        until = time.monotonic() + timeout_s
        while not condition():
            assert self.process.poll() is None, self.text
            assert time.monotonic() < until, self.text
            time.sleep(0.05)

    @property
    def phase(self):
        """The phase of the run; None before it has one."""
        return read_status(self.workdir).status.phase if self.workdir.status_file.exists() else None

    def has_child(self, name):
        """Whether a process below this one has `name` in its command line."""
        self.children |= set(psutil.Process(self.process.pid).children(recursive=True))
        for child in self.children:
            try:
                if any(name in part for part in child.cmdline()):
                    return True
            except psutil.NoSuchProcess:
                continue
        return False

    def signal_group(self, number):
        """Signals the whole process group; returns the seconds until the end."""
        self.children |= set(psutil.Process(self.process.pid).children(recursive=True))
        began = time.monotonic()
        os.killpg(self.process.pid, number)
        self.process.wait(timeout=120)
        elapsed_s = time.monotonic() - began
        self.reader.join(timeout=20)
        return elapsed_s

    def processes(self):
        """The living processes of the run."""
        found = []
        for process in psutil.process_iter():
            with suppress(psutil.Error):
                if process.environ().get("PODZERO_TEST_RUN") == str(self.workdir.root):
                    found.append(process)
        return found

    def end(self):
        for process in self.processes():
            with suppress(psutil.NoSuchProcess):
                process.kill()
        self.process.wait(timeout=20)
        self.reader.join(timeout=20)


@pytest.fixture
def start(tmp_path):
    """Starts `Train` with the settings that it is called with."""
    started = []

    def start(*settings):
        started.append(Train(tmp_path / "run", *settings))
        return started[-1]

    yield start
    for shell in started:
        shell.end()


@pytest.fixture
def shell(start):
    return start()


def assert_quiet_end(shell, number):
    elapsed_s = shell.signal_group(number)
    assert elapsed_s < EXIT_S
    assert shell.process.returncode == 128 + number, shell.text
    for words in ("GCS", "Traceback", "SIGTERM", "raylet", "Ray address"):
        assert words not in shell.text
    _, alive = psutil.wait_procs(shell.children, timeout=20)
    assert alive == []


@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.parametrize("after_s", [1, 4, 8])
def test_ctrl_c_in_the_first_seconds_ends_the_process_soon_and_quietly(shell, after_s):
    time.sleep(after_s)
    assert_quiet_end(shell, signal.SIGINT)


@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
@pytest.mark.parametrize(
    "child", ["gcs_server", "raylet/raylet", "ray::IDLE", "ray::ReplayProcess", "ray::ActorProcess"]
)
def test_a_signal_while_processes_start_ends_all_of_them_soon_and_quietly(shell, child, number):
    shell.wait_for(lambda: shell.has_child(child))
    assert_quiet_end(shell, number)


MOMENTS = {
    "at its end": lambda shell: shell.phase == "stopping",
    "while it saves": lambda shell: any(shell.workdir.checkpoints.glob(".*")),
    "while it trains": lambda shell: shell.phase == "training",
}
"""Conditions for the moment of the signals; runs reach the first by themselves."""


@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.parametrize("moment", [3.0, 6.0, 12.0, *MOMENTS])
def test_a_hundred_signals_within_a_second_end_the_run_in_order(start, moment):
    random = Random(moment)
    shell = start("checkpoint.every_minutes=0.05", "stop.minutes=0.2" if moment == "at its end" else "stop.minutes=60")
    if moment in MOMENTS:
        shell.wait_for(lambda: MOMENTS[moment](shell))
    else:
        time.sleep(moment * random.uniform(0.7, 1.4))
    began = time.monotonic()
    for due_s in sorted(random.uniform(0, 0.8) for _ in range(100)):  # a second later Ctrl-C would count as another
        time.sleep(max(0.0, began + due_s - time.monotonic()))
        with suppress(ProcessLookupError):
            os.killpg(shell.process.pid, random.choice(SIGNALS))
    # Before the handlers are there, while Ray takes them away and at the very end, signals have their default action.
    # While Ray constructs its core worker, many SIGTERMs may let the handler of its library abort the process.
    codes = {
        *SIGNALS,
        *(128 + number for number in SIGNALS),
        0 if moment == "at its end" else signal.SIGABRT if moment not in MOMENTS else 143,
    }
    assert abs(shell.process.wait(timeout=120)) in codes, shell.text
    # Workers that Ray was starting then give up half a minute later.
    _, alive = psutil.wait_procs(shell.processes(), timeout=60)
    assert [process.cmdline() for process in alive] == [], shell.text
    assert moment not in MOMENTS or checkpoints(shell.workdir), shell.text


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_ctrl_c_after_the_start_ends_the_run_with_a_checkpoint(shell, tmp_path):
    shell.wait_for(lambda: "learner: built" in shell.text)
    shell.signal_group(signal.SIGINT)
    assert shell.process.returncode == 130
    assert list((tmp_path / "run" / "checkpoints").glob("0*"))


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_podzero_stop_ends_a_run_with_a_checkpoint(shell, command, tmp_path):
    shell.wait_for(lambda: "learner: built" in shell.text)
    code, out, _ = command("stop", str(tmp_path / "run"))
    assert code == 0
    assert "waiting for process" in out
    assert f"podzero train {tmp_path / 'run'}" in out
    assert shell.process.wait(timeout=20) == 128 + signal.SIGTERM
    assert list((tmp_path / "run" / "checkpoints").glob("0*"))
    code, out, _ = command("logs", str(tmp_path / "run"), "learner")
    assert "learner: built" in out


DRIVER = """
import signal, sys, time
from podzero.files.workdir import Workdir
lock = Workdir(sys.argv[1]).lock()
signal.signal(signal.SIGTERM, {handler})
print("ready", flush=True)
time.sleep(60)
"""


@pytest.fixture
def driver(tmp_path):
    """Starts a process that holds the lock of the directory `run` as a driver does."""
    started = []

    def start(handler):
        process = subprocess.Popen(
            [sys.executable, "-c", DRIVER.format(handler=handler), str(tmp_path / "run")],
            stdout=subprocess.PIPE,
            text=True,
        )
        started.append(process)
        assert process.stdout.readline() == "ready\n"
        return process

    yield start
    for process in started:
        process.kill()
        process.wait()
        process.stdout.close()


def test_a_request_to_stop_waits_until_the_driver_has_ended(driver, tmp_path):
    process, said = driver("lambda *_: sys.exit(143)"), []
    assert stop_run(Workdir(tmp_path / "run"), 60.0, said.append)
    assert process.wait(timeout=20) == 143
    assert any(str(process.pid) in text for text in said)
    assert not stop_run(Workdir(tmp_path / "run"), 60.0, said.append)


def test_the_wait_for_the_end_is_bounded_and_names_who_is_waited_for(driver, tmp_path):
    process = driver("signal.SIG_IGN")
    with pytest.raises(NotStopped, match=rf"process {process.pid} on .* waits on"):
        stop_run(Workdir(tmp_path / "run"), 0.5, lambda text: None)
    assert process.poll() is None


@pytest.mark.parametrize("holder", ["1 elsewhere", f"{2**22 + 1} {socket.gethostname()}", ""])
def test_a_driver_that_is_not_seen_from_here_is_named_with_what_to_do(tmp_path, holder):
    workdir = Workdir(tmp_path)
    with workdir.lock():
        (tmp_path / ".lock").write_text(holder)
        with pytest.raises(NotStopped, match=f"podzero stop {tmp_path}"):
            stop_run(workdir, 1.0, lambda text: None)


PREEMPTED, MAINTENANCE = "instance/preempted", "instance/maintenance-event"
QUIET = {PREEMPTED: "FALSE", MAINTENANCE: "NONE"}


class MetadataServer(ThreadingHTTPServer):
    """Answers like Google's server: holds a request with the present state until the state changes."""

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
    """Short waits."""
    for name, seconds in {"HOLD_S": 1, "ANSWER_TIMEOUT_S": 2.0, "PAUSE_S": 0.05, "LONGEST_PAUSE_S": 0.2}.items():
        monkeypatch.setattr(stopping, name, seconds)


@pytest.fixture
def notices(server, quick):
    """The messages of the watchers."""
    messages = queue.Queue()
    assert len(watch_for_notices(messages.put)) == 3  # two keys, and a file
    return messages


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


def test_maintenance_is_announced_each_time_and_a_migration_is_not(server, notices):
    for value in ("MIGRATE_ON_HOST_MAINTENANCE", "NONE", "TERMINATE_ON_HOST_MAINTENANCE", "NONE"):
        wait_until(lambda: server.asked_for(MAINTENANCE))
        server.asked.clear()
        server.set(MAINTENANCE, value)
        wait_until(lambda value=value: [value] in [query["last_etag"] for query in server.asked_for(MAINTENANCE)])
    assert "maintenance" in notices.get(timeout=20)
    assert notices.empty()
    server.set(MAINTENANCE, "TERMINATE_ON_HOST_MAINTENANCE")
    assert "maintenance" in notices.get(timeout=20)


def test_a_preemption_before_the_first_request_is_announced(server, quick):
    server.set(PREEMPTED, "TRUE")
    messages = queue.Queue()
    watch_for_notices(messages.put)
    assert "preempted" in messages.get(timeout=20)


def test_a_request_waits_at_the_server_until_the_value_changes(server, notices):
    wait_until(lambda: len(server.asked_for(PREEMPTED)) == 2)
    time.sleep(0.5)  # of the second that the server holds a request back
    assert len(server.asked_for(PREEMPTED)) == 2
    assert notices.empty()


def test_a_server_that_fails_is_asked_again(server, notices):
    server.status = 503
    wait_until(lambda: len(server.asked_for(PREEMPTED)) >= 4)
    assert notices.empty()
    server.set(PREEMPTED, "TRUE")
    server.status = 200
    assert "preempted" in notices.get(timeout=20)


def test_a_server_without_the_keys_is_not_asked_again(server, quick, caplog):
    server.status = 404
    caplog.set_level(logging.INFO, logger="podzero")
    watchers = watch_for_notices(pytest.fail)
    for watcher in watchers[1:]:
        watcher.join(timeout=20)
    assert len(server.asked) == 2
    assert len(caplog.messages) == 2


def test_a_server_that_never_answers_is_given_up_after_the_timeout(monkeypatch, quick):
    import socket

    with socket.create_server(("127.0.0.1", 0)) as silent:
        with pytest.raises(TimeoutError):
            stopping.ask_metadata(f"127.0.0.1:{silent.getsockname()[1]}", PREEMPTED, "0")


def test_pauses_grow_while_there_is_no_server(monkeypatch, quick):
    pauses = []

    class Enough(BaseException):
        pass

    wait = time.sleep

    def rest(seconds):
        if threading.current_thread() is not threading.main_thread():
            wait(seconds)  # another watcher
            return
        pauses.append(seconds)
        if len(pauses) == 5:
            raise Enough

    monkeypatch.setattr(stopping, "time", SimpleNamespace(sleep=rest))
    with pytest.raises(Enough):
        stopping.watch_key("127.0.0.1:1", PREEMPTED, pytest.fail)
    assert pauses == [0.1, 0.2, 0.2, 0.2, 0.2]


def test_watchers_do_not_keep_their_process_alive(server, quick):
    assert all(watcher.daemon for watcher in watch_for_notices(print))


def test_no_server_is_asked_where_there_is_none(tmp_path, monkeypatch):
    monkeypatch.delenv("GCE_METADATA_HOST", raising=False)
    (tmp_path / "product").write_text("Some PC\n")
    assert metadata_host(tmp_path / "product") is None
    assert metadata_host(tmp_path / "missing") is None
    monkeypatch.setattr(stopping, "metadata_host", lambda: None)
    assert len(watch_for_notices(pytest.fail)) == 1  # a file


def test_machines_of_google_with_and_without_chips_ask_its_server(tmp_path, monkeypatch):
    monkeypatch.delenv("GCE_METADATA_HOST", raising=False)
    (tmp_path / "product").write_text("Google Compute Engine\n")
    assert metadata_host(tmp_path / "product") == "metadata.google.internal"


def test_the_end_of_a_container_is_announced_each_time_that_its_file_changes(tmp_path, quick):
    file, messages = tmp_path / "notice", queue.Queue()
    file.touch()  # of an earlier time
    threading.Thread(target=stopping.watch_file, args=(file, messages.put), daemon=True).start()
    time.sleep(0.3)
    assert messages.empty()
    for changed_at in (1000, 2000):
        os.utime(file, (changed_at, changed_at))
        assert "container" in messages.get(timeout=20)
    time.sleep(0.3)
    assert messages.empty()


@pytest.mark.slow
def test_a_notice_is_followed_by_a_checkpoint_at_once(server, tmp_path, tiny, watch):
    """The next checkpoint is due in an hour. The run is cut off as soon as there is one."""
    workdir = Workdir(tmp_path / "run")

    class CutOff(BaseException):
        pass

    def act(status):
        if status.step >= 8:
            server.set(PREEMPTED, "TRUE")
        if checkpoints(workdir):
            raise CutOff
        return False

    watcher = watch(act)
    with pytest.raises(CutOff):
        train(tiny("checkpoint.every_minutes=60", "stop.minutes=5"), workdir.root, None, watcher)
    (saved,) = checkpoints(workdir)
    assert saved.step >= 8
    assert any("learner" in line and "preempted" in line for line in watcher.lines)
