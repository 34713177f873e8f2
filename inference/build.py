"""The network as accelerators evaluate it, and the inference server of an experiment.

A server has one program for each batch size; a thread loads new parameters.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import wait
from dataclasses import dataclass, field
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from podzero.config import Experiment, ResNetConfig
from podzero.core.chips import chip_of_kind, useless_int8
from podzero.core.errors import ConfigError
from podzero.core.protocols import Env, ParamSource, Report, with_metrics
from podzero.core.types import Array, Params, Versioned
from podzero.core.waiting import behind, first_params, in_thread
from podzero.envs import make_env, sample_packing
from podzero.inference.agreement import CALIBRATION_POSITIONS, CalibrationPositions, RecentPositions, random_positions
from podzero.inference.evaluation_cache import Rows
from podzero.inference.int8_network import Int8Network
from podzero.inference.serving import Encoding, InferenceServer, encoding_of, identity_of
from podzero.inference.sources import FoldedSource
from podzero.networks import make_inference

log = logging.getLogger(__name__)

_Apply = Callable[[Params, Array], tuple[jax.Array, jax.Array]]
"""`Network.apply`."""


class PlacedNetwork(NamedTuple):
    """The network as accelerators evaluate it for self-play: as it is, or with its tower in int8."""

    env: Env
    init: Callable[[Array], Params]
    """Maps a key to parameters for `apply`; traceable."""
    apply: _Apply
    """Maps parameters and observations to logits and values; traceable."""
    fold: Callable[[Params], Params]
    """Turns published parameters into parameters for `apply`."""
    int8: Int8Network | None = None
    """Quantizes the network; None if it is evaluated as it is."""


def placed_network(experiment: Experiment) -> PlacedNetwork:
    """The network of inference servers and of actors that play on accelerators.

    Raises:
      ConfigError: `int8.on_tpu` is set, and the network gains nothing by it on the TPUs of this process.
    """
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
    chip = chip_of_kind(jax.devices()[0].device_kind)
    if (useless := useless_int8(chip, experiment.network.channels)) is not None:
        raise ConfigError(useless)
    encoding = encoding_of(env, with_legal=True)
    assert encoding.legal is not None
    observed, legal = jax.jit(encoding.decode), jax.jit(encoding.legal)

    def decode(rows: np.ndarray[Any, Any]) -> CalibrationPositions:
        # A server fills its batches with rows of zeros, which are no positions.
        sent = rows.any(axis=1)
        return CalibrationPositions(np.asarray(observed(rows))[sent], np.asarray(legal(rows))[sent])

    def positions() -> RecentPositions:
        first = random_positions(env, jax.random.key(experiment.seed))
        if experiment.actors.inference == "device":
            return RecentPositions(first, every=1, decode=_position_reader(experiment, env))
        return RecentPositions(first, decode=decode)

    network = Int8Network(experiment.network, env.spec, positions)
    return PlacedNetwork(env, network.init, network.apply, network.fold, network)


def _position_reader(experiment: Experiment, env: Env) -> Callable[[np.ndarray[Any, Any]], CalibrationPositions]:
    """Reads the first positions of packed samples `[N, row_bytes]`, as many as a calibration needs."""
    packing = sample_packing(experiment, env.spec, env)
    unpacked = jax.jit(partial(packing.unpack, xp=jnp))

    def positions(rows: np.ndarray[Any, Any]) -> CalibrationPositions:
        count = min(len(rows), CALIBRATION_POSITIONS)
        # Some rows are repeated, so that the program has one shape.
        samples = jax.device_get(unpacked(np.resize(rows, (CALIBRATION_POSITIONS, packing.row_bytes))))
        return CalibrationPositions(samples.observation[:count], samples.legal[:count])

    return positions


def evaluation_of(encoding: Encoding, apply: _Apply) -> Callable[[Params, Array], jax.Array]:
    """A server's program: parameters and rows `[B, S]` to logits and values, `[B, outputs]` float32."""

    def evaluate(params: Params, rows: Array) -> jax.Array:
        logits, value = apply(params, encoding.decode(rows))
        return jnp.concatenate([logits, value.reshape(logits.shape[0], -1)], axis=1).astype(jnp.float32)

    return evaluate


