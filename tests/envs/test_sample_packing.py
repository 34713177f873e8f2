"""Rows of samples: unpacking undoes packing up to float16 of policies, and NumPy and JAX agree on every byte."""

from __future__ import annotations

from functools import cache
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from podzero.config import parse
from podzero.config.samples import position_like, stored_state_like, window_like
from podzero.core.errors import ConfigError
from podzero.core.types import EnvSpec, Sample, Window
from podzero.envs import SamplePacking, holds_states, make_env, pack_states, sample_packing, spec_of

ROUNDING = 1.5e-3
"""Float16 keeps 11 bits: a relative error of 2^-11, once in the probability and once in its sum."""


def experiment(**sections: Any):
    return parse({"name": "t", "env": {"name": "connect_four"}} | sections, "test")


def policies(random: np.random.Generator, legal: np.ndarray) -> np.ndarray:
    drawn = random.gamma(0.2, size=legal.shape) * legal + 1e-9 * legal
    return (drawn / drawn.sum(-1, keepdims=True)).astype(np.float32)


def positions(spec: EnvSpec, count: int, seed: int, auxiliary: bool) -> Sample:
    random = np.random.default_rng(seed)
    legal = random.random((count, spec.num_actions)) < 0.5
    legal[np.arange(count), random.integers(spec.num_actions, size=count)] = True
    samples = Sample(
        observation=(3 * random.random((count, *spec.observation_shape))).astype(spec.observation_dtype),
        legal=legal,
        policy_target=policies(random, legal),
        value_target=random.uniform(-1, 1, (count, *spec.value_shape)).astype(np.float32),
        version=random.integers(-1, 2**31 - 1, count, np.int32),
    )
    if not auxiliary:
        return samples
    return samples._replace(
        outcome=random.integers(-1, 3, count, np.int32),
        moves_left=random.integers(-1, (spec.max_plies or 2**30) + 1, count, np.int32),
        reply=random.integers(-1, spec.num_actions, count, np.int32),
        ownership=random.integers(-1, 3, (count, spec.squares), np.int8) if spec.squares else None,
    )


def windows(like: Window, actions: int, count: int, seed: int) -> Window:
    random = np.random.default_rng(seed)

    def filled(leaf: Any) -> Any:
        return (3 * random.random((count, *leaf.shape))).astype(leaf.dtype)

    made = jax.tree.map(filled, like)
    length = random.integers(1, like.reward.shape[0] + 1, count, np.int32)
    exists = np.arange(like.policy.shape[0]) < length[:, None]
    policy = policies(random, np.ones(made.policy.shape, bool)) * exists[..., None]
    action = random.integers(actions, size=made.action.shape, dtype=np.int32) if actions else made.action
    return made._replace(policy=policy.astype(np.float32), length=length, action=action)


COUNT = 6


@cache
def on_device(packing: SamplePacking) -> tuple[Any, Any]:
    """Its functions in JAX, compiled once."""
    return jax.jit(lambda samples: packing.pack(samples, jnp)), jax.jit(lambda rows: packing.unpack(rows, jnp))


def assert_laws(packing: SamplePacking, samples: Any, kept: np.ndarray | None = None) -> None:
    """The laws of packing; `kept` are the policies that are to be unpacked."""
    pack, unpack = on_device(packing)
    rows = packing.pack(samples)
    assert rows.dtype == np.uint8
    assert rows.shape == (COUNT, packing.row_bytes)
    np.testing.assert_array_equal(rows, pack(samples))
    assert packing.decodes(rows).all()
    here, there = packing.unpack(rows), unpack(rows)
    for name, field in samples._asdict().items():
        found, computed = getattr(here, name), getattr(there, name)
        if field is None:
            assert found is None
            continue
        assert found.dtype == computed.dtype == field.dtype
        if name in ("policy", "policy_target"):
            np.testing.assert_allclose(found, field if kept is None else kept, rtol=ROUNDING, atol=1e-8)
            np.testing.assert_allclose(computed, found, rtol=1e-6)
        else:
            np.testing.assert_array_equal(found, field)
            np.testing.assert_array_equal(computed, field)
    none = jax.tree.map(lambda leaf: leaf[:0], samples)
    assert packing.decodes(packing.pack(none)).shape == (0,)
    assert packing.unpack(packing.pack(none)).version.shape == (0,)


