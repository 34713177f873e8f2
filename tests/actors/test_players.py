"""Self-play in games in which each player has a value."""

from pathlib import Path

import jax
import numpy as np
from random_parameters import random_parameters

from podzero.actors.assembly import GameAssembler
from podzero.actors.core import SelfPlayCore
from podzero.actors.device_actor import RolloutCore
from podzero.actors.targets import Plies, targets_of
from podzero.config import ActorsConfig, Experiment, MLPConfig, OwnGameConfig, SearchConfig
from podzero.envs import make_env, sample_packing
from podzero.networks import make_network
from podzero.search import make_search, network_evaluation, rules_model

CONFIGS = Path(__file__).resolve().parents[2] / "configs"
MOVES = 24


def outcomes_of_all(rewards, players, discount=1.0):
    nothing, last = np.zeros(len(players), np.float32), np.arange(len(players)) == len(players) - 1
    fields = (nothing, nothing.astype(np.int32), players, rewards, last, last & False)
    plies = Plies(*(field[..., None] for field in fields))
    return targets_of(plies, ActorsConfig(), discount, values=3, xp=np).value[..., 0]


def test_outcomes_begin_with_the_player_to_move():
    # Player 0 moves twice in a row; player 2 gets 1 and 0.5 at the end, player 1 gives one of them.
    rewards = np.array([[0, 0, 0], [0.25, 0, 0], [0, 0, 0], [0, -0.5, 1]], np.float32)
    players = np.array([0, 0, 1, 2])
    found = outcomes_of_all(rewards, players)
    np.testing.assert_allclose(found, [[0.25, -0.5, 1], [0.25, -0.5, 1], [-0.5, 1, 0], [1, 0, -0.5]])
    np.testing.assert_allclose(outcomes_of_all(rewards, players, 0.5)[1], [0.25, -0.125, 0.25])


def test_a_program_of_many_moves_gives_the_samples_of_the_host():
    config = OwnGameConfig(name=f"{CONFIGS / 'own_three_players.py'}:ThreeInARow")
    env = make_env(config)
    experiment = Experiment(
        name="three",
        env=config,
        network=MLPConfig(name="mlp", width=8, layers=1),
        actors=ActorsConfig(games=8, moves_per_dispatch=MOVES),
    )
    network = make_network(experiment.network, env.spec)
    model = rules_model(env, network_evaluation(env, network.apply))
    core = SelfPlayCore(env, make_search(SearchConfig(simulations=4), model), experiment.actors)
    rollouts, params = RolloutCore(core, experiment), random_parameters(network, 1)
    state, moved = jax.jit(rollouts.init)(jax.random.key(0)), jax.jit(core.init)(jax.random.key(0))
    play, take, move = jax.jit(rollouts.play), jax.jit(rollouts.take), jax.jit(core.move)
    assembler, expected = GameAssembler(experiment.actors, values=env.spec.values), []
    state, finished, played = play(params, np.int32(0), state)
    for _ in range(MOVES):
        moved, made = move(params, moved)
        expected += assembler.add(jax.device_get(made), 0)
    count = int(played.samples)
    assert count == sum(game.plies for game in expected) > 0
    rows = take(state.history, finished, np.arange(count, dtype=np.int32)).samples
    packing = sample_packing(experiment, env.spec)
    host = jax.tree.map(lambda *parts: np.concatenate(parts), *[game.samples for game in expected])
    found, host = packing.unpack(np.asarray(rows)), packing.unpack(packing.pack(host))
    assert found.value_target.shape == host.value_target.shape == (count, 3)
    np.testing.assert_allclose(sorted_rows(found), sorted_rows(host), atol=1e-5)
    # Somebody wins nearly all games of three beginners: whoever does, the others lose half as much.
    assert set(np.unique(host.value_target)) <= {-0.5, 0.0, 1.0}
    won = host.value_target.max(axis=1) == 1
    assert won.mean() > 0.5
    np.testing.assert_allclose(host.value_target.sum(axis=1), 0, atol=1e-6)


def sorted_rows(samples):
    """Samples as rows of numbers, in one order."""
    leaves = [np.asarray(leaf, np.float64).reshape(len(leaf), -1) for leaf in jax.tree.leaves(samples)]
    rows = np.concatenate(leaves, axis=1)
    return rows[np.lexsort(np.round(rows, 4).T)]
