"""The reanalyser's loop with in-memory clients, the states that self-play stores for it, and the new targets."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from failing_callback import fail_in_callback

from podzero.actors import ActorClients, ReanalysisActor
from podzero.actors.assembly import GameAssembler
from podzero.actors.core import SelfPlayCore
from podzero.actors.environments import WindowCutter, window_priorities
from podzero.actors.reanalysis import position_reanalysis, window_reanalysis
from podzero.actors.selfplay import SelfPlayActor
from podzero.config import ActorsConfig, SearchConfig, SimulatorConfig, parse
from podzero.config.samples import sample_like
from podzero.core.types import EnvSpec, ModelNetwork, Sample, SearchResult, StoredState, Versioned, Window
from podzero.envs import EnvironmentFailed, faults, make_env, pack_states, unpack_states
from podzero.replay.reader import priorities_of
from podzero.search import ModelSearchResult, make_search, rules_model

from .test_assembly import move
from .test_core import first_legal
from .test_windows import SPEC, experiment_of, outcome, position


class Source:
    """Version 3 at once, version 7 from the second poll."""

    def __init__(self):
        self.polls = 0

    def wait(self, timeout_s):
        return Versioned(3, 0.5)

    def poll(self):
        self.polls += 1
        return Versioned(7, 0.75) if self.polls == 2 else None


class Writer:
    """Calls `enough` after `writes` writes."""

    def __init__(self, diary, name, writes=0, enough=None):
        self.written, self.priorities = [], []
        self._diary, self._name, self._writes, self.enough = diary, name, writes, enough

    def write(self, samples, priorities=None, stopping=None):
        self._diary.append(self._name)
        self.written.append(samples)
        self.priorities.append(priorities)
        if len(self.written) == self._writes:
            self.enough()


BROKEN = 5
"""Version of the stored positions whose game raises an error."""


def samples_of(version, count):
    one = np.ones((count, 1), np.float32)
    return Sample(one, one > 0, one, one[:, 0], np.full(count, version, np.int32))


def states_of(version):
    state, returns, truncated = np.zeros((4, 2), np.uint8), np.zeros(4, np.float32), np.zeros(4, bool)
    return StoredState(state, returns, returns, truncated, np.full(4, version, np.int32))


@pytest.fixture
def experiment():
    tree = {
        "name": "t",
        "env": {"name": "tic_tac_toe"},
        "actors": {"games": 4},
        "replay": {"samples_per_item": 2},
        "reanalyse": {"share": 0.5},
    }
    return parse(tree, "test")


@pytest.fixture
def reanalyse(experiment):
    """Runs a reanalyser over `states` for at most `writes` writes; returns its searches, its writer and its reports."""

    def run(states, writes=0, experiment=experiment):
        searches, reports, writer = [], [], Writer([], "reanalysed", writes)

        def reanalyse(params, version, index, states):
            searches.append((params, version, index))
            if states.version[0] == BROKEN:
                fail_in_callback("the game raised KeyError: 'seven'")
            return states if isinstance(states, Window) else samples_of(version, len(states.version))

        actor = ReanalysisActor(
            experiment=experiment,
            name="reanalyser-0",
            reanalyse=reanalyse,
            clients=ActorClients(Source(), writer, lambda name, metrics: reports.append((name, metrics))),
            states=states,
        )
        writer.enough = actor.stop
        actor.run()
        return searches, writer, reports

    return run


def test_each_batch_is_searched_once_with_the_newest_parameters(reanalyse):
    searches, writer, _ = reanalyse(iter([states_of(1)] * 4))
    assert searches == [(0.5, 3, 1), (0.5, 3, 2), (0.75, 7, 3), (0.75, 7, 4)]
    assert [each.version.tolist() for each in writer.written] == [[3] * 4, [3] * 4, [7] * 4, [7] * 4]
    assert writer.priorities[0] is None


def test_windows_are_written_with_their_priorities(reanalyse):
    experiment, windows = cut_windows()
    _, writer, _ = reanalyse(iter([windows]), experiment=experiment)
    np.testing.assert_array_equal(writer.priorities[0], window_priorities(windows, experiment))


def test_reports_count_samples_and_measure_their_age(reanalyse):
    _, _, reports = reanalyse(iter([states_of(1), states_of(2), states_of(2)]))
    name, metrics = reports[-1]
    assert name == "reanalyser-0"
    assert sum(metrics["count/reanalysed"] for _, metrics in reports) == 12
    assert metrics["reanalysis/age"] == 7 - 2
    assert metrics["reanalysis/version"] == 7
    assert {"time/wait_states", "time/search", "time/write", "time/params"} <= metrics.keys()


def test_batches_whose_game_fails_are_skipped(reanalyse, experiment, monkeypatch):
    monkeypatch.setattr(faults, "MAX_FAILURES", 2)
    game = SimulatorConfig(name="simulator", id="game:Game")
    hosted = experiment.model_copy(update={"env": game})
    states = [states_of(1), states_of(BROKEN), states_of(BROKEN), states_of(2), states_of(BROKEN)]
    searches, writer, _ = reanalyse(iter(states), experiment=hosted)
    assert (len(searches), len(writer.written)) == (5, 2)
    with pytest.raises(EnvironmentFailed, match=r"failed 3 times.*KeyError: 'seven'"):
        reanalyse(iter([states_of(BROKEN)] * 3), experiment=hosted)


def test_stop_ends_the_loop(reanalyse):
    def endless():
        while True:
            yield states_of(1)

    _, writer, _ = reanalyse(endless(), writes=3)
    assert len(writer.written) == 3


def test_self_play_writes_the_states_of_its_samples_before_the_samples(experiment):
    """Row i of the states is the position of row i of the samples."""
    env, diary = make_env("tic_tac_toe"), []
    states, writer = Writer(diary, "states"), Writer(diary, "samples", writes=2)
    actor = SelfPlayActor(
        experiment=experiment,
        name="actor-0",
        seed=0,
        core=SelfPlayCore(env, first_legal(env), experiment.actors, keep_states=True),
        clients=ActorClients(Source(), writer, lambda name, metrics: None, states),
    )
    writer.enough = actor.stop
    actor.run()
    assert diary == ["states", "samples"] * (len(diary) // 2)
    like = jax.eval_shape(env.init, jax.random.key(0))
    assert sum(len(samples.version) for samples in writer.written) >= 28
    view_of = jax.jit(lambda packed: jax.vmap(env.view)(unpack_states(packed, like)))
    for stored, samples in zip(states.written, writer.written, strict=True):
        view = view_of(stored.state)
        np.testing.assert_array_equal(view.observation, samples.observation)
        np.testing.assert_array_equal(view.legal, samples.legal)
        np.testing.assert_array_equal(stored.version, samples.version)
        np.testing.assert_array_equal(stored.outcome, samples.value_target)


BOARD = make_env("tic_tac_toe")


def constant(params, key, states):
    """Evaluates every position by the parameters `(preferred action, value)`."""
    preferred, value = params
    views = jax.vmap(BOARD.view)(states)
    logits = jnp.where(jnp.arange(9) == preferred, 4.0, 0.0)
    return jnp.broadcast_to(logits, views.legal.shape), jnp.full(len(views.done), value, jnp.float32)


@pytest.fixture(scope="module")
def played():
    """Some finished games of tic-tac-toe."""
    config = ActorsConfig(games=4)
    search = make_search(SearchConfig(simulations=4), rules_model(BOARD, constant))
    core = SelfPlayCore(BOARD, search, config, keep_states=True)
    state, assembler, games = jax.jit(core.init)(jax.random.key(0)), GameAssembler(ActorsConfig(games=4)), []
    move = jax.jit(core.move)
    for _ in range(12):
        state, made = move((2, 0.0), state)
        games += assembler.add(jax.device_get(made), version=3)
    return games


def playing(**actors):
    """An experiment with these settings of self-play."""
    return parse({"name": "played", "env": {"name": "tic_tac_toe"}, "actors": actors}, "test")


def fake_search(roots_to_result):
    """A search whose results are a function of the views."""

    def search(params, key, roots, exploration):
        return roots_to_result(params, jax.vmap(BOARD.view)(roots))

    return search


def test_the_same_positions_get_the_targets_of_the_new_parameters(played):
    """The parameters that played prefer a corner; the new ones prefer the centre, where it is legal."""
    search = make_search(SearchConfig(simulations=1, max_considered_actions=1), rules_model(BOARD, constant))
    reanalyse = position_reanalysis(playing(root_value_weight=0.25, noise=0.0), BOARD, search, seed=0)
    for game in played[:2]:
        found = reanalyse((4, 0.0), 17, 1, game.states)
        old, new = game.samples, found
        np.testing.assert_array_equal(new.observation, old.observation)
        np.testing.assert_array_equal(new.legal, old.legal)
        np.testing.assert_array_equal(new.version, [17] * game.plies)
        centre_open = new.legal[:, 4]
        assert centre_open[0]
        assert (new.policy_target.argmax(axis=1)[centre_open] == 4).all()
        assert np.abs(new.policy_target - old.policy_target).max() > 0.1
        np.testing.assert_allclose(new.policy_target.sum(axis=1), 1, rtol=1e-5)
        assert (new.policy_target[~new.legal] == 0).all()


def uniform(params, views):
    """A search that prefers nothing and gives every position the value `params`."""
    legal = views.legal.astype(jnp.float32)
    policy = legal / legal.sum(axis=-1, keepdims=True)
    return SearchResult(jnp.zeros(len(legal), jnp.int32), policy, jnp.full(len(legal), params), legal.astype(int))


def test_lambda_returns_stay_those_of_the_game_as_it_was_played():
    """Two plies that player 0 wins, with root values 0.3 and -0.4: the first lambda-return is 0.4 / 2 + 1 / 2 = 0.7,
    the second -1. With the new root value 0.5: 0.25 * 0.5 + 0.75 * 0.7 = 0.65 and 0.125 - 0.75 = -0.625."""
    experiment = playing(games=1, td_lambda=0.5, root_value_weight=0.25)
    state = jax.jit(lambda key: pack_states(jax.vmap(BOARD.init)(key[None])))(jax.random.key(0))
    assembler = GameAssembler(experiment.actors)
    for player, value in ((0, 0.3), (1, -0.4)):
        made = move([player == 1], player=player, rewards=[[player, -player]])
        made = made._replace(state=np.asarray(state), value=np.float32([value]))
        games = list(assembler.add(made, version=3))
    found = position_reanalysis(experiment, BOARD, fake_search(uniform), seed=0)(0.5, 17, 1, games[0].states)
    np.testing.assert_allclose(games[0].states.lambda_return, [0.7, -1.0], rtol=1e-6)
    np.testing.assert_allclose(found.value_target, [0.65, -0.625], rtol=1e-6)


def test_the_new_root_value_is_averaged_with_the_stored_outcome(played):
    reanalyse = position_reanalysis(playing(root_value_weight=0.25), BOARD, fake_search(uniform), seed=0)
    for game in played[:2]:
        found = reanalyse(0.5, 17, 1, game.states)
        np.testing.assert_allclose(found.value_target, 0.75 * game.samples.value_target + 0.125, rtol=1e-6)
        np.testing.assert_allclose(found.policy_target, found.legal / found.legal.sum(axis=1, keepdims=True), rtol=1e-6)


def test_the_outcome_of_a_truncated_game_stays_unknown(played):
    states = played[0].states._replace(truncated=np.arange(len(played[0].states.outcome)) == 0)
    search = make_search(SearchConfig(simulations=2), rules_model(BOARD, constant))
    reanalyse = position_reanalysis(playing().changed(network={"auxiliary": True}), BOARD, search, seed=0)
    found = reanalyse((4, 0.0), 17, 1, states).outcome
    assert found[0] == -1
    np.testing.assert_array_equal(found[1:], np.sign(states.outcome[1:]) + 1)


@pytest.mark.parametrize("scale", [0.0, 0.7])
def test_search_explores_as_actors_do_with_new_noise_for_each_batch(played, scale):
    def noisy(params, key, roots, exploration):
        legal = jax.vmap(BOARD.view)(roots).legal
        policy = jax.nn.one_hot(jnp.argmax(legal, axis=-1), 9)
        noise = exploration.noise * jax.random.uniform(key, exploration.noise.shape)
        return SearchResult(jnp.argmax(legal, axis=-1), policy, noise, policy.astype(int))

    experiment = playing(root_value_weight=1.0, noise=scale)
    reanalyse, states = position_reanalysis(experiment, BOARD, noisy, seed=0), played[0].states
    first, equal, other = (reanalyse(None, 1, index, states).value_target for index in (1, 1, 2))
    np.testing.assert_array_equal(first, equal)
    assert first.max() <= scale
    assert (first != other).any() == (scale > 0)


def model(scale):
    """Latent states are observations; the value is `scale * params` times the observation."""
    return ModelNetwork(
        init=lambda key: 1.0,
        represent=lambda params, observation: observation,
        predict=lambda params, latent: (jnp.zeros((len(latent), 3)), scale * params * latent),
        dynamics=lambda params, latent, action: (latent, jnp.zeros((len(latent), 1))),
        project=lambda params, latent, predicted: latent,
        encode=lambda values: values[..., None],
        decode=lambda logits: logits[..., 0],
        observe=lambda params, observations: params,
    )


def model_search(continuous=False):
    """A search whose value is `100 * params` plus the observation; policies and candidates are constant."""

    def search(params, key, observation, exploration):
        size = len(observation)
        policy = jnp.tile(jnp.array([0.0, 0.75, 0.25]), (size, 1))
        candidates = jnp.full((size, 3, 2), params) if continuous else jnp.zeros((size, 0))
        return ModelSearchResult(jnp.ones(size, jnp.int32), policy, 100 * params + observation[:, 0], candidates)

    return search


def cut_windows(spec=SPEC, steps=4, **end):
    """The experiment, with K = n = 2, and the stored windows of an episode."""
    experiment = experiment_of(reanalyse={"share": 0.5})
    cutter = WindowCutter(experiment, spec, 1)
    for number in range(steps):
        cutter.add_position(position([number], spec))
        cutter.add_step(outcome(number + 1.0, **(end if number == steps - 1 else {})))
    return experiment, cutter.add_position(position([steps], spec))[1]


def test_windows_get_policies_of_the_new_search_and_values_of_search_and_network():
    """Positions 0 to K = 2 are searched: 100 * 2 + k. The network evaluates 3 and 4: 10 * 2 * k."""
    experiment, states = cut_windows()
    new = window_reanalysis(experiment, model(10.0), model_search(), seed=0)(2.0, 17, 1, states)
    np.testing.assert_allclose(new.value, [[200, 201, 202, 60, 80]])
    np.testing.assert_allclose(new.policy, np.tile([0.0, 0.75, 0.25], (1, 3, 1)))
    np.testing.assert_array_equal(new.version, [17])
    np.testing.assert_array_equal(new.observation, [[[0.0]]])
    for field in ("action", "reward", "length", "terminated", "candidates"):
        np.testing.assert_array_equal(getattr(new, field), getattr(states, field))
    # 1 + 0.5 * 2 + 0.25 * v_2 = 2 + 50.5; the search value is 200.
    np.testing.assert_allclose(window_priorities(new, experiment), priorities_of(np.array([200 - 52.5])))


@pytest.mark.parametrize("end", ["terminated", "truncated"])
def test_targets_after_the_end_are_zero(end):
    """The episode ends at position 3, whose value is zero if it terminated and kept if it was truncated."""
    experiment, states = cut_windows(steps=3, **{end: True})
    new = window_reanalysis(experiment, model(10.0), model_search(), seed=0)(2.0, 17, 1, states)
    last = 0 if end == "terminated" else 1
    np.testing.assert_allclose(
        new.value,
        [
            [200, 201, 202, last * 60, 0],  # position 3 is after K here, so it has the network's value
            [201, 202, last * 203, 0, 0],
            [202, last * 203, 0, 0, 0],
        ],
    )
    np.testing.assert_allclose(new.policy.sum(axis=-1), [[1, 1, 1], [1, 1, 0], [1, 0, 0]])
    np.testing.assert_array_equal(new.length, [3, 2, 1])
    np.testing.assert_array_equal(new.terminated, states.terminated)


def test_continuous_actions_get_new_candidates():
    spec = SPEC._replace(num_actions=0, action_bounds=((-2.0, -2.0), (2.0, 2.0)))
    experiment, states = cut_windows(spec, steps=2, truncated=True)
    new = window_reanalysis(experiment, model(1.0), model_search(continuous=True), seed=0)(2.0, 17, 1, states)
    np.testing.assert_array_equal(states.candidates[0, :2], np.ones((2, 3, 2)))
    np.testing.assert_array_equal(new.candidates[:, :, 0, 0], [[2, 2, 0], [2, 0, 0]])
    assert new.candidates.dtype == np.float32
    np.testing.assert_array_equal(new.action, states.action)


def test_reanalysed_windows_have_the_shapes_and_dtypes_of_the_samples_table():
    spec = EnvSpec("discrete", (1,), "float32", 3, players=1)
    experiment = experiment_of(reanalyse={"share": 0.5}, muzero={"consistency_weight": 1.0})
    states = cut_windows()[1]
    new = window_reanalysis(experiment, model(1.0), model_search(), seed=0)(2.0, 17, 1, states)
    for name, like in sample_like(experiment, spec)._asdict().items():
        field = getattr(new, name)
        assert (field.shape, field.dtype) == ((1, *like.shape), like.dtype), name


def test_a_reanalysis_is_built_from_an_experiment():
    from podzero.actors.build import make_reanalysis

    tree = {
        "name": "t",
        "env": {"name": "gymnasium", "id": "CartPole-v1"},
        "network": {"name": "muzero_mlp"},
        "muzero": {"unroll_steps": 2, "td_steps": 2},
        "search": {"simulations": 2},
        "reanalyse": {"share": 0.5},
    }
    assert callable(make_reanalysis(parse(tree, "test"), seed=0)[0])