seeds = st.integers(0, 2**31)
quick = settings(deadline=None, max_examples=20)


@cache
def position_packing(
    dtype: str, auxiliary: bool, values: int, targets: int | None, actions: int = 5
) -> tuple[EnvSpec, SamplePacking]:
    spec = EnvSpec("grid", (3, 2), dtype, actions, players=max(2, values), values=values, max_plies=300)
    return spec, SamplePacking(position_like(spec, auxiliary), spec, targets)


@pytest.mark.parametrize(
    "kind", [("bool", False, 1, None), ("uint8", True, 1, None), ("float32", True, 1, None), ("bool", False, 3, None)]
)
@quick
@given(seeds)
def test_positions_survive(kind, seed):
    spec, packing = position_packing(*kind)
    assert_laws(packing, positions(spec, COUNT, seed, auxiliary=kind[1]))


@pytest.mark.parametrize(("targets", "actions"), [(1, 5), (3, 5), (5, 5), (20, 150)])
@quick
@given(seeds)
def test_of_k_targets_the_largest_survive_and_sum_to_one(targets, actions, seed):
    spec, packing = position_packing("bool", True, 1, targets, actions)
    samples = positions(spec, COUNT, seed, auxiliary=True)
    order = np.argsort(-samples.policy_target, axis=1, kind="stable")
    kept = samples.policy_target.copy()
    np.put_along_axis(kept, order[:, targets:], 0, axis=1)
    assert_laws(packing, samples, kept / kept.sum(axis=1, keepdims=True))
    if packing.targets is not None:
        held, actions = packing.kept(samples.policy_target)
        given = packing.pack(samples._replace(policy_target=held), actions=actions)
        np.testing.assert_array_equal(given, packing.pack(samples))


MUZERO: dict[str, Any] = {
    "name": "t",
    "env": {"name": "gymnasium", "id": "CartPole-v1"},
    "network": {"name": "muzero_mlp"},
    "muzero": {"unroll_steps": 2, "td_steps": 3},
}


@cache
def window_packing(dtype: str, actions: int, targets: int | None = None) -> tuple[Window, SamplePacking]:
    bounds = None if actions else ((-1.0, -2.0), (1.0, 2.0))
    spec = EnvSpec("steps", (2, 3), dtype, actions, players=1, action_bounds=bounds)
    like = window_like(parse(MUZERO, "test"), spec, 3)
    return like, SamplePacking(like, spec, targets)


@pytest.mark.parametrize("kind", [("bool", 4), ("uint8", 4), ("float32", 0), ("float32", 4, 4)])
@quick
@given(seeds)
def test_windows_survive(kind, seed):
    like, packing = window_packing(*kind)
    assert_laws(packing, windows(like, kind[1], COUNT, seed))


@cache
def states_packing() -> tuple[Any, SamplePacking]:
    spec = EnvSpec("grid", (3, 2), "bool", 5, state_bytes=7)
    like = stored_state_like(experiment(), spec)
    return like, SamplePacking(like, spec)


@quick
@given(seeds)
def test_stored_states_survive(seed):
    random, (like, packing) = np.random.default_rng(seed), states_packing()
    samples = jax.tree.map(lambda leaf: random.integers(0, 2, (COUNT, *leaf.shape)).astype(leaf.dtype), like)
    assert_laws(packing, samples)


