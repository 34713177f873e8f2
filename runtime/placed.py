"""The network as accelerators evaluate it for self-play: as it is, or with its tower in int8."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import numpy as np

from podzero.config import Experiment, ResNetConfig
from podzero.envs import make_env
from podzero.inference import CalibrationPositions, Int8Network, RecentPositions, random_positions
from podzero.inference.serving import encoding_of
from podzero.networks import make_inference
from podzero.protocols import Env
from podzero.types import Array, Params

log = logging.getLogger(__name__)


class PlacedNetwork(NamedTuple):
    """The network as accelerators evaluate it for self-play."""

    env: Env
    """The game."""
    init: Callable[[Array], Params]
    """From a key to parameters for `apply`; traceable."""
    apply: Callable[[Params, Array], tuple[jax.Array, jax.Array]]
    """Parameters and observations to logits and values; traceable."""
    fold: Callable[[Params], Params]
    """Turns published parameters into those of `apply`."""
    int8: Int8Network | None = None
    """Quantizes it, if something does."""


def placed_network(experiment: Experiment) -> PlacedNetwork:
    """The network of inference servers and of actors that play on accelerators."""
    env = make_env(experiment.env)
    if experiment.int8.on_tpu:
        if jax.default_backend() != "gpu":
            return _int8_network(experiment, env)
        log.warning("int8.on_tpu is for TPUs, and this is a GPU: the network is evaluated without int8 here")
    fold, network = make_inference(experiment.network, env.spec)
    return PlacedNetwork(env, network.init, network.apply, jax.jit(fold))


def _int8_network(experiment: Experiment, env: Env) -> PlacedNetwork:
    """The network with its tower in int8; calibrated by what a server evaluates, or what is played on a device."""
    assert isinstance(experiment.network, ResNetConfig)
    limits, seed, encoding = experiment.int8, experiment.seed, encoding_of(env, with_legal=True)
    assert encoding.legal is not None
    observed, legal = jax.jit(encoding.decode), jax.jit(encoding.legal)

    def decode(rows: np.ndarray[Any, Any]) -> CalibrationPositions:
        sent = rows.any(axis=1)
        return CalibrationPositions(np.asarray(observed(rows))[sent], np.asarray(legal(rows))[sent])

    def positions() -> RecentPositions:
        first = random_positions(env, jax.random.key(seed), limits.positions)
        if experiment.actors.inference == "device":
            return RecentPositions(first, every=1)
        return RecentPositions(first, decode=decode)

    network = Int8Network(experiment.network, env.spec, limits, positions)
    return PlacedNetwork(env, network.init, network.apply, network.fold, network)
