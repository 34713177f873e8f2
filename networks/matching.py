"""Checks that parameters have the structure of a network."""

from __future__ import annotations

import jax

from podzero.networks.snapshots import SnapshotError
from podzero.types import ModelNetwork, Network, Params

_ABSENT = "nothing"


def check_matches(params: Params, network: Network | ModelNetwork, origin: str) -> None:
    """Compares names, shapes and dtypes of all leaves with those of `network`, without computing any.

    The shapes of a network depend on observations and actions, so parameters of another game are refused as well.

    Args:
      params: nested dicts of arrays.
      network: of the experiment that uses them.
      origin: where the parameters come from, for the message.

    Raises:
      SnapshotError: they are of another network; the message names the first leaf that differs.
    """
    expected = _signature(jax.eval_shape(network.init, jax.random.key(0)))
    found = _signature(params)
    for path in sorted({*expected, *found}):
        if expected.get(path) != found.get(path):
            raise SnapshotError(
                f"{origin} holds parameters of another network: at {path} the network of this experiment has "
                f"{expected.get(path, _ABSENT)}, found {found.get(path, _ABSENT)}; "
                "use the experiment (network and env sections) that they were trained with"
            )


def _signature(params: Params) -> dict[str, str]:
    """`float32[3, 3, 2, 64]` by path, as `heads/value/kernel`."""
    return {
        "/".join(str(getattr(key, "key", key)) for key in path): f"{leaf.dtype}{list(leaf.shape)}"
        for path, leaf in jax.tree_util.tree_leaves_with_path(params)
    }
