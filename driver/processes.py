"""The processes of a run. Each is a thin shell: it builds one room's object in its own process and lets it run.

Everything heavy is imported inside the constructors: a process pays only for what its role needs, and the driver
for nothing.
"""

from __future__ import annotations

import logging
import os
import time
from abc import ABC, abstractmethod
from pathlib import Path
from typing import Any

from podzero.cluster.remote import RemoteActor, current_node_id
from podzero.config import Experiment
from podzero.driver.preemption import watch_for_notices
from podzero.monitoring.reports import LogReport, MetricsReport, ReportBuffer

log = logging.getLogger(__name__)


class Process(ABC):
    """What every role shares: an outbox that the driver drains, and a failure to build that is told as it was.

    Ray reports an exception of a constructor as a dead process and drops its type, so the constructor keeps it
    for whoever asks whether the role is `ready`.
    """

    def __init__(self, name: str, **arguments: Any) -> None:
        self._name = name
        self._failure: Exception | None = None
        self._reports = ReportBuffer(name)
        logger = logging.getLogger("podzero")
        logger.setLevel(logging.INFO)
        logger.addHandler(self._reports)
        began = time.monotonic()
        try:
            self._build(**arguments)
        except Exception as failure:
            self._failure = failure
        else:
            log.info("built in %.1f s", time.monotonic() - began)

    @abstractmethod
    def _build(self, *none: Any, **arguments: Any) -> None:
        """Builds the object that this process is for."""

    def ready(self) -> int:
        """The operating system's number of this process, once the role is built.

        Raises:
          Exception: whatever kept it from being built.
        """
        if self._failure is not None:
            raise self._failure
        return os.getpid()

    def drain(self) -> list[MetricsReport | LogReport]:
        """Figures and log lines since the last call."""
        return self._reports.drain()


class ReplayProcess(Process):
    """One shard of replay."""

    def _build(self, *, experiment: Experiment, shard: int, restore_from: Path | None) -> None:
        from podzero.envs import spec_of
        from podzero.replay import ReplayServer

        spec = spec_of(experiment.env)
        self._server = ReplayServer(experiment, spec, shard, restore_from)

    def address(self) -> Any:
        """What writers and readers need to find this shard, once it listens.

        Raises:
          Exception: whatever kept it from being built.
        """
        self.ready()
        return self._server.address()

    def metrics(self) -> None:
        """Puts the table's figures into the outbox."""
        self._reports.report(self._name, self._server.info())

    def checkpoint(self, folder: Path) -> None:
        """Writes the shard's contents below `folder`."""
        self._server.checkpoint(folder)

    def stop(self) -> None:
        """Takes the server down."""
        self._server.stop()


class ActorProcess(Process):
    """One actor; `life` counts its restarts, so that a new life plays other games."""

    def _build(self, *, experiment: Experiment, index: int, life: int, shards: list[RemoteActor], store: Any) -> None:
        from podzero.actors import ActorClients
        from podzero.driver.build import make_actor
        from podzero.envs import spec_of
        from podzero.params import RayParamSource
        from podzero.replay import STATES, make_writer

        spec, addresses = spec_of(experiment.env), _addresses(shards)
        writer = make_writer(list(addresses), spec, experiment, near=_near(addresses))
        states = None
        if experiment.reanalyse.share:
            # Nothing holds it back, so if near shards came first, all of the past would stay there.
            states = make_writer(list(addresses), spec, experiment, table=STATES)
        self._writers = [writer] if states is None else [writer, states]
        seed, source = seed_of(experiment.seed, index, life), RayParamSource(store)
        self._actor = make_actor(
            experiment, self._name, seed, ActorClients(source, writer, self._reports.report, states)
        )

    def run(self) -> None:
        """Plays, or acts, until stopped."""
        self.ready()
        self._actor.run()

    def moved(self, old: str, new: str) -> None:
        """A replay shard has come to life again at another address."""
        for writer in self._writers:
            writer.moved(old, new)

    def stop(self) -> None:
        """Asks `run` to end."""
        self._actor.stop()


