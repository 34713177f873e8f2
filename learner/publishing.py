"""Publishes the acting parameters in the background of the training loop."""

from __future__ import annotations

from concurrent.futures import Future, ThreadPoolExecutor, wait

import jax
import jax.numpy as jnp
from jax.sharding import Mesh

from podzero.learner.sharding import replicated
from podzero.protocols import ParamSink
from podzero.types import Params, Versioned

PUBLISH_TIMEOUT_S = 120.0
"""Longest time that one publication may take."""


class Publisher:
    """Publishes in order, one version at a time, in a separate thread.

    Args:
      sink: receives the parameters. None on all hosts but host 0: they only take part in gathering sharded parameters.
      mesh: the devices that hold the parameters.
      local: receives the same as device arrays, on every host, before they leave the devices; None if nobody there
        needs them.
    """

    def __init__(self, sink: ParamSink | None, mesh: Mesh, local: ParamSink | None = None) -> None:
        self._sink = sink
        self._local = local
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="learner-publish")
        self._in_progress: Future[None] | None = None
        self._gather = jax.jit(lambda params: jax.tree.map(jnp.copy, params), out_shardings=replicated(mesh))
        self.newest: Versioned | None = None
        """The parameters published last, as host arrays."""

    def publish(self, version: int, params: Params) -> None:
        """Starts to publish device arrays, which may be donated as soon as this returns.

        Waits first for a previous publication in progress, so that no queue builds up.

        Raises:
          TimeoutError: the previous publication did not end within `PUBLISH_TIMEOUT_S`.
        """
        self.wait()
        gathered = self._gather(params)
        if self._local is not None:
            self._local.publish(version, gathered)
        if self._sink is not None:
            self._in_progress = self._thread.submit(self._publish, self._sink, version, gathered)

    def wait(self) -> None:
        """Waits for the publication in progress, and raises its error if it failed."""
        if self._in_progress is not None:
            if wait([self._in_progress], PUBLISH_TIMEOUT_S).not_done:
                raise TimeoutError(
                    f"the learner waited {PUBLISH_TIMEOUT_S:g} s for the parameter store to take its parameters"
                )
            self._in_progress.result()

    def close(self) -> None:
        """Ends the thread; does not wait for a sink that hangs."""
        self._thread.shutdown(wait=False)

    def _publish(self, sink: ParamSink, version: int, params: Params) -> None:
        host = jax.device_get(params)
        sink.publish(version, host)
        self.newest = Versioned(version, host)
