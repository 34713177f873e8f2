"""The classes that Ray runs as the processes of a run beside `podzero.runtime.producers`.

Heavy imports stand inside the methods, so that a process loads only what its object needs, and the driver none of it.
"""

from __future__ import annotations

import logging
import math
import os
from collections.abc import Sequence
from concurrent.futures import wait
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Any

from podzero.config import Experiment
from podzero.protocols import ParamSource, Report
from podzero.runtime.checkpoints import SavedShard
from podzero.runtime.cluster.directory import tell
from podzero.runtime.cluster.remote import BUILD_TIMEOUT_S, RemoteActor, own_address
from podzero.runtime.cluster.stale_processes import RUN_VARIABLE
from podzero.runtime.devices import own_devices
from podzero.runtime.monitoring.reports import LogReport, MetricsReport
from podzero.runtime.preemption import watch_for_notices
from podzero.runtime.process import Process
from podzero.runtime.producers import SampleWriters, seed_of

if TYPE_CHECKING:
    from podzero.inference.serving import NetworkServer

log = logging.getLogger(__name__)


SILENT_DRAINS = 4
"""Requests for metrics in a row that a replay server may fail to answer before it counts as failed.

Each waits half a minute. A server that swaps, or whose disk is slow, still holds its samples; a new one would have
those of the last checkpoint only.
"""


class ReplayProcess(Process):
    """One shard of replay."""

    _silent = 0
    """Requests for metrics in a row that its server has not answered."""

    def _build(self, *, experiment: Experiment, shard: int, contents: Sequence[SavedShard]) -> None:
        from podzero.envs import spec_of
        from podzero.replay import ReplayRestoreError, ReplayServer

        spec = spec_of(experiment.env)
        found = None
        for content in contents:
            try:
                self._server = ReplayServer(experiment, spec, shard, content.folder, own_address())
                found = content
                break
            except ReplayRestoreError as damage:
                log.warning("the contents of a replay shard are damaged", exc_info=damage)
        if found is None:
            self._server = ReplayServer(experiment, spec, shard, host=own_address())
        if contents and found != contents[0]:
            self._report_loss(contents[0], found)

    def _report_loss(self, wanted: SavedShard, found: SavedShard | None) -> None:
        """Says and counts which samples are missing after the contents `wanted` were damaged."""
        missing = max(0, wanted.samples - self._server.limits().size)
        log.warning(
            "%s goes on %s: %s of the samples of %s are missing",
            self._name,
            f"with the older contents of {found.folder}" if found else "empty",
            f"{missing:,} of {wanted.samples:,}" if wanted.samples else "an unknown number",
            wanted.folder,
        )
        self._reports.report(self._name, {"count/damaged_shards": 1.0, "count/missing_samples": float(missing)})

    def address(self) -> Any:
        """The address at which writers and readers reach this shard, once it listens.

        Raises:
          Exception: whatever kept the shard from being built.
        """
        self.ready()
        return self._server.address()

    def drain(self) -> list[MetricsReport | LogReport]:
        """The metrics of the tables now, and the log lines since the last call.

        Raises:
          ReplayTimeout: the server of this shard has not answered `SILENT_DRAINS` requests in a row.
        """
        if self._failure is None:
            self._report_tables()
        return super().drain()

    def _report_tables(self) -> None:
        from podzero.replay.errors import ReplayTimeout

        try:
            self._reports.report(self._name, self._server.info())
        except ReplayTimeout as timeout:
            self._silent += 1
            if self._silent >= SILENT_DRAINS:
                raise
            log.warning("metrics are missing, request %d of %d: %s", self._silent, SILENT_DRAINS, timeout)
        else:
            self._silent = 0

    def checkpoint(self, folder: Path) -> int:
        """Writes the shard's contents into `folder`; returns how many samples there were when it began.

        Raises:
          SaveUnderWay: it still writes another checkpoint.
        """
        samples = self._server.limits().size
        self._server.checkpoint(folder)
        return samples


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
        directory: Any,
        snapshots: Path,
        restore_from: Path | None,
    ) -> None:
        from podzero.learner import HostInfo, Learner, check_chips, join

        hosts = experiment.cluster.learner_hosts
        watch_for_notices(self._reports.announce)
        host_sync = join(HostInfo(rank, hosts, coordinator), experiment)  # before anything that uses JAX
        if experiment.cluster.tpu is not None:
            check_chips(experiment.cluster.tpu)
        import jax

        from podzero.replay import make_reader
        from podzero.runtime.beside_learner import running_beside
        from podzero.runtime.build import learner_parts, make_device_actor
        from podzero.runtime.local_params import LocalParams
        from podzero.runtime.ray_params import RayParamSink

        network, spec, symmetries = learner_parts(experiment)
        self._experiment = experiment
        self._snapshots = snapshots
        addresses = [shard.ask("address", timeout_s=BUILD_TIMEOUT_S) for shard in shards[rank::hosts]]
        self._reader = make_reader(addresses, spec, experiment, hosts)
        local = LocalParams() if experiment.uses_learner_devices else None
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
            local_sink=local,
        )
        self._writers: SampleWriters | None = None
        self._beside: AbstractContextManager[None] = nullcontext()
        if local is not None and experiment.actors.beside_learner:
            self._writers = SampleWriters(experiment, shards)
            clients = self._writers.clients(local, self._reports.report)
            seed = seed_of(experiment.seed, rank, attempt=self._learner.step)  # other games after a resumption
            actor = make_device_actor(experiment, f"actor-{rank}", seed, clients, jax.local_devices())
            self._beside = running_beside(actor, self._learner.fail)
        elif local is not None:
            server = serve(_patient(experiment), f"inference-{rank}", local, directory, self._reports.report)
            self._beside = running_beside(server, self._learner.fail)

    def run(self) -> None:
        """Trains until stopped, or until all steps are done; plays or serves beside it, if the experiment says so.

        Raises:
          DevicesHang: the devices have executed one dispatch for too long; this process has to be ended.
          Exception: what else ended the training.
        """
        from podzero.learner import explained, run_watched

        self.ready()
        try:
            run_watched(self._train, lambda: self._learner.dispatch_s, self._name)
        except Exception as failure:
            raise explained(failure) from failure

    def _train(self) -> None:
        with self._beside:
            self._learner.run()

    def moved(self, old: str, new: str) -> None:
        """Takes note that the replay shard at the address `old` was restarted at `new`."""
        self._reader.moved(old, new)
        if self._writers is not None:
            self._writers.moved(old, new)

    def stop(self) -> None:
        """Asks `run` to end."""
        self._learner.stop()

    def advance(self, share: float) -> None:
        """As `Progress.tell` of the learner."""
        self._learner.progress.tell(share)

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
        from podzero.networks.snapshots import save_snapshot

        newest = self._learner.acting_params()
        if newest is None:
            return -1
        save_snapshot(self._snapshots, newest.version, newest.params, self._experiment)
        return newest.version


