"""Publication: acting parameters leave the device and reach the sink beside the training loop."""

from __future__ import annotations

from concurrent.futures import Future, ThreadPoolExecutor

import jax
import jax.numpy as jnp
from jax.sharding import Mesh

from podzero.learner.sharding import replicated
from podzero.protocols import ParamSink
from podzero.types import Params, Versioned

PUBLISH_TIMEOUT_S = 120.0
"""Longest time a publication may take before it counts as lost."""


class Publisher:
    """Publishes in order and one at a time, from a thread of its own.

    Args:
      sink: where parameters go. None on all hosts but the first: they take part in gathering what is split over
        hosts, and that is all.
      mesh: the devices that hold the parameters.
    """

    def __init__(self, sink: ParamSink | None, mesh: Mesh) -> None:
        self._sink = sink
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="learner-publish")
        self._under_way: Future[None] | None = None
        self._gather = jax.jit(lambda params: jax.tree.map(jnp.copy, params), out_shardings=replicated(mesh))
        self.newest: Versioned | None = None
        """The last parameters published, as host arrays."""

    def publish(self, version: int, params: Params) -> None:
        """Begins to publish device arrays, which may be donated as soon as this returns.

        Waits for the publication before it, if that is still under way: there is no queue to grow.

        Raises:
          TimeoutError: that publication did not end within `PUBLISH_TIMEOUT_S`.
        """
        self.wait()
        whole = self._gather(params)
        if self._sink is not None:
            self._under_way = self._thread.submit(self._publish, self._sink, version, whole)

    def wait(self) -> None:
        """Waits for the publication under way and raises what went wrong in it."""
        if self._under_way is not None:
            try:
                self._under_way.result(PUBLISH_TIMEOUT_S)
            except TimeoutError:
                raise TimeoutError(f"a publication of parameters did not end within {PUBLISH_TIMEOUT_S:g} s") from None

    def close(self) -> None:
        """Ends the thread, without waiting for a sink that hangs."""
        self._thread.shutdown(wait=False)

    def _publish(self, sink: ParamSink, version: int, params: Params) -> None:
        host = jax.device_get(params)
        sink.publish(version, host)
        self.newest = Versioned(version, host)
