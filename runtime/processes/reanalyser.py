"""A reanalyser's process."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial

from podzero.runtime.cluster.directory import AddressBook, ask
from podzero.runtime.cluster.remote import own_address
from podzero.runtime.processes.actor import seed_of
from podzero.runtime.processes.process import Process
from podzero.runtime.processes.replay import replay_addresses


@dataclass(eq=False)
class ReanalysisProcess(Process):
    """A reanalyser, which searches stored states again with newer parameters."""

    def build(self) -> None:
        """Waits for the replay shards, then builds the reanalyser."""
        from podzero.envs import spec_of
        from podzero.replay import REANALYSED, make_state_reader, make_writer
        from podzero.runtime.build import make_reanalyser
        from podzero.runtime.params import RayParamSource

        experiment = self.context.experiment
        spec, shards = (
            spec_of(experiment.env),
            replay_addresses(AddressBook(partial(ask, self.context.directory)), experiment),
        )
        self._states = make_state_reader(shards, spec, experiment)
        self._actor = make_reanalyser(
            experiment,
            self.name,
            seed_of(experiment.seed, experiment.actors.count + self.index, self.attempt),
            RayParamSource(self.context.store),
            self._states,
            make_writer(shards, spec, experiment, near=own_address(), table=REANALYSED),
            self.reports.report,
        )

    def run(self) -> None:
        """Searches stored states again until stopped."""
        self._actor.run()

    def stop(self) -> None:
        """Asks `run` to end, even while it waits for states."""
        self._actor.stop()
        self._states.close()
