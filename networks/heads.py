"""Policy and value heads of the Flax networks."""

from __future__ import annotations

from collections.abc import Mapping

import flax.linen as nn
import jax
import jax.numpy as jnp

from podzero.networks.pooling import pooled
from podzero.types import Params, Prediction

POLICY_PLANES = 16
"""Features of each square that the policy's dense layer receives."""
VALUE_PLANES = 8
"""Features of each square that the value's hidden layer receives."""
POOLED_PLANES = 32
"""Features of each square in both heads, where they are pooled."""
LAST_LAYER_SCALE = 1e-2
"""Variance scale of both last layers. An untrained network must have a nearly uniform policy and values near zero, or
search would only amplify its noise."""
LAST = nn.initializers.variance_scaling(LAST_LAYER_SCALE, "fan_in", "truncated_normal")
"""Initializer of both last layers."""
HIDDEN = nn.initializers.he_normal()
"""Initializer of the layers before them."""

Outputs = tuple[jax.Array, jax.Array] | tuple[jax.Array, jax.Array, Prediction]
"""Logits and values, and the auxiliary predictions if they are asked for."""


class Heads(nn.Module):
    """A few features per square give the policy logits and, by one hidden layer and tanh, the value.

    The features are flattened, and each logit depends on all of them. With `pooled` they are pooled instead, and the
    logit of a square depends on the features there and on the pooled ones; the parameters then suit boards of any size.
    The last layers compute in float32, whatever the dtype of the tower.
    """

    num_actions: int
    value_hidden: int
    pooled: bool = False
    """The actions are the squares, and at most one more."""

    @nn.compact
    def __call__(self, features: jax.Array, auxiliary: bool = False) -> Outputs:
        """Maps features `[B, S, C]` of the S squares to float32 logits `[B, A]` and values `[B]` in [-1, 1], and with
        `auxiliary` to a `Prediction`.
        """
        policy_planes = self._planes(features, POOLED_PLANES if self.pooled else POLICY_PLANES, "policy_planes")
        logits = self._logits(policy_planes, "policy")

        planes = self._planes(features, POOLED_PLANES if self.pooled else VALUE_PLANES, "value_planes")
        board = pooled(planes) if self.pooled else planes.reshape(planes.shape[0], -1)
        hidden = nn.relu(nn.Dense(self.value_hidden, dtype=board.dtype, kernel_init=HIDDEN, name="value_hidden")(board))
        hidden = hidden.astype(jnp.float32)
        value = jnp.tanh(nn.Dense(1, kernel_init=LAST, name="value")(hidden)[:, 0])
        if not auxiliary:
            return logits, value
        prediction = Prediction(
            outcome=nn.Dense(3, kernel_init=LAST, name="auxiliary_outcome")(hidden),
            moves_left=nn.softplus(nn.Dense(1, kernel_init=LAST, name="auxiliary_moves_left")(hidden)[:, 0]),
            reply=self._logits(policy_planes, "auxiliary_reply"),
        )
        return logits, value, prediction

    def _planes(self, features: jax.Array, count: int, name: str) -> jax.Array:
        """Features of each square, `[B, S, count]`."""
        return nn.relu(nn.Dense(count, dtype=features.dtype, kernel_init=HIDDEN, name=name)(features))

    def _logits(self, planes: jax.Array, name: str) -> jax.Array:
        """Logits of the actions, `[B, A]` float32."""
        planes = planes.astype(jnp.float32)
        if not self.pooled:
            flat = planes.reshape(planes.shape[0], -1)
            return nn.Dense(self.num_actions, kernel_init=LAST, name=f"{name}_logits")(flat)
        board, (_, squares, channels) = pooled(planes), planes.shape
        bias = nn.Dense(channels, kernel_init=HIDDEN, name=f"{name}_pooled")(board)
        logits = nn.Dense(1, kernel_init=LAST, name=f"{name}_squares")(nn.relu(planes + bias[:, None]))[..., 0]
        if self.num_actions == squares:
            return logits
        other = nn.Dense(1, kernel_init=LAST, name=f"{name}_other")(board)
        return jnp.concatenate([logits, other], axis=-1)


def without_auxiliary(params: Params) -> Params:
    """The parameters (nested mappings) without those of auxiliary heads."""
    if not isinstance(params, Mapping):
        return params
    return {name: without_auxiliary(child) for name, child in params.items() if not name.startswith("auxiliary_")}
