"""Which simulators `check_simulator` accepts, and its message for each violation of the contract."""

import itertools
import random

import numpy as np
import pytest

from podzero.config import SimulatorConfig, load
from podzero.core.errors import ConfigError
from podzero.envs import make_env
from podzero.envs.registry import make_simulator
from podzero.envs.simulator import check_simulator

ADAPTED = [
    *[("open_spiel", game) for game in ("connect_four", "tic_tac_toe", "breakthrough", "catch", "mancala")],
    *[("gymnasium_simulator", name) for name in ("CartPole-v1", "Acrobot-v1", "MountainCar-v0")],
]


@pytest.mark.parametrize(("kind", "name"), ADAPTED)
def test_adapters_satisfy_the_contract(kind, name):
    config = SimulatorConfig(name=kind, id=name)
    check_simulator(make_simulator(config), config.title, games=3, max_plies=20)


def test_the_game_of_the_docs_satisfies_the_contract():
    check_simulator(make_simulator(load("own_game").env), "own_game", games=20)


def test_a_correct_game_is_accepted(countdown):
    check_simulator(countdown(), "countdown", games=20)


def refused(simulator):
    with pytest.raises(ConfigError) as refusal:
        check_simulator(simulator, "the game", games=5)
    return str(refusal.value)


def test_a_clone_that_shares_its_board(countdown):
    class Shared(countdown):
        def clone(self):
            twin = super().clone()
            twin.stones = self.stones
            return twin

    assert "clones are not independent: a step of the clone changed the original" in refused(Shared())


def test_a_clone_that_shares_its_random_generator(countdown):
    """The positions differ only after the clone has drawn a random number before the original does."""

    class Dice(countdown):
        def reset(self, seed):
            super().reset(seed)
            self.generator, self.drawn = random.Random(seed), 0

        def step(self, action):
            super().step(action)
            self.drawn = self.generator.randrange(1000)

        def observation(self):
            return np.array([self.stones[0], self.drawn], np.float32)

        def clone(self):
            twin = super().clone()
            twin.generator, twin.drawn = self.generator, self.drawn
            return twin

    assert "the same action led the clone and the original to different positions" in refused(Dice())


def test_a_clone_that_loses_state(countdown):
    class Forgetful(countdown):
        def clone(self):
            twin = super().clone()
            twin.mover = 0
            return twin

    message = refused(Forgetful())
    assert "a clone differs from its original; observation() differs" in message
    assert "(seed 0, moves so far [" in message


def test_a_game_that_the_seed_does_not_determine(countdown):
    class Unseeded(countdown):
        starts = itertools.count()

        def reset(self, seed):
            super().reset(seed)
            self.stones = [11 + next(self.starts)]

    assert "seed and moves do not determine the game after 0 moves" in refused(Unseeded())


@pytest.mark.parametrize(
    ("method", "found", "message"),
    [
        ("legal_actions", [], "legal_actions() is empty, but done() is false"),
        ("legal_actions", [0, 1, 1], "expected distinct numbers below 3, not a mask"),
        ("legal_actions", [True, False], "contains True: expected the numbers of actions, not a mask"),
        ("legal_actions", np.array([True, False, True]), "not a mask"),
        ("legal_actions", [0.0, 1.0], "contains 0.0: expected the numbers of actions"),
        ("legal_actions", [3], "legal_actions() = [3]: expected distinct numbers below 3"),
        ("player", 2, "player() = 2: expected a number below 2"),
        ("rewards", [0.0], "rewards() = (0.0,): expected 2 finite numbers"),
        ("rewards", [float("nan"), 0.0], "expected 2 finite numbers"),
        ("rewards", [1.0, 0.0], "the rewards of two players must sum to zero"),
        ("observation", np.array([np.inf, 0.0]), "the observation (float64) must contain only finite numbers"),
        ("observation", np.array(["a", "b"]), "must contain only finite numbers"),
    ],
)
def test_invalid_results(countdown, method, found, message):
    assert message in refused(type("Wrong", (countdown,), {method: lambda self: found})())


def test_an_observation_that_changes_its_shape(countdown):
    class Growing(countdown):
        def observation(self):
            return np.zeros(self.stones[0] + 1, np.float32)

    message = refused(Growing())
    assert "the observation was float32 of shape [12] at the start, and is now float32 of shape [" in message


