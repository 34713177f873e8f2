"""An inference server that follows the published parameters of a network."""

from __future__ import annotations

import threading
from collections.abc import Callable

from podzero.inference.serving.device import NetworkDevice
from podzero.inference.serving.server import InferenceServer
from podzero.protocols import ParamSource
from podzero.types import Params
from podzero.waiting import first_params

_LOOK_EVERY_S = 0.05
"""Time between two looks for newer parameters."""
_STOP_TIMEOUT_S = 10.0


class NetworkServer:
    """Serves, and loads newer parameters meanwhile, in a thread.

    Args:
      server: answers requests by `device`.
      device: gets the parameters.
      source: of the published parameters.
      fold: turns them into those that the device takes.
    """

    def __init__(
        self,
        server: InferenceServer,
        device: NetworkDevice,
        source: ParamSource,
        fold: Callable[[Params], Params],
    ) -> None:
        self._server = server
        self._device = device
        self._source = source
        self._fold = fold
        self._stopping = threading.Event()
        self._failure: Exception | None = None

    def stop(self) -> None:
        """Ends `run`; thread-safe, returns at once."""
        self._stopping.set()
        self._server.stop()

    def run(self) -> None:
        """Serves until `stop` is called.

        Raises:
          ConfigError: a batch does not fit into the devices' memory.
          ServerHung: a batch took too long.
          Exception: the devices failed, or parameters could not be loaded.
        """
        follower = threading.Thread(target=self._follow, name="follow-params", daemon=True)
        follower.start()
        try:
            self._server.run()
        finally:
            self._stopping.set()
            follower.join(_STOP_TIMEOUT_S)
        if self._failure is not None:
            raise self._failure

    def _follow(self) -> None:
        try:
            newest = first_params(self._source, self._stopping)
            while not self._stopping.is_set():
                if newest is not None:
                    self._device.load(newest._replace(params=self._fold(newest.params)))
                self._stopping.wait(_LOOK_EVERY_S)
                newest = self._source.poll()
        except Exception as failure:
            self._failure = failure
            self._server.stop()
