"""The losses of AlphaZero (Silver et al. 2017, https://arxiv.org/abs/1712.01815) and MuZero (Schrittwieser et al. 2020,
appendix G), which unrolls its model along the actions of a window.
"""

from __future__ import annotations

from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jax.scipy.special import xlogy
from jax.scipy.stats import norm

from podzero.config import LearnerConfig, MuZeroConfig
from podzero.config.samples import nstep_returns
from podzero.core.types import Array, ModelNetwork, Network, Params, Prediction, Sample, SoftTargets, Window
from podzero.networks.layers import encode_value

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
    """Metrics by name, each `[]` float32: averages with the loss's weights, `sum(w * l) / sum(w)`."""
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
    error is the mean over them. Losses of auxiliary heads are added, and with a teacher the same loss with its policy
    and value in place of pi and z, times `soft_targets.weight`. The paper's L2 penalty of all weights is not part of
    it: optimizers decay matrices and kernels instead, and only with `sgd` is that decay the gradient of a penalty.
    Where v is the expectation of a predicted distribution, that one's cross-entropy has the weight of the value.

    Returns:
      the loss with the metrics
        `policy_loss`: cross-entropy of the policy with the search policy, in nats.
        `policy_kl`: `KL(search policy || policy)`, zero for a perfect fit.
        `value_loss`: squared error of the value.
        `outcome_loss`, `distribution_loss`, `moves_left_loss`, `reply_loss`, `ownership_loss`: of those heads, if the
          network has them.
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
    weights: dict[str, float] = {network.values_from: config.value_weight} if network.values_from else {}
    total += sum(weights.get(name, AUXILIARY_WEIGHT) * loss for name, loss in auxiliary.items())
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
    return LossOutput(total, _averages(metrics, weight), _of_samples(jnp.abs(error)))


def auxiliary_losses(prediction: Prediction, batch: Sample) -> dict[str, jax.Array]:
    """The loss of each head of a prediction, `[B]`, zero where the target is unknown.

    Outcome, distribution, reply and ownership (the mean over the squares) have a cross-entropy loss, moves left a Huber
    loss in units of `MOVES_UNIT` plies.
    """
    losses: dict[str, jax.Array] = {}
    if prediction.outcome is not None:
        losses["outcome"] = _cross_entropy(prediction.outcome, batch.outcome)
    if prediction.distribution is not None:
        losses["distribution"] = optax.softmax_cross_entropy(prediction.distribution, encode_value(batch.value_target))
    if prediction.moves_left is not None:
        moves_left = jnp.asarray(batch.moves_left)
        error = optax.huber_loss((prediction.moves_left - moves_left) / MOVES_UNIT)
        losses["moves_left"] = jnp.where(moves_left >= 0, error, 0.0)
    if prediction.reply is not None:
        losses["reply"] = _cross_entropy(prediction.reply, batch.reply)
    if prediction.ownership is not None:
        owners = jnp.asarray(batch.ownership)
        assert prediction.ownership.shape == (*owners.shape, 3)
        losses["ownership"] = jnp.mean(_cross_entropy(prediction.ownership, owners), axis=1)
    return losses


def _cross_entropy(logits: jax.Array, label: Array | None) -> jax.Array:
    """The cross-entropy with labels `[...]` of logits `[..., C]`; zero where a label is negative, for unknown."""
    labels = jnp.asarray(label)
    losses = optax.softmax_cross_entropy_with_integer_labels(logits, jnp.maximum(labels, 0))
    return jnp.where(labels >= 0, losses, 0.0)


def _of_samples(of_values: jax.Array) -> jax.Array:
    """The mean over the values of each sample: `[B]` from `[B]` or `[B, V]`."""
    return of_values if of_values.ndim == 1 else jnp.mean(of_values, axis=1)


def _mean(values: jax.Array, weight: Array | None) -> jax.Array:
    return jnp.mean(values if weight is None else weight * values)


def _averages(means: dict[str, jax.Array], weight: Array | None) -> dict[str, jax.Array]:
    """`sum(w * l) / sum(w)` from `mean(w * l)`, so that metrics do not depend on the scale of the weights."""
    return means if weight is None else {name: mean / jnp.mean(weight) for name, mean in means.items()}


class WindowTargets(NamedTuple):
    """Targets of B windows at positions 0 to K and the steps between them; zero where masked."""

    value: jax.Array
    """`[B, K + 1]` float32."""
    reward: jax.Array
    """`[B, K]` float32."""
    value_mask: jax.Array
    """`[B, K + 1]` bool, positions whose value is trained."""
    reward_mask: jax.Array
    """`[B, K]` bool, steps whose reward is trained."""
    policy_mask: jax.Array
    """`[B, K + 1]` bool, positions whose policy is trained."""
    state_mask: jax.Array
    """`[B, K]` bool, positions 1 to K whose latent state is trained."""


