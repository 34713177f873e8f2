"""The supervisor of a run: starts its workers, keeps them alive, fetches their reports, and ends them in order."""

from __future__ import annotations

import logging
import math
import time
from collections import Counter, defaultdict, deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future
from contextlib import ExitStack
from dataclasses import replace
from types import MappingProxyType
from typing import Any, NamedTuple
from uuid import uuid4

from podzero.config import Experiment
from podzero.core.waiting import in_thread
from podzero.files.storage import StorageError
from podzero.files.workdir import Workdir
from podzero.runtime.checkpoints import Checkpoint
from podzero.runtime.cluster.placement import Node, actor_places, covers, with_fewest
from podzero.runtime.cluster.preflight import RUN_VARIABLE, RunNodes
from podzero.runtime.cluster.ray_cluster import Bundle, Cluster, PlacementGroup
from podzero.runtime.cluster.remote import STOP_TIMEOUT_S, Call, RemoteActor, start_lasting
from podzero.runtime.cluster.services import Directory, start_agent, start_param_store
from podzero.runtime.failures import SHARD, Failures
from podzero.runtime.monitoring.goodput import PaidTime
from podzero.runtime.monitoring.reports import LogReport, MetricsReport, log_report
from podzero.runtime.process import RunContext, hosted
from podzero.runtime.program import Kind, SilenceLimit, program, start_order
from podzero.runtime.stopping import StopRequest
from podzero.runtime.workers import LearnerGroup, Worker, WorkerGroup, drained, end, last_reports

log = logging.getLogger(__name__)

LOOK_EVERY_S = 2.0
"""Time between two looks for nodes with room for the workers that are missing."""
MOST_STARTS = 500
"""Most workers of a kind that are started at once; the others follow at the next look."""
OF_AGENTS = SilenceLimit(later_s=60.0, first_work_s=math.inf)
"""How long an agent may be silent before it is restarted; it reports no work."""
RESERVE_TIMEOUT_S = 30.0
"""Longest wait for the resources of a learner that starts again, which its lost processes may still hold."""
STORAGE_PATIENCE_S = 0.2
"""Longest wait of the driver's loop for what a thread reads from storage; it takes the answer when that comes later."""


class _Prepared(NamedTuple):
    """What a learner starts on, until `release` what is reserved for it."""

    coordinator: str
    resources: PlacementGroup
    hosts: ExitStack
    """What prepares its hosts until it is built."""

    @staticmethod
    def release(preparation: Future[_Prepared]) -> None:
        """Releases what a preparation that has ended has taken."""
        if preparation.exception() is None:
            _, resources, hosts = preparation.result()
            hosts.close()
            resources.release()


