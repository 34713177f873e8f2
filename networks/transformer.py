"""A pre-norm transformer over the squares of a board (Vaswani et al. 2017; Xiong et al. 2020) in Flax."""

from __future__ import annotations

import flax.linen as nn
import jax
import jax.numpy as jnp

from podzero.config import TransformerConfig
from podzero.core.types import EnvSpec, Network
from podzero.networks.layers import Heads, check_boards, compute_dtype, flax_network


class Attention(nn.Module):
    """Multi-head self-attention between all squares; softmax in float32."""

    heads: int
    residual_scale: float

    @nn.compact
    def __call__(self, x: jax.Array) -> jax.Array:
        """Maps `[B, S, width]` to the same shape."""
        width = x.shape[-1]
        # Kernels keep a dimension for the heads, so that a mesh can split it.
        parts = (3, self.heads, width // self.heads)
        qkv = nn.DenseGeneral(parts, use_bias=False, dtype=x.dtype, name="qkv")(x)
        query, key, value = jnp.moveaxis(qkv, 2, 0)
        assert query.shape == (*x.shape[:2], *parts[1:]), query.shape
        mixed = jax.nn.dot_product_attention(query, key, value)
        start = nn.initializers.variance_scaling(self.residual_scale, "fan_in", "truncated_normal")
        return nn.DenseGeneral(width, axis=(-2, -1), dtype=x.dtype, kernel_init=start, name="out")(mixed)


class FeedForward(nn.Module):
    """Two dense layers with gelu between them, applied to each square separately."""

    ratio: int
    residual_scale: float

    @nn.compact
    def __call__(self, x: jax.Array) -> jax.Array:
        """Maps `[B, S, width]` to the same shape."""
        width = x.shape[-1]
        hidden = nn.gelu(nn.Dense(self.ratio * width, dtype=x.dtype, name="hidden")(x))
        start = nn.initializers.variance_scaling(self.residual_scale, "fan_in", "truncated_normal")
        return nn.Dense(width, dtype=x.dtype, kernel_init=start, name="out")(hidden)


class TransformerLayer(nn.Module):
    """Attention, then the MLP, each with layer normalization before it and a residual connection around it."""

    config: TransformerConfig

    @nn.compact
    def __call__(self, x: jax.Array) -> jax.Array:
        """Maps `[B, S, width]` to the same shape."""
        config = self.config
        # The sum of all 2 * layers branches then has variance about one.
        scale = 1.0 / (2 * config.layers)
        y = nn.LayerNorm(dtype=x.dtype, name="attention_norm")(x)
        x = x + Attention(config.heads, scale, name="attention")(y)
        y = nn.LayerNorm(dtype=x.dtype, name="mlp_norm")(x)
        return x + FeedForward(config.mlp_ratio, scale, name="mlp")(y)


class Transformer(nn.Module):
    """One token per square with a learned position embedding, then layers of attention and MLP, then the heads."""

    config: TransformerConfig
    num_actions: int
    values: int = 1
    """See `EnvSpec.values`."""

    @nn.compact
    def __call__(self, observation: jax.Array) -> tuple[jax.Array, jax.Array]:
        """Maps `[B, H, W, C]` of any real dtype or bool to the outputs of `Heads`."""
        config = self.config
        batch, height, width, planes = observation.shape
        dtype = compute_dtype(config.compute_dtype)
        tokens = jnp.asarray(observation, dtype).reshape(batch, height * width, planes)
        x = nn.Dense(config.width, dtype=dtype, name="embed")(tokens)
        position = self.param("position", nn.initializers.normal(0.5), (height * width, config.width))
        x = x + position.astype(dtype)
        layer = nn.remat(TransformerLayer) if config.remat else TransformerLayer
        for index in range(config.layers):
            x = layer(config, name=f"layer_{index}")(x)
        assert x.shape == (*tokens.shape[:2], config.width), x.shape
        x = nn.LayerNorm(dtype=dtype, name="norm")(x)
        logits, value, *_ = Heads(self.num_actions, config.value_hidden, values=self.values, name="heads")(x)
        return logits, value


def transformer(config: TransformerConfig, spec: EnvSpec) -> Network:
    """The network for the boards of `spec`."""
    check_boards(spec, config.name)
    return flax_network(Transformer(config, spec.num_actions, spec.values), spec)
