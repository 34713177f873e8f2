"""Gymnasium environments as simulators: their episodes are the same as gymnasium's."""

import gymnasium
import numpy as np
import pytest

from podzero.config import SimulatorConfig
from podzero.core.errors import ConfigError
from podzero.envs import make_env
from podzero.envs.simulator_libraries import GymnasiumSimulator, copy_of


class Slippery(gymnasium.Env):
    """Moves one step with probability 1/2; terminates at 5. It changes the array that it returned earlier."""

    observation_space = gymnasium.spaces.Box(0, 5, (1,), np.float32)
    action_space = gymnasium.spaces.Discrete(2)

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.place = np.zeros(1, np.float32)
        return self.place, {}

    def step(self, action):
        self.place += action * self.np_random.integers(2)
        return self.place, float(action), bool(self.place[0] >= 5), False, {}


@pytest.fixture(autouse=True, scope="module")
def _registered():
    gymnasium.register("Slippery-v0", Slippery, max_episode_steps=3)
    yield
    del gymnasium.registry["Slippery-v0"]


def test_episodes_are_those_of_gymnasium():
    game, env = GymnasiumSimulator("CartPole-v1", {}), gymnasium.make("CartPole-v1").unwrapped
    for seed in range(3):
        game.reset(seed)
        observation, _ = env.reset(seed=seed)
        random = np.random.default_rng(seed)
        for _ in range(40):
            np.testing.assert_array_equal(game.observation(), observation)
            action = int(random.integers(2))
            game = game.clone()
            game.step(action)
            observation, reward, terminated, _, _ = env.step(action)
            assert game.rewards() == (reward,)
            assert game.done() == terminated
            if terminated:
                break


def test_an_environment_with_chance_events_is_refused():
    with pytest.raises(ConfigError, match=r"Slippery-v0 .*chance events"):
        GymnasiumSimulator("Slippery-v0", {})


def test_masks_tell_the_legal_actions(toys):
    """The action t % 3 is illegal after t steps."""
    game = GymnasiumSimulator("toys/Masked-v0", {}, "gymnasium_toys")
    assert game.legal_actions() == [1, 2]
    game.step(1)
    twin = game.clone()
    twin.step(0)
    assert (game.legal_actions(), twin.legal_actions()) == ([0, 2], [0, 1])


@pytest.mark.parametrize(
    ("name", "kwargs", "message"),
    [
        ("Masked-v0", {"mask": "logits"}, "expected bool, or 1"),
        ("Returning-v0", {"returned": "late mask"}, "although there was no mask after the first reset"),
        ("Returning-v0", {"returned": "four"}, "step returned 4 values"),
        ("Toy-v0", {"fault": "long reward"}, r"its reward is array\(\[1.\]\)"),
    ],
)
def test_what_a_simulator_returns_is_checked(toys, name, kwargs, message):
    config = {"name": "gymnasium_simulator", "id": f"toys/{name}", "module": "gymnasium_toys", "kwargs": kwargs}
    with pytest.raises(ConfigError, match=message):
        make_env(SimulatorConfig(**config, reward_scale=0.01))


def test_time_limits_of_the_registration_are_not_applied():
    env = make_env(
        SimulatorConfig(name="gymnasium_simulator", id="MountainCar-v0", max_plies=300, reward_scale=1 / 300)
    )
    assert env.spec.players == 1
    game = GymnasiumSimulator("Acrobot-v1", {})
    for _ in range(600):
        game.step(1)
    assert not game.done()


def test_arguments_reach_the_environment():
    game = GymnasiumSimulator("CartPole-v1", {"sutton_barto_reward": True})
    game.step(0)
    assert game.rewards() == (0.0,)


@pytest.mark.parametrize(
    ("name", "kwargs", "message"),
    [
        ("CartPol-v1", {}, "unknown gymnasium id 'CartPol-v1'.*CartPole-v1"),
        ("Pendulum-v1", {}, r"Pendulum-v1 has the action space Box.*tree search needs a Discrete space"),
        ("FrozenLake-v1", {}, r"FrozenLake-v1 has the observation space Discrete\(16\); expected a Box"),
        ("CartPole-v1", {"length": 2}, "'CartPole-v1' cannot be made with kwargs {'length': 2}"),
        ("LunarLander-v3", {}, "LunarLander-v3 cannot be copied .*env.name: gymnasium and network.name: muzero_mlp"),
    ],
)
def test_environments_that_search_cannot_play_are_refused(name, kwargs, message):
    with pytest.raises(ConfigError, match=message):
        make_env(SimulatorConfig(name="gymnasium_simulator", id=name, kwargs=kwargs))


class Board:
    def __init__(self):
        self.cells = [[0, 0], [0, 0]]


class Stateless:
    """Its `__getstate__` drops its state, as in many environments."""

    def __init__(self):
        self.board, self.numbers, self.array, self.metadata = Board(), [1, 2], np.zeros(2), {"a": [1]}
        self.again, self.same = self.numbers, self.board
        self.generator = np.random.default_rng(0)

    def __getstate__(self):
        return {}


def test_copies_share_only_constant_attributes():
    thing = Stateless()
    twin = copy_of(thing)
    twin.board.cells[0][0] = 1
    twin.numbers.append(3)
    twin.array[0] = 1
    twin.generator.random()
    assert thing.board.cells == [[0, 0], [0, 0]]
    assert thing.numbers == [1, 2]
    assert thing.array.tolist() == [0, 0]
    assert thing.generator.random() == np.random.default_rng(0).random()
    assert twin.metadata is thing.metadata


class Marks(list):
    """A subclass of list."""

    def __init__(self, *marks):
        super().__init__(marks)


def test_subclasses_of_containers_are_copied():
    thing = Stateless()
    thing.marks = Marks(1, 2)
    twin = copy_of(thing)
    twin.marks.append(3)
    assert (thing.marks, type(twin.marks)) == ([1, 2], Marks)


def test_references_to_the_same_object_stay_so_in_the_copy():
    twin = copy_of(Stateless())
    assert twin.again is twin.numbers
    assert twin.same is twin.board
