"""Inputs of the benches: random samples, fixed parameters, and replay sections whose limiter never blocks."""

from __future__ import annotations

from typing import Any

import numpy as np

from podzero.config import Experiment, ReanalyseConfig
from podzero.samples import sample_like
from podzero.types import Array, EnvSpec, Params, Sample, Versioned, Window


def random_samples(experiment: Experiment, spec: EnvSpec, count: int) -> Sample | Window:
    """Random samples `[count, ...]` with the experiment's shapes and dtypes."""
    random = np.random.default_rng(0)
    like = sample_like(experiment, spec)
    observation = (random.random((count, *like.observation.shape)) < 0.3).astype(like.observation.dtype)
    if isinstance(like, Window):
        return _random_windows(random, like, observation)
    return Sample(
        observation=observation,
        legal=np.ones((count, spec.num_actions), np.bool_),
        policy_target=random.dirichlet(np.ones(spec.num_actions), count).astype(np.float32),
        value_target=random.uniform(-1.0, 1.0, count).astype(np.float32),
        version=np.zeros(count, np.int32),
        outcome=None if like.outcome is None else random.integers(0, 3, count, np.int32),
        moves_left=None if like.moves_left is None else random.integers(1, 40, count, np.int32),
        reply=None if like.reply is None else random.integers(0, spec.num_actions, count, np.int32),
    )


def _random_windows(random: np.random.Generator, like: Window, observation: Array) -> Window:
    """Windows without the end of an episode."""
    count = len(observation)
    zeros = Window(*(np.zeros((count, *leaf.shape), leaf.dtype) for leaf in like))
    positions, choices = like.policy.shape
    return zeros._replace(
        observation=observation,
        reward=random.normal(size=zeros.reward.shape).astype(np.float32),
        value=random.normal(size=zeros.value.shape).astype(np.float32),
        policy=random.dirichlet(np.ones(choices), (count, positions)).astype(np.float32),
        candidates=random.normal(size=zeros.candidates.shape).astype(np.float32),
        length=np.full(count, like.reward.shape[0], np.int32),
    )


class FixedParams:
    """Parameters that never change; a `ParamSource`."""

    def __init__(self, params: Params) -> None:
        """Publishes `params` as version 0."""
        self._params = params

    def wait(self, timeout_s: float) -> Versioned:
        """Version 0, at once."""
        del timeout_s
        return Versioned(0, self._params)

    def poll(self) -> Versioned | None:
        """None: there is never a newer version."""
        return None


def without_insert_limit(experiment: Experiment, shards: int = 1) -> Experiment:
    """The experiment with a limiter that never blocks inserts, because the table never reaches `replay.min_size`."""
    limits = {"capacity": 20_000_000, "min_size": 20_000_000, "samples_per_insert": 1.0}
    return with_replay(experiment, shards=shards, tolerance=None, port=0, **limits)


def without_sample_limit(experiment: Experiment) -> Experiment:
    """The experiment with a limiter that never blocks samples, because it allows a billion of them for each insert."""
    ratio = 1e9
    tolerance = ratio * experiment.replay.min_size / 2
    return with_replay(experiment, shards=1, tolerance=tolerance, port=0, samples_per_insert=ratio)


def with_replay(experiment: Experiment, **changes: Any) -> Experiment:
    """The experiment with `changes` in its section `replay`, and without reanalyse."""
    changed = {"replay": experiment.replay.model_copy(update=changes), "reanalyse": ReanalyseConfig()}
    return experiment.model_copy(update=changed)
