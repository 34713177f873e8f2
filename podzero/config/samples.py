"""Shapes and dtypes of training samples; windows of episodes and n-step returns for NumPy and JAX."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import numpy as np

from podzero.config import Experiment
from podzero.core.types import EnvSpec, Sample, StoredState, Window

# `Any`, because the fields of samples are annotated as arrays, and here they hold shapes.
_struct: Any = jax.ShapeDtypeStruct
UNSEARCHED = -1
"""The `version` of samples of recorded games, which no parameters have searched."""


def sample_like(experiment: Experiment, spec: EnvSpec) -> Sample | Window:
    """The shape of one training sample: a `jax.ShapeDtypeStruct` on every field, without a batch axis."""
    if not experiment.learns_model:
        return position_like(spec, experiment.has_auxiliary_heads, experiment.predicts_ownership)
    return window_like(experiment, spec, stored_observations(experiment))


def stored_state_like(experiment: Experiment, spec: EnvSpec) -> StoredState | Window:
    """The shape of one sample stored for reanalysis; its windows have the observations of all positions."""
    if experiment.learns_model:
        return window_like(experiment, spec, window_steps(experiment) + 1)
    return StoredState(
        state=_struct((spec.state_bytes,), np.uint8),
        outcome=_struct((), np.float32),
        lambda_return=_struct((), np.float32),
        truncated=_struct((), np.bool_),
        version=_struct((), np.int32),
    )


def position_like(spec: EnvSpec, auxiliary: bool = False, ownership: bool = False) -> Sample:
    """The shape of one AlphaZero position; `auxiliary` and `ownership` add the targets of auxiliary heads."""
    number = _struct((), np.int32)
    return Sample(
        observation=_struct(spec.observation_shape, spec.observation_dtype),
        legal=_struct((spec.num_actions,), np.bool_),
        policy_target=_struct((spec.num_actions,), np.float32),
        value_target=_struct(spec.value_shape, np.float32),
        version=number,
        **(dict.fromkeys(("outcome", "moves_left", "reply"), number) if auxiliary else {}),
        ownership=_struct((spec.squares,), np.int8) if ownership else None,
    )


def window_like(experiment: Experiment, spec: EnvSpec, observations: int) -> Window:
    """The shape of one MuZero window with the given number of observations."""
    unroll, steps = experiment.muzero.unroll_steps, window_steps(experiment)
    discrete = spec.action_bounds is None
    policy_size = spec.num_actions if discrete else experiment.search.candidates
    return Window(
        observation=_struct((observations, *spec.observation_shape), spec.observation_dtype),
        action=_struct((unroll, *spec.action_shape), np.int32 if discrete else np.float32),
        reward=_struct((steps,), np.float32),
        value=_struct((steps + 1,), np.float32),
        policy=_struct((unroll + 1, policy_size), np.float32),
        candidates=_struct((unroll + 1, 0) if discrete else (unroll + 1, policy_size, *spec.action_shape), np.float32),
        length=_struct((), np.int32),
        terminated=_struct((), np.bool_),
        version=_struct((), np.int32),
    )


def window_steps(experiment: Experiment) -> int:
    """K + n, the steps of a window."""
    return experiment.muzero.unroll_steps + experiment.muzero.td_steps


def stored_observations(experiment: Experiment) -> int:
    """The number of a window's observations that the loss needs."""
    # The consistency loss compares predicted latents with those of all unrolled positions.
    return experiment.muzero.unroll_steps + 1 if experiment.muzero.consistency_weight else 1


def with_axes(like: Any, *leading: int) -> Any:
    """Adds leading axes to every shape of a tree."""
    return jax.tree.map(lambda leaf: _struct((*leading, *leaf.shape), leaf.dtype), like)


def windows_of(
    experiment: Experiment, gathered: Callable[[str, int], Any], length: Any, terminated: Any, drawn: Any,
    observations: int, xp: Any = np,
) -> Window:  # fmt: skip
    """N windows of `length` `[N]` steps with so many `observations`, by `xp`, `numpy` or `jax.numpy`.

    `gathered(name, count)` are the first entries `[N, count, ...]` of a field, also those after the end. `drawn` are
    random actions `[N, K, ...]`: after the end they teach the dynamics that none leaves the absorbing state.
    """
    unroll, count = experiment.muzero.unroll_steps, np.arange(window_steps(experiment) + 1)
    # The episode's steps 0 to L - 1 and positions 0 to L exist; a terminal position has no value.
    steps, positions = count < length[:, None], count <= length[:, None]

    def existing(name: str, exists: Any, otherwise: Any = 0) -> Any:
        values = gathered(name, exists.shape[1])
        there = exists.reshape(*exists.shape, *[1] * (values.ndim - 2))
        return xp.where(there, values, xp.asarray(otherwise, values.dtype))

    return Window(
        observation=existing("observation", positions[:, :observations]),
        action=existing("action", steps[:, :unroll], drawn),
        reward=existing("reward", steps[:, :-1]),
        value=existing("value", steps | (positions & ~terminated[:, None])),
        policy=existing("policy", steps[:, : unroll + 1]),
        candidates=existing("candidates", steps[:, : unroll + 1]),
        length=length.astype(np.int32),
        terminated=terminated,
        version=gathered("version", 1)[:, 0],
    )


def nstep_returns(
    xp: Any, reward: Any, value: Any, length: Any, discount: float, td_steps: int, unroll_steps: int
) -> Any:
    """The n-step returns of the positions 0 to K of B windows.

    `z_k = sum_{i < m} discount^i r_{k+i} + discount^m v_{k+m}` with `m = min(n, L - k)`, where L is the end of the
    episode.

    Args:
      xp: the arrays' library, `numpy` or `jax.numpy`.
      reward: `[B, K + n]` or more steps, zero from step L on.
      value: `[B, K + n + 1]` or more positions, zero at position L if the episode terminated there.
      length: `[B]` int32, L.
      discount: discount factor per step.
      td_steps: n.
      unroll_steps: K.

    Returns:
      `[B, K + 1]`; entries from position L on are meaningless.
    """
    position = np.arange(unroll_steps + 1)
    bootstrap = xp.minimum(position + td_steps, length[:, None])
    bootstrap_discount = discount ** xp.maximum(bootstrap - position, 0)
    # How far a step (row) lies ahead of a position (column).
    ahead = np.arange(unroll_steps + td_steps)[:, None] - position
    reward_discount = np.where((ahead >= 0) & (ahead < td_steps), discount ** np.maximum(ahead, 0), 0.0)
    # A sum instead of a matrix product, which accelerators would compute in bfloat16.
    rewards = xp.sum(reward[:, : unroll_steps + td_steps, None] * reward_discount, axis=1)
    return rewards + bootstrap_discount * xp.take_along_axis(value, bootstrap, axis=1)
