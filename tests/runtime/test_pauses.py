"""Whole runs whose actor or learner pauses for long, and one whose learner is killed."""

import signal
import time

import pytest

from podzero.files.workdir import Workdir
from podzero.runtime.checkpoints import checkpoints
from podzero.runtime.train import train

pytestmark = [pytest.mark.timeout(900), pytest.mark.slow]

PAUSE_S = 130.0
"""Longer than the parameter store, an inference server or the driver is waited for (60 to 120 s)."""


class Pause:
    """Stops a process, and lets it go on after `PAUSE_S`, once another one has said twice that it waits."""

    def __init__(self, running, name, message):
        self._running, self._name, self._message = running, name, message
        self._process = None

    def __call__(self, watcher):
        """Does the next step, if it is time; whether the pause is over."""
        if self._process is None:
            (self._process,) = self._running(self._name)
            self._process.send_signal(signal.SIGSTOP)
            self._since, self._lines = time.monotonic(), len(watcher.lines)
        waits = [line for line in watcher.lines[self._lines :] if self._message in line]
        over = len(waits) >= 2 and time.monotonic() - self._since > PAUSE_S
        if over:
            self._process.send_signal(signal.SIGCONT)
        return over


def test_training_goes_on_after_the_actor_and_the_learner_have_paused_for_long(tmp_path, tiny, watch, running):
    pauses = [
        Pause(running, "ray::ActorProcess", "learner: the learner has waited"),
        Pause(running, "ray::LearnerProcess", "actor-0: samples have waited"),
    ]
    steps = []

    def disturb(status):
        if pauses and status.step > (steps[-1] if steps else 0) + 40 and pauses[0](watcher):
            steps.append(status.step)
            del pauses[0]
        return not pauses

    workdir, watcher = Workdir(tmp_path / "run"), watch(disturb)
    short = ("stop.steps=8000", "stop.minutes=20", "checkpoint.every_minutes=60")
    ended = train(tiny(*short), workdir.root, None, watcher)
    assert "steps" in ended.reason
    assert len(steps) == 2
    assert watcher.statuses[-1].restarts == 0
    assert checkpoints(workdir)[0].step == 8000
    assert any("so the learner waits for the actors" in line for line in watcher.lines)
    assert any("so actors wait for the learner" in line for line in watcher.lines)


def test_a_run_whose_learner_is_killed_goes_on_from_its_newest_checkpoint(tmp_path, tiny, watch, running):
    workdir = Workdir(tmp_path / "run")

    def kill_the_learner(status):
        saved = status.phase == "training" and bool(checkpoints(workdir))
        if saved:
            (learner,) = running("ray::LearnerProcess")
            learner.kill()
        return saved

    watcher = watch(kill_the_learner)
    often = ("stop.steps=6000", "stop.minutes=12", "checkpoint.every_minutes=0.1")
    ended = train(tiny(*often), workdir.root, None, watcher)
    assert "steps" in ended.reason
    assert any("The run resumes from its newest checkpoint" in line for line in watcher.lines)
    assert watcher.statuses[-1].restarts == 1
    assert checkpoints(workdir)[0].step == 6000
