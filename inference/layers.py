"""The parameters of a folded ResNet as named layers."""

from __future__ import annotations

from typing import Any, NamedTuple

import jax
import numpy as np

from podzero.types import Params


class Layer(NamedTuple):
    """A convolution or a dense layer."""

    kernel: np.ndarray[Any, Any]
    """`[3, 3, in, out]` of a convolution, `[in, out]` of a dense layer; float32."""
    bias: np.ndarray[Any, Any]
    """`[out]` float32."""


def layers_of(params: Params) -> dict[str, Layer]:
    """The layers of a folded ResNet, in Flax or in Haiku, on the host.

    Args:
      params: what the `fold` of `podzero.networks.make_inference` returned.

    Returns:
      layers by names such as `stem`, `block_0/conv_1` and `heads/policy_logits`.
    """
    leaves: dict[str, dict[str, Any]] = {}
    for path, leaf in jax.tree_util.tree_leaves_with_path(jax.device_get(params)):
        *modules, kind = (str(entry.key) for entry in path)
        leaves.setdefault("/".join(modules).removeprefix("resnet/"), {})[kind] = np.asarray(leaf, np.float32)
    return {name: Layer(**layer) for name, layer in leaves.items()}
