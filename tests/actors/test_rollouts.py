"""Self-play of many moves in one program gives the moves, samples and targets of one move at a time on the host."""

import re
from types import SimpleNamespace

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from podzero.actors.assembly import GameAssembler
from podzero.actors.core import SelfPlayCore
from podzero.actors.device_actor import RolloutCore
from podzero.actors.targets import Plies, ends, targets_of
from podzero.config import ActorsConfig, Experiment, SearchConfig
from podzero.core.errors import ConfigError
from podzero.core.types import EnvSpec, SearchResult
from podzero.envs import make_env, sample_packing, state_packing
from podzero.envs.boards.go import Go

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


def experiment_with(ownership=False, **actors):
    return Experiment.model_validate({
        "name": "rollouts",
        "env": {"name": "tic_tac_toe"},
        "network": {"name": "resnet", "channels": 8, "blocks": 1, "auxiliary": True, "ownership": ownership},
        "actors": {"games": 16, "moves_per_dispatch": MOVES, "opening_fraction": 0.5, "opening_plies": 2} | actors,
        "reanalyse": {"share": 0.25},
    })  # fmt: skip


def packings_of(experiment, spec):
    return sample_packing(experiment, spec), state_packing(experiment, spec)


def sorted_rows(trees):
    """Samples and states as rows of numbers, in one order."""
    leaves = [np.asarray(leaf, np.float64).reshape(len(leaf), -1) for leaf in jax.tree.leaves(trees)]
    rows = np.concatenate(leaves, axis=1)
    return rows[np.lexsort(np.round(rows, 4).T)]


@pytest.mark.parametrize(
    ("env", "actors"),
    [
        pytest.param(make_env("tic_tac_toe"), {}, id="outcomes", marks=pytest.mark.slow),
        pytest.param(make_env("tic_tac_toe"), {"td_lambda": 0.7, "root_value_weight": 0.3}, id="mixed"),
        pytest.param(Go(3), {"resign_value": -0.8, "resign_fraction": 0.5}, id="ownership"),
    ],
)
def test_a_program_of_many_moves_gives_the_samples_of_the_host(env, actors):
    experiment = experiment_with(ownership=env.spec.squares > 0, **actors)
    core = SelfPlayCore(env, drawn(env), experiment.actors, True, experiment.predicts_ownership)
    rollouts = RolloutCore(core, experiment)
    state, moved = jax.jit(rollouts.init)(jax.random.key(0)), jax.jit(core.init)(jax.random.key(0))
    play, take, move = jax.jit(rollouts.play), jax.jit(rollouts.take), jax.jit(core.move)
    assembler, packings = GameAssembler(experiment.actors, auxiliary_targets=True), packings_of(experiment, env.spec)
    total = 0
    for program in range(6):
        state, finished, played = play(None, np.int32(program), state)
        expected, dropped, resignations = [], 0, []
        for _ in range(MOVES):
            moved, made = move(None, moved)
            made = jax.device_get(made)
            expected += assembler.add(made, program)
            dropped += made.dropped.sum()
            resignations.append(made.resignations)
        count = int(played.samples)
        assert (count, int(played.games)) == (sum(game.plies for game in expected), len(expected))
        assert int(played.dropped) == dropped
        assert jax.tree.map(int, played.resignations) == jax.tree.map(lambda *each: np.sum(each), *resignations)
        if not count:
            continue
        index = np.random.default_rng(0).permutation(count).astype(np.int32)
        rows = jax.device_get(take(state.history, finished, index)[:2])
        host = jax.tree.map(lambda *parts: np.concatenate(parts), *[(game.samples, game.states) for game in expected])
        found, wanted = (
            [packing.unpack(packed) for packing, packed in zip(packings, both, strict=True)]
            for both in (rows, [packing.pack(stored) for packing, stored in zip(packings, host, strict=True)])
        )
        np.testing.assert_allclose(sorted_rows(found), sorted_rows(wanted), atol=1e-5)
        total += len(expected)
    assert total > 20


