"""Whole runs on recorded games: of an agent of the zoo against random moves, imported from PGN."""

from __future__ import annotations

import json

import pytest

from podzero.config import load
from podzero.evaluation.evaluate import evaluate
from podzero.files.workdir import Workdir
from podzero.networks.snapshots import snapshot_steps
from podzero.runtime.checkpoints import checkpoints
from podzero.runtime.monitoring.status import read_status
from podzero.runtime.train import train
from podzero.tools.records.command import import_games

pytestmark = [pytest.mark.timeout(900), pytest.mark.slow]


@pytest.fixture(scope="module")
def records(tmp_path_factory):
    folder = tmp_path_factory.mktemp("records")
    evaluate("zoo:tic_tac_toe", "random", 400, 8, None, 0, None, folder / "games.pgn")
    imported = import_games([folder / "games.pgn"], load("tic_tac_toe").env, folder / "imported")
    assert (imported.games, imported.left_out) == (400, {})
    return folder / "imported"


def metrics(workdir, worker, name):
    """The values of a metric of a worker, in the order of the lines."""
    lines = [json.loads(line) for line in workdir.metrics_file.read_text().splitlines()]
    return [line["metrics"][name] for line in lines if line["worker"] == worker and name in line["metrics"]]


def test_a_run_without_self_play_learns_the_moves_is_saved_and_resumes(tmp_path, tiny, watch, running, records):
    others = []

    def look(status):
        others.extend(running("ray::ActorProcess") + running("ray::ReplayProcess"))

    workdir = Workdir(tmp_path / "run")
    settings = (f"data.records={records}", "learner.batch_size=64", "stop.minutes=12")
    reason, _ = train(tiny(*settings, "stop.steps=1000"), workdir.root, None, watch(look))
    assert "steps" in reason
    assert others == []
    assert checkpoints(workdir)[0].step == snapshot_steps(workdir.snapshots)[-1] == 1000
    status = read_status(workdir).status
    assert (status.games, status.samples, status.replay_capacity) == (0, 0, 0)
    assert metrics(workdir, "learner", "learner/policy_age") == [], "no parameters made these samples"

    watcher = watch()
    train(tiny(*settings, "stop.steps=1040"), workdir.root, None, watcher)
    assert watcher.statuses[0].step == 1000
    assert checkpoints(workdir)[0].step == 1040
    # The last mean is of these 40 steps, the first one of the beginning.
    losses = metrics(workdir, "learner", "learner/policy_loss")
    assert losses[-1] < losses[0] - 0.05


def test_half_of_the_samples_are_recorded(tmp_path, tiny, watch, records):
    workdir = Workdir(tmp_path / "run")
    train(tiny(f"data.records={records}", "data.share=0.5", "stop.steps=200"), workdir.root, None, watch())
    inserted, sampled = (metrics(workdir, "replay", f"replay/{name}")[-1] for name in ("inserted", "sampled"))
    # Half of 16 samples a step, and what was read ahead.
    assert 200 * 8 <= sampled <= 200 * 8 + 256
    assert abs(8 * inserted - sampled - 512) <= 128