class ReanalysisProcess(Process):
    """One reanalyser; `life` as for an actor."""

    def _build(self, *, experiment: Experiment, index: int, life: int, shards: list[RemoteActor], store: Any) -> None:
        from podzero.driver.build import make_reanalyser
        from podzero.envs import spec_of
        from podzero.params import RayParamSource
        from podzero.replay import REANALYSED, make_state_reader, make_writer

        spec, addresses = spec_of(experiment.env), _addresses(shards)
        self._states = make_state_reader(list(addresses), spec, experiment)
        self._writer = make_writer(list(addresses), spec, experiment, near=_near(addresses), table=REANALYSED)
        seed, source = seed_of(experiment.seed, experiment.actors.count + index, life), RayParamSource(store)
        self._actor = make_reanalyser(
            experiment, self._name, seed, source, self._states, self._writer, self._reports.report
        )

    def run(self) -> None:
        """Searches again until stopped."""
        self.ready()
        self._actor.run()

    def moved(self, old: str, new: str) -> None:
        """A replay shard has come to life again at another address."""
        self._states.moved(old, new)
        self._writer.moved(old, new)

    def stop(self) -> None:
        """Asks `run` to end, wherever it waits."""
        self._actor.stop()
        self._states.close()


class LearnerProcess(Process):
    """The learner of one host."""

    def _build(
        self,
        *,
        rank: int,
        coordinator: str,
        experiment: Experiment,
        shards: list[RemoteActor],
        store: Any,
        snapshots: Path,
        restore_from: Path | None,
    ) -> None:
        from podzero.learner import Learner, Membership, check_chips, join

        hosts = experiment.cluster.learner_hosts
        watch_for_notices(self._reports.announce)
        agreement = join(Membership(rank, hosts, coordinator), experiment)  # before anything that uses JAX
        if experiment.cluster.tpu is not None:
            check_chips(experiment.cluster.tpu)
        from podzero.driver.build import learner_parts
        from podzero.params import RayParamSink
        from podzero.replay import make_reader

        network, spec, symmetries = learner_parts(experiment)
        self._experiment = experiment
        self._snapshots = snapshots
        addresses = [shard.ask("address") for shard in shards[rank::hosts]]
        self._reader = make_reader(addresses, spec, experiment, hosts)
        self._learner = Learner(
            experiment,
            network,
            spec,
            symmetries,
            reader=self._reader,
            sink=RayParamSink(store) if rank == 0 else None,
            report=self._reports.report,
            restore_from=restore_from,
            agreement=agreement,
        )

    def run(self) -> None:
        """Trains until stopped or done."""
        from podzero.learner import explained

        self.ready()
        try:
            self._learner.run()
        except Exception as failure:
            raise explained(failure) from failure

    def moved(self, old: str, new: str) -> None:
        """A replay shard has come to life again at another address."""
        self._reader.moved(old, new)

    def stop(self) -> None:
        """Asks `run` to end."""
        self._learner.stop()

    def checkpoint(self, folder: Path) -> int:
        """Writes this host's part of the learner's state below `folder`; returns the step once it is complete."""
        return self._learner.request_checkpoint(folder).result(timeout=self._experiment.replay.timeout_s)

    def snapshot(self) -> int:
        """Writes the acting parameters published last as a snapshot; returns their step, -1 before the first."""
        from podzero.params import save_snapshot

        newest = self._learner.acting_params()
        if newest is None:
            return -1
        save_snapshot(self._snapshots, newest.version, newest.params, self._experiment)
        return newest.version


class EvaluatorProcess(Process):
    """The evaluator."""

    def _build(self, *, experiment: Experiment, snapshots: Path, ladder: dict[str, Any]) -> None:
        from podzero.evaluation import Evaluator, make_rounds

        rounds = make_rounds(experiment, snapshots, ladder)
        self._evaluator = Evaluator(rounds, experiment.evaluation.every_minutes, snapshots, self._reports.report)

    def run(self) -> None:
        """Judges snapshots until stopped."""
        self.ready()
        self._evaluator.run()

    def stop(self) -> None:
        """Asks `run` to end."""
        self._evaluator.stop()

    def ladder(self) -> dict[str, Any]:
        """The rating ladder as plain values."""
        ladder: dict[str, Any] = self._evaluator.ladder()
        return ladder


def _addresses(shards: list[RemoteActor]) -> dict[str, str | None]:
    """The nodes of shards by their addresses, once they listen."""
    return {shard.ask("address"): shard.node for shard in shards}


def _near(addresses: dict[str, str | None]) -> list[str]:
    """The addresses on this process's node."""
    return [address for address, node in addresses.items() if node == current_node_id()]


def seed_of(seed: int, index: int, life: int) -> int:
    """A seed for the `life`-th process of actor `index` (reanalysers count on): distinct for all, below 2**31."""
    return (seed * 1_000_003 + index * 1_009 + life * 65_537 + 1) % (2**31)
