"""What the search of an actor takes from inference servers: the version of their parameters, and evaluations."""

from __future__ import annotations

from typing import Any

import jax
import numpy as np

from podzero.inference.serving.batching import Rows
from podzero.inference.serving.client import ServerClient
from podzero.inference.serving.encoding import Encoding
from podzero.search import Evaluate
from podzero.types import Array, EnvState, Params, Versioned


class ServedParams:
    """A `ParamSource` for an actor whose servers have the parameters: it knows their version only."""

    def __init__(self, client: ServerClient) -> None:
        self._client = client
        self._returned = -1

    def wait(self, timeout_s: float) -> Versioned:
        """The version of a server's parameters; waits until one has some.

        Raises:
          ConfigError, ServerLost: as `ServerClient.await_version`.
        """
        self._returned = self._client.await_version(timeout_s)
        return Versioned(self._returned, np.int32(self._returned))

    def poll(self) -> Versioned | None:
        """The version of the newest answer, if it is another than that returned last; never waits."""
        version = self._client.version
        if version == self._returned:
            return None
        self._returned = version
        return Versioned(version, np.int32(version))


def served_evaluation(encoding: Encoding, outputs: int, client: ServerClient) -> Evaluate:
    """The evaluation of states by a server, for a search whose parameters are the version of `ServedParams`."""

    def on_host(version: Any, rows: Any) -> Rows:
        return client.evaluate(int(version), np.asarray(rows))

    def evaluate(params: Params, key: Array, states: EnvState) -> tuple[jax.Array, jax.Array]:
        del key
        rows = encoding.encode(states)
        like = np.zeros((rows.shape[0], outputs), np.float32)
        evaluations = jax.pure_callback(on_host, like, params, rows)
        return evaluations[:, :-1], evaluations[:, -1]

    return evaluate
