"""The process of a reanalyser."""

from __future__ import annotations

from dataclasses import dataclass

from podzero.runtime.processes.actor import near, seed_of, shard_nodes
from podzero.runtime.processes.process import Process


@dataclass(eq=False)
class ReanalysisProcess(Process):
    """One reanalyser, which searches stored states again with newer parameters."""

    def build(self) -> None:
        """Waits for the replay shards, then builds the reanalyser."""
        from podzero.envs import spec_of
        from podzero.replay import REANALYSED, make_state_reader, make_writer
        from podzero.runtime.build import make_reanalyser
        from podzero.runtime.ray_params import RayParamSource

        experiment = self.context.experiment
        spec, nodes = spec_of(experiment.env), shard_nodes(self.context.shards)
        self._states = make_state_reader(list(nodes), spec, experiment)
        self._writer = make_writer(list(nodes), spec, experiment, near=near(nodes), table=REANALYSED)
        self._actor = make_reanalyser(
            experiment,
            self.name,
            seed_of(experiment.seed, experiment.actors.count + self.index, self.attempt),
            RayParamSource(self.context.store),
            self._states,
            self._writer,
            self.reports.report,
        )

    def run(self) -> None:
        """Searches stored states again until stopped."""
        self._actor.run()

    def moved(self, old: str, new: str) -> None:
        """Takes note that the replay shard at the address `old` was restarted at `new`."""
        self._states.moved(old, new)
        self._writer.moved(old, new)

    def stop(self) -> None:
        """Asks `run` to end, even while it waits for states."""
        self._actor.stop()
        self._states.close()
