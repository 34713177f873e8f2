"""The processes of each kind: replay shards, actors, reanalysers, inference servers, the evaluator, the learner."""

from __future__ import annotations

import logging
import math
import os
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import wait
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from podzero.config import ClusterConfig, Experiment
from podzero.core.machine import nvidia_driver, start_cudnn
from podzero.core.protocols import ParamSource
from podzero.core.waiting import in_thread
from podzero.files.storage import LEARNER_FOLDER, SHARD_MANIFEST, belongs
from podzero.files.store import store_of
from podzero.runtime.checkpoints import SavedShard
from podzero.runtime.cluster.remote import own_address
from podzero.runtime.cluster.services import keep_announced
from podzero.runtime.process import Parameters, Process, Replay, Runnable, Servers, Snapshots, own_devices
from podzero.runtime.stopping import watch_for_notices

if TYPE_CHECKING:
    from podzero.actors import ActorClients, Opponent
    from podzero.inference.build import NetworkServer
    from podzero.replay import ReplayServer
    from podzero.runtime.params import LocalParams

log = logging.getLogger(__name__)

BESIDE_END_S = 10.0
"""Longest wait for the last program of what runs beside the learner, or its last write to replay, to end."""


@dataclass(eq=False)
class ReplayProcess(Process):
    """A replay shard, which starts with the first of its `contents` that is whole, or empty."""

    contents: Sequence[SavedShard] = ()
    server: ReplayServer = field(init=False, repr=False)

    def build(self) -> None:
        """Starts the Reverb server and announces its address."""
        from podzero.envs import spec_of
        from podzero.replay import ReplayRestoreError, ReplayServer

        watch_for_notices(self.reports.announce)
        experiment = self.context.experiment
        spec = spec_of(experiment.env)
        server, found = None, None
        for content in self.contents:
            try:
                store_of(content.folder).get(content.folder)
                if not belongs(manifest := content.folder / SHARD_MANIFEST, content.digest):
                    raise ReplayRestoreError(
                        f"{manifest} is not what its checkpoint names: it was changed, or copied from elsewhere"
                    )
                server, found = ReplayServer(experiment, spec, self.index, content.folder, own_address()), content
                break
            except ReplayRestoreError as damage:
                log.warning("the contents of a replay shard are damaged", exc_info=damage)
        self.server = server or ReplayServer(experiment, spec, self.index, host=own_address())
        if self.contents and found != self.contents[0]:
            wanted = self.contents[0]
            missing = max(0, wanted.samples - self.server.limits().size)
            log.warning(
                "%s continues %s: %s of the samples of %s are missing",
                self.name,
                f"with the older contents of {found.folder}" if found else "empty",
                f"{missing:,} of {wanted.samples:,}" if wanted.samples else "an unknown number",
                wanted.folder,
            )
            self.reports.report(self.name, {"count/damaged_shards": 1.0})
        # Before anybody can write: from these counts the driver knows what was lost with the shard before.
        self.reports.report(self.name, self.server.info())
        keep_announced(self.context.directory, self.name, self.attempt, self.server.address())

    def refresh(self) -> None:
        """Reports the metrics of the tables, by which the driver judges whether the server hangs."""
        from podzero.replay.errors import ReplayTimeout

        try:
            self.reports.report(self.name, self.server.info())
        except ReplayTimeout as timeout:
            log.warning("metrics are missing: %s", timeout)

    def checkpoint(self, folder: Path) -> int:
        """Writes the shard's contents into `folder`; returns how many samples there were when it began."""
        samples = self.server.limits().size
        self.server.checkpoint(folder)
        if (store := store_of(folder)).remote:
            store.put(folder)
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
        opponents: Sequence[Opponent] = ()
        if self.opponents is not None:
            from podzero.evaluation.resolve import make_opponents

            opponents = make_opponents(experiment, self.opponents.folder(self), seed)
        # Actors of servers ask these which parameters they evaluate with.
        source = network.source(self) if isinstance(network, Parameters) else LocalParams()
        clients = [actor_clients(self, self.name, shards, source, group) for group in range(groups)]
        devices = own_devices(self.name, "actors", experiment.actors.resources)
        return build.make_actor(
            experiment, self.name, seed, clients, opponents=opponents, servers=servers, devices=devices
        )


def actor_clients(
    process: Process, name: str, shards: Callable[[], Sequence[str]], source: ParamSource, group: int = 0
) -> ActorClients:
    """The clients of the actor `name`, or of a group of its games, with writers for all replay tables that it fills, to
    the shards at these addresses.
    """
    from podzero.actors import ActorClients
    from podzero.envs import spec_of
    from podzero.replay import STATES, ShardedWriter

    experiment, writer = process.context.experiment, writer_id(process, name, group)
    spec = spec_of(experiment.env)
    samples, states = ShardedWriter(shards, spec, experiment, own_address(), lenient=True, writer=writer), None
    process.counts.append((name, samples.metrics))
    # No preference for near shards: writes of states never block, so all states would end up there.
    if experiment.reanalyse.share:
        states = ShardedWriter(shards, spec, experiment, table=STATES, lenient=True, writer=writer)
        process.counts.append((name, states.metrics))
    return ActorClients(source, samples, process.reports.report, states)


def writer_id(process: Process, name: str, group: int = 0) -> str:
    """What names a writer and its attempt in the ids of samples."""
    return f"{process.context.run}/{name}/{process.attempt}/{group}"


def seed_of(seed: int, index: int, attempt: int) -> int:
    """The random seed, below 2**31, of an actor or a reanalyser: the indices of these count on after the actors'."""
    # Primes, so that different seeds, indices and attempts rarely have the same sum.
    return (seed * 1_000_003 + index * 1_009 + attempt * 65_537 + 1) % (2**31)


