"""The process of an inference server."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from podzero.config import Experiment
from podzero.protocols import ParamSource, Report
from podzero.runtime.cluster.directory import tell
from podzero.runtime.cluster.remote import own_address
from podzero.runtime.processes.process import Process, RunContext, own_devices

if TYPE_CHECKING:
    from podzero.inference.serving import NetworkServer


@dataclass(eq=False)
class InferenceProcess(Process):
    """An inference server on the devices of its process."""

    def build(self) -> None:
        """Builds the server."""
        from podzero.runtime.ray_params import RayParamSource

        source = RayParamSource(self.context.store)
        self._server = inference_server(self.context.experiment, self.context, self.name, source, self.reports.report)

    def run(self) -> None:
        """Serves until stopped."""
        self._server.run()

    def stop(self) -> None:
        """Asks `run` to end."""
        self._server.stop()


def inference_server(
    experiment: Experiment, context: RunContext, name: str, source: ParamSource, report: Report
) -> NetworkServer:
    """The inference server on all devices of this process, which announces itself to the run's directory.

    Args:
      experiment: what is run; a server beside the learner has other timeouts than the run's experiment.
      context: the run that it serves.
      name: the name of the server.
      source: the published parameters.
      report: receives its metrics.

    Raises:
      NoAccelerator: the process has reserved accelerators, and JAX found only CPUs.
    """
    from podzero.runtime.serving import make_server

    server = experiment.server
    devices = own_devices(name, "server", {} if server.beside_learner else server.resources)

    def announce(address: str) -> None:
        tell(context.directory, name, address)

    return make_server(experiment, name, own_address(), context.run, source, report, announce, devices)
