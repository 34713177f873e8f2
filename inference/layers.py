"""The parameters of a folded ResNet as named layers."""

from __future__ import annotations

from typing import Any, NamedTuple

import jax

from podzero.types import Params


class Layer(NamedTuple):
    """A convolution or a dense layer."""

    kernel: Any
    """`[3, 3, in, out]` of a convolution, `[in, out]` of a dense layer; float32, of NumPy or JAX."""
    bias: Any
    """`[out]` float32."""


def layers_of(params: Params) -> dict[str, Layer]:
    """The layers of a folded ResNet, in Flax or in Haiku, where they are.

    Args:
      params: what the `fold` of `podzero.networks.make_inference` returned.

    Returns:
      layers by names such as `stem`, `block_0/conv_1` and `heads/policy_logits`.
    """
    leaves: dict[str, dict[str, Any]] = {}
    for path, leaf in jax.tree_util.tree_leaves_with_path(params):
        *modules, kind = (str(entry.key) for entry in path)
        leaves.setdefault("/".join(modules).removeprefix("resnet/"), {})[kind] = leaf
    return {name: Layer(**layer) for name, layer in leaves.items()}
