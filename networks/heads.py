"""Policy and value heads of the Flax networks."""

from __future__ import annotations

from collections.abc import Mapping

import flax.linen as nn
import jax
import jax.numpy as jnp

from podzero.types import Params, Prediction

POLICY_PLANES = 16
"""Features of each square that the policy's dense layer receives."""
VALUE_PLANES = 8
"""Features of each square that the value's hidden layer receives."""
LAST_LAYER_SCALE = 1e-2
"""Variance scale of both last layers. An untrained network must have a nearly uniform policy and values near zero, or
search would only amplify its noise."""


Outputs = tuple[jax.Array, jax.Array] | tuple[jax.Array, jax.Array, Prediction]
"""Logits and values, and the auxiliary predictions if they are asked for."""


class Heads(nn.Module):
    """A few features per square, flattened, give the policy logits by a dense layer and the value by one hidden layer
    and tanh.

    The last layers compute in float32, whatever the dtype of the tower.
    """

    num_actions: int
    value_hidden: int

    @nn.compact
    def __call__(self, features: jax.Array, auxiliary: bool = False) -> Outputs:
        """Maps features `[B, S, C]` of the S squares to float32 logits `[B, A]` and values `[B]` in [-1, 1], and with
        `auxiliary` to a `Prediction`.
        """
        batch, dtype = features.shape[0], features.dtype
        last = nn.initializers.variance_scaling(LAST_LAYER_SCALE, "fan_in", "truncated_normal")
        hidden = nn.initializers.he_normal()

        planes = nn.relu(nn.Dense(POLICY_PLANES, dtype=dtype, kernel_init=hidden, name="policy_planes")(features))
        policy_planes = planes.reshape(batch, -1).astype(jnp.float32)
        logits = nn.Dense(self.num_actions, kernel_init=last, name="policy_logits")(policy_planes)

        planes = nn.relu(nn.Dense(VALUE_PLANES, dtype=dtype, kernel_init=hidden, name="value_planes")(features))
        planes = planes.reshape(batch, -1)
        planes = nn.relu(nn.Dense(self.value_hidden, dtype=dtype, kernel_init=hidden, name="value_hidden")(planes))
        hidden_value = planes.astype(jnp.float32)
        value = jnp.tanh(nn.Dense(1, kernel_init=last, name="value")(hidden_value)[:, 0])
        if not auxiliary:
            return logits, value
        prediction = Prediction(
            outcome=nn.Dense(3, kernel_init=last, name="auxiliary_outcome")(hidden_value),
            moves_left=nn.softplus(nn.Dense(1, kernel_init=last, name="auxiliary_moves_left")(hidden_value)[:, 0]),
            reply=nn.Dense(self.num_actions, kernel_init=last, name="auxiliary_reply")(policy_planes),
        )
        return logits, value, prediction


def without_auxiliary(params: Params) -> Params:
    """The parameters (nested mappings) without those of auxiliary heads."""
    if not isinstance(params, Mapping):
        return params
    return {name: without_auxiliary(child) for name, child in params.items() if not name.startswith("auxiliary_")}