class NetworkDevice:
    """The network on several devices, which share each batch."""

    def __init__(
        self,
        encoding: Encoding,
        apply: _Apply,
        sizes: Sequence[int],
        devices: Sequence[jax.Device],
        initial: Rows,
        record: Callable[[Rows], None] | None = None,
    ) -> None:
        """`initial` is the row `[S]` uint8 of the initial position; several threads `record` the rows of batches."""
        for size in sizes:
            if size % len(devices):
                raise ConfigError(
                    f"server.batch_sizes: {size} positions cannot be shared evenly by {len(devices)} devices; "
                    f"use multiples of {len(devices)}"
                )
        mesh, spec = Mesh(np.array(devices), ("data",)), PartitionSpec
        self._everywhere = NamedSharding(mesh, spec())  # type: ignore[no-untyped-call]
        self._shared = NamedSharding(mesh, spec("data"))  # type: ignore[no-untyped-call]
        self._sizes, self._row_bytes, self._record = sizes, encoding.row_bytes, record
        self._evaluate = jax.jit(evaluation_of(encoding, apply), in_shardings=(self._everywhere, self._shared))
        # A whole batch, so that no other program is compiled for it.
        self._initial = np.tile(initial, (min(sizes), 1))
        self._current: Versioned | None = None
        self.known: Rows = np.zeros(0, np.float32)
        """The evaluation of the initial position, `[outputs]` float32; empty before the first parameters."""
        self._compiled: set[Any] = set()

    @property
    def version(self) -> int:
        """Learner step of the parameters; -1 before the first ones."""
        return -1 if self._current is None else self._current.version

    def load(self, newest: Versioned) -> None:
        """Moves parameters for `apply` to the devices, for later batches."""
        params = jax.device_put(newest.params, self._everywhere)
        loaded = newest._replace(params=jax.block_until_ready(params))  # type: ignore[no-untyped-call]
        # Versions in int8, and those that are refused int8, have other structures and so other programs.
        if (kind := jax.tree.structure(loaded.params)) not in self._compiled:
            self._compile(loaded.params)
            self._compiled.add(kind)
        self.known = np.asarray(self._evaluate(loaded.params, jax.device_put(self._initial, self._shared)))[0]
        self._current = loaded

    def evaluate(self, rows: Rows) -> tuple[int, Rows]:
        """See `BatchDevice`."""
        assert self._current is not None, "load must be called first"
        version, params = self._current
        if self._record is not None:
            self._record(rows)
        evaluations = self._evaluate(params, jax.device_put(rows, self._shared))
        return version, np.asarray(evaluations)

    def _compile(self, params: Params) -> None:
        began = time.monotonic()
        for size in self._sizes:
            rows: Any = np.zeros((size, self._row_bytes), np.uint8)
            try:
                np.asarray(self._evaluate(params, jax.device_put(rows, self._shared)))
            except jax.errors.JaxRuntimeError as error:
                if "RESOURCE_EXHAUSTED" not in str(error):
                    raise
                raise ConfigError(
                    f"server.batch_sizes: a batch of {size} positions does not fit into the memory of the server's "
                    "devices; remove the largest size"
                ) from error
        log.info("programs for batches of %s compiled in %.1f s", list(self._sizes), time.monotonic() - began)


_LOOK_EVERY_S = 0.05
"""Interval of polling for newer parameters."""
_STOP_TIMEOUT_S = 10.0


@dataclass(eq=False)
class NetworkServer:
    """An inference server that loads newer parameters in a thread while it serves."""

    server: InferenceServer
    """Answers requests with `device`."""
    device: NetworkDevice
    source: ParamSource
    """The parameters for the device."""
    _stopping: threading.Event = field(default_factory=threading.Event)

    def stop(self) -> None:
        """Ends `run`; thread-safe, returns at once."""
        self._stopping.set()
        self.server.stop()

    def run(self) -> None:
        """Serves until `stop` is called; raises what the devices or the loading of parameters raise."""
        follower = in_thread("follow-params", self._follow)
        try:
            self.server.run()
        finally:
            self._stopping.set()
            wait([follower], _STOP_TIMEOUT_S)
        if follower.done():
            follower.result()

    def _follow(self) -> None:
        try:
            newest = first_params(self.source, self._stopping)
            while not self._stopping.is_set():
                if newest is not None:
                    self.device.load(newest)
                self.server.lag = behind(self.source)
                self._stopping.wait(_LOOK_EVERY_S)
                newest = self.source.poll()
        finally:
            self.server.stop()


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

    Actors reach it at the name or IP `host`; `announce` is called with its address every few seconds. Raises
    `ConfigError` if the devices cannot share the batches evenly.
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
