"""An actor's process, and the clients of replay and parameters that it uses."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING

from podzero.config import Experiment
from podzero.core.protocols import ParamSource, Report, with_metrics
from podzero.runtime.cluster.directory import AddressBook, ask
from podzero.runtime.cluster.remote import own_address
from podzero.runtime.processes.process import Process, own_devices
from podzero.runtime.processes.replay import replay_addresses

if TYPE_CHECKING:
    from podzero.actors import ActorClients, Opponent


@dataclass(eq=False)
class ActorProcess(Process):
    """An actor, which plays games or acts in environments. After a restart its random numbers are others."""

    def build(self) -> None:
        """Waits for the replay shards, then builds the actor."""
        from podzero.actors.build import Servers, make_actor
        from podzero.runtime.params import RayParamSource

        experiment, source = self.context.experiment, RayParamSource(self.context.store)
        seed = seed_of(experiment.seed, self.index, self.attempt)
        book = AddressBook(partial(ask, self.context.directory))
        shards = replay_addresses(book, experiment)
        # Each group of games that waits for inference servers writes by itself.
        groups = experiment.server.groups if experiment.actors.inference == "server" else 1
        clients = [actor_clients(experiment, shards, source, self.reports.report) for _ in range(groups)]
        self._actor = make_actor(
            experiment,
            self.name,
            seed,
            clients,
            opponents=self._opponents(seed),
            servers=Servers(self.context.run, partial(book.present, "inference"), first=self.index * groups),
            devices=own_devices(self.name, "actors", experiment.actors.resources),
        )

    def _opponents(self, seed: int) -> Sequence[Opponent]:
        if not self.context.experiment.actors.opponents:
            return ()
        from podzero.evaluation.resolve import make_opponents

        return make_opponents(self.context.experiment, self.context.workdir.snapshots, seed)

    def run(self) -> None:
        """Plays games, or acts in environments, until stopped."""
        self._actor.run()

    def stop(self) -> None:
        """Asks `run` to end."""
        self._actor.stop()


def actor_clients(
    experiment: Experiment, shards: Callable[[], Sequence[str]], source: ParamSource, report: Report
) -> ActorClients:
    """An actor's clients, with writers for all replay tables that it fills, to the shards at these addresses."""
    from podzero.actors import ActorClients
    from podzero.envs import spec_of
    from podzero.replay import STATES, LenientWriter, make_writer

    spec = spec_of(experiment.env)
    samples, states = LenientWriter(make_writer(shards, spec, experiment, near=own_address())), None
    report = with_metrics(report, samples.metrics)
    # No preference for near shards: writes of states never block, so all states would end up there.
    if experiment.reanalyse.share:
        states = LenientWriter(make_writer(shards, spec, experiment, table=STATES), "count/refused_states")
        report = with_metrics(report, states.metrics)
    return ActorClients(source, samples, report, states)


def seed_of(seed: int, index: int, attempt: int) -> int:
    """The random seed, below 2**31, of an actor or reanalyser.

    Args:
      seed: the experiment's seed.
      index: the actor's number; reanalysers count on after the actors.
      attempt: the step of the checkpoint from which the run resumed, plus the number of earlier processes.
    """
    # Primes, so that different seeds, indices and attempts rarely have the same sum.
    return (seed * 1_000_003 + index * 1_009 + attempt * 65_537 + 1) % (2**31)
