"""A whole run, of which one process of each kind stops without dying: it is named, examined and replaced."""

import math
import signal
import time
from contextlib import suppress

import psutil
import pytest

from podzero.files.workdir import Workdir
from podzero.runtime.monitoring import pace
from podzero.runtime.monitoring.pace import Pace
from podzero.runtime.train import train

pytestmark = [pytest.mark.timeout(2400), pytest.mark.slow]

LIMIT_S, NAMED_S = 60.0, 12.0
STOPPED = {
    "actor-0": "ray::ActorProcess",
    "replay-0": "ray::ReplayProcess",
    "evaluator": "ray::EvaluatorProcess",
    "reanalyser-0": "ray::ReanalysisProcess",
    "learner": "ray::LearnerProcess",
    "the Reverb server of replay-0": "reverb_server/serve.py",
}
"""The processes to stop, in this order, by their names and parts of their titles."""


@pytest.fixture
def short_limits(monkeypatch):
    """All silences but those without a limit, and those while programs are compiled, are too long after a minute."""
    limit_s = Pace.limit_s.fget
    short = property(lambda self: LIMIT_S if self._intervals and math.isfinite(limit_s(self)) else limit_s(self))
    monkeypatch.setattr(Pace, "limit_s", short)
    monkeypatch.setattr(pace, "NAMED_S", NAMED_S)


class Stopping:
    """Stops one process after the other with SIGSTOP, each once the run has gone on after the one before."""

    def __init__(self, running):
        self._running, self._left = running, dict(STOPPED)
        self._name, self._process, self._moved = None, None, 0
        self.seen = {}
        """What status and log said, by name."""

    def __call__(self, status, lines):
        """Does what is due; returns whether all processes were stopped and replaced, and the run went on."""
        if self._process is None:
            if status.phase == "training" and status.step > self._moved + 40:
                self._stop_next(len(lines))
        elif status.silent.get(self._worker):
            self._note(status, lines)
        if self._process is not None and not alive(self._process):
            self._moved, self._process = status.step, None
        return not self._left and self._process is None and status.step > self._moved + 40

    @property
    def _worker(self):
        return self._name.split()[-1]

    def _stop_next(self, lines):
        name = next(iter(self._left), None)
        found = self._running(self._left[name]) if name else []
        if found:
            self._name, self._process, self._since, self._lines = name, found[0], time.monotonic(), lines
            del self._left[name]
            self._process.send_signal(signal.SIGSTOP)

    def _note(self, status, lines):
        said = [line for line in lines[self._lines :] if line.startswith(f"{self._worker}")]
        if self._name not in self.seen and any("has not" in line for line in said):
            self.seen[self._name] = (time.monotonic() - self._since, status)


def test_hangs(tmp_path, tiny, watch, running, short_limits):
    stopping, done = Stopping(running), []

    def act(status):
        if stopping(status, watcher.lines) and not done:
            done.append(True)
            signal.raise_signal(signal.SIGTERM)
        return bool(done)

    watcher = watch(act)
    settings = (
        "stop.minutes=35", "checkpoint.every_minutes=0.25", "evaluation.every_minutes=0.1", "evaluation.games=2",
        "reanalyse.share=0.5", "reanalyse.count=1", "actors.count=1",
    )  # fmt: skip
    workdir = Workdir(tmp_path / "run")
    train(tiny(*settings), workdir.root, None, watcher)
    assert set(stopping.seen) == set(STOPPED)
    assert max(seconds for seconds, _ in stopping.seen.values()) < 60.0
    assert stopping.seen["learner"][1].steps_per_s == 0.0
    log = workdir.log_file.read_text()
    for worker in ("actor-0", "replay-0", "evaluator", "reanalyser-0", "learner"):
        assert f"{worker}: its state is" in log
    assert "Thread " in log, "stacks"
    assert "the state of its process is" in log


def alive(process):
    with suppress(psutil.NoSuchProcess):
        return process.status() != psutil.STATUS_ZOMBIE
    return False
