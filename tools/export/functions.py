"""An agent's networks as functions with named inputs and outputs, computed in float32."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from podzero.config import ModelNetworkConfig, NetworkConfig
from podzero.core.errors import PodzeroError
from podzero.core.types import Array, EnvSpec, Params
from podzero.networks import make_inference, make_model_network

_Struct: Any = jax.ShapeDtypeStruct

BATCH = "batch"
"""Name of the dynamic first dimension of all inputs and outputs."""

Outputs = dict[str, jax.Array]
"""Outputs by name."""


class Function(NamedTuple):
    """A pure function of a batch, and its parameters."""

    name: str
    """`network`, or `representation`, `prediction` or `dynamics` of a learned model."""
    call: Callable[..., Outputs]
    """`(params, *inputs)` to outputs; all inputs and outputs have a leading batch axis B."""
    params: Params
    inputs: dict[str, jax.ShapeDtypeStruct]
    """Shape (without the batch axis) and dtype of each input, in the order of the arguments."""

    def batched(self, batch: Any) -> list[jax.ShapeDtypeStruct]:
        """Shapes and dtypes of the inputs for a batch size, possibly symbolic (`jax.export.symbolic_shape`)."""
        return [_Struct((batch, *one.shape), one.dtype) for one in self.inputs.values()]


def functions_of(config: NetworkConfig, spec: EnvSpec, params: Params) -> list[Function]:
    """The functions to export; those whose outputs are inputs of others come first.

    Observations are float32 `[B, *observation_shape]`, converted to the environment's dtype; parameters are folded.

    - `network`: `observation` to `policy_logits` `[B, A]`, illegal actions not masked, and `value` `[B]`.
    - `representation`: `observation` to `latent` `[B, ...]`.
    - `prediction`: `latent` to `policy_logits` `[B, A]`, or for continuous actions `policy_gaussian` `[B, 2, D]` (see
      `ModelNetwork.predict`), and `value` `[B]`.
    - `dynamics`: `latent` and `action`, `[B]` int32 or `[B, D]` float32 in [-1, 1], to `next_latent` and `reward`
      `[B]`.
    """
    config = config.model_copy(update={"compute_dtype": "float32"})
    if isinstance(config, ModelNetworkConfig):
        return _model_functions(config, spec, params)
    fold, network = make_inference(config, spec)

    def call(params: Params, observation: jax.Array) -> Outputs:
        logits, value = network.apply(params, observation.astype(spec.observation_dtype))
        return {"policy_logits": logits, "value": value}

    inputs = {"observation": _Struct(spec.observation_shape, jnp.float32)}
    return [Function("network", call, jax.jit(fold)(params), inputs)]


def _model_functions(config: ModelNetworkConfig, spec: EnvSpec, params: Params) -> list[Function]:
    network = make_model_network(config, spec)
    policy = "policy_gaussian" if spec.action_shape else "policy_logits"

    def represent(params: Params, observation: jax.Array) -> Outputs:
        return {"latent": network.represent(params, observation.astype(spec.observation_dtype))}

    def predict(params: Params, latent: jax.Array) -> Outputs:
        logits, value = network.predict(params, latent)
        return {policy: logits, "value": network.decode(value)}

    def dynamics(params: Params, latent: jax.Array, action: Array) -> Outputs:
        next_latent, reward = network.dynamics(params, latent, action)
        return {"next_latent": next_latent, "reward": network.decode(reward)}

    observation = _Struct(spec.observation_shape, jnp.float32)
    batch = _Struct((1, *observation.shape), observation.dtype)
    _, *shape = jax.eval_shape(represent, params, batch)["latent"].shape
    latent = _Struct(tuple(shape), jnp.float32)
    action = _Struct(spec.action_shape, jnp.float32 if spec.action_shape else jnp.int32)
    return [
        Function("representation", represent, params, {"observation": observation}),
        Function("prediction", predict, params, {"latent": latent}),
        Function("dynamics", dynamics, params, {"latent": latent, "action": action}),
    ]


class ExportError(PodzeroError, RuntimeError):
    """A network cannot be exported, or the exported file's results differ from JAX's."""
