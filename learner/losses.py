"""The AlphaZero loss (Silver et al. 2017, https://arxiv.org/abs/1712.01815)."""

from __future__ import annotations

from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax.scipy.special import xlogy

from podzero.types import Array, Network, Params, Sample

ILLEGAL_LOGIT = -1e9
"""Stands for minus infinity: its softmax is exactly zero in float32, and its gradients stay finite."""


class Loss(NamedTuple):
    """The loss of a batch and its parts, each `[]` float32, averaged over the batch."""

    total: jax.Array
    policy: jax.Array
    """Cross-entropy of the policy against the search's, in nats."""
    policy_kl: jax.Array
    """The same less the target's own entropy: zero for a perfect fit, whatever the target."""
    value: jax.Array
    """Squared error of the value."""


def masked_log_policy(logits: Array, legal: Array) -> jax.Array:
    """Log-probabilities `[B, A]` over the legal actions."""
    return jax.nn.log_softmax(jnp.where(legal, logits, ILLEGAL_LOGIT))


def alphazero_loss(network: Network, value_weight: float, params: Params, batch: Sample) -> Loss:
    """`mean(-sum_a pi(a) log p(a) + value_weight * (z - v)^2)` over a batch of B samples.

    pi is the search policy, p the network's over the legal actions, z the value target, v the network's value.
    The weight penalty of the paper is left to the optimizer.
    """
    logits, value = network.apply(params, batch.observation)
    log_policy = masked_log_policy(logits, batch.legal)
    target = batch.policy_target
    # Where the target is zero the term is zero by definition, and 0 * log p(illegal) must not come near it.
    cross_entropy = -jnp.sum(jnp.where(target > 0, target * log_policy, 0.0), axis=-1).mean()
    entropy = -jnp.sum(xlogy(target, target), axis=-1).mean()
    value_loss = jnp.mean((batch.value_target - value) ** 2)
    return Loss(
        total=cross_entropy + value_weight * value_loss,
        policy=cross_entropy,
        policy_kl=cross_entropy - entropy,
        value=value_loss,
    )
