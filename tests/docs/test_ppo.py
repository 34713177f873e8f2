"""docs/ppo.py: proximal policy optimization in one file computes advantages as by hand, and learns."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from random_walk import SECTION

from podzero.config import MLPConfig, load, parse
from podzero.core.types import Network
from podzero.evaluation.evaluate import evaluate
from podzero.files.workdir import Workdir
from podzero.networks.snapshots import load_snapshot


def moves(ppo, value, reward, keeps, truncated=None):
    """Moves in one game, of which only numbers matter."""
    column = [np.float32(numbers)[:, None] for numbers in (value, reward, keeps)]
    cut = np.zeros(column[0].shape, bool) if truncated is None else np.array(truncated)[:, None]
    nothing = np.zeros(column[0].shape, np.float32)
    return ppo.Moves(nothing, nothing, nothing, nothing, *column, cut, nothing > -1)


def test_advantages_change_sign_with_the_player_by_hand(ppo):
    """Two players in turn; the second wins. `d = [-0.4 - 0.2, 1 - 0.4]`, and then `-0.6 - 0.95 * 0.6`."""
    found = jax.jit(ppo.advantages)(moves(ppo, [0.2, 0.4], [0, 1], [-1, 0]), np.float32([9]))
    np.testing.assert_allclose(found[:, 0], [-0.6 - 0.95 * 0.6, 0.6], rtol=1e-6)


def test_an_unfinished_game_counts_the_value_of_its_last_position(ppo):
    """One player: `0.5 + 0.9 * 0.3 - 0.1`."""
    found = jax.jit(ppo.advantages)(moves(ppo, [0.1], [0.5], [0.9]), np.float32([0.3]))
    np.testing.assert_allclose(found[:, 0], [0.67], rtol=1e-6)


def test_what_a_limit_ended_teaches_nothing(ppo):
    found = jax.jit(ppo.advantages)(moves(ppo, [0.1, 0.7], [0, 1], [1, 0], [False, True]), np.float32([9]))
    np.testing.assert_allclose(found[:, 0], [0.6, 0.0], rtol=1e-6)


def test_the_loss_by_hand(ppo):
    """Two moves with advantages 1 and -1 (mean 0, deviation 1), whose probabilities rose from 1/4 to 1/2 and 3/4.

    The ratios 2 and 3: the first gain is clipped to 1.2, the second, a loss, is not: -3. Values are off by 1.
    """
    logits = jnp.log(jnp.float32([[0.5, 0.5], [0.25, 0.75]]))
    network = Network(init=None, apply=lambda params, seen: (logits, jnp.zeros(2)))
    legal, action, old = np.ones((2, 2), bool), np.int32([0, 1]), np.log(np.float32([0.25, 0.25]))
    nothing = np.zeros(2, np.float32)
    played = ppo.Moves(nothing, legal, action, old, nothing, nothing, nothing, nothing > 0, np.ones(2, bool))
    loss = jax.jit(lambda: ppo.ppo_loss(network, None, played, jnp.float32([1, -1]), jnp.ones(2)))()
    entropy = np.log(2) + (0.25 * np.log(4) + 0.75 * np.log(4 / 3))
    np.testing.assert_allclose(loss, -(1.2 - 3.0 + 0.01 * entropy) / 2 + 0.5 * 1.0, rtol=1e-5)


def test_it_learns_and_keeps_an_agent_that_other_commands_read(ppo, tmp_path):
    workdir = Workdir(tmp_path / "run")
    experiment = load("tic_tac_toe", ["network.channels=4", "network.blocks=1", "actors.games=16"])
    played = ppo.run(experiment, workdir, minutes=5, updates=2)
    assert played == 2 * ppo.MOVES * 16
    assert load_snapshot(workdir.snapshots).version == 2 * ppo.PASSES * ppo.PARTS


def test_where_a_model_is_learned_a_perceptron_takes_its_place_and_returns_are_told(ppo, tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(ppo, "MLPConfig", lambda name: MLPConfig(name=name, width=8, layers=1))
    tree = {"env": SECTION, "network": {"name": "muzero_mlp"}, "actors": {"games": 4, "inference": "device"}}
    workdir = Workdir(tmp_path / "run")
    assert ppo.run(parse({"name": "test"} | tree, "test"), workdir, 5, updates=1, reward_scale=0.1) == ppo.MOVES * 4
    assert float(capsys.readouterr().out.split()[-1]) > 1
    assert not workdir.snapshots.exists() or not list(workdir.snapshots.iterdir())


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_it_learns_tic_tac_toe(ppo, tmp_path):
    """Without search, random play loses three of four games against the perfect player."""
    workdir = Workdir(tmp_path / "run")
    ppo.run(load("tic_tac_toe"), workdir, minutes=3)
    result = evaluate(str(workdir.root), opponent="solver", games=100, simulations=32)
    assert result["losses"] <= 2
