"""Self-play of many moves in one program plays and writes what one move at a time does."""

from types import SimpleNamespace

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from podzero.actors import GameAssembler, RolloutCore, SelfPlayCore
from podzero.config import Experiment
from podzero.envs import make_env
from podzero.errors import ConfigError
from podzero.types import EnvSpec, SearchResult

MOVES = 5


def drawn(env):
    """A search that plays a random legal action; its policy and value are random too."""

    def search(params, key, roots, exploration):
        legal = jax.vmap(env.view)(roots).legal
        action_key, policy_key, value_key = jax.random.split(key, 3)
        logits = jnp.where(legal, jax.random.normal(policy_key, legal.shape), -jnp.inf)
        action = jax.random.categorical(action_key, logits).astype(jnp.int32)
        value = jax.random.uniform(value_key, action.shape, minval=-1.0, maxval=1.0)
        visits = legal.astype(jnp.int32)
        return SearchResult(action, jax.nn.softmax(logits), value, visits, jnp.sum(visits, axis=1))

    return search


def experiment_with(**actors):
    return Experiment.model_validate({
        "name": "rollouts",
        "env": {"name": "tic_tac_toe"},
        "network": {"name": "resnet", "channels": 8, "blocks": 1, "auxiliary": True},
        "actors": {"games": 16, "moves_per_dispatch": MOVES, "opening_fraction": 0.5, "opening_plies": 2} | actors,
        "reanalyse": {"share": 0.25},
    })  # fmt: skip


def sorted_rows(trees):
    """Samples and states as rows of numbers, in one order."""
    leaves = [np.asarray(leaf, np.float64).reshape(len(leaf), -1) for leaf in jax.tree.leaves(trees)]
    rows = np.concatenate(leaves, axis=1)
    return rows[np.lexsort(np.round(rows, 4).T)]


@pytest.mark.parametrize(
    "actors",
    [{}, {"td_lambda": 0.7, "root_value_weight": 0.3}],
    ids=["outcomes", "mixed"],
)
def test_a_program_of_many_moves_gives_the_samples_of_the_host(actors):
    experiment, env = experiment_with(**actors), make_env("tic_tac_toe")
    core = SelfPlayCore(env, drawn(env), experiment.actors, keep_states=True)
    rollouts = RolloutCore(core, env, experiment)
    state, moved = jax.jit(rollouts.init)(jax.random.key(0)), jax.jit(core.init)(jax.random.key(0))
    play, take, move = jax.jit(rollouts.play), jax.jit(rollouts.take), jax.jit(core.move)
    assembler = GameAssembler(experiment.actors, auxiliary_targets=True)
    total = 0
    for program in range(4):
        state, finished, played = play(None, np.int32(program), state)
        expected, dropped = [], 0
        for _ in range(MOVES):
            moved, made = move(None, moved)
            made = jax.device_get(made)
            expected += assembler.add(made, program)
            dropped += made.dropped.sum()
        count = int(played.samples)
        assert (count, int(played.games)) == (sum(game.plies for game in expected), len(expected))
        assert int(played.dropped) == dropped
        index = np.random.default_rng(0).permutation(count).astype(np.int32)
        found = jax.device_get(take(state.history, finished, index))
        host = jax.tree.map(lambda *parts: np.concatenate(parts), *[(game.samples, game.states) for game in expected])
        np.testing.assert_allclose(sorted_rows(found), sorted_rows(host), atol=1e-5)
        total += len(expected)
    assert total > 20


def test_a_game_without_a_longest_game_is_refused():
    endless = SimpleNamespace(spec=EnvSpec("endless", (1,), "bool", 2))
    with pytest.raises(ConfigError, match="endless has no longest game"):
        RolloutCore(None, endless, experiment_with())