def test_a_game_that_raises(countdown):
    class Raising(countdown):
        def step(self, action):
            raise KeyError("nine")

    assert "the game cannot be played: it raised KeyError: 'nine' (seed 0, moves so far [])" in refused(Raising())


def test_a_game_that_is_over_before_its_first_move(countdown):
    class Over(countdown):
        def done(self):
            return not super().done()

    assert "done() is true before the first move (seed 0, moves so far [])" in refused(Over())


def test_a_game_that_cannot_be_reset(countdown):
    class Unresettable(countdown):
        def reset(self, seed):
            raise NameError("stones")

    assert "the game cannot be played: it raised NameError: stones (seed 0, moves so far [])" in refused(Unresettable())


@pytest.mark.parametrize(
    ("env", "message"),
    [
        ({"id": "CartPole-v1"}, r"the rewards of a random game sum to .*set env.reward_scale to 0\.\d+ or less"),
        ({"id": "CartPole-v1", "reward_scale": 0.5}, "set env.reward_scale to"),
        ({"id": "CartPole-v1", "discount": 0.5, "reward_scale": 0.5}, None),
        ({"id": "CartPole-v1", "reward_scale": 0.05}, None),
    ],
)
def test_returns_must_lie_in_the_range_of_values(env, message):
    config = SimulatorConfig(name="gymnasium_simulator", **env)
    if message is None:
        make_env(config)
        return
    with pytest.raises(ConfigError, match=message):
        make_env(config)


@pytest.mark.parametrize(
    ("attribute", "value", "message"),
    [("players", 3, "players = 3: expected 1 or 2"), ("num_actions", 0, "num_actions = 0: expected a positive number")],
)
def test_invalid_attributes(countdown, attribute, value, message):
    assert message in refused(type("Wrong", (countdown,), {attribute: value})())


GAME = """
class Game:
    num_actions, players = 1, 1

    def __init__(self, size=1):
        self.size = size

    def reset(self, seed):
        pass
"""


@pytest.mark.parametrize(
    ("name", "kwargs", "message"),
    [
        (
            "game.py:Game",
            {},
            "is not a podzero.envs.Simulator: it lacks clone, done, legal_actions, observation",
        ),
        ("game.py:Gam", {}, r"has no class 'Gam' \(did you mean 'Game'\?\); its classes: Game"),
        (
            "game.py:Game",
            {"width": 1},
            r"'game.py:Game' cannot be made with kwargs .*'width': 1.*: TypeError: .* unexpected",
        ),
        ("nothing.py:Game", {}, "nothing.py cannot be imported: FileNotFoundError: there is no such file"),
        ("broken.py:Game", {}, "broken.py cannot be imported: ZeroDivisionError"),
        ("no_such_module:Game", {}, "no_such_module cannot be imported: ModuleNotFoundError"),
        ("Game", {}, "expected module:Class, or path/to/file.py:Class"),
    ],
)
def test_a_python_game_that_cannot_be_imported(tmp_path, monkeypatch, name, kwargs, message):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "game.py").write_text(GAME)
    (tmp_path / "broken.py").write_text("1 / 0")
    with pytest.raises(ConfigError, match=message):
        make_env(SimulatorConfig(name="simulator", id=name, kwargs=kwargs))


def test_a_missing_package_is_named(monkeypatch):
    monkeypatch.setitem(__import__("sys").modules, "pyspiel", None)
    with pytest.raises(ConfigError, match=r"OpenSpiel .*not installed .*--extra envs"):
        make_env(SimulatorConfig(name="open_spiel", id="connect_four"))


def test_a_game_whose_moves_depend_on_the_seed(countdown):
    """Every position is determined by seed and moves, so that clones would foresee the rolls."""

    class Rolls(countdown):
        def reset(self, seed):
            super().reset(seed)
            self.seed = seed

        def step(self, action):
            super().step(action)
            if self.stones[0] > 3 and self.seed % 2:
                self.stones[0] -= 1

        def clone(self):
            twin = super().clone()
            twin.seed = getattr(self, "seed", 0)
            return twin

    assert "it has chance events: after the same moves" in refused(Rolls())


def test_names_that_two_actions_share(countdown):
    class Named(countdown):
        def action_name(self, action):
            return "take" if action else "take "

    assert "action_name() of the legal actions gives ['take', 'take', 'take']: expected distinct names" in refused(
        Named()
    )