def test_the_history_is_written_in_place():
    """A program neither copies the ring nor shifts it, and keeps the policies of `search.targets` actions."""
    env = make_env("tic_tac_toe")
    experiment = experiment_with().model_copy(update={"search": SearchConfig(targets=4)})
    rollouts = RolloutCore(SelfPlayCore(env, drawn(env), experiment.actors), experiment)
    state = jax.eval_shape(rollouts.init, jax.random.key(0))
    play = jax.jit(rollouts.play, donate_argnums=2)
    compiled = play.lower(None, jax.ShapeDtypeStruct((), jnp.int32), state).compile()
    rows, targets, games = state.history.policy.shape
    assert (targets, games) == (4, experiment.actors.games)
    for kind in ("f16", "s8"):
        made = re.findall(rf"= {kind}\[{rows},{targets},{games}\]\S* ([a-z-]+)\(", compiled.as_text())
        assert set(made) == {"parameter", "dynamic-update-slice", "fusion"}
    size = sum(leaf.size * leaf.dtype.itemsize for leaf in jax.tree.leaves(state.history))
    assert compiled.memory_analysis().alias_size_in_bytes >= size


def test_a_game_without_a_longest_game_is_refused():
    endless = SimpleNamespace(spec=EnvSpec("endless", (1,), "bool", 2))
    with pytest.raises(ConfigError, match="endless has no longest game"):
        RolloutCore(SimpleNamespace(env=endless), experiment_with())


ROWS, GAMES, ACTIONS = 24, 16, 5


def random_history(seed):
    """Games of different lengths, some cut off by a limit; who moves is random."""
    random = np.random.default_rng(seed)
    shape = (ROWS, GAMES)
    done = random.random(shape) < 0.2
    truncated = done & (random.random(shape) < 0.3)
    outcome = random.integers(-1, 2, shape).astype(np.float32) * (done & ~truncated)
    return Plies(
        value=random.uniform(-1, 1, shape).astype(np.float32),
        action=random.integers(0, ACTIONS, shape).astype(np.int32),
        player=random.integers(0, 2, shape).astype(np.int32),
        rewards=np.stack([outcome, -outcome], axis=1),
        done=done,
        truncated=truncated,
    )


def games_of(done):
    """The rows of all finished games, with their columns."""
    for column in range(done.shape[1]):
        start = 0
        for end in np.flatnonzero(done[:, column]):
            yield slice(start, end + 1), column
            start = end + 1


@pytest.mark.parametrize(
    ("td_lambda", "weight", "discount"), [(1.0, 0.0, 1.0), (0.7, 0.25, 1.0), (0.9, 0.0, 0.95), (0.7, 0.25, 0.95)]
)
def test_targets_are_those_of_the_host(td_lambda, weight, discount):
    plies = random_history(seed=1)
    config = ActorsConfig(td_lambda=td_lambda, root_value_weight=weight)
    found = jax.device_get(jax.jit(lambda plies: targets_of(plies, config, discount))(plies))
    for rows, column in games_of(plies.done):
        one = Plies(*(field[rows, ..., column : column + 1] for field in plies))
        expected = targets_of(one, config, discount, xp=np)
        for name, wanted in expected._asdict().items():
            np.testing.assert_allclose(getattr(found, name)[rows, column], wanted[:, 0], atol=1e-6, err_msg=name)


def test_positions_know_where_their_game_ends_and_how():
    """Two games in the first column, of which a limit ends the second; the one in the second column is unfinished."""
    done = np.array([[False, False], [True, False], [False, False], [True, False]])
    limit = np.array([[False, False], [False, False], [False, False], [True, False]])
    for xp in (np, jnp):
        end, truncated = ends(Plies(None, None, None, None, xp.asarray(done), xp.asarray(limit)), xp)
        np.testing.assert_array_equal(end, [[1, 4], [1, 4], [3, 4], [3, 4]])
        np.testing.assert_array_equal(truncated[:, 0], [False, False, True, True])
