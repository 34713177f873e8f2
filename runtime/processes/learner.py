"""The learner's process on a host, and the actor or server that takes turns with training on its devices."""

from __future__ import annotations

import logging
import math
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import wait
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from podzero.runtime.processes.kinds import actor_clients, inference_server, seed_of
from podzero.runtime.processes.process import Process, Replay, Runnable
from podzero.runtime.stopping import watch_for_notices

if TYPE_CHECKING:
    from podzero.runtime.params import LocalParams

log = logging.getLogger(__name__)

BESIDE_END_S = 10.0
"""Longest wait for the last program of what runs beside the learner, or its last write to replay, to end."""


@dataclass(eq=False, kw_only=True)
class LearnerProcess(Process):
    """The learner's process on the host of rank `index`."""

    replay: Replay

    def build(self) -> None:
        """Joins the other hosts, waits for the replay shards, and builds the learner and what runs beside it."""
        from podzero.learner import HostInfo, Learner, check_chips, join

        context, experiment, rank = self.context, self.context.experiment, self.index
        hosts = experiment.cluster.learner_hosts
        watch_for_notices(self.reports.announce)
        host_sync = join(HostInfo(rank, hosts, context.coordinator), experiment)  # before anything that uses JAX
        if experiment.cluster.tpu is not None:
            check_chips(experiment.cluster.tpu)

        from podzero.learner.build import learner_parts
        from podzero.replay import make_reader
        from podzero.runtime.params import LocalParams, RayParamSink
        from podzero.runtime.teacher import with_own_teacher

        network, spec, symmetries = learner_parts(experiment)
        local = LocalParams() if experiment.uses_learner_devices else None
        self.learner = Learner(
            with_own_teacher(experiment, context.workdir),
            network,
            spec,
            symmetries,
            reader=make_reader(self.replay.addresses(self, rank, hosts), spec, experiment, hosts),
            sink=RayParamSink(context.store) if rank == 0 else None,
            report=self.reports.report,
            restore_from=context.restore_from,
            host_sync=host_sync,
            local_sink=local,
        )
        self._beside = running_beside(self._make_beside(local), self.learner.fail) if local else nullcontext()

    def _make_beside(self, local: LocalParams) -> Runnable:
        """The actor or inference server on the learner's devices, with the parameters that it publishes here."""
        import jax

        from podzero.actors.build import make_actor

        experiment, rank = self.context.experiment, self.index
        if experiment.actors.beside_learner:
            clients = actor_clients(experiment, self.replay.addresses(self), local, self.reports.report)
            seed = seed_of(experiment.seed, rank, attempt=self.learner.step)  # other games after a resumption
            return make_actor(experiment, f"actor-{rank}", seed, [clients], devices=jax.local_devices())
        # This server waits for its devices without a limit, since they also train; `run` watches for hangs.
        server = experiment.server.model_copy(update={"hang_s": math.inf})
        unhurried = experiment.model_copy(update={"server": server})
        return inference_server(self, unhurried, f"inference-{rank}", local)

    def run(self) -> None:
        """Trains until stopped or done; meanwhile plays or serves, if the experiment says so."""
        from podzero.learner import explained, run_watched

        try:
            run_watched(self._train, lambda: self.learner.dispatch_s, self.name)
        except Exception as failure:
            raise explained(failure) from failure

    def _train(self) -> None:
        with self._beside:
            self.learner.run()

    def stop(self) -> None:
        """Asks `run` to end."""
        self.learner.stop()

    def advance(self, share: float) -> None:
        """Tells the learner the share of the run that has passed; see `Progress.tell`."""
        self.learner.progress.tell(share)

    def checkpoint(self, folder: Path, timeout_s: float) -> int:
        """Writes this host's part of the learner's state below `folder`; returns the step once it is complete."""
        future = self.learner.request_checkpoint(folder)
        wait([future], timeout_s)
        if not future.done():
            raise TimeoutError(
                f"waited {timeout_s:g} s for {self.name} to write a checkpoint: it may still be waiting for samples, "
                "or the file system is slow"
            )
        return future.result()

    def snapshot(self) -> int:
        """Writes the last published parameters as a snapshot; returns their step, or -1 if there are none yet."""
        from podzero.networks.snapshots import save_snapshot

        newest = self.learner.acting_params()
        if newest is None:
            return -1
        save_snapshot(self.context.workdir.snapshots, newest.version, newest.params, self.context.experiment)
        return newest.version


@contextmanager
def running_beside(beside: Runnable, fail: Callable[[Exception], None]) -> Iterator[None]:
    """Runs an actor or a server in a thread until the end of the block; if it fails, `fail` must end the block."""

    def work() -> None:
        try:
            beside.run()
        except Exception as failure:
            log.error("what runs beside the learner has failed", exc_info=failure)
            fail(failure)

    thread = threading.Thread(target=work, name="beside-learner", daemon=True)
    thread.start()
    try:
        yield
    finally:
        beside.stop()
        thread.join(BESIDE_END_S)
        if thread.is_alive():
            log.info("what ran beside the learner did not end within %g s: its games are lost", BESIDE_END_S)
