"""Starts a network with trained parameters: those that match by name and shape are taken, the others stay fresh."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

import jax
import numpy as np

from podzero.core.errors import ConfigError
from podzero.core.types import Params
from podzero.files.players import full_name, trained_player
from podzero.learner.sharding import leaf_names, put_parameter
from podzero.learner.step import TrainState
from podzero.networks.snapshots import load_snapshot


class WarmStart(NamedTuple):
    """The parameters of a trained agent that fit a network."""

    origin: str
    """The agent's name, with the step of its snapshot."""
    taken: Mapping[str, np.ndarray[Any, Any]]
    """The parameters that fit, by name."""
    fresh: Sequence[str]
    """One line for each parameter of the network that the agent lacks or has in another shape."""
    total: int
    """Number of the network's weights."""

    def summary(self) -> str:
        """What was taken and what was not, in one line and one for each parameter that stays fresh."""
        weights = sum(leaf.size for leaf in self.taken.values())
        head = f"init_from {self.origin}: {weights:,} of {self.total:,} weights taken ({len(self.taken)} arrays)"
        return "\n  ".join([head, *self.fresh])


def read_warm_start(who: str, params: Params) -> WarmStart:
    """Reads the parameters of a trained agent that fit a network.

    Args:
      who: `DIR`, `DIR@STEP` or `zoo:NAME`.
      params: the network's parameters, or their shapes.

    Raises:
      ConfigError: `who` is not a trained agent, or none of its parameters fits.
      SnapshotError: the snapshot is missing or damaged.
    """
    player = trained_player("init_from", who)
    snapshot = load_snapshot(player.workdir.snapshots, player.step)
    trained = dict(zip(leaf_names(snapshot.params), jax.tree.leaves(snapshot.params), strict=True))
    own = dict(zip(leaf_names(params), jax.tree.leaves(params), strict=True))
    taken = {name: trained[name] for name, leaf in own.items() if _form(trained.get(name)) == _form(leaf)}
    if not taken:
        (name, leaf), found = next(iter(own.items())), ", ".join(list(trained)[:3])
        raise ConfigError(
            f"init_from = '{who}': none of its parameters fits this network, which has for example {name} of "
            f"shape {list(leaf.shape)}; it has {found} ..."
        )
    fresh = [
        f"fresh: {name} {list(leaf.shape)}, there {list(trained[name].shape) if name in trained else 'missing'}"
        for name, leaf in own.items()
        if name not in taken
    ]
    origin = full_name(who, player, snapshot.version)
    return WarmStart(origin, taken, fresh, sum(int(np.prod(leaf.shape)) for leaf in own.values()))


def _form(leaf: Any) -> tuple[tuple[int, ...], np.dtype[Any]] | None:
    return None if leaf is None else (tuple(leaf.shape), np.dtype(leaf.dtype))


def warm_started(state: TrainState, start: WarmStart) -> TrainState:
    """The state before the first step with the taken parameters; the optimizer and the step stay as they are."""

    def overlaid(params: Params) -> Params:
        leaves, structure = jax.tree.flatten(params)
        pairs = zip(leaf_names(params), leaves, strict=True)
        taken = start.taken
        found = [put_parameter(taken[name], leaf.sharding) if name in taken else leaf for name, leaf in pairs]
        return jax.tree.unflatten(structure, found)

    return replace(state, params=overlaid(state.params), ema=overlaid(state.ema))
