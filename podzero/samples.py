"""The shapes of what actors write and the learner reads, from the experiment alone."""

from __future__ import annotations

from typing import Any

import jax
import numpy as np

from podzero.config import Experiment
from podzero.types import EnvSpec, Sample, StoredState, Window

_struct: Any = jax.ShapeDtypeStruct


def sample_like(experiment: Experiment, spec: EnvSpec) -> Sample | Window:
    """One sample of the experiment without data: a `jax.ShapeDtypeStruct` on every field, without a batch axis."""
    if not experiment.learns_model:
        return position_like(spec)
    return window_like(experiment, spec, observations_kept(experiment))


def stored_state_like(experiment: Experiment, spec: EnvSpec) -> StoredState | Window:
    """What is kept of a sample so that it can be searched again, without data: of a window every observation."""
    if experiment.learns_model:
        return window_like(experiment, spec, window_steps(experiment) + 1)
    return StoredState(
        state=_struct((spec.state_bytes,), np.dtype(np.uint8)),
        outcome=_struct((), np.dtype(np.float32)),
        version=_struct((), np.dtype(np.int32)),
    )


def position_like(spec: EnvSpec) -> Sample:
    """One AlphaZero position without data."""
    return Sample(
        observation=_struct(spec.observation_shape, np.dtype(spec.observation_dtype)),
        legal=_struct((spec.num_actions,), np.dtype(np.bool_)),
        policy_target=_struct((spec.num_actions,), np.dtype(np.float32)),
        value_target=_struct((), np.dtype(np.float32)),
        version=_struct((), np.dtype(np.int32)),
    )


def window_like(experiment: Experiment, spec: EnvSpec, observations: int) -> Window:
    """One MuZero window of so many `observations`, without data."""
    unroll, steps = experiment.muzero.unroll_steps, window_steps(experiment)
    counted = spec.action_bounds is None
    choices = spec.num_actions if counted else experiment.search.candidates
    floats, whole = np.dtype(np.float32), np.dtype(np.int32)
    return Window(
        observation=_struct((observations, *spec.observation_shape), np.dtype(spec.observation_dtype)),
        action=_struct((unroll, *spec.action_shape), whole if counted else floats),
        reward=_struct((steps,), floats),
        value=_struct((steps + 1,), floats),
        policy=_struct((unroll + 1, choices), floats),
        candidates=_struct((unroll + 1, 0) if counted else (unroll + 1, choices, *spec.action_shape), floats),
        length=_struct((), whole),
        terminated=_struct((), np.dtype(np.bool_)),
        version=_struct((), whole),
    )


def window_steps(experiment: Experiment) -> int:
    """K + n: steps of an episode that a window may reach over."""
    return experiment.muzero.unroll_steps + experiment.muzero.td_steps


def observations_kept(experiment: Experiment) -> int:
    """O of what is learned from: the loss needs the first observation alone; the consistency loss compares those of
    all unrolled positions.
    """
    return experiment.muzero.unroll_steps + 1 if experiment.muzero.consistency_weight else 1


def with_axes(like: Any, *leading: int) -> Any:
    """A tree of shapes with the axes `leading` in front of each."""
    return jax.tree.map(lambda leaf: _struct((*leading, *leaf.shape), leaf.dtype), like)