def test_rows_of_states_are_unpacked_by_the_rules():
    env = make_env("gardner_chess")
    config = experiment(env={"name": "gardner_chess"}, search={"targets": 16})
    assert holds_states(config, env.spec)
    packing = sample_packing(config, env.spec, env)
    states = jax.jit(jax.vmap(env.init))(jax.random.split(jax.random.key(0), 2))
    view = jax.jit(jax.vmap(env.view))(states)
    legal = np.asarray(view.legal)
    policy = (legal / legal.sum(axis=1, keepdims=True)).astype(np.float32)
    samples = Sample(view.observation, legal, policy, np.zeros(2, np.float32), np.zeros(2, np.int32))
    rows = packing.pack(samples._replace(state=np.asarray(pack_states(states)), observation=None))
    assert packing.decodes(rows).all()
    found = jax.device_get(jax.jit(lambda rows: packing.unpack(rows, jnp))(rows))
    assert_equal = np.testing.assert_array_equal
    assert_equal(found.observation, view.observation)
    assert_equal(found.legal, legal)
    assert found.state is None
    np.testing.assert_allclose(found.policy_target, policy, rtol=ROUNDING)


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("policy_target", [0.5, 0.25, 0, 0]),
        ("policy_target", [np.nan, 1, 0, 0]),
        ("policy_target", [0.5, 0, 0.5, 0]),
        ("value_target", np.nan),
        ("value_target", 1.5),
        ("observation", np.inf),
        ("version", -2),
        ("outcome", 3),
        ("reply", 4),
        ("moves_left", -2),
        ("legal", False),
    ],
)
def test_a_row_of_what_is_no_sample_does_not_decode(field, value):
    spec = EnvSpec("line", (3,), "float32", 4)
    samples = positions(spec, 3, 0, auxiliary=True)
    legal = np.array([[True, True, False, True]] * 3)
    samples = samples._replace(legal=legal, policy_target=np.full((3, 4), [0.5, 0.25, 0, 0.25], np.float32))
    packing = SamplePacking(position_like(spec, auxiliary=True), spec)
    getattr(samples, field)[1] = value
    assert packing.decodes(packing.pack(samples)).tolist() == [True, False, True]


def test_actions_beyond_those_of_the_game_do_not_decode():
    spec = EnvSpec("line", (3,), "bool", 4)
    samples = positions(spec, 3, 0, auxiliary=False)._replace(legal=np.ones((3, 4), bool))
    packing = SamplePacking(position_like(spec), spec, targets=2)
    half = samples._replace(policy_target=np.full((3, 2), packing.kept(np.full(4, 0.5))[0][0]))
    rows = packing.pack(half, actions=np.array([[0, 1], [3, 4], [-1, 1]]))
    assert packing.decodes(rows).tolist() == [True, False, False]


@settings(deadline=None)
@given(st.binary(min_size=24, max_size=24))
def test_any_bytes_are_decoded_or_refused(content):
    spec = EnvSpec("line", (3,), "bool", 4)
    packing = SamplePacking(position_like(spec), spec)
    row = np.frombuffer(content[: packing.row_bytes], np.uint8)[None]
    if packing.decodes(row)[0]:
        sample = packing.unpack(row)
        assert abs(sample.value_target[0]) <= 1.001
        np.testing.assert_allclose(sample.policy_target.sum(), 1, rtol=1e-6)


@pytest.mark.parametrize("targets", [8, 100])
def test_more_targets_than_actions_are_refused(targets):
    with pytest.raises(ConfigError, match=r"search\.targets .*7 actions"):
        sample_packing(experiment(search={"targets": targets}), spec_of(experiment().env))
    assert sample_packing(experiment(search={"targets": 7}), spec_of(experiment().env)).targets is None


def test_targets_need_discrete_actions():
    spec = EnvSpec("steps", (2,), "float32", 0, action_bounds=((-1.0,), (1.0,)))
    with pytest.raises(ConfigError, match=r"search\.targets .*continuous"):
        SamplePacking(window_like(parse(MUZERO, "test"), spec, 1), spec, targets=2)


@pytest.mark.parametrize(
    ("game", "targets", "most"), [("connect_four", None, 60), ("go_9x9", None, 500), ("chess", 128, 1300)]
)
def test_samples_are_small(game, targets, most):
    config = experiment(env={"name": game}, search={"targets": targets})
    packing = sample_packing(config, spec_of(config.env))
    assert packing.row_bytes <= most, packing.layout
    assert packing.holds_states is (game == "chess")


def test_the_versions_of_rows_are_read_without_the_rest():
    spec, packing = position_packing("bool", True, 1, None)
    samples = positions(spec, COUNT, seed=1, auxiliary=True)
    rows = packing.pack(samples)
    np.testing.assert_array_equal(packing.versions(rows), samples.version)
    np.testing.assert_array_equal(packing.versions(np.stack([rows, rows])), np.stack([samples.version] * 2))