class Supervisor:
    """All workers of a run, as the table of `program` describes them.

    Args:
      stopping: set when the run must end; it also ends a wait for nodes.
      home: the id of the driver's node.
      secrets: environment variables that all processes get, by name.
    """

    def __init__(
        self,
        cluster: Cluster,
        experiment: Experiment,
        workdir: Workdir,
        stopping: StopRequest,
        home: str,
        secrets: Mapping[str, str] = MappingProxyType({}),
        paid: PaidTime | None = None,
    ) -> None:
        self.ladder: dict[str, Any] = {}
        """The evaluator's last known rating ladder, which a restarted evaluator continues."""
        self.paid = paid or PaidTime(time.monotonic())
        """What the time of the run went into."""
        self._cluster = cluster
        self._experiment = experiment
        self._stopping = stopping
        self._home = home
        self._context = RunContext(experiment, workdir, run="", store=None, directory=None, secrets=dict(secrets))
        table = program(experiment)
        self._nodes = RunNodes(cluster, experiment.cluster, table, home)
        self.failures = Failures(table, self._nodes.describe)
        self._examined: deque[tuple[str, Call]] = deque(maxlen=8)
        """Suspected workers, and the pending answers to what they do."""
        self._groups = {kind.name: WorkerGroup(kind, self._spawn) for kind in table if kind.name != "learner"}
        """The groups whose workers are replaced one by one."""
        self.learner = LearnerGroup(next(kind for kind in table if kind.name == "learner"), self._spawn)
        self.shards, self.actors = self._groups["replay"], self._groups["actor"]
        self._samplers = [group for group in self._groups.values() if "replay" in group.kind.reaches]
        """The groups whose processes write samples, and wait for all shards while they are built."""
        self._agents: dict[str, Worker] = {}
        """The agents of a joined cluster's nodes, by node id: each drains the writers there."""
        self._evaluators = self._groups["evaluator"]
        self._evaluators.wanted = 0
        self._first_attempt = 0
        self._starts: Counter[str] = Counter()
        self._preparation = Future[_Prepared]()
        """What the learner starts on; without an end while there is none."""
        self._stranded: set[str] = set()
        """The lost shards that no node can run."""
        self._contents: Future[Checkpoint | None] | None = None
        """The checkpoint with the contents of lost shards, while it is being read."""
        self._look_at = 0.0

    def start(self, checkpoint: Checkpoint | None) -> None:
        """Starts all workers except the evaluator, from a checkpoint if any; returns when replay and learner are built.

        After any error no worker is left running. A damaged part of the learner is an error, `CheckpointDamaged`; a
        damaged replay shard takes older contents, or starts empty.
        """
        folder = checkpoint.folder if checkpoint else None
        # The new run id marks all earlier processes as stale. A new directory and a new store keep the processes of
        # this start from finding the addresses and parameters of earlier ones.
        directory, store = start_lasting(Directory, self._home), start_param_store(self._home)
        self._context = replace(self._context, run=uuid4().hex, store=store, directory=directory, restore_from=folder)
        # Attempts count from the checkpoint's step, since the driver does not know how many there were before: seeds
        # that earlier attempts used must not be used again.
        self._first_attempt = checkpoint.step if checkpoint else 0
        self.ladder = dict(checkpoint.ladder) if checkpoint else {}
        self.paid.enter("wait_nodes", time.monotonic())
        try:
            nodes = self._nodes.wait(self._stopping.wait)
        finally:
            self.paid.enter("start", time.monotonic())
        self._context = replace(self._context, experiment=self._experiment.on_hosts(len(nodes.learner)))
        try:
            for index, node in enumerate(nodes.shards):
                self.shards.start(index, node, contents=checkpoint.shard(index) if checkpoint else [])
            self._prepare(nodes.learner, 60 * self._experiment.cluster.join_minutes)
            self._start_learner(self.learner.start)
            self.scale()
            self.shards.await_ready()
            self.learner.await_ready()
            self.train()
        except BaseException:
            self.kill()
            raise

    def drop_learner(self) -> None:
        """Ends the learner's processes at once and releases what they reserved; all others keep what they hold."""
        self.learner.kill()
        self._release_learner()
        # The parameters are lost with the process that published them.
        self._context.store.forget.remote()
        for agent in self._agents.values():
            agent.actor.begin("forget")

    def restart_learner(self, checkpoint: Checkpoint | None, waited_s: float = 0.0) -> None:
        """Begins to start the learner again, from a checkpoint if any, beside the others; `train` ends it.

        Raises `MissingNodes` or `HeldByOthers` if it has no room since `waited_s`, and other errors as `start`.
        """
        taken: dict[str, Counter[str]] = defaultdict(Counter)
        for group in self._groups.values():
            reserved = {"CPU": group.kind.cpus, **group.kind.resources}
            for node, running in group.running.items():
                taken[node].update({name: running * amount for name, amount in reserved.items()})
        nodes = self._nodes.for_learner(taken, waited_s)
        folder, experiment = checkpoint.folder if checkpoint else None, self._experiment.on_hosts(len(nodes))
        self._context = replace(self._context, experiment=experiment, restore_from=folder)
        self._prepare(nodes, RESERVE_TIMEOUT_S)

    def learner_built(self) -> bool:
        """Whether a learner that starts again is built, so that it can `train`; raises what kept it from that."""
        if not self.learner.workers:
            if not self._preparation.done():
                return False
            self._start_learner(self.learner.restart)
        return self.learner.built()

    def train(self) -> None:
        """Lets a learner that is built begin to train."""
        self._preparation.result().hosts.close()
        self.learner.begin()

    def start_evaluator(self) -> None:
        """Lets `reconcile` start the evaluator where there is room. Call it once there is a snapshot."""
        self._evaluators.wanted = 1

    @property
    def evaluator(self) -> Worker | None:
        """The evaluator; None before it has started."""
        return next(iter(self._evaluators.workers.values()), None)

    @property
    def silent(self) -> dict[str, float]:
        """The workers that have been silent for long: by name, for how many seconds."""
        everybody = (*self._everybody, *self._agents.values())
        return {worker.actor.name: seconds for worker in everybody if (seconds := worker.silence[0])}

    def reconcile(self, newest: Callable[[], Checkpoint | None]) -> list[str]:
        """Replaces workers that have ended, except the learner's, and starts those for which there is now room.

        `newest` finds the newest checkpoint, with the contents of a lost shard, in a thread; it raises `StorageError`
        if it is not seen. Returns the names of the workers that ended and of the shards that were replaced.
        Raises `ClusterEnded` if Ray has ended on this machine.
        """
        self._nodes.check_ended()
        for worker in self._workers:
            if worker.worked:
                self.failures.record_work(worker.actor.name)
        ended = []
        for group in self._groups.values():
            alive = list(group.workers)  # with those that ended, which are recorded one by one
            for actor, error in group.remove_ended():
                self.failures.record_end(actor.name, actor.node, error, alive)
                ended.append(actor.name)
        restarted = self._restart_shards(newest)
        if restarted or ended or time.monotonic() >= self._look_at:
            self.scale()
        return restarted + [name for name in ended if name not in self.shards.kind.names]

    def scale(self) -> None:
        """Starts the missing workers that may start again and for which nodes have room."""
        self._look_at = time.monotonic() + LOOK_EVERY_S
        groups = [group for group in self._groups.values() if group.kind.restart == "alone"]
        nodes = [] if all(group.complete for group in groups) else self._nodes.for_workers()
        for kind, limit in start_order(group.kind for group in groups):
            group = self._groups[kind.name]
            if group in self._samplers and not self.shards.complete:
                continue
            where = self._nodes.for_workers(accelerators=True) if kind.resources and not group.complete else nodes
            able = [node for node in where if node.cpus >= kind.cpus and covers(node.resources, kind.resources)]
            usable = self.failures.usable(kind.name, able)
            absent = group.missing(limit, self.failures.may_start)[:MOST_STARTS]
            places = actor_places(usable, self._taken(), kind.cpus, len(absent), kind.resources, group.running)
            for index, node in zip(absent, places, strict=False):
                group.start(index, node)
                log.info("%s starts on %s", kind.names[index], node)
        missing = [group.kind.cpus for group in groups for _ in range(group.wanted - len(group.workers))]
        self._nodes.request_capacity(self._taken(), missing + [self.shards.kind.cpus] * len(self._stranded))

    def listen(self) -> Iterator[MetricsReport | LogReport]:
        """All workers' reports that have arrived since the last call; never waits for a worker."""
        nodes: dict[str, dict[str, Worker]] = {node: {} for node in self._agents}
        for group in self._samplers if nodes else ():
            for name, worker in group.workers.items():
                nodes[str(worker.actor.node)][name] = worker
        for node, workers in nodes.items():
            yield from self._listen_to_agent(node, workers)
        for worker in self._everybody:
            if worker.actor.name not in nodes.get(str(worker.actor.node), {}):
                yield from worker.reports()
            self._look_after(worker)
        self._tell_examined()

    def _listen_to_agent(self, node: str, workers: Mapping[str, Worker]) -> Iterator[MetricsReport | LogReport]:
        agent = self._agents[node]
        yield from drained(agent, workers)
        self._look_after(agent)
        if not workers:  # an autoscaler may remove the node
            self._agents.pop(node).actor.kill()
        elif agent.check_silence() or agent.failure is not None:
            log.warning("%s is started again: %s", agent.actor.name, agent.failure)
            agent.actor.kill(restart=True)
            self._agents[node] = Worker(agent.actor, silence_limit=OF_AGENTS)

    def _look_after(self, worker: Worker) -> None:
        """Names a worker that may hang, and finds out what it does."""
        name, (_, silence) = worker.actor.name, worker.silence
        if silence and not worker.suspected:
            log.warning("%s; if it hangs, it is replaced", silence)
            if (call := self._nodes.examine(worker.actor)) is not None:
                self._examined.append((name, call))
        elif worker.suspected and not silence:
            log.info("%s goes on", name)
        worker.suspected = bool(silence)

    def _tell_examined(self) -> None:
        """Logs what suspected workers were found to do."""
        for name, call in [(name, call) for name, call in self._examined if call.done]:
            self._examined.remove((name, call))
            try:
                state, _, stacks = call.result(0.0).partition("\n")
                log_report(log, LogReport(name, logging.WARNING, state, stacks))
            except Exception as failure:  # its node may hang, too
                log.warning("%s cannot be examined: %s", name, failure)

    def traceable(self) -> list[RemoteActor]:
        """The processes that play, serve, reanalyse or train."""
        groups = (self.learner, self._groups["inference"], *self._samplers)
        return [worker.actor for group in groups for worker in group.workers.values()]

    def stop_actors(self) -> list[MetricsReport | LogReport]:
        """Asks actors and reanalysers to stop, kills the slow, then ends the servers; returns their last reports."""
        reports = end([worker for group in self._samplers for worker in group.workers.values()], STOP_TIMEOUT_S / 3)
        reports += last_reports([*self._groups["inference"].workers.values(), *self._agents.values()])
        for group in (*self._samplers, self._groups["inference"]):
            group.wanted = 0
            group.kill()
        return reports

    def stop_learner(self) -> list[MetricsReport | LogReport]:
        """Ends training and returns the last reports; learner and replay still answer calls afterwards."""
        return self.learner.stop() + last_reports(list(self.shards.workers.values()))

    def judge_last(self, step: int) -> Worker | None:
        """Asks the evaluator to judge the snapshot of `step` and to end; starts it if it is missing, after the actors.

        Returns None if no node has room for it, or it has failed and may not start yet.
        """
        self.start_evaluator()
        self.scale()
        if self.evaluator is not None:
            self.evaluator.actor.begin("stop", step)
        return self.evaluator

    def stop_evaluator(self) -> None:
        """Ends the evaluator at once; its unfinished games are lost."""
        self._evaluators.wanted = 0
        self._evaluators.kill()

    def kill(self) -> None:
        """Ends all workers at once and releases what they reserved."""
        for group in (*self._samplers, self._groups["inference"], self._evaluators, self.learner, self.shards):
            group.kill()
        for agent in self._agents.values():
            agent.actor.kill()
        self._agents = {}
        self._release_learner()
        self._evaluators.wanted = 0
        self._stranded, self._contents = set(), None
        self._nodes.request_capacity({}, [])

    @property
    def _everybody(self) -> list[Worker]:
        return [*self._workers, *self.learner.workers.values()]

    @property
    def _workers(self) -> list[Worker]:
        """All workers but the learner's."""
        return [worker for group in self._groups.values() for worker in group.workers.values()]

    def _taken(self, without: str = "") -> dict[str, float]:
        """The CPUs that these workers, `without` one, have reserved, by node; a lost shard's are for its successor."""
        taken: dict[str, float] = defaultdict(float)
        for group in self._groups.values():
            alone = group.kind.restart == "alone"
            for actor in [worker.actor for worker in group.workers.values()] if alone else group.actors:
                if actor.node is not None and actor.name != without:
                    taken[actor.node] += group.kind.cpus
        return taken

    def _release_learner(self) -> None:
        # Once it has ended: the thread may take minutes, and what it finds by then belongs to nobody.
        self._preparation.add_done_callback(_Prepared.release)
        self._preparation = Future()

    def _prepare(self, nodes: Sequence[Node], timeout_s: float) -> None:
        """Lets a thread prepare the nodes of the learner's hosts and reserve the resources of all together."""

        def prepare() -> _Prepared:
            with ExitStack() as hosts:
                coordinator = hosts.enter_context(self._nodes.prepared_hosts(nodes))
                resources = self._cluster.reserve(nodes, self.learner.kind.resources, timeout_s)
                return _Prepared(coordinator, resources, hosts.pop_all())

        self._preparation = in_thread("preparation", prepare)

    def _start_learner(self, start: Callable[..., object]) -> None:
        """Starts a process on each learner host, once these are prepared."""
        coordinator, resources, _ = self._preparation.result()
        self._context = replace(self._context, coordinator=coordinator)
        self.learner.wanted = len(resources.bundles)  # which may be those of fewer slices than the table has
        for rank, bundle in enumerate(resources.bundles):
            start(rank, bundle.node, bundle=bundle)

    def _spawn(self, kind: Kind, index: int, node: Node, bundle: Bundle | None = None, **parts: Any) -> RemoteActor:
        """Starts a process: the table gives its class and resources, the context what it shares with the others."""
        name = kind.names[index]
        # The number of the attempt, which no earlier attempt of this name had.
        attempt = self._first_attempt + self._starts[name]
        self._starts[name] += 1
        context = replace(self._context, ladder=self.ladder)
        if self._cluster.joined and self._groups.get(kind.name) in self._samplers:
            if node.id not in self._agents:
                agent = start_agent(node.id, context.directory, context.store)
                self._agents[node.id] = Worker(agent, silence_limit=OF_AGENTS)
            handle = self._agents[node.id].actor.actor
            context = replace(context, store=handle, directory=handle)
        process = kind.process(name, context, index, attempt, **parts)
        if kind.restart == "with contents" and node.cpus - self._taken(without=name).get(node.id, 0.0) < kind.cpus:
            kind = replace(kind, cpus=0.0)  # a run needs all of its shards
        return self._cluster.spawn(
            hosted(process.__class__),
            name,
            process,
            cpus=kind.cpus,
            resources=kind.resources,
            environment={**kind.environment, RUN_VARIABLE: self._context.run},
            node=node,
            bundle=bundle,
        )

    def _restart_shards(self, newest: Callable[[], Checkpoint | None]) -> list[str]:
        """Restarts the lost shards that may start again, once a thread has read where from; returns their names."""
        group, restarted = self.shards, list[str]()
        missing = group.missing(group.wanted, self.failures.may_start)
        nodes = self.failures.usable(SHARD, self._nodes.for_workers()) if missing else []
        stranded = set() if nodes else {group.kind.names[index] for index in missing}
        for name in sorted(stranded - self._stranded):
            log.warning(
                "%s is lost, and no node can run it: it restarts when one joins. Until then its samples are missing",
                name,
            )
        self._stranded = stranded
        if nodes and self._contents is None:
            self._contents = in_thread("checkpoints", newest, STORAGE_PATIENCE_S)
        if not nodes or self._contents is None or not self._contents.done():
            return []
        found, self._contents = self._contents, None
        for index in missing:
            name = group.kind.names[index]
            try:
                saved = found.result()
            except StorageError as failure:  # it may pass, and an empty shard in its place would not
                self.failures.record_end(name, None, failure, [])
                continue
            # It starts in any case, since training needs all shards.
            node, contents = with_fewest(nodes, group.running), saved.shard(index) if saved else []
            what = f"the contents of {contents[0].folder}" if contents else "no contents"
            log.warning("%s restarts on %s with %s", name, node, what)
            group.restart(index, node, contents=contents)
            restarted.append(name)
        return restarted
