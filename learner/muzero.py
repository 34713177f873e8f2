"""The loss of a learned model, unrolled along what was seen (Schrittwieser et al. 2020, appendix G)."""

from __future__ import annotations

from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.scipy.special import xlogy
from jax.scipy.stats import norm

from podzero.config import MuZeroConfig
from podzero.learner.targets import Targets, nstep_targets
from podzero.types import Array, ModelNetwork, Params, Window

DYNAMICS_GRADIENT = 0.5
"""Share of its gradient that each step of the unroll hands back to the latent state it started from."""


class ModelLoss(NamedTuple):
    """The loss of a batch and its parts, each `[]` float32, averaged over the batch with its importance weights.

    Each part is that of position 0 plus the mean over the K unrolled steps; what is not learned from counts as zero.
    """

    total: jax.Array
    policy: jax.Array
    """Cross-entropy of the policy against the search's, in nats; of its density, where actions are continuous."""
    policy_kl: jax.Array
    """The same less the target's own entropy: zero for a perfect fit where actions are counted."""
    value: jax.Array
    """Cross-entropy of the value's distribution against the target's."""
    reward: jax.Array
    """The same of the rewards, which only the K steps have."""
    consistency: jax.Array
    """Negative cosine similarity, in [-1, 1], of the latent states that the model predicts to those of the
    observations; 0 where it has no weight."""
    entropy: jax.Array
    """Entropy of the policy; of its density before squashing, where actions are continuous."""
    errors: jax.Array
    """`[B]` float32, absolute error of the value at position 0."""


class Unroll(NamedTuple):
    """What the model says of B windows."""

    latents: jax.Array
    """`[B, K + 1, ...]` float32, the first one represented, the others predicted."""
    policy: jax.Array
    """`[B, K + 1, A]` logits, or `[B, K + 1, 2, D]`."""
    value: jax.Array
    """`[B, K + 1, bins]` logits."""
    reward: jax.Array
    """`[B, K, bins]` logits."""


def muzero_loss(
    network: ModelNetwork,
    config: MuZeroConfig,
    value_weight: float,
    discount: float,
    params: Params,
    window: Window,
    weight: Array | None = None,
) -> ModelLoss:
    """`mean(w * (policy + value_weight * value + reward_weight * reward + consistency_weight * consistency -
    entropy_weight * entropy))` over a batch of B windows.

    All steps of the unroll together weigh as much as position 0, however many they are.

    Args:
      network: the model.
      config: K, n and the weights of the parts.
      value_weight: weight of the value.
      discount: what a reward one step later is worth.
      params: of the network.
      window: what was seen, `[B, ...]` on every field; with K + 1 observations or more where consistency has a weight.
      weight: w, `[B]` importance weights; 1 without.
    """
    targets = nstep_targets(window, discount, config.td_steps, config.unroll_steps)
    unroll = unrolled(network, params, window)
    log_policy, entropy = _judged(unroll.policy, window)
    learned = jnp.where(targets.policy_mask[..., None], window.policy, 0.0)
    # Where the target is zero the term is zero by definition, and 0 * -infinity must not come near it.
    policy = -jnp.sum(jnp.where(learned > 0, learned * log_policy, 0.0), axis=-1)

    def averaged(first_and_steps: jax.Array) -> jax.Array:
        return _averaged(first_and_steps, weight)

    parts = {
        "policy": averaged(policy),
        "value": averaged(_distance(network, unroll.value, targets.value, targets.value_mask)),
        "reward": averaged(_no_first(_distance(network, unroll.reward, targets.reward, targets.reward_mask))),
        "consistency": jnp.zeros(()),
        "entropy": averaged(jnp.where(targets.policy_mask, entropy, 0.0)),
    }
    if config.consistency_weight > 0:
        parts["consistency"] = averaged(_no_first(_inconsistency(network, params, unroll, window, targets)))
    return ModelLoss(
        total=parts["policy"]
        + value_weight * parts["value"]
        + config.reward_weight * parts["reward"]
        + config.consistency_weight * parts["consistency"]
        - config.entropy_weight * parts["entropy"],
        policy_kl=averaged(policy + jnp.sum(xlogy(learned, learned), axis=-1)),
        errors=jnp.abs(network.decode(unroll.value[:, 0]) - targets.value[:, 0]),
        **parts,
    )


