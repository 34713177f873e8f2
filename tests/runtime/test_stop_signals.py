"""Ctrl-C, SIGTERM and SIGHUP at any time of a run, with real processes."""

import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import psutil
import pytest

from podzero.runtime import stop_signals
from podzero.runtime.stop_signals import StopSignals

EXIT_S = 10.0
"""Longest time from a signal during the start to the end of the process."""


@pytest.fixture
def send(monkeypatch):
    monkeypatch.setattr(stop_signals, "REPEATED_AFTER_S", 0.2)
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


def test_handlers_are_installed_again_and_restored_at_the_end(send):
    before = signal.getsignal(signal.SIGTERM)
    with StopSignals() as signals:
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        signals.install()
        send(signal.SIGTERM)
        assert signals.event.is_set()
    assert signal.getsignal(signal.SIGTERM) is before


class Train:
    """`podzero train` as a shell starts it: in a process group of its own. Collects what it prints."""

    def __init__(self, workdir):
        command = [Path(sys.executable).with_name("podzero"), "train", "tic_tac_toe", "--view", "plain"]
        self.process = subprocess.Popen(
            [*command, "--workdir", workdir, "actors.count=1"],
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            start_new_session=True,
        )
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

    def end(self):
        for process in [*self.children, psutil.Process(self.process.pid)] if self.process.poll() is None else []:
            try:
                process.kill()
            except psutil.NoSuchProcess:
                continue
        self.process.wait(timeout=20)


@pytest.fixture
def train(tmp_path):
    train = Train(tmp_path / "run")
    yield train
    train.end()


def assert_quiet_end(train, number):
    elapsed_s = train.signal_group(number)
    assert elapsed_s < EXIT_S
    assert train.process.returncode == 128 + number, train.text
    for words in ("GCS", "Traceback", "SIGTERM", "raylet", "Ray address"):
        assert words not in train.text
    _, alive = psutil.wait_procs(train.children, timeout=20)
    assert alive == []


@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.parametrize("after_s", [1, 4, 8])
def test_ctrl_c_in_the_first_seconds_ends_the_process_soon_and_quietly(train, after_s):
    time.sleep(after_s)
    assert_quiet_end(train, signal.SIGINT)


@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
@pytest.mark.parametrize(
    "child", ["gcs_server", "raylet/raylet", "ray::IDLE", "ray::ReplayProcess", "ray::ActorProcess"]
)
def test_a_signal_while_processes_start_ends_all_of_them_soon_and_quietly(train, child, number):
    train.wait_for(lambda: train.has_child(child))
    assert_quiet_end(train, number)


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_ctrl_c_after_the_start_ends_the_run_with_a_checkpoint(train, tmp_path):
    train.wait_for(lambda: "learner: built" in train.text)
    train.signal_group(signal.SIGINT)
    assert train.process.returncode == 130
    assert list((tmp_path / "run" / "checkpoints").glob("0*"))
