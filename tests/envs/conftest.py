"""Fixtures: vectors of gymnasium environments, and a small simulator."""

from pathlib import Path

import numpy as np
import pytest

from podzero.config import GymnasiumConfig
from podzero.envs import VectorEnv

HEAVY = ("animal_shogi", "chess", "gardner_chess", "go_19x19", "shogi")
"""Games whose step takes long to compile: only the slow tests step them."""


class Countdown:
    """Eleven stones; the players take one to three in turn, and the player who takes the last one wins."""

    num_actions = 3
    players = 2

    def reset(self, seed):
        self.stones, self.mover = [11], 0

    def step(self, action):
        self.stones[0] -= action + 1
        self.mover = 1 - self.mover

    def legal_actions(self):
        return list(range(min(3, self.stones[0])))

    def observation(self):
        return np.array([self.stones[0], self.mover], np.float32)

    def player(self):
        return self.mover

    def rewards(self):
        return [0.0, 0.0] if self.stones[0] else [2.0 * self.mover - 1.0, 1.0 - 2.0 * self.mover]

    def done(self):
        return self.stones[0] == 0

    def clone(self):
        twin = type(self)()
        twin.stones, twin.mover = self.stones.copy(), self.mover
        return twin


@pytest.fixture(scope="session")
def countdown():
    """The class of a small game; tests derive games from it that violate the contract."""
    return Countdown


@pytest.fixture(scope="session")
def check_views():
    """Checks the shapes and dtypes of views against those of a spec."""

    def check(spec, views):
        lead = views.done.shape
        assert views.observation.shape == (*lead, *spec.observation_shape)
        assert views.observation.dtype == np.dtype(spec.observation_dtype)
        assert (views.legal.shape, views.legal.dtype) == ((*lead, spec.num_actions), np.bool_)
        assert (views.player.shape, views.player.dtype) == (lead, np.int32)
        assert (views.rewards.shape, views.rewards.dtype) == ((*lead, 2), np.float32)
        assert views.done.dtype == np.bool_

    return check


@pytest.fixture
def toys(monkeypatch):
    """Makes `gymnasium_toys` importable, also in subprocesses."""
    monkeypatch.syspath_prepend(Path(__file__).parent)


@pytest.fixture
def make_vector(toys):
    """Makes vector environments, which are closed after the test."""
    made = []

    def make(count=3, seed=0, max_failures=100, **config):
        made.append(VectorEnv(GymnasiumConfig(name="gymnasium", **config), count, seed, max_failures))
        return made[-1]

    yield make
    for vector in made:
        vector.close()