def nstep_targets(window: Window, discount: float, td_steps: int, unroll_steps: int) -> WindowTargets:
    """The targets of B windows with K = `unroll_steps`; values are n-step returns, n = `td_steps`.

    Entries after a window's `length` are ignored.
    """
    steps = unroll_steps + td_steps
    assert window.reward.shape[1:] == (steps,)
    assert window.value.shape[1:] == (steps + 1,)
    length, terminated = jnp.asarray(window.length)[:, None], jnp.asarray(window.terminated)[:, None]
    positions = jnp.arange(steps + 1)
    # The last position has the value zero if the episode terminated there, and its search value if it was cut off.
    exists = (positions < length) | ((positions == length) & ~terminated)
    reward = jnp.where(positions[:-1] < length, window.reward, 0.0)
    value = jnp.where(exists, window.value, 0.0)
    returns = nstep_returns(jnp, reward, value, length[:, 0], discount, td_steps, unroll_steps)
    acted = positions[: unroll_steps + 1] < length
    # A terminated episode ends in an absorbing state, where values and rewards are trained towards zero. What follows a
    # time limit is unknown, so it is masked. Only states up to the last observation of an episode have a target.
    return WindowTargets(
        value=jnp.where(acted, returns, 0.0),
        reward=reward[:, :unroll_steps],
        value_mask=acted | terminated,
        reward_mask=acted[:, :-1] | terminated,
        policy_mask=acted,
        state_mask=positions[1 : unroll_steps + 1] <= length,
    )


DYNAMICS_GRADIENT = 0.5
"""Factor by which each step of the unroll scales the gradient of its latent state."""


def muzero_loss(
    network: ModelNetwork,
    config: MuZeroConfig,
    value_weight: float,
    discount: float,
    params: Params,
    window: Window,
    weight: Array | None = None,
) -> LossOutput:
    """`mean(w * (policy + value_weight * value + reward_weight * reward + consistency_weight * consistency -
    entropy_weight * entropy))` over a batch of B windows.

    Each part is its value at position 0 plus its mean over the K unrolled steps; masked positions count as zero.

    `window` is `[B, ...]` on every field, with K + 1 or more observations if consistency has a weight; `weight` is w,
    `[B]`, the importance weights relative to the largest (1 if None).

    Returns:
      the loss with the value errors at position 0 and the metrics
        `policy_loss`: cross-entropy of the policy with the search policy, in nats; for continuous actions of its
          density.
        `policy_kl`: the same minus the entropy of the search policy; for discrete actions zero for a perfect fit.
        `policy_entropy`: entropy of the policy; for continuous actions of its density before squashing.
        `value_loss`: cross-entropy of the value distribution with the target distribution.
        `reward_loss`: the same for rewards, over the K steps.
        `clipped_values`: the share of value targets that lie beyond the outermost bins, and are learned as these.
        `consistency_loss`: negative cosine similarity, in [-1, 1], of predicted and observed latent states, if it has
          a weight.
    """
    targets = nstep_targets(window, discount, config.td_steps, config.unroll_steps)
    latents, policy_output, value, reward = unroll_model(network, params, window)
    log_policy, entropy = _log_policy_and_entropy(policy_output, window)
    policy_target = jnp.where(targets.policy_mask[..., None], window.policy, 0.0)
    assert log_policy.shape == policy_target.shape
    # By convention 0 log 0 = 0; without the mask, 0 * -infinity would be NaN.
    policy = -jnp.sum(jnp.where(policy_target > 0, policy_target * log_policy, 0.0), axis=-1)

    def mean(first_and_steps: jax.Array) -> jax.Array:
        return _mean(first_and_steps[:, 0] + jnp.mean(first_and_steps[:, 1:], axis=1), weight)

    metrics = {
        "policy_loss": mean(policy),
        "policy_kl": mean(policy + jnp.sum(xlogy(policy_target, policy_target), axis=-1)),
        "policy_entropy": mean(jnp.where(targets.policy_mask, entropy, 0.0)),
        "value_loss": mean(_bin_loss(network, value, targets.value, targets.value_mask)),
        "reward_loss": mean(_pad_first(_bin_loss(network, reward, targets.reward, targets.reward_mask))),
    }
    outermost = network.encode(targets.value)[..., np.array([0, -1])].max(axis=-1) == 1.0
    metrics["clipped_values"] = _mean(jnp.mean(outermost, axis=1), weight)
    total = metrics["policy_loss"] + value_weight * metrics["value_loss"]
    total += config.reward_weight * metrics["reward_loss"] - config.entropy_weight * metrics["policy_entropy"]
    if config.consistency_weight > 0:
        metrics["consistency_loss"] = mean(_pad_first(_inconsistency(network, params, latents, window, targets)))
        total += config.consistency_weight * metrics["consistency_loss"]
    errors = jnp.abs(network.decode(value[:, 0]) - targets.value[:, 0])
    return LossOutput(total, _averages({"loss": total, **metrics}, weight), errors)


