"""The AlphaZero loss (Silver et al. 2017, https://arxiv.org/abs/1712.01815)."""

from __future__ import annotations

from typing import NamedTuple

import jax
import jax.numpy as jnp
import optax
from jax.scipy.special import xlogy

from podzero.config import LearnerConfig
from podzero.core.types import Array, Network, Params, Prediction, Sample, SoftTargets

ILLEGAL_LOGIT = -1e9
"""Replaces minus infinity: the softmax is still zero in float32, and gradients stay finite."""
MOVES_UNIT = 20.0
"""Unit of the error of predicted game lengths, in plies."""
AUXILIARY_WEIGHT = 0.15
"""Weight of each auxiliary loss, relative to the policy loss."""


class LossOutput(NamedTuple):
    """A loss with its metrics."""

    total: jax.Array
    """`[]` float32, the loss to minimize: a mean over the batch."""
    metrics: dict[str, jax.Array]
    """Metrics by name, each `[]` float32, averaged over the batch with the loss's weights."""
    errors: jax.Array
    """`[B]` float32, the absolute error of each sample's value, from which its priority is derived."""


def alphazero_loss(
    network: Network,
    config: LearnerConfig,
    params: Params,
    batch: Sample,
    weight: Array | None = None,
    soft_targets: SoftTargets | None = None,
) -> LossOutput:
    """`mean(w * (-sum_a pi(a) log p(a) + value_weight * (z - v)^2))` over a batch of B samples.

    pi is the search policy, p the network's policy over the legal actions, z the value target, v the network's value,
    and w the importance `weight` `[B]`, relative to the largest (1 if None). Where each player has a value, the squared
    error is the mean over them. Losses of auxiliary heads are added, and
    with a teacher the same loss with its policy and value in place of pi and z, times `soft_targets.weight`. The
    paper's L2 penalty is the optimizer's weight decay.

    Returns:
      the loss with the metrics
        `policy_loss`: cross-entropy of the policy with the search policy, in nats.
        `policy_kl`: `KL(search policy || policy)`, zero for a perfect fit.
        `value_loss`: squared error of the value.
        `outcome_loss`, `moves_left_loss`, `reply_loss`: losses of auxiliary heads, if the network has them.
        `teacher_policy_loss`, `teacher_value_loss`: cross-entropy with the teacher's policy and squared error against
          its value, before their weights.
    """
    if network.apply_all is None:
        logits, value = network.apply(params, batch.observation)
        auxiliary: dict[str, jax.Array] = {}
    else:
        logits, value, prediction = network.apply_all(params, batch.observation)
        auxiliary = {name: _mean(loss, weight) for name, loss in auxiliary_losses(prediction, batch).items()}
    target = jnp.asarray(batch.policy_target)
    # A missing axis would broadcast to [B, B] and still train, badly.
    assert logits.shape == target.shape == batch.legal.shape
    assert value.shape == batch.value_target.shape
    assert value.shape[:1] == target.shape[:1]
    legal_logits = jnp.where(batch.legal, logits, ILLEGAL_LOGIT)
    cross_entropy = optax.safe_softmax_cross_entropy(legal_logits, target)
    # The entropy of the target has no gradient; subtracted from the cross-entropy it gives the KL divergence.
    negative_entropy = jnp.sum(xlogy(target, target), axis=-1)
    error = jnp.asarray(batch.value_target) - value
    policy_loss, value_loss = _mean(cross_entropy, weight), _mean(_of_samples(error**2), weight)
    total = policy_loss + config.value_weight * value_loss
    total += AUXILIARY_WEIGHT * sum(auxiliary.values())
    metrics = {
        "loss": total,
        "policy_loss": policy_loss,
        "policy_kl": _mean(cross_entropy + negative_entropy, weight),
        "value_loss": value_loss,
    } | {f"{name}_loss": loss for name, loss in auxiliary.items()}
    if soft_targets is not None:
        teacher_policy, teacher_value = jnp.asarray(soft_targets.policy), jnp.asarray(soft_targets.value)
        assert teacher_policy.shape == logits.shape
        assert teacher_value.shape == value.shape
        policy_loss = _mean(optax.safe_softmax_cross_entropy(legal_logits, teacher_policy), weight)
        value_loss = _mean(_of_samples((teacher_value - value) ** 2), weight)
        total += soft_targets.weight * (policy_loss + config.value_weight * value_loss)
        metrics |= {"loss": total, "teacher_policy_loss": policy_loss, "teacher_value_loss": value_loss}
    return LossOutput(total, metrics, _of_samples(jnp.abs(error)))


def auxiliary_losses(prediction: Prediction, batch: Sample) -> dict[str, jax.Array]:
    """The loss of each auxiliary head, `[B]`, zero where the target is unknown.

    Outcome and reply have a cross-entropy loss, moves left a Huber loss in units of `MOVES_UNIT` plies.
    """
    outcome, moves_left, reply = map(jnp.asarray, (batch.outcome, batch.moves_left, batch.reply))
    return {
        "outcome": jnp.where(outcome >= 0, _cross_entropy(prediction.outcome, outcome), 0.0),
        "moves_left": jnp.where(
            moves_left >= 0, optax.huber_loss((prediction.moves_left - moves_left) / MOVES_UNIT), 0.0
        ),
        "reply": jnp.where(reply >= 0, _cross_entropy(prediction.reply, reply), 0.0),
    }


def _cross_entropy(logits: jax.Array, label: Array) -> jax.Array:
    """The cross-entropy with labels `[B]`; arbitrary where a label is negative."""
    labels = jnp.maximum(jnp.asarray(label), 0)
    losses: jax.Array = optax.softmax_cross_entropy_with_integer_labels(logits, labels)
    return losses


def _of_samples(of_values: jax.Array) -> jax.Array:
    """The mean over the values of each sample: `[B]` from `[B]` or `[B, V]`."""
    return of_values if of_values.ndim == 1 else jnp.mean(of_values, axis=1)


def _mean(values: jax.Array, weight: Array | None) -> jax.Array:
    return jnp.mean(values if weight is None else weight * values)
