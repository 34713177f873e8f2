"""Data augmentation on the device: a random symmetry of the game transforms each sample."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import jax
import jax.numpy as jnp
import numpy as np

from podzero.types import Array, Sample, Symmetry

Augment = Callable[[Array, Sample], Sample]
"""Maps a PRNG key and a batch of samples to a batch of the same shapes."""


def make_augment(symmetries: Sequence[Symmetry], num_actions: int) -> Augment:
    """Transforms each sample by one of the symmetries or the identity, drawn uniformly."""
    if not symmetries:
        return lambda key, batch: batch
    observations = [lambda observation: observation, *(symmetry.observation for symmetry in symmetries)]
    actions = np.stack([np.arange(num_actions), *(symmetry.actions for symmetry in symmetries)])

    def one(choice: jax.Array, sample: Sample) -> Sample:
        order = jnp.asarray(actions)[choice]
        return sample._replace(
            observation=jax.lax.switch(choice, observations, sample.observation),
            legal=sample.legal[order],
            policy_target=sample.policy_target[order],
        )

    def augment(key: Array, batch: Sample) -> Sample:
        choices = jax.random.randint(key, (batch.legal.shape[0],), 0, len(observations))
        return jax.vmap(one)(choices, batch)

    return augment
