"""Whole runs in gymnasium environments, with real Ray and real Reverb."""

from __future__ import annotations

import math

import pytest

from podzero.config import load
from podzero.evaluation.evaluate import evaluate
from podzero.files.workdir import Workdir
from podzero.runtime.checkpoints import checkpoints
from podzero.runtime.train import train

TINY = (
    "network.width=16", "network.latent=8", "search.simulations=2", "actors.games=8",
    "replay.min_size=64", "replay.capacity=2000", "replay.tolerance=null", "learner.batch_size=16",
    "learner.steps_per_dispatch=4", "learner.publish_every=8", "muzero.td_steps=5",
    "evaluation.every_minutes=0.01", "evaluation.games=2", "evaluation.simulations=2", "stop.minutes=4",
)  # fmt: skip

FLAWED = '''
"""CartPole, but one episode in five raises, and one in fifty has a reward that is not a number."""

import gymnasium
from gymnasium.envs.classic_control import CartPoleEnv


class Flawed(CartPoleEnv):
    episodes = 0

    def reset(self, **kwargs):
        Flawed.episodes += 1
        self.flaw = Flawed.episodes % 50 if Flawed.episodes % 5 == 0 else None
        return super().reset(**kwargs)

    def step(self, action):
        if self.flaw is not None and self.flaw > 0:
            raise OSError("the simulator has lost its licence")
        observation, reward, *rest = super().step(action)
        return observation, float("nan") if self.flaw == 0 else reward, *rest


gymnasium.register("Flawed-v0", entry_point=Flawed, max_episode_steps=100)
'''


@pytest.mark.slow
def test_a_run_is_trained_evaluated_and_resumed_although_its_environment_fails(tmp_path, watch, running, monkeypatch):
    (tmp_path / "flawed.py").write_text(FLAWED)
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    flawed = "env={name: gymnasium, id: Flawed-v0, module: flawed}"
    workdir, watcher = Workdir(tmp_path / "run"), watch()
    assert "200 steps" in train(load("cartpole", [flawed, *TINY, "stop.steps=200"]), workdir.root, None, watcher).reason
    last = watcher.statuses[-1]
    assert last.failed_episodes > 0
    assert last.restarts == 0
    assert last.games > 0
    assert last.acting_return is not None
    assert math.isfinite(last.loss)
    assert any("lost its licence" in line for line in watcher.lines)

    assert "240 steps" in train(load("cartpole", [flawed, *TINY, "stop.steps=240"]), workdir.root, None, watch()).reason
    assert checkpoints(workdir)[0].step == 240
    result = evaluate(str(workdir.root), games=4)
    assert result["episodes"] == 4
    assert result["player"].endswith("@240")
    assert running("ray::") == []
