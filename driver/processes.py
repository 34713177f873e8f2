"""The classes that Ray runs as the processes of a run: each builds one object of a package and calls it.

Heavy imports stand inside the methods, so that a process loads only what its object needs, and the driver none of it.
"""

from __future__ import annotations

import logging
import time
from abc import ABC, abstractmethod
from concurrent.futures import wait
from pathlib import Path
from typing import Any

from podzero.cluster.remote import RemoteActor, current_node_id, own_address
from podzero.config import Experiment
from podzero.driver.preemption import watch_for_notices
from podzero.monitoring.reports import LogReport, MetricsReport, ReportBuffer

log = logging.getLogger(__name__)


class Process(ABC):
    """What all processes share: a buffer of reports that the driver drains, and the error of a failed construction.

    Ray reports an exception of a constructor as a dead process and drops its type. The constructor therefore keeps
    the exception, and `ready` raises it.
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
        """Builds the object that this process runs."""

    def ready(self) -> None:
        """Returns once the object of this process is built.

        Raises:
          Exception: whatever kept the object from being built.
        """
        if self._failure is not None:
            raise self._failure

    def drain(self) -> list[MetricsReport | LogReport]:
        """Metrics and log lines since the last call."""
        return self._reports.drain()


class ReplayProcess(Process):
    """One shard of replay."""

    def _build(self, *, experiment: Experiment, shard: int, restore_from: Path | None) -> None:
        from podzero.envs import spec_of
        from podzero.replay import ReplayServer

        spec = spec_of(experiment.env)
        self._server = ReplayServer(experiment, spec, shard, restore_from, own_address())

    def address(self) -> Any:
        """The address at which writers and readers reach this shard, once it listens.

        Raises:
          Exception: whatever kept the shard from being built.
        """
        self.ready()
        return self._server.address()

    def drain(self) -> list[MetricsReport | LogReport]:
        """The metrics of the tables now, and the log lines since the last call."""
        if self._failure is None:
            self._reports.report(self._name, self._server.info())
        return super().drain()

    def checkpoint(self, folder: Path) -> None:
        """Writes the shard's contents below `folder`."""
        self._server.checkpoint(folder)


class ActorProcess(Process):
    """One actor; `attempt` counts its earlier processes, so that a restarted actor plays other games."""

    def _build(
        self, *, experiment: Experiment, index: int, attempt: int, shards: list[RemoteActor], store: Any
    ) -> None:
        from podzero.actors import ActorClients
        from podzero.driver.build import make_actor
        from podzero.envs import spec_of
        from podzero.params import RayParamSource
        from podzero.replay import STATES, make_writer

        spec, addresses = spec_of(experiment.env), _addresses(shards)
        writer = make_writer(list(addresses), spec, experiment, near=_near(addresses))
        states = None
        if experiment.reanalyse.share:
            # Writes of states never block, so a preference for near shards would put all states there.
            states = make_writer(list(addresses), spec, experiment, table=STATES)
        self._writers = [writer] if states is None else [writer, states]
        seed, source = seed_of(experiment.seed, index, attempt), RayParamSource(store)
        self._actor = make_actor(
            experiment, self._name, seed, ActorClients(source, writer, self._reports.report, states)
        )

    def run(self) -> None:
        """Plays games, or acts in environments, until stopped."""
        self.ready()
        self._actor.run()

    def moved(self, old: str, new: str) -> None:
        """Takes note that the replay shard at the address `old` was restarted at `new`."""
        for writer in self._writers:
            writer.moved(old, new)

    def stop(self) -> None:
        """Asks `run` to end."""
        self._actor.stop()


class ReanalysisProcess(Process):
    """One reanalyser; `attempt` as for an actor."""

    def _build(
        self, *, experiment: Experiment, index: int, attempt: int, shards: list[RemoteActor], store: Any
    ) -> None:
        from podzero.driver.build import make_reanalyser
        from podzero.envs import spec_of
        from podzero.params import RayParamSource
        from podzero.replay import REANALYSED, make_state_reader, make_writer

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


class LearnerProcess(Process):
    """The learner's process on one host."""

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
        from podzero.learner import HostInfo, Learner, check_chips, join

        hosts = experiment.cluster.learner_hosts
        watch_for_notices(self._reports.announce)
        host_sync = join(HostInfo(rank, hosts, coordinator), experiment)  # before anything that uses JAX
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
            host_sync=host_sync,
        )

    def run(self) -> None:
        """Trains until stopped, or until all steps are done."""
        from podzero.learner import explained

        self.ready()
        try:
            self._learner.run()
        except Exception as failure:
            raise explained(failure) from failure

    def moved(self, old: str, new: str) -> None:
        """Takes note that the replay shard at the address `old` was restarted at `new`."""
        self._reader.moved(old, new)

    def stop(self) -> None:
        """Asks `run` to end."""
        self._learner.stop()

    def checkpoint(self, folder: Path, timeout_s: float) -> int:
        """Writes this host's part of the learner's state below `folder`; returns the step once it is complete.

        Raises:
          TimeoutError: it was not complete within `timeout_s`.
        """
        future = self._learner.request_checkpoint(folder)
        wait([future], timeout_s)
        if not future.done():
            raise TimeoutError(
                f"waited {timeout_s:g} s for {self._name} to write a checkpoint: it may still be waiting for samples, "
                "or the file system is slow"
            )
        return future.result()

    def snapshot(self) -> int:
        """Writes the parameters published last as a snapshot; returns their step, -1 if none were published yet."""
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
        """Evaluates snapshots until the process is killed."""
        self.ready()
        self._evaluator.run()

    def ladder(self) -> dict[str, Any]:
        """The rating ladder as plain values."""
        self.ready()
        ladder: dict[str, Any] = self._evaluator.ladder()
        return ladder


def _addresses(shards: list[RemoteActor]) -> dict[str, str | None]:
    """The node of each shard by its address; waits until all shards listen."""
    return {shard.ask("address"): shard.node for shard in shards}


def _near(addresses: dict[str, str | None]) -> list[str]:
    """The addresses of shards on the node of this process."""
    return [address for address, node in addresses.items() if node == current_node_id()]


def seed_of(seed: int, index: int, attempt: int) -> int:
    """The random seed, below 2**31, of an actor or, counting on from the last actor, of a reanalyser.

    Args:
      seed: of the experiment.
      index: of the actor.
      attempt: how many processes it had before.
    """
    return (seed * 1_000_003 + index * 1_009 + attempt * 65_537 + 1) % (2**31)