class InferenceProcess(Process):
    """An inference server."""

    def _build(self, *, experiment: Experiment, store: Any, directory: Any) -> None:
        from podzero.runtime.ray_params import RayParamSource

        self._server = serve(experiment, self._name, RayParamSource(store), directory, self._reports.report)

    def run(self) -> None:
        """Serves until stopped."""
        self.ready()
        self._server.run()


def _patient(experiment: Experiment) -> Experiment:
    """The experiment whose server waits for its devices for ever: they train as well, and `run` watches that."""
    return experiment.model_copy(update={"server": experiment.server.model_copy(update={"hang_s": math.inf})})


def serve(experiment: Experiment, name: str, source: ParamSource, directory: Any, report: Report) -> NetworkServer:
    """The inference server on all devices of this process, which announces itself to the run's directory.

    Raises:
      NoAccelerator: it has reserved some, and JAX found only CPUs.
    """
    from podzero.runtime.serving import make_server

    server = experiment.server
    devices = own_devices(name, "server", {} if server.beside_learner else server.resources)

    def announce(address: str) -> None:
        tell(directory, name, address)

    run, host = os.environ[RUN_VARIABLE], own_address()
    return make_server(experiment, name, host, run, source, report, announce, devices)


class EvaluatorProcess(Process):
    """The evaluator."""

    def _build(self, *, experiment: Experiment, snapshots: Path, games: Path, ladder: dict[str, Any]) -> None:
        from podzero.evaluation.evaluator import Evaluator, make_rounds

        rounds = make_rounds(experiment, snapshots, games, ladder)
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