def unrolled(network: ModelNetwork, params: Params, window: Window) -> Unroll:
    """Represents position 0 of B windows and follows their K actions through the model.

    Steps follow one another, but what is said of the K + 1 latent states is computed for all of them at once.
    """
    latents, rewards = [network.represent(params, window.observation[:, 0])], []
    for action in jnp.moveaxis(jnp.asarray(window.action), 1, 0):
        latent, reward = network.dynamics(params, _scaled_gradient(latents[-1]), action)
        latents.append(latent)
        rewards.append(reward)
    along = jnp.stack(latents, axis=1)
    policy, value = network.predict(params, _merged(along))
    batch = along.shape[0]
    return Unroll(along, _split(policy, batch), _split(value, batch), jnp.stack(rewards, axis=1))


def _scaled_gradient(x: jax.Array) -> jax.Array:
    """`x`, with `DYNAMICS_GRADIENT` of its gradient."""
    return DYNAMICS_GRADIENT * x + (1.0 - DYNAMICS_GRADIENT) * jax.lax.stop_gradient(x)


def _judged(policy: jax.Array, window: Window) -> tuple[jax.Array, jax.Array]:
    """Log-probabilities or densities of what the search chose among, `[B, K + 1, P]`, and entropies `[B, K + 1]`."""
    if policy.ndim == 3:
        log_policy = jax.nn.log_softmax(policy)
        return log_policy, -jnp.sum(jnp.exp(log_policy) * log_policy, axis=-1)
    mean, log_std = policy[:, :, 0], policy[:, :, 1]
    log_density = norm.logpdf(window.candidates, mean[:, :, None], jnp.exp(log_std)[:, :, None])
    entropy = jnp.sum(log_std + 0.5 * np.log(2.0 * np.pi * np.e), axis=-1)
    return jnp.sum(log_density, axis=-1), entropy


def _distance(network: ModelNetwork, logits: jax.Array, target: jax.Array, learned: jax.Array) -> jax.Array:
    """Cross-entropy of distributions over bins against those of targets: `[B, T]` from `[B, T, bins]`."""
    cross_entropy = -jnp.sum(network.encode(target) * jax.nn.log_softmax(logits), axis=-1)
    return jnp.where(learned, cross_entropy, 0.0)


def _inconsistency(
    network: ModelNetwork, params: Params, unroll: Unroll, window: Window, targets: Targets
) -> jax.Array:
    """Negative cosine similarity of predicted latent states to those of the observations, which get no gradient:
    `[B, K]`.
    """
    batch, steps = targets.state_mask.shape
    seen = network.represent(params, _merged(window.observation[:, 1 : steps + 1]))
    target = jax.lax.stop_gradient(network.project(params, seen, False))
    predicted = network.project(params, _merged(unroll.latents[:, 1:]), True)
    similarity = jnp.sum(_direction(predicted) * _direction(target), axis=-1)
    return jnp.where(targets.state_mask, -_split(similarity, batch), 0.0)


def _direction(x: jax.Array) -> jax.Array:
    """Vectors `[N, width]` stretched to length one; finite, and with finite gradients, where they are zero."""
    return x * jax.lax.rsqrt(jnp.sum(x**2, axis=-1, keepdims=True) + 1e-8)


def _averaged(parts: jax.Array, weight: Array | None) -> jax.Array:
    """Position 0 plus the mean over the K steps of `[B, K + 1]`, averaged over the batch."""
    each = parts[:, 0] + jnp.mean(parts[:, 1:], axis=1)
    return jnp.mean(each if weight is None else weight * each)


def _no_first(steps: jax.Array) -> jax.Array:
    """`[B, K]` of the steps as `[B, K + 1]` with nothing at position 0."""
    return jnp.pad(steps, ((0, 0), (1, 0)))


def _merged(x: Array) -> jax.Array:
    """`[B, T, ...]` as `[B * T, ...]`."""
    return jnp.asarray(x).reshape(-1, *x.shape[2:])


def _split(x: jax.Array, batch: int) -> jax.Array:
    """`[B * T, ...]` as `[B, T, ...]`."""
    return x.reshape(batch, -1, *x.shape[1:])