def unroll_model(network: ModelNetwork, params: Params, window: Window) -> tuple[jax.Array, ...]:
    """Represents position 0 of B windows and applies the dynamics to their K actions.

    Returns latent states `[B, K + 1, ...]`, policies `[B, K + 1, A]` (logits) or `[B, K + 1, 2, D]`, and the logits of
    values, `[B, K + 1, bins]`, and of rewards, `[B, K, bins]`.
    """
    latents, rewards = [network.represent(params, window.observation[:, 0])], []
    for action in jnp.moveaxis(jnp.asarray(window.action), 1, 0):
        before = latents[-1]
        scaled = DYNAMICS_GRADIENT * before + (1.0 - DYNAMICS_GRADIENT) * jax.lax.stop_gradient(before)
        latent, reward = network.dynamics(params, scaled, action)
        latents.append(latent)
        rewards.append(reward)
    stacked = jnp.stack(latents, axis=1)
    # Policies and values of all K + 1 latent states are computed in one batch.
    policy, value = network.predict(params, jax.lax.collapse(stacked, 0, 2))
    batch = stacked.shape[0]
    return stacked, _split(policy, batch), _split(value, batch), jnp.stack(rewards, axis=1)


def _log_policy_and_entropy(policy: jax.Array, window: Window) -> tuple[jax.Array, jax.Array]:
    """Log-probabilities of actions or log-densities of candidates `[B, K + 1, P]`, and entropies `[B, K + 1]`."""
    # Logits [B, K + 1, A] of discrete actions, or mean and log standard deviation [B, K + 1, 2, D].
    if policy.ndim == 3:
        log_policy = jax.nn.log_softmax(policy)
        return log_policy, -jnp.sum(jnp.exp(log_policy) * log_policy, axis=-1)
    mean, log_std = policy[:, :, 0], policy[:, :, 1]
    log_density = norm.logpdf(window.candidates, mean[:, :, None], jnp.exp(log_std)[:, :, None])
    entropy = jnp.sum(log_std + 0.5 * np.log(2.0 * np.pi * np.e), axis=-1)
    return jnp.sum(log_density, axis=-1), entropy


def _bin_loss(network: ModelNetwork, logits: jax.Array, target: jax.Array, mask: jax.Array) -> jax.Array:
    """Cross-entropy of distributions over bins `[B, T, bins]` with those of the targets `[B, T]`."""
    assert logits.shape[:-1] == target.shape == mask.shape
    cross_entropy: jax.Array = optax.softmax_cross_entropy(logits, network.encode(target))
    return jnp.where(mask, cross_entropy, 0.0)


def _inconsistency(
    network: ModelNetwork, params: Params, latents: jax.Array, window: Window, targets: WindowTargets
) -> jax.Array:
    """Negative cosine similarity `[B, K]` of the predicted latent states and those of the observations."""
    batch, steps = targets.state_mask.shape
    assert window.observation.shape[1] > steps
    observed = jax.lax.collapse(jnp.asarray(window.observation)[:, 1 : steps + 1], 0, 2)
    # Without a gradient through the target the representations cannot collapse (SimSiam, Chen & He 2021).
    target = jax.lax.stop_gradient(network.project(params, network.represent(params, observed), False))
    predicted = network.project(params, jax.lax.collapse(latents[:, 1:], 0, 2), True)
    similarity: jax.Array = optax.losses.cosine_similarity(predicted, target, epsilon=1e-8)
    return jnp.where(targets.state_mask, -_split(similarity, batch), 0.0)


def _pad_first(steps: jax.Array) -> jax.Array:
    """Pads the steps `[B, K]` to `[B, K + 1]` with zeros at position 0."""
    return jnp.pad(steps, ((0, 0), (1, 0)))


def _split(x: jax.Array, batch: int) -> jax.Array:
    """Reshapes `[B * T, ...]` to `[B, T, ...]`."""
    return x.reshape(batch, -1, *x.shape[1:])
