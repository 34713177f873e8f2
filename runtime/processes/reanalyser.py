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
        from podzero.actors import ReanalysisActor
        from podzero.actors.build import make_reanalysis
        from podzero.envs import spec_of
        from podzero.replay import REANALYSED, make_state_reader, make_writer
        from podzero.runtime.params import RayParamSource

        experiment = self.context.experiment
        spec = spec_of(experiment.env)
        shards = replay_addresses(AddressBook(partial(ask, self.context.directory)), experiment)
        seed = seed_of(experiment.seed, experiment.actors.count + self.index, self.attempt)
        reanalyse, prepare = make_reanalysis(experiment, seed)
        self._states = make_state_reader(shards, spec, experiment)
        self._actor = ReanalysisActor(
            experiment=experiment,
            name=self.name,
            reanalyse=reanalyse,
            prepare=prepare,
            source=RayParamSource(self.context.store),
            states=self._states,
            writer=make_writer(shards, spec, experiment, near=own_address(), table=REANALYSED),
            report=self.reports.report,
        )

    def run(self) -> None:
        """Searches stored states again until stopped."""
        self._actor.run()

    def stop(self) -> None:
        """Asks `run` to end, even while it waits for states."""
        self._actor.stop()
        self._states.close()
