"""Games of simulators, played again to be shown."""

import pytest

from podzero.config import SimulatorConfig
from podzero.core.errors import ConfigError
from podzero.envs import SimulatorError, SimulatorReplay, renders

COUNTER = '''
import time
import numpy as np


class Plain:
    """Counts up or down from its seed to 0 or 9."""

    num_actions, players = 2, 1

    def reset(self, seed):
        self.at, self.reward = seed % 10, 0.0

    def step(self, action):
        self.at += 2 * action - 1
        self.reward = float(self.at)

    def legal_actions(self):
        return [0, 1]

    def observation(self):
        return np.eye(10, dtype=np.float32)[self.at]

    def player(self):
        return 0

    def rewards(self):
        return (self.reward,)

    def done(self):
        return self.at in (0, 9)

    def clone(self):
        twin = type(self)()
        twin.__dict__ |= self.__dict__
        return twin


class Counter(Plain):
    def render(self):
        return np.full((3, 2, 3), self.at, np.uint8)


class Broken(Counter):
    def render(self):
        raise ZeroDivisionError("no colours")


class Slow(Counter):
    def render(self):
        time.sleep(20)
'''


@pytest.fixture
def config(tmp_path, monkeypatch):
    (tmp_path / "counter.py").write_text(COUNTER)
    monkeypatch.chdir(tmp_path)
    return lambda name, **fields: SimulatorConfig(name="simulator", id=f"counter.py:{name}", **fields)


@pytest.fixture
def replay():
    made = []

    def make(config):
        made.append(SimulatorReplay(config))
        return made[-1]

    yield make
    for one in made:
        one.close()


def test_a_game_is_played_again_from_its_seed_by_its_moves(config, replay):
    counter = replay(config("Counter"))
    shown = [(reward, counter.frame()[0, 0, 0]) for reward in counter.play(14, [1, 0, 0])]
    assert shown == [(0.0, 4), (5.0, 5), (4.0, 4), (3.0, 3)]


def test_a_gymnasium_environment_is_shown_as_it_wants(replay):
    cartpole = replay(SimulatorConfig(name="gymnasium_simulator", id="CartPole-v1"))
    assert cartpole.steps_per_second == 50.0
    rewards, frames = zip(*((reward, cartpole.frame()) for reward in cartpole.play(0, [1] * 5)), strict=True)
    assert rewards == (0.0, *[1.0] * 5)
    assert frames[0].shape == (400, 600, 3)
    assert (frames[0] != frames[5]).any()


def test_games_that_cannot_be_shown_are_explained(config, replay):
    with pytest.raises(ConfigError, match=r"Plain .*render\(\)"):
        replay(config("Plain"))
    with pytest.raises(SimulatorError, match=r"Broken .*ZeroDivisionError: no colours"):
        replay(config("Broken")).frame()
    with pytest.raises(SimulatorError, match=r"0\.2 s.*env\.step_timeout_s"):
        replay(config("Slow", step_timeout_s=0.2)).frame()


def test_whether_a_simulator_renders_is_known_before_it_is_made(config):
    assert renders(config("Counter"))
    assert not renders(config("Plain"))
    assert renders(SimulatorConfig(name="gymnasium_simulator", id="CartPole-v1"))
    assert not renders(SimulatorConfig(name="open_spiel", id="connect_four"))


def test_the_copy_of_a_game_renders_when_its_file_is_gone(config, tmp_path):
    game = config("Counter")
    copy = (tmp_path / "counter.py").rename(tmp_path / "copy.py")
    assert renders(game.copied_to(copy))
