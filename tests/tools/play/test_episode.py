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
from podzero.evaluation.arena import Interrupted
from podzero.evaluation.evaluate import evaluate
from podzero.evaluation.resolve import acting
from podzero.files.players import game_to_play
from podzero.tools.play import episode as watching
from podzero.tools.play.episode import FrameLog, watcher_of

SIMULATOR = SimulatorConfig(
    name="gymnasium_simulator", id="CartPole-v1", max_plies=40, reward_scale=0.02, discount=0.99
)


def forever(step):
    return True


@pytest.fixture(scope="module")
def agent(cartpole):
    return watcher_of(cartpole, game_to_play(None, cartpole), None)


def test_the_return_is_that_of_an_evaluation_with_the_same_seed(agent, cartpole):
    result = evaluate(cartpole, games=1, seed=5)
    episode = agent.episode(5, forever)
    assert (episode.returns[-1], episode.steps) == (result["mean_return"], result["mean_length"])
    assert episode.subject.player == result["player"]
    assert agent.episode(6, forever).frames != episode.frames


def test_each_position_has_a_frame_from_the_start_to_the_end(agent):
    shown = []
    episode = agent.episode(0, forever, shown.append)
    assert tuple(shown) == episode.frames  # each as it came
    assert len(episode.frames) == episode.steps + 1
    assert episode.cut is None
    assert len(set(episode.frames)) > episode.steps / 2
    assert watching.size_of(episode.frames[0]) == (600, 400)
    assert np.asarray(Image.open(io.BytesIO(episode.frames[0]))).shape == (400, 600, 3)
    assert episode.subject.steps_per_second == 50.0


def test_values_are_those_of_the_agents_searches(agent, cartpole, monkeypatch):
    said = []

    def spied(*arguments):
        name, decide = acting(*arguments)

        def spy(key, observation):
            found = decide(key, observation)
            said.append(found[1])
            return found

        return name, spy

    monkeypatch.setattr(watching, "acting", spied)
    episode = watcher_of(cartpole, game_to_play(None, cartpole), None).episode(0, forever)
    assert episode.values.tolist() == [float(value[0]) for value in said]
    assert len(set(episode.values)) > 1
    assert agent.episode(0, forever).values.tolist() == pytest.approx(episode.values.tolist())


@pytest.mark.parametrize("who", ["random", "greedy"])
def test_named_players_have_no_values(who, monkeypatch):
    monkeypatch.setattr(watching, "FrameLog", lambda show: FrameLog(most_frames=3))
    episode = watcher_of(who, game_to_play("pendulum", who), None).episode(2, forever)
    assert episode.values is None
    assert (episode.steps, len(episode.frames)) == (200, 3)
    assert episode.returns[-1] == pytest.approx(evaluate(who, games=1, seed=2, game="pendulum")["mean_return"])


def test_a_failed_episode_is_forgotten_and_played_again(monkeypatch):
    """A policy whose third action is a fault of the toy: two steps are forgotten."""
    monkeypatch.syspath_prepend("tests/envs")
    calls = []

    def choose(key, observation):
        calls.append(1)
        return np.array([2 if len(calls) == 3 else 1], np.int32)

    monkeypatch.setattr(watching, "baseline", lambda name, environments: choose)
    toy = GymnasiumConfig(name="gymnasium", id="toys/Drawn-v0", module="gymnasium_toys")
    episode = watcher_of("random", toy, None).episode(0, forever)
    assert episode.rewards.tolist() == [1.0] * 4
    shades = [np.asarray(Image.open(io.BytesIO(frame)))[0, 0, 0] for frame in episode.frames]
    assert shades == [0, 10, 20, 30, 40]


def test_an_episode_is_abandoned_when_nobody_watches(agent):
    steps = []
    with pytest.raises(Interrupted):
        agent.episode(0, lambda step: steps.append(step) or step < 2)
    assert steps == [0, 1, 2]


def test_a_simulator_is_shown_with_returns_and_values_in_its_own_units(monkeypatch):
    player = SimpleNamespace(name="left", deterministic=True, choose=lambda key, states: np.zeros(1, np.int32))
    monkeypatch.setattr(watching, "resolve", lambda *_: player)
    episode = watcher_of("left", SIMULATOR, None).episode(0, forever)
    assert 5 < episode.steps < 15
    assert episode.returns[-1] == episode.steps
    assert len(episode.frames) == episode.steps + 1
    assert episode.values is None

    searched = watching.SearchPlayer(
        "search", lambda params, key, roots: SimpleNamespace(action=np.zeros(1, np.int32), value=np.full(1, 0.5)),
        None, deterministic=True,
    )  # fmt: skip
    monkeypatch.setattr(watching, "resolve", lambda *_: searched)
    again = watcher_of("search", SIMULATOR, None).episode(0, forever)
    assert again.frames == episode.frames
    assert again.values.tolist() == [25.0] * episode.steps


def test_the_game_of_a_simulator_is_that_of_an_evaluation():
    episode = watcher_of("random", SIMULATOR, None).episode(3, forever)
    player = watching.resolve("random", make_env(SIMULATOR))
    played = watching.play_alone(make_env(SIMULATOR), player, 1, jax.random.key(3)) / SIMULATOR.reward_scale
    assert episode.returns[-1] == pytest.approx(played[0])


def test_games_for_two_and_players_that_do_not_act_are_refused():
    with pytest.raises(ConfigError, match=r"tictactoe_v3 .*two players"):
        watcher_of("random", SimulatorConfig(name="pettingzoo", id="tictactoe_v3"), None)
    with pytest.raises(ConfigError, match=r"'mcts:4' .*CartPole-v1"):
        watcher_of("mcts:4", game_to_play("cartpole", "mcts:4"), None)


def test_frames_are_kept_up_to_a_number_and_a_size():
    noise = np.random.default_rng(0).integers(256, size=(20, 20, 3)).astype(np.uint8)
    few, small = FrameLog(most_frames=3), FrameLog(most_bytes=3000)
    for _ in range(10):
        few.add(noise)
        small.add(noise)
    assert (len(few.frames), few.full) == (3, True)
    assert len(small.frames) == -(-3000 // len(small.frames[0]))
    few.clear()
    few.add(noise)
    assert len(few.frames) == 1


def test_an_episode_says_that_frames_are_missing(agent, monkeypatch):
    monkeypatch.setattr(watching, "FrameLog", lambda show: FrameLog(most_frames=3))
    episode = agent.episode(0, forever)
    assert len(episode.frames) == 3
    assert episode.cut == f"frames of the first 3 of {episode.steps} steps only: more are not kept"
    assert len(episode.values) == episode.steps
