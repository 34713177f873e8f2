"""An inference server's process."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING

from podzero.config import Experiment
from podzero.core.protocols import ParamSource
from podzero.runtime.cluster.directory import tell
from podzero.runtime.cluster.remote import own_address
from podzero.runtime.processes.process import Process, own_devices

if TYPE_CHECKING:
    from podzero.inference.serving import NetworkServer


@dataclass(eq=False)
class InferenceProcess(Process):
    """An inference server on the devices of its process."""

    def build(self) -> None:
        """Builds the server."""
        from podzero.runtime.params import RayParamSource

        self._server = inference_server(self, self.context.experiment, self.name, RayParamSource(self.context.store))

    def run(self) -> None:
        """Serves until stopped."""
        self._server.run()

    def stop(self) -> None:
        """Asks `run` to end."""
        self._server.stop()


def inference_server(process: Process, experiment: Experiment, name: str, source: ParamSource) -> NetworkServer:
    """The inference server on all devices of this process; it announces itself in the run's directory.

    Args:
      process: the process that serves.
      experiment: the experiment, whose timeouts may differ from the run's (for a server beside the learner).
      name: the name of the server.
      source: the published parameters.
    """
    from podzero.inference.build import make_server

    server, context = experiment.server, process.context
    devices = own_devices(name, "server", {} if server.beside_learner else server.resources)
    announce = partial(tell, context.directory, name, process.attempt)
    return make_server(experiment, name, own_address(), context.run, source, process.reports.report, announce, devices)
