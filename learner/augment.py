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
    moved_to = np.argsort(actions, axis=1)  # the inverse permutations

    def one(choice: jax.Array, sample: Sample) -> Sample:
        order, reply = jnp.asarray(actions)[choice], sample.reply
        return sample._replace(
            reply=None if reply is None else jnp.where(reply < 0, reply, jnp.asarray(moved_to)[choice, reply]),
            observation=jax.lax.switch(choice, observations, sample.observation),
            legal=sample.legal[order],
            policy_target=sample.policy_target[order],
        )

    def augment(key: Array, batch: Sample) -> Sample:
        choices = jax.random.randint(key, (batch.legal.shape[0],), 0, len(observations))
        return jax.vmap(one)(choices, batch)

    return augment
