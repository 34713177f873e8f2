"""Recorded episodes: those of `podzero evaluate --games 1`, with frames and the agent's values."""

import io
from types import SimpleNamespace

import jax
import numpy as np
import pytest
from PIL import Image

from podzero.config import GymnasiumConfig, SimulatorConfig
from podzero.core.errors import ConfigError
from podzero.envs import make_env
from podzero.evaluation.evaluate import evaluate
from podzero.evaluation.resolve import acting
from podzero.files.players import game_to_play
from podzero.tools.play import video as watching
from podzero.tools.play.video import GymnasiumWatcher, SimulatorWatcher

SIMULATOR = SimulatorConfig(
    name="gymnasium_simulator", id="CartPole-v1", max_plies=40, reward_scale=0.02, discount=0.99
)


def quietly(said):
    return None


@pytest.fixture(scope="module")
def spied(cartpole):
    """A watcher of an agent, and the list of the values of its searches."""
    said = []

    def spy_of(*arguments):
        name, decide = acting(*arguments)

        def spy(key, observation):
            found = decide(key, observation)
            said.append(float(found[1][0]))
            return found

        return name, spy

    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(watching, "acting", spy_of)
        yield GymnasiumWatcher(cartpole, game_to_play(None, cartpole), None), said


def test_an_episode_is_that_of_an_evaluation_with_the_same_seed(spied, cartpole):
    agent, said = spied
    result = evaluate(cartpole, games=1, seed=5)
    said.clear()
    episode = agent.episode(5, quietly)
    assert (sum(episode.rewards), episode.steps) == (result["mean_return"], result["mean_length"])
    assert agent.player == result["player"]
    assert agent.steps_per_second == 50.0
    # Each position has a frame, from the start to the end, and each step the value of its search.
    assert len(episode.frames) == episode.steps + 1
    assert len(set(episode.frames)) > episode.steps / 2
    assert np.asarray(Image.open(io.BytesIO(episode.frames[0]))).shape == (400, 600, 3)
    assert episode.values == said
    assert len(set(said)) > 1
    assert agent.episode(6, quietly).frames != episode.frames


@pytest.mark.parametrize(("who", "limit", "most"), [("random", "MAX_FRAMES", 3), ("random", "MAX_BYTES", 1)])
def test_named_players_have_no_values_and_frames_have_limits(who, limit, most, monkeypatch):
    monkeypatch.setattr(watching, limit, most)
    episode = GymnasiumWatcher(who, game_to_play("pendulum", who), None).episode(2, quietly)
    assert episode.values == []
    assert (episode.steps, len(episode.frames)) == (200, most)
    assert sum(episode.rewards) == pytest.approx(evaluate(who, games=1, seed=2, game="pendulum")["mean_return"])


def test_a_failed_episode_is_forgotten_and_played_again(monkeypatch):
    """A policy whose third action is a fault of the toy: two steps are forgotten."""
    monkeypatch.syspath_prepend("tests/envs")
    calls = []

    def choose(key, observation):
        calls.append(1)
        return np.array([2 if len(calls) == 3 else 1], np.int32), None

    monkeypatch.setattr(watching, "random_policy", lambda spec: choose)
    toy = GymnasiumConfig(name="gymnasium", id="toys/Drawn-v0", module="gymnasium_toys")
    episode = GymnasiumWatcher("random", toy, None).episode(0, quietly)
    assert episode.rewards == [1.0] * 4
    shades = [np.asarray(Image.open(io.BytesIO(frame)))[0, 0, 0] for frame in episode.frames]
    assert shades == [0, 10, 20, 30, 40]


def test_a_simulator_is_shown_with_returns_and_values_in_its_own_units(monkeypatch):
    player = SimpleNamespace(name="left", deterministic=True, choose=lambda key, states: np.zeros(1, np.int32))
    monkeypatch.setattr(watching, "resolve", lambda *_: player)
    episode = SimulatorWatcher("left", SIMULATOR, None).episode(0, quietly)
    assert 5 < episode.steps < 15
    assert sum(episode.rewards) == episode.steps
    assert len(episode.frames) == episode.steps + 1
    assert episode.values == []

    searched = watching.SearchPlayer(
        "search", lambda params, key, roots: SimpleNamespace(action=np.zeros(1, np.int32), value=np.full(1, 0.5)),
        None, deterministic=True,
    )  # fmt: skip
    monkeypatch.setattr(watching, "resolve", lambda *_: searched)
    again = SimulatorWatcher("search", SIMULATOR, None).episode(0, quietly)
    assert again.frames == episode.frames
    assert again.values == [25.0] * episode.steps


def test_the_game_of_a_simulator_is_that_of_an_evaluation():
    episode = SimulatorWatcher("random", SIMULATOR, None).episode(3, quietly)
    player = watching.resolve("random", make_env(SIMULATOR))
    played = watching.Arena(make_env(SIMULATOR)).alone(player, 1, jax.random.key(3)) / SIMULATOR.reward_scale
    assert sum(episode.rewards) == pytest.approx(played[0])


def test_games_for_two_and_players_that_do_not_act_are_refused():
    with pytest.raises(ConfigError, match=r"tic_tac_toe .*two players"):
        SimulatorWatcher("random", SimulatorConfig(name="open_spiel", id="tic_tac_toe"), None)
    with pytest.raises(ConfigError, match=r"'mcts:4' .*CartPole-v1"):
        GymnasiumWatcher("mcts:4", game_to_play("cartpole", "mcts:4"), None)
