"""The trees of a batch of searches, for people who look at them."""

from __future__ import annotations

from typing import Any, NamedTuple

import jax
import numpy as np


class SearchedNodes(NamedTuple):
    """The N = simulations + 1 nodes of each searched tree in the order of the simulations; node 0 is the root. Below
    the end of a game search goes on adding nodes, in which nothing changes.
    """

    parent: jax.Array | np.ndarray[Any, Any]
    """`[B, N]` int32, -1 for the root."""
    action: jax.Array | np.ndarray[Any, Any]
    """`[B, N]` int32, which leads from the parent to the node."""
    visits: jax.Array | np.ndarray[Any, Any]
    """`[B, N]` int32."""
    value: jax.Array | np.ndarray[Any, Any]
    """`[B, N]` float32, what `action` is worth to the player who chooses it: its reward, and the mean over the visits
    of the node. Of the root, the mean for the player to move."""
    prior: jax.Array | np.ndarray[Any, Any]
    """`[B, N]` float32, the network's probability of `action`."""
