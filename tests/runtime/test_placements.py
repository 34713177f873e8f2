"""Whole runs with real Ray and Reverb whose network is evaluated by servers, or on the learner's devices."""

from __future__ import annotations

import json
import signal

import pytest

from podzero.files.workdir import Workdir
from podzero.runtime import saving
from podzero.runtime.train import train

pytestmark = [pytest.mark.timeout(900), pytest.mark.slow]

SERVED = ("actors.inference=server", "server.batch_sizes=[8,16]", "stop.minutes=12", "checkpoint.every_minutes=60")


def values(workdir, kind, name):
    """What a kind of worker reported of a metric."""
    lines = [json.loads(line) for line in workdir.metrics_file.read_text().splitlines()]
    return [line["metrics"][name] for line in lines if line["worker"] == kind and name in line["metrics"]]


def newest(workdir, kind, name):
    """The last value of a metric of a kind of worker."""
    return values(workdir, kind, name)[-1]


def test_a_run_with_a_server_learns_and_survives_a_killed_and_a_hung_one(tmp_path, tiny, watch, running):
    """The first server is killed, its successor stopped (SIGSTOP); the actor's games go on with the third."""
    seen = []

    def disturb(status):
        """Waits for each server to serve, which it does once its programs are compiled."""
        ready = sum(line.startswith("inference-0: programs for batches") for line in watcher.lines)
        found = [process for process in running("ray::InferenceProcess") if process.pid not in seen]
        if found and ready > len(seen):
            seen.append(found[0].pid)
            found[0].send_signal(signal.SIGSTOP if len(seen) == 2 else signal.SIGKILL)
        return len(seen) == 2

    workdir, watcher = Workdir(tmp_path / "run"), watch(disturb)
    impatient = ("server.timeout_s=2.5", "stop.steps=400")
    reason, _ = train(tiny(*SERVED, *impatient), workdir.root, None, watcher)
    assert "steps" in reason
    assert len(seen) == 2
    lines = "\n".join(watcher.lines)
    assert "inference-0 failed" in lines
    assert "has not answered for" in lines
    assert "actor-0 failed" not in lines
    assert watcher.statuses[-1].restarts == 2
    assert newest(workdir, "inference", "server/version") >= 0
    assert sum(values(workdir, "inference-0", "count/served")) > 0
    assert newest(workdir, "actor", "server/cached") > 0
    assert running("ray::") == []


def test_a_server_beside_the_learner_serves_on_its_devices(tmp_path, tiny, watch, running):
    workdir, watcher = Workdir(tmp_path / "run"), watch()
    reason, _ = train(tiny(*SERVED, "server.beside_learner=true", "stop.steps=40"), workdir.root, None, watcher)
    assert "steps" in reason
    assert newest(workdir, "inference", "server/fill") > 0
    assert running("ray::") == []


def test_actors_play_on_devices_of_their_own(tmp_path, tiny, watch, running):
    """Memory stands for chips here: a resource of Ray that this machine has."""
    workdir, watcher = Workdir(tmp_path / "run"), watch()
    own = ("actors.inference=device", "actors.resources={memory: 1000000}", "actors.count=2", "actors.cpus=0.5")
    reason, _ = train(
        tiny(*own, "actors.moves_per_dispatch=4", "stop.steps=40", "stop.minutes=12"), workdir.root, None, watcher
    )
    assert "steps" in reason
    assert newest(workdir, "actor", "selfplay/depth_min") >= 1
    assert newest(workdir, "actor", "selfplay/plies_per_game") > 0
    assert running("ray::") == []


def test_a_run_plays_on_the_devices_of_its_learner(tmp_path, tiny, watch, running):
    workdir, watcher = Workdir(tmp_path / "run"), watch()
    settings = ("actors.inference=device", "actors.moves_per_dispatch=4", "stop.steps=40", "stop.minutes=12")
    reason, _ = train(tiny(*settings), workdir.root, None, watcher)
    assert "steps" in reason
    assert watcher.statuses[-1].games > 0
    assert newest(workdir, "actor", "selfplay/depth") >= 1
    assert running("ray::") == []


def test_a_run_plays_against_earlier_snapshots_and_others(tmp_path, tiny, watch, monkeypatch):
    monkeypatch.setattr(saving, "FIRST_SNAPSHOT_S", 1.0)
    opponents = "[{who: self, share: 0.5}, {who: earlier, share: 0.25}, {who: random, share: 0.25}]"
    settings = (f"actors.opponents={opponents}", "evaluation.every_minutes=0.05", "stop.steps=600", "stop.minutes=12")
    workdir, watcher = Workdir(tmp_path / "run"), watch()
    reason, _ = train(tiny(*settings), workdir.root, None, watcher)
    assert "steps" in reason
    for name in ("random", "earlier"):
        assert 0 <= newest(workdir, "actor", f"selfplay/score_{name}") <= 1
