"""The AlphaZero loss (Silver et al. 2017, https://arxiv.org/abs/1712.01815)."""

from __future__ import annotations

from typing import NamedTuple

import jax
import jax.numpy as jnp
import optax
from jax.scipy.special import xlogy

from podzero.types import Array, Network, Params, Sample

ILLEGAL_LOGIT = -1e9
"""In place of minus infinity: the softmax is exactly zero in float32, and gradients stay finite."""


class LossOutput(NamedTuple):
    """A loss with its metrics."""

    total: jax.Array
    """`[]` float32, the loss to minimize: a mean over the batch."""
    metrics: dict[str, jax.Array]
    """By name, each `[]` float32, averaged over the batch with the weights of the loss."""
    errors: jax.Array
    """`[B]` float32, absolute error of each sample's value, for its priority."""


def alphazero_loss(
    network: Network, value_weight: float, params: Params, batch: Sample, weight: Array | None = None
) -> LossOutput:
    """`mean(w * (-sum_a pi(a) log p(a) + value_weight * (z - v)^2))` over a batch of B samples.

    pi is the search policy, p the network's policy over the legal actions, z the value target, v the network's value, w
    the importance `weight` `[B]`, relative to the largest (1 if None). The paper's L2 penalty is the optimizer's weight
    decay.

    Returns:
      The loss with the metrics
        `policy_loss`: cross-entropy of the policy with the search policy, in nats.
        `policy_kl`: `KL(search policy || policy)`, zero for a perfect fit.
        `value_loss`: squared error of the value.
    """
    logits, value = network.apply(params, batch.observation)
    target = jnp.asarray(batch.policy_target)
    cross_entropy = optax.safe_softmax_cross_entropy(jnp.where(batch.legal, logits, ILLEGAL_LOGIT), target)
    negative_entropy = jnp.sum(xlogy(target, target), axis=-1)
    error = jnp.asarray(batch.value_target) - value
    policy_loss, value_loss = _mean(cross_entropy, weight), _mean(error**2, weight)
    total = policy_loss + value_weight * value_loss
    metrics = {
        "loss": total,
        "policy_loss": policy_loss,
        "policy_kl": _mean(cross_entropy + negative_entropy, weight),
        "value_loss": value_loss,
    }
    return LossOutput(total, metrics, jnp.abs(error))


def _mean(values: jax.Array, weight: Array | None) -> jax.Array:
    return jnp.mean(values if weight is None else weight * values)