@dataclass(eq=False, kw_only=True)
class ReanalysisProcess(Process):
    """A reanalyser, which searches stored states again with newer parameters."""

    replay: Replay
    parameters: Parameters

    def build(self) -> Runnable:
        """Waits for the replay shards, then builds the reanalyser."""
        from podzero.actors import ActorClients, ReanalysisActor
        from podzero.actors.build import make_reanalysis
        from podzero.envs import spec_of
        from podzero.inference import FoldedSource
        from podzero.replay import REANALYSED, ShardedWriter, make_state_reader

        experiment = self.context.experiment
        spec, shards = spec_of(experiment.env), self.replay.addresses(self)
        seed = seed_of(experiment.seed, experiment.actors.count + self.index, self.attempt)
        reanalyse, fold = make_reanalysis(experiment, seed)
        self._states = make_state_reader(shards, spec, experiment)
        writer = ShardedWriter(shards, spec, experiment, own_address(), REANALYSED, writer=writer_id(self, self.name))
        self.counts.append((self.name, writer.metrics))
        clients = ActorClients(FoldedSource(self.parameters.source(self), fold), writer, self.reports.report)
        return ReanalysisActor(
            experiment=experiment, name=self.name, clients=clients, reanalyse=reanalyse, states=self._states
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
    """The inference server on all devices of this process; it announces itself in the run's directory."""
    from podzero.inference.build import make_server

    server, context = experiment.server, process.context
    devices = own_devices(name, "server", {} if server.beside_learner else server.resources)
    announce = partial(context.directory.announce.remote, name, process.attempt)
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
        return dict(self._evaluator.ladder())


def set_slices(cluster: ClusterConfig, rank: int, coordinator: str) -> None:
    """Tells libtpu, in this process, which slice of how many this learner host belongs to, and where host 0 is."""
    from ray.util.tpu import get_tpu_coordinator_env_vars

    # Machines of several slices have the variables from their start on. They name slices that may have been replaced,
    # or are too many by now, and libtpu would wait for those.
    if cluster.tpu is not None and (cluster.slices > 1 or "MEGASCALE_NUM_SLICES" in os.environ):
        host, _, _ = coordinator.rpartition(":")
        os.environ.update(get_tpu_coordinator_env_vars(host, cluster.slices, rank // cluster.tpu.hosts))


@dataclass(eq=False, kw_only=True)
class LearnerProcess(Process):
    """The learner's process on the host of rank `index`."""

    replay: Replay

    def build(self) -> None:
        """Joins the other hosts, waits for the replay shards, and builds the learner and what runs beside it."""
        from podzero.learner import Learner, check_chips, join

        context, experiment, rank = self.context, self.context.experiment, self.index
        hosts = experiment.cluster.learner_hosts
        watch_for_notices(self.reports.announce)
        set_slices(experiment.cluster, rank, context.coordinator)
        host_sync = join(rank, hosts, context.coordinator, experiment)  # before anything that uses JAX
        if experiment.cluster.tpu is not None:
            check_chips(experiment.cluster.tpu, experiment.cluster.slices)
        start_cudnn(nvidia_driver())

        from podzero.files.players import with_own_teacher
        from podzero.learner.build import learner_parts, timed
        from podzero.replay import make_reader
        from podzero.runtime.params import LocalParams, RayParamSink

        experiment = with_own_teacher(experiment, context.workdir)
        network, spec, symmetries = learner_parts(experiment)
        experiment = timed(experiment, network, spec, symmetries, host_sync)
        local = LocalParams() if experiment.uses_learner_devices else None
        began = time.monotonic()
        self.learner = Learner(
            experiment,
            network,
            spec,
            symmetries,
            reader=make_reader(self.replay.addresses(self, rank, hosts), spec, experiment, hosts),
            sink=RayParamSink(context.store, (context.workdir.published, experiment)) if rank == 0 else None,
            report=self.reports.report,
            restore_from=context.restore_from,
            host_sync=host_sync,
            local_sink=local,
        )
        if context.restore_from is not None:
            self.reports.report(self.name, {"count/restore_s": time.monotonic() - began})
        self._beside = running_beside(self._make_beside(local), self.learner.fail) if local else nullcontext()

    def _make_beside(self, local: LocalParams) -> Runnable:
        """The actor or inference server on the learner's devices, with the parameters that it publishes here."""
        import jax

        from podzero.actors.build import make_actor

        experiment, rank = self.context.experiment, self.index
        if experiment.actors.beside_learner:
            name = f"actor-{rank}"
            clients = actor_clients(self, name, self.replay.addresses(self), local)
            clients = clients._replace(executed=partial(self.learner.device_clock.ended, "play"))
            seed = seed_of(experiment.seed, rank, self.attempt)  # other games after a restart
            return make_actor(experiment, name, seed, [clients], devices=jax.local_devices())
        # This server waits for its devices without a limit, since they also train; the driver watches for hangs.
        unhurried = experiment.changed(server={"timeout_s": math.inf})
        return inference_server(self, unhurried, f"inference-{rank}", local)

    def run(self) -> None:
        """Trains until stopped or done; meanwhile plays or serves, if the experiment says so."""
        from podzero.learner import explained

        try:
            with self._beside:
                self.learner.run()
        except Exception as failure:
            raise explained(failure) from failure

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
        step = future.result()
        if self.index == 0 and (store := store_of(folder)).remote:
            store.put(folder / LEARNER_FOLDER)
        return step

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

    running = in_thread("beside-learner", work)
    try:
        yield
    finally:
        beside.stop()
        if wait([running], BESIDE_END_S).not_done:
            log.info("what ran beside the learner did not end within %g s: its games are lost", BESIDE_END_S)
