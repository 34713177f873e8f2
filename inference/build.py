"""Builds the network as accelerators evaluate it, and the inference server of an experiment."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import jax
import numpy as np

from podzero.config import Experiment, ResNetConfig
from podzero.core.protocols import Env, ParamSource, Report, with_metrics
from podzero.core.types import Array, Params
from podzero.envs import make_env
from podzero.inference.agreement import CalibrationPositions, RecentPositions, random_positions
from podzero.inference.int8_network import Int8Network
from podzero.inference.serving import InferenceServer, NetworkDevice, NetworkServer, encoding_of, identity_of
from podzero.inference.sources import FoldedSource
from podzero.networks import make_inference

log = logging.getLogger(__name__)


class PlacedNetwork(NamedTuple):
    """The network as accelerators evaluate it for self-play: as it is, or with its tower in int8."""

    env: Env
    """The game."""
    init: Callable[[Array], Params]
    """Maps a key to parameters for `apply`; traceable."""
    apply: Callable[[Params, Array], tuple[jax.Array, jax.Array]]
    """Maps parameters and observations to logits and values; traceable."""
    fold: Callable[[Params], Params]
    """Turns published parameters into parameters for `apply`."""
    int8: Int8Network | None = None
    """Quantizes the network; None if it is evaluated as it is."""


def placed_network(experiment: Experiment) -> PlacedNetwork:
    """The network of inference servers and of actors that play on accelerators."""
    env = make_env(experiment.env)
    if experiment.int8.on_tpu:
        # A CPU is not refused: `podzero compile` builds the programs of TPUs there.
        if jax.default_backend() != "gpu":
            return _int8_network(experiment, env)
        log.warning("int8.on_tpu is for TPUs, and this is a GPU: the network is evaluated without int8 here")
    fold, network = make_inference(experiment.network, env.spec)
    return PlacedNetwork(env, network.init, network.apply, jax.jit(fold))


def _int8_network(experiment: Experiment, env: Env) -> PlacedNetwork:
    """The network with its tower in int8, calibrated on the positions that a server evaluates or a device plays."""
    assert isinstance(experiment.network, ResNetConfig)
    limits, seed, encoding = experiment.int8, experiment.seed, encoding_of(env, with_legal=True)
    assert encoding.legal is not None
    observed, legal = jax.jit(encoding.decode), jax.jit(encoding.legal)

    def decode(rows: np.ndarray[Any, Any]) -> CalibrationPositions:
        # A server fills its batches with rows of zeros, which are no positions.
        sent = rows.any(axis=1)
        return CalibrationPositions(np.asarray(observed(rows))[sent], np.asarray(legal(rows))[sent])

    def positions() -> RecentPositions:
        first = random_positions(env, jax.random.key(seed), limits.positions)
        if experiment.actors.inference == "device":
            return RecentPositions(first, every=1)
        return RecentPositions(first, decode=decode)

    network = Int8Network(experiment.network, env.spec, limits, positions)
    return PlacedNetwork(env, network.init, network.apply, network.fold, network)


def make_server(
    experiment: Experiment,
    name: str,
    host: str,
    run: str,
    source: ParamSource,
    report: Report,
    announce: Callable[[str], None],
    devices: Sequence[jax.Device],
) -> NetworkServer:
    """The inference server of an experiment on devices of this process.

    Args:
      experiment: the run's experiment.
      name: the server's name.
      host: the name or IP at which actors reach it.
      run: the id of the run.
      source: the published parameters.
      report: receives metrics.
      announce: called with the server's address every few seconds.
      devices: the devices that evaluate.

    Raises:
      ConfigError: the devices cannot share the batches evenly.
    """
    placed, config = placed_network(experiment), experiment.server
    env, int8 = placed.env, placed.int8
    encoding = encoding_of(env, experiment.int8.on_tpu)
    initial = jax.jit(lambda key: encoding.encode(jax.vmap(env.init)(key[None]))[0])(jax.random.key(0))
    record = int8.record if int8 else None
    device = NetworkDevice(encoding, placed.apply, config.batch_sizes, devices, np.asarray(initial), record)
    server = InferenceServer(
        name=name,
        host=host,
        identity=identity_of(experiment, run, encoding.row_bytes, env.spec.outputs),
        device=device,
        config=config,
        request_positions=experiment.actors.games,
        report=with_metrics(report, int8.metrics) if int8 else report,
        announce=announce,
    )
    return NetworkServer(server, device, FoldedSource(source, placed.fold))
