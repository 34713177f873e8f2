"""The network on the accelerators of a server: one program for each batch size, compiled beforehand."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Sequence
from typing import Any, Protocol

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from podzero.errors import ConfigError
from podzero.inference.serving.batching import Rows
from podzero.inference.serving.encoding import Encoding
from podzero.types import Array, Params, Versioned

log = logging.getLogger(__name__)

Apply = Callable[[Params, Array], tuple[jax.Array, jax.Array]]
"""`Network.apply`."""


class BatchDevice(Protocol):
    """What evaluates the batches of a server."""

    def evaluate(self, rows: Rows) -> tuple[int, Rows]:
        """Evaluates `[size, S]` uint8; returns the version of the parameters, and `[size, outputs]` float32.

        Several threads may call it at the same time.
        """
        ...


def evaluation_of(encoding: Encoding, apply: Apply) -> Callable[[Params, Array], jax.Array]:
    """The program of a server: parameters and rows `[B, S]` to logits and value side by side, `[B, A + 1]` float32."""

    def evaluate(params: Params, rows: Array) -> jax.Array:
        logits, value = apply(params, encoding.decode(rows))
        return jnp.concatenate([logits, value[:, None]], axis=1).astype(jnp.float32)

    return evaluate


class NetworkDevice:
    """The network on some devices, which share each batch.

    Args:
      encoding: of positions.
      apply: the network for inference.
      sizes: of the batches; each must be a multiple of the number of devices.
      devices: of this process.
      note: is shown the rows of every batch, from several threads.

    Raises:
      ConfigError: a size cannot be shared by the devices.
    """

    def __init__(
        self,
        encoding: Encoding,
        apply: Apply,
        sizes: Sequence[int],
        devices: Sequence[jax.Device],
        note: Callable[[Rows], None] | None = None,
    ) -> None:
        for size in sizes:
            if size % len(devices):
                raise ConfigError(
                    f"server.batch_sizes: {size} positions cannot be shared evenly by {len(devices)} devices; "
                    f"use multiples of {len(devices)}"
                )
        mesh, spec = Mesh(np.array(devices), ("data",)), PartitionSpec
        self._everywhere = NamedSharding(mesh, spec())  # type: ignore[no-untyped-call]
        self._shared = NamedSharding(mesh, spec("data"))  # type: ignore[no-untyped-call]
        self._sizes, self._row_bytes, self._note = sizes, encoding.row_bytes, note

        self._evaluate = jax.jit(evaluation_of(encoding, apply), in_shardings=(self._everywhere, self._shared))
        self._current: Versioned | None = None
        self._compiled: set[Any] = set()

    @property
    def version(self) -> int:
        """Learner step of the parameters; -1 before the first ones."""
        return -1 if self._current is None else self._current.version

    def load(self, newest: Versioned) -> None:
        """Moves parameters to the devices; batches that start afterwards use them. The first ones, and the first ones
        of another kind, compile all programs.

        Args:
          newest: those that `apply` takes.

        Raises:
          ConfigError: a batch does not fit into the devices' memory.
        """
        params = jax.device_put(newest.params, self._everywhere)
        loaded = newest._replace(params=jax.block_until_ready(params))  # type: ignore[no-untyped-call]
        if (kind := jax.tree.structure(loaded.params)) not in self._compiled:
            self._compile(loaded.params)
            self._compiled.add(kind)
        self._current = loaded

    def evaluate(self, rows: Rows) -> tuple[int, Rows]:
        """As `BatchDevice`."""
        assert self._current is not None, "load must be called first"
        version, params = self._current
        if self._note is not None:
            self._note(rows)
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
