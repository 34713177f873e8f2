"""The trees of a batch of searches, for people who look at them."""

from __future__ import annotations

from typing import Any, NamedTuple

import jax
import numpy as np


class SearchedNodes(NamedTuple):
    """The N = simulations + 1 nodes of each searched tree in the order of the simulations; node 0 is the root. A node
    that no simulation added, because the game was over above it, has no visits.
    """

    parent: jax.Array | np.ndarray[Any, Any]
    """`[B, N]` int32, -1 for the root."""
    action: jax.Array | np.ndarray[Any, Any]
    """`[B, N]` int32, which leads from the parent to the node."""
    visits: jax.Array | np.ndarray[Any, Any]
    """`[B, N]` int32."""
    value: jax.Array | np.ndarray[Any, Any]
    """`[B, N]` float32, the mean over the visits, for the player to move in the node."""
    prior: jax.Array | np.ndarray[Any, Any]
    """`[B, N]` float32, the network's probability of `action`."""
