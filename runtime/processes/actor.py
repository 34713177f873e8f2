"""The process of an actor, and its clients of replay."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING

from podzero.config import Experiment
from podzero.protocols import ParamSource, Report
from podzero.runtime.cluster.directory import ask
from podzero.runtime.cluster.remote import BUILD_TIMEOUT_S, RemoteActor, current_node_id
from podzero.runtime.processes.process import Process, own_devices

if TYPE_CHECKING:
    from podzero.actors import ActorClients, ActorGroups, DeviceActor, EnvironmentActor, SelfPlayActor


@dataclass(eq=False)
class ActorProcess(Process):
    """One actor, which plays games or acts in environments. With another `attempt` it plays other games."""

    def build(self) -> None:
        """Waits for the replay shards, then builds the actor."""
        from podzero.runtime.ray_params import RayParamSource

        experiment, source = self.context.experiment, RayParamSource(self.context.store)
        # Each group of games that waits for inference servers writes by itself.
        groups = experiment.server.groups if experiment.actors.inference == "server" else 1
        self._writers = [SampleWriters(experiment, self.context.shards) for _ in range(groups)]
        self._actor = self._make([writers.clients(source, self.reports.report) for writers in self._writers])

    def _make(self, clients: list[ActorClients]) -> SelfPlayActor | EnvironmentActor | DeviceActor | ActorGroups:
        from podzero.runtime.build import make_actor, make_device_actor
        from podzero.runtime.serving import make_served_actor

        experiment, actors = self.context.experiment, self.context.experiment.actors
        seed = seed_of(experiment.seed, self.index, self.attempt)
        match actors.inference:
            case "device":
                devices = own_devices(self.name, "actors", actors.resources)
                return make_device_actor(experiment, self.name, seed, clients[0], devices)
            case "server":
                servers, first = partial(ask, self.context.directory), self.index * len(clients)
                return make_served_actor(experiment, self.name, seed, clients, self.context.run, servers, first)
            case _:
                return make_actor(experiment, self.name, seed, clients[0])

    def run(self) -> None:
        """Plays games, or acts in environments, until stopped."""
        self._actor.run()

    def moved(self, old: str, new: str) -> None:
        """Takes note that the replay shard at the address `old` was restarted at `new`."""
        for writers in self._writers:
            writers.moved(old, new)

    def stop(self) -> None:
        """Asks `run` to end."""
        self._actor.stop()


class SampleWriters:
    """The writers of an actor to all tables that it fills; waits until all shards listen."""

    def __init__(self, experiment: Experiment, shards: Sequence[RemoteActor]) -> None:
        from podzero.envs import spec_of
        from podzero.replay import STATES, make_writer

        spec, nodes = spec_of(experiment.env), shard_nodes(shards)
        self._samples = make_writer(list(nodes), spec, experiment, near=near(nodes))
        self._states = None
        if experiment.reanalyse.share:
            # Writes of states never block, so a preference for near shards would put all states there.
            self._states = make_writer(list(nodes), spec, experiment, table=STATES)

    def clients(self, source: ParamSource, report: Report) -> ActorClients:
        """The clients of an actor that writes by these."""
        from podzero.actors import ActorClients

        return ActorClients(source, self._samples, report, self._states)

    def moved(self, old: str, new: str) -> None:
        """Takes note that the replay shard at the address `old` was restarted at `new`."""
        for writer in (self._samples, self._states):
            if writer is not None:
                writer.moved(old, new)


def shard_nodes(shards: Sequence[RemoteActor]) -> dict[str, str | None]:
    """The node of each shard by its address; waits until all shards listen."""
    return {shard.ask("address", timeout_s=BUILD_TIMEOUT_S): shard.node for shard in shards}


def near(nodes: dict[str, str | None]) -> list[str]:
    """The addresses of the shards on the node of this process."""
    return [address for address, node in nodes.items() if node == current_node_id()]


def seed_of(seed: int, index: int, attempt: int) -> int:
    """The random seed, below 2**31, of an actor or of a reanalyser, whose numbers follow those of the actors.

    Args:
      seed: the experiment's seed.
      index: the number of the actor.
      attempt: the step of the checkpoint from which the run resumed, plus the earlier processes of this actor.
    """
    return (seed * 1_000_003 + index * 1_009 + attempt * 65_537 + 1) % (2**31)
