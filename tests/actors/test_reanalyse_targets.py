"""Old positions searched again: the same positions, the targets of the new parameters."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from podzero.actors import SelfPlayCore, position_reanalysis, window_reanalysis
from podzero.actors.assembly import GameAssembler
from podzero.actors.windows import WindowCutter
from podzero.config import ActorsConfig, SearchConfig, parse
from podzero.envs import make_env
from podzero.search import ModelSearchResult, make_search, rules_model
from podzero.types import EnvSpec, ModelNetwork, SearchResult, Window

from .test_windows import SPEC, experiment_of, outcome, position

BOARD = make_env("tic_tac_toe")


def like_the(params, key, states):
    """Judges by parameters `(favourite action, value)`, whatever the position is."""
    favourite, value = params
    views = jax.vmap(BOARD.view)(states)
    logits = jnp.where(jnp.arange(9) == favourite, 4.0, 0.0)
    return jnp.broadcast_to(logits, views.legal.shape), jnp.full(len(views.done), value, jnp.float32)


@pytest.fixture(scope="module")
def played():
    """A few games of tic-tac-toe, as `Game`s."""
    config = ActorsConfig(games=4)
    search = make_search(SearchConfig(simulations=4), rules_model(BOARD, like_the))
    core = SelfPlayCore(BOARD, search, config, keep_states=True)
    state, assembler, games = jax.jit(core.init)(jax.random.key(0)), GameAssembler(4, 0.0), []
    move = jax.jit(core.move)
    for _ in range(12):
        state, made = move((2, 0.0), state)
        games += assembler.add(jax.device_get(made), version=3)
    return games


def stand_in(roots_to_result):
    """A search whose answers a function of the views gives."""

    def search(params, key, roots, temperature):
        return roots_to_result(params, jax.vmap(BOARD.view)(roots), temperature)

    return search


def test_the_same_positions_get_the_targets_of_the_new_parameters(played):
    """They were played by parameters that like a corner; the new ones like the centre, wherever it is open."""
    search = make_search(SearchConfig(simulations=1, max_considered_actions=1), rules_model(BOARD, like_the))
    reanalyse = position_reanalysis(BOARD, search, ActorsConfig(root_value_weight=0.25, temperature=0.0), seed=0)
    for game in played[:2]:
        found = reanalyse((4, 0.0), 17, 1, game.states)
        old, new = game.samples, found.samples
        np.testing.assert_array_equal(new.observation, old.observation)
        np.testing.assert_array_equal(new.legal, old.legal)
        np.testing.assert_array_equal(new.version, [17] * game.plies)
        assert found.errors is None
        centre_open = new.legal[:, 4]
        assert centre_open[0]
        assert (new.policy_target.argmax(axis=1)[centre_open] == 4).all()
        assert np.abs(new.policy_target - old.policy_target).max() > 0.1
        np.testing.assert_allclose(new.policy_target.sum(axis=1), 1, rtol=1e-5)
        assert (new.policy_target[~new.legal] == 0).all()


def test_the_new_root_value_is_mixed_with_the_outcome_that_was(played):
    def known(params, views, temperature):
        legal = views.legal.astype(jnp.float32)
        policy = legal / legal.sum(axis=-1, keepdims=True)
        return SearchResult(jnp.zeros(len(legal), jnp.int32), policy, jnp.full(len(legal), params), legal.astype(int))

    reanalyse = position_reanalysis(BOARD, stand_in(known), ActorsConfig(root_value_weight=0.25), seed=0)
    for game in played[:2]:
        found = reanalyse(0.5, 17, 1, game.states).samples
        np.testing.assert_allclose(found.value_target, 0.75 * game.samples.value_target + 0.125, rtol=1e-6)
        np.testing.assert_allclose(found.policy_target, found.legal / found.legal.sum(axis=1, keepdims=True), rtol=1e-6)


@pytest.mark.parametrize("temperature", [0.0, 0.7])
def test_positions_are_searched_with_the_exploration_of_actors_and_other_noise_each_turn(played, temperature):
    def noisy(params, key, roots, temperature):
        legal = jax.vmap(BOARD.view)(roots).legal
        policy = jax.nn.one_hot(jnp.argmax(legal, axis=-1), 9)
        noise = temperature * jax.random.uniform(key, temperature.shape)
        return SearchResult(jnp.argmax(legal, axis=-1), policy, noise, policy.astype(int))

    config = ActorsConfig(root_value_weight=1.0, temperature=temperature)
    reanalyse, states = position_reanalysis(BOARD, noisy, config, seed=0), played[0].states
    first, again, other = (reanalyse(None, 1, turn, states).samples.value_target for turn in (1, 1, 2))
    np.testing.assert_array_equal(first, again)
    assert first.max() <= temperature
    assert (first != other).any() == (temperature > 0)


def model(scale):
    """Latent states are observations; the value is `params * scale` times what is seen, the policy likes action 1."""

    def predict(params, latent):
        return jnp.tile(jnp.array([0.0, 5.0, 0.0]), (len(latent), 1)), scale * params * latent

    return ModelNetwork(
        init=lambda key: 1.0,
        represent=lambda params, observation: observation,
        predict=lambda params, latent: (
            jnp.tile(jnp.array([0.0, 5.0, 0.0]), (len(latent), 1)),
            scale * params * latent,
        ),
        dynamics=lambda params, latent, action: (latent, jnp.zeros((len(latent), 1))),
        project=lambda params, latent, predicted: latent,
        encode=lambda values: values[..., None],
        decode=lambda logits: logits[..., 0],
        observe=lambda params, observations: params,
    )


def searching(continuous=False):
    """A search whose value is `params` times 100 plus what is seen; policies and candidates are always the same."""

    def search(params, key, observation, temperature):
        size = len(observation)
        policy = jnp.tile(jnp.array([0.0, 0.75, 0.25]), (size, 1))
        candidates = jnp.full((size, 3, 2), params) if continuous else jnp.zeros((size, 0))
        choice = jnp.ones(size, jnp.int32)
        return ModelSearchResult(choice, choice, policy, 100 * params + observation[:, 0], candidates)

    return search


def cut_windows(spec=SPEC, steps=4, **end):
    """The windows of an episode with K = n = 2: `(experiment, past windows)`."""
    experiment = experiment_of(reanalyse={"share": 0.5})
    cutter = WindowCutter(experiment, spec, 1)
    for number in range(steps):
        cutter.add(position([number], spec))
        cutter.follow(outcome(number + 1.0, **(end if number == steps - 1 else {})))
    return experiment, cutter.add(position([steps], spec)).states


def test_windows_get_policies_of_the_new_search_and_values_of_search_and_network():
    """Positions 0 to K = 2 are searched: 100 * 2 + k. The network judges 3 and 4: 10 * 2 * k."""
    experiment, states = cut_windows()
    found = window_reanalysis(experiment, model(10.0), searching(), seed=0)(2.0, 17, 1, states)
    new = found.samples
    np.testing.assert_allclose(new.value, [[200, 201, 202, 60, 80]])
    np.testing.assert_allclose(new.policy, np.tile([0.0, 0.75, 0.25], (1, 3, 1)))
    np.testing.assert_array_equal(new.version, [17])
    np.testing.assert_array_equal(new.observation, [[[0.0]]])
    for field in ("action", "reward", "length", "terminated", "candidates"):
        np.testing.assert_array_equal(getattr(new, field), getattr(states, field))
    # 1 + 0.5 * 2 + 0.25 * v_2 = 2 + 50.5, and the search says 200.
    np.testing.assert_allclose(found.errors, [200 - 52.5])


@pytest.mark.parametrize("end", ["terminated", "truncated"])
def test_nothing_is_learned_beyond_the_end(end):
    """Of the windows from positions 0, 1 and 2 of three steps, position 3 is the last; a true end is worth nothing."""
    experiment, states = cut_windows(steps=3, **{end: True})
    new = window_reanalysis(experiment, model(10.0), searching(), seed=0)(2.0, 17, 1, states).samples
    last = 0 if end == "terminated" else 1
    np.testing.assert_allclose(
        new.value,
        [
            [200, 201, 202, last * 60, 0],  # the network's word: position 3 is beyond K
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
    new = window_reanalysis(experiment, model(1.0), searching(continuous=True), seed=0)(2.0, 17, 1, states).samples
    np.testing.assert_array_equal(states.candidates[0, :2], np.ones((2, 3, 2)))
    np.testing.assert_array_equal(new.candidates[:, :, 0, 0], [[2, 2, 0], [2, 0, 0]])
    assert new.candidates.dtype == np.float32
    np.testing.assert_array_equal(new.action, states.action)


def test_refreshed_windows_are_what_the_table_of_fresh_ones_holds():
    """The same shapes and dtypes, whatever the consistency loss asks for."""
    from podzero.samples import sample_like

    spec = EnvSpec("counted", (1,), "float32", 3, players=1)
    experiment = experiment_of(reanalyse={"share": 0.5}, muzero={"consistency_weight": 1.0})
    states = Window(*(field for field in cut_windows()[1]))
    new = window_reanalysis(experiment, model(1.0), searching(), seed=0)(2.0, 17, 1, states).samples
    for name, like in sample_like(experiment, spec)._asdict().items():
        field = getattr(new, name)
        assert (field.shape, field.dtype) == ((1, *like.shape), like.dtype), name


def test_the_parts_of_a_real_experiment_fit_together():
    from podzero.driver.build import make_reanalysis

    tree = {
        "name": "t",
        "env": {"name": "gymnasium", "id": "CartPole-v1"},
        "network": {"name": "muzero_mlp"},
        "muzero": {"unroll_steps": 2, "td_steps": 2},
        "search": {"simulations": 2},
        "reanalyse": {"share": 0.5},
    }
    assert callable(make_reanalysis(parse(tree, "test"), seed=0)[0])
