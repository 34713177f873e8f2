"""docs/alphazero.py: the algorithm in one file learns, and gives the outcome to each player from his own side."""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np
import pytest

from podzero.config import load
from podzero.evaluation.evaluate import evaluate
from podzero.files.workdir import Workdir
from podzero.networks.snapshots import load_snapshot

ROOT = Path(__file__).parents[2]
FILE = ROOT / "docs" / "alphazero.py"


def moves(alphazero, player, done, searched=(True, True), outcome=(0.0, 0.0)):
    """One move in two games; the reward of the first player is `outcome`."""
    rewards = np.array([[value, -value] for value in outcome], np.float32)
    zeros = np.zeros((2, 3), np.float32)
    return alphazero.Moves(zeros, zeros > 0, zeros, np.array(player), np.array(searched), rewards, np.array(done))


def test_positions_get_the_outcome_for_their_player_when_their_game_ends(alphazero):
    """The first game is won by player 0 with its third move, of which the first one was random; the second goes on."""
    replay = alphazero.Replay(capacity=10, games=2)
    replay.add(moves(alphazero, [0, 0], [False, False], searched=(False, True)), 0)
    replay.add(moves(alphazero, [1, 1], [False, False]), 1)
    assert len(replay) == 0
    replay.add(moves(alphazero, [0, 0], [True, False], outcome=(1.0, 0.0)), 2)
    assert len(replay) == 2
    batch = replay.sample(np.random.default_rng(0), 100)
    assert set(batch.value_target.tolist()) == {-1.0, 1.0}


def test_the_oldest_samples_are_replaced(alphazero):
    replay = alphazero.Replay(capacity=3, games=2)
    for version in range(5):
        replay.add(moves(alphazero, [0, 0], [True, False], outcome=(1.0, 0.0)), version)
    assert (len(replay), replay.inserted) == (3, 5)
    assert set(replay.sample(np.random.default_rng(0), 100).version.tolist()) == {4, 2, 3}


def test_it_trains_and_keeps_an_agent_that_other_commands_read(alphazero, tmp_path):
    overrides = ["network.channels=4", "network.blocks=1", "search.simulations=4", "actors.games=16",
                 "replay.min_size=32", "learner.batch_size=16"]  # fmt: skip
    workdir = Workdir(tmp_path / "run")
    steps = alphazero.run(load("tic_tac_toe", overrides), workdir, minutes=5, steps=4)
    assert load_snapshot(workdir.snapshots).version == steps >= 4


def test_files_that_its_comments_name_exist():
    named = re.findall(
        r"\b(\w+/(?:\w+\.py)?)", "".join(line for line in FILE.read_text().splitlines() if line[:1] == "#")
    )
    assert len(named) >= 8
    for name in named:
        assert (ROOT / name).exists(), name


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_it_learns_tic_tac_toe_perfectly(alphazero, tmp_path):
    workdir = Workdir(tmp_path / "run")
    alphazero.run(load("tic_tac_toe"), workdir, minutes=4)
    result = evaluate(str(workdir.root), opponent="solver", games=100, simulations=32)
    assert result["losses"] == 0
