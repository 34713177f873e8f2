"""The processes of each kind but the learner: replay shards, actors, reanalysers, inference servers, the evaluator."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from podzero.config import Experiment
from podzero.core.protocols import ParamSource, Report, with_metrics
from podzero.runtime.checkpoints import SavedShard
from podzero.runtime.cluster.remote import own_address
from podzero.runtime.cluster.services import keep_announced, tell
from podzero.runtime.processes.process import Parameters, Process, Replay, Runnable, Servers, Snapshots, own_devices

if TYPE_CHECKING:
    from podzero.actors import ActorClients, Opponent
    from podzero.inference.serving import NetworkServer
    from podzero.replay import ReplayServer

log = logging.getLogger(__name__)

SILENT_DRAINS = 4
"""How many requests for metrics in a row a replay server may leave unanswered before it counts as failed.

Each waits half a minute. A server that swaps, or whose disk is slow, still holds its samples; a new one would only have
those of the last checkpoint.
"""


@dataclass(eq=False)
class ReplayProcess(Process):
    """A replay shard, which starts with the first of its `contents` that is whole, or empty."""

    contents: Sequence[SavedShard] = ()
    server: ReplayServer = field(init=False, repr=False)
    _silent: int = field(default=0, init=False, repr=False)
    """How many requests for metrics in a row the server has left unanswered."""

    def build(self) -> None:
        """Starts the Reverb server and announces its address."""
        from podzero.envs import spec_of
        from podzero.replay import ReplayRestoreError, ReplayServer

        experiment = self.context.experiment
        spec = spec_of(experiment.env)
        server, found = None, None
        for content in self.contents:
            try:
                server, found = ReplayServer(experiment, spec, self.index, content.folder, own_address()), content
                break
            except ReplayRestoreError as damage:
                log.warning("the contents of a replay shard are damaged", exc_info=damage)
        self.server = server or ReplayServer(experiment, spec, self.index, host=own_address())
        if self.contents and found != self.contents[0]:
            self._report_loss(self.contents[0], found)
        keep_announced(self.context.directory, self.name, self.attempt, self.server.address())

    def _report_loss(self, wanted: SavedShard, found: SavedShard | None) -> None:
        """Logs and counts the samples that are missing because the contents `wanted` were damaged."""
        missing = max(0, wanted.samples - self.server.limits().size)
        log.warning(
            "%s continues %s: %s of the samples of %s are missing",
            self.name,
            f"with the older contents of {found.folder}" if found else "empty",
            f"{missing:,} of {wanted.samples:,}" if wanted.samples else "an unknown number",
            wanted.folder,
        )
        self.reports.report(self.name, {"count/damaged_shards": 1.0, "count/missing_samples": float(missing)})

    def refresh(self) -> None:
        """Reports the metrics of the tables; raises `ReplayTimeout` after `SILENT_DRAINS` without an answer."""
        from podzero.replay.errors import ReplayTimeout

        try:
            self.reports.report(self.name, self.server.info())
        except ReplayTimeout as timeout:
            self._silent += 1
            if self._silent >= SILENT_DRAINS:
                raise
            log.warning("metrics are missing, request %d of %d: %s", self._silent, SILENT_DRAINS, timeout)
        else:
            self._silent = 0

    def checkpoint(self, folder: Path) -> int:
        """Writes the shard's contents into `folder`; returns how many samples there were when it began."""
        samples = self.server.limits().size
        self.server.checkpoint(folder)
        return samples


