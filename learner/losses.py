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
    errors: jax.Array
    """`[B]` float32, absolute error of each sample's value."""


def masked_log_policy(logits: Array, legal: Array) -> jax.Array:
    """Log-probabilities `[B, A]` over the legal actions."""
    return jax.nn.log_softmax(jnp.where(legal, logits, ILLEGAL_LOGIT))


def alphazero_loss(
    network: Network, value_weight: float, params: Params, batch: Sample, weight: Array | None = None
) -> Loss:
    """`mean(w * (-sum_a pi(a) log p(a) + value_weight * (z - v)^2))` over a batch of B samples.

    pi is the search policy, p the network's over the legal actions, z the value target, v the network's value, w the
    importance `weight` `[B]`, 1 without one. The weight penalty of the paper is left to the optimizer.
    """
    logits, value = network.apply(params, batch.observation)
    log_policy = masked_log_policy(logits, batch.legal)
    target = batch.policy_target
    # Where the target is zero the term is zero by definition, and 0 * log p(illegal) must not come near it.
    cross_entropy: jax.Array = -jnp.sum(jnp.where(target > 0, target * log_policy, 0.0), axis=-1)
    entropy: jax.Array = -jnp.sum(xlogy(target, target), axis=-1)
    error = jnp.asarray(batch.value_target) - value
    policy_loss, value_loss = _mean(cross_entropy, weight), _mean(error**2, weight)
    return Loss(
        total=policy_loss + value_weight * value_loss,
        policy=policy_loss,
        policy_kl=_mean(cross_entropy - entropy, weight),
        value=value_loss,
        errors=jnp.abs(error),
    )


def _mean(values: jax.Array, weight: Array | None) -> jax.Array:
    return jnp.mean(values if weight is None else weight * values)
