"""Whole runs whose actor or learner pauses for long, and one whose learner is killed."""

import signal
import time

import pytest

from podzero.files.workdir import Workdir
from podzero.runtime.checkpoints import checkpoints
from podzero.runtime.monitoring.ledger import open_sums
from podzero.runtime.train import train

from .test_train import metrics

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


@pytest.mark.parametrize("pacing", ["actors.max_lag=null", "actors.max_lag=1"])
def test_a_learner_that_is_killed_restarts_alone_and_actors_and_replay_keep_what_they_have(
    tmp_path, tiny, watch, running, pacing
):
    """A checkpoint of the learner alone is what it restarts from: replay was not saved before the end."""
    workdir, killed, after = Workdir(tmp_path / "run"), {}, {}

    def others():
        names = ("ray::ActorProcess", "ray::ReplayProcess")
        return {(name, process.pid) for name in names for process in running(name)}

    def act(status):
        if not killed and status.phase == "training" and checkpoints(workdir):
            killed.update(others=others(), step=status.step)
            (learner,) = running("ray::LearnerProcess")
            learner.kill()
        elif killed and status.restarts and status.step > killed["step"] + 200:
            after.update(others=others())
        return bool(after)

    watcher = watch(act)
    often = ("checkpoint.learner_minutes=0.05", "checkpoint.every_minutes=60", pacing)
    ended = train(tiny(*often, "stop.steps=6000", "stop.minutes=12"), workdir.root, None, watcher)
    assert "steps" in ended.reason
    assert after["others"] == killed["others"]
    lines = "\n".join(watcher.lines)
    assert "The learner restarts from its newest checkpoint" in lines
    assert "are made again" in lines
    phases = [status.phase for status in watcher.statuses]
    assert "starting" in phases[phases.index("training") :]
    assert watcher.statuses[-1].restarts == 1
    inserted = [inserted for _, inserted in metrics(workdir, "replay", "replay/inserted")]
    assert inserted == sorted(inserted)
    games = [status.games for status in watcher.statuses]
    assert games == sorted(games)
    assert open_sums(watcher.statuses[-1].ledger) == ""
    steps = [step for step, _ in metrics(workdir, "learner", "learner/loss")]
    assert steps == sorted(steps)
    newest = checkpoints(workdir)[0]
    assert (newest.step, newest.whole) == (6000, True)
