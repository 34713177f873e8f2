"""The classes that Ray runs as the processes that produce samples: actors and reanalysers.

Heavy imports stand inside the methods, so that a process loads only what its object needs, and the driver none of it.
"""

from __future__ import annotations

import os
from functools import partial
from typing import TYPE_CHECKING, Any

from podzero.config import Experiment
from podzero.protocols import ParamSource, Report
from podzero.runtime.cluster.directory import ask
from podzero.runtime.cluster.remote import BUILD_TIMEOUT_S, RemoteActor, current_node_id
from podzero.runtime.cluster.stale_processes import RUN_VARIABLE
from podzero.runtime.devices import own_devices
from podzero.runtime.process import Process

if TYPE_CHECKING:
    from podzero.actors import ActorClients, ActorGroups, DeviceActor, EnvironmentActor, SelfPlayActor


class ActorProcess(Process):
    """One actor; `attempt` differs from those of its earlier processes, so that a restarted actor plays other games."""

    def _build(
        self,
        *,
        experiment: Experiment,
        index: int,
        attempt: int,
        shards: list[RemoteActor],
        store: Any,
        directory: Any,
    ) -> None:
        from podzero.runtime.ray_params import RayParamSource

        seed, source = seed_of(experiment.seed, index, attempt), RayParamSource(store)
        groups = experiment.server.groups if experiment.actors.inference == "server" else 1
        self._writers = [SampleWriters(experiment, shards) for _ in range(groups)]
        clients = [writers.clients(source, self._reports.report) for writers in self._writers]
        self._actor = self._make(experiment, seed, clients, index, directory)

    def _make(
        self, experiment: Experiment, seed: int, clients: list[ActorClients], index: int, directory: Any
    ) -> SelfPlayActor | EnvironmentActor | DeviceActor | ActorGroups:
        from podzero.runtime.build import make_actor, make_device_actor

        actors = experiment.actors
        if actors.inference == "device":
            devices = own_devices(self._name, "actors", actors.resources)
            return make_device_actor(experiment, self._name, seed, clients[0], devices)
        if actors.inference != "server":
            return make_actor(experiment, self._name, seed, clients[0])
        from podzero.runtime.serving import make_served_actor

        run, first = os.environ[RUN_VARIABLE], index * len(clients)
        return make_served_actor(experiment, self._name, seed, clients, run, partial(ask, directory), first)

    def run(self) -> None:
        """Plays games, or acts in environments, until stopped."""
        self.ready()
        self._actor.run()

    def moved(self, old: str, new: str) -> None:
        """Takes note that the replay shard at the address `old` was restarted at `new`."""
        for writers in self._writers:
            writers.moved(old, new)

    def stop(self) -> None:
        """Asks `run` to end."""
        self._actor.stop()


class ReanalysisProcess(Process):
    """One reanalyser; `attempt` as for an actor."""

    def _build(
        self, *, experiment: Experiment, index: int, attempt: int, shards: list[RemoteActor], store: Any, **others: Any
    ) -> None:
        del others
        from podzero.envs import spec_of
        from podzero.replay import REANALYSED, make_state_reader, make_writer
        from podzero.runtime.build import make_reanalyser
        from podzero.runtime.ray_params import RayParamSource

        spec, addresses = spec_of(experiment.env), _addresses(shards)
        self._states = make_state_reader(list(addresses), spec, experiment)
        self._writer = make_writer(list(addresses), spec, experiment, near=_near(addresses), table=REANALYSED)
        seed, source = seed_of(experiment.seed, experiment.actors.count + index, attempt), RayParamSource(store)
        self._actor = make_reanalyser(
            experiment, self._name, seed, source, self._states, self._writer, self._reports.report
        )

    def run(self) -> None:
        """Searches stored states again until stopped."""
        self.ready()
        self._actor.run()

    def moved(self, old: str, new: str) -> None:
        """Takes note that the replay shard at the address `old` was restarted at `new`."""
        self._states.moved(old, new)
        self._writer.moved(old, new)

    def stop(self) -> None:
        """Asks `run` to end, even while it waits for states."""
        self._actor.stop()
        self._states.close()


class SampleWriters:
    """The writers of an actor to all tables that it fills; waits until all shards listen."""

    def __init__(self, experiment: Experiment, shards: list[RemoteActor]) -> None:
        from podzero.envs import spec_of
        from podzero.replay import STATES, make_writer

        spec, addresses = spec_of(experiment.env), _addresses(shards)
        self._samples = make_writer(list(addresses), spec, experiment, near=_near(addresses))
        self._states = None
        if experiment.reanalyse.share:
            # Writes of states never block, so a preference for near shards would put all states there.
            self._states = make_writer(list(addresses), spec, experiment, table=STATES)

    def clients(self, source: ParamSource, report: Report) -> ActorClients:
        """The clients of an actor that writes by these."""
        from podzero.actors import ActorClients

        return ActorClients(source, self._samples, report, self._states)

    def moved(self, old: str, new: str) -> None:
        """Takes note that the replay shard at the address `old` was restarted at `new`."""
        for writer in (self._samples, self._states):
            if writer is not None:
                writer.moved(old, new)


def _addresses(shards: list[RemoteActor]) -> dict[str, str | None]:
    """The node of each shard by its address; waits until all shards listen."""
    return {shard.ask("address", timeout_s=BUILD_TIMEOUT_S): shard.node for shard in shards}


def _near(addresses: dict[str, str | None]) -> list[str]:
    """The addresses of shards on the node of this process."""
    return [address for address, node in addresses.items() if node == current_node_id()]


def seed_of(seed: int, index: int, attempt: int) -> int:
    """The random seed, below 2**31, of an actor or, counting on from the last actor, of a reanalyser.

    Args:
      seed: of the experiment.
      index: of the actor.
      attempt: step of the checkpoint from which the run goes on, plus the processes that it had since the driver began.
    """
    return (seed * 1_000_003 + index * 1_009 + attempt * 65_537 + 1) % (2**31)