@dataclass(eq=False, kw_only=True)
class ActorProcess(Process):
    """An actor, which plays games or acts in environments. After a restart its random numbers are others."""

    replay: Replay
    network: Parameters | Servers
    """Where the network of its searches comes from, or is evaluated."""
    opponents: Snapshots | None = None
    """The snapshots that it plays against in some games."""

    def build(self) -> Runnable:
        """Waits for the replay shards, then builds the actor."""
        from podzero.actors import build
        from podzero.runtime.params import LocalParams

        experiment, network = self.context.experiment, self.network
        seed = seed_of(experiment.seed, self.index, self.attempt)
        shards, groups, servers = self.replay.addresses(self), 1, None
        if isinstance(network, Servers):
            # Each group of games that waits for inference servers writes by itself.
            groups = experiment.server.groups
            servers = build.FoundServers(self.context.run, network.addresses(self), first=self.index * groups)
        # Actors of servers ask these which parameters they evaluate with.
        source = network.source(self) if isinstance(network, Parameters) else LocalParams()
        return build.make_actor(
            experiment,
            self.name,
            seed,
            [actor_clients(experiment, shards, source, self.reports.report) for _ in range(groups)],
            opponents=self._opponents(self.opponents, seed) if self.opponents else (),
            servers=servers,
            devices=own_devices(self.name, "actors", experiment.actors.resources),
        )

    def _opponents(self, snapshots: Snapshots, seed: int) -> Sequence[Opponent]:
        from podzero.evaluation.resolve import make_opponents

        return make_opponents(self.context.experiment, snapshots.folder(self), seed)


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


@dataclass(eq=False, kw_only=True)
class ReanalysisProcess(Process):
    """A reanalyser, which searches stored states again with newer parameters."""

    replay: Replay
    parameters: Parameters

    def build(self) -> Runnable:
        """Waits for the replay shards, then builds the reanalyser."""
        from podzero.actors import ReanalysisActor
        from podzero.actors.build import make_reanalysis
        from podzero.envs import spec_of
        from podzero.inference import FoldedSource
        from podzero.replay import REANALYSED, make_state_reader, make_writer

        experiment = self.context.experiment
        spec, shards = spec_of(experiment.env), self.replay.addresses(self)
        seed = seed_of(experiment.seed, experiment.actors.count + self.index, self.attempt)
        reanalyse, fold = make_reanalysis(experiment, seed)
        self._states = make_state_reader(shards, spec, experiment)
        return ReanalysisActor(
            experiment=experiment,
            name=self.name,
            reanalyse=reanalyse,
            source=FoldedSource(self.parameters.source(self), fold),
            states=self._states,
            writer=make_writer(shards, spec, experiment, near=own_address(), table=REANALYSED),
            report=self.reports.report,
        )

    def stop(self) -> None:
        """Asks `run` to end, even while it waits for states."""
        super().stop()
        self._states.close()


@dataclass(eq=False, kw_only=True)
class InferenceProcess(Process):
    """An inference server on the devices of its process."""

    parameters: Parameters

    def build(self) -> Runnable:
        """Builds the server."""
        return inference_server(self, self.context.experiment, self.name, self.parameters.source(self))


def inference_server(process: Process, experiment: Experiment, name: str, source: ParamSource) -> NetworkServer:
    """The inference server on all devices of this process; it announces itself in the run's directory.

    The timeouts of the experiment may differ from the run's, for a server beside the learner.
    """
    from podzero.inference.build import make_server

    server, context = experiment.server, process.context
    devices = own_devices(name, "server", {} if server.beside_learner else server.resources)
    announce = partial(tell, context.directory, name, process.attempt)
    return make_server(experiment, name, own_address(), context.run, source, process.reports.report, announce, devices)


@dataclass(eq=False, kw_only=True)
class EvaluatorProcess(Process):
    """The evaluator, which plays snapshots against each other and rates them."""

    snapshots: Snapshots

    def build(self) -> Runnable:
        """Builds the evaluator, which continues the rating ladder of the run."""
        from podzero.evaluation.evaluator import Evaluator, make_rounds

        experiment, snapshots = self.context.experiment, self.snapshots.folder(self)
        rounds = make_rounds(experiment, snapshots, self.context.workdir.games, dict(self.context.ladder))
        self._evaluator = Evaluator(rounds, experiment.evaluation.every_minutes, snapshots, self.reports.report)
        return self._evaluator

    def stop(self, last: int = -1) -> None:
        """Asks `run` to end once it has judged the snapshot of step `last`."""
        self._evaluator.stop(last)

    def ladder(self) -> dict[str, Any]:
        """The rating ladder as plain values."""
        ladder: dict[str, Any] = self._evaluator.ladder()
        return ladder
