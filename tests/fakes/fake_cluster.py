"""A cluster in memory: the test decides which nodes it has, what its processes answer, and when they die."""

from __future__ import annotations

from contextlib import suppress
from types import SimpleNamespace

from podzero.config import load
from podzero.core.errors import ClusterError
from podzero.files.storage import LEARNER_FOLDER, LEARNER_MANIFEST, SHARD_MANIFEST
from podzero.runtime.cluster.placement import Node
from podzero.runtime.cluster.preflight import PreflightCheck, versions
from podzero.runtime.cluster.ray_cluster import Bundle
from podzero.runtime.cluster.remote import Call
from podzero.runtime.kinds import (
    ActorProcess,
    EvaluatorProcess,
    InferenceProcess,
    LearnerProcess,
    ReanalysisProcess,
    ReplayProcess,
)
from podzero.runtime.monitoring.reports import MetricsReport
from podzero.runtime.program import program
from podzero.runtime.workers import LearnerGroup

PENDING = object()
"""The answer of a method that has not returned yet."""


def saves_learner(step):
    """The answer of a learner to `checkpoint`: writes its part, without contents, and returns `step`."""

    def save(folder, timeout_s=0.0):
        del timeout_s
        _write_empty(folder / LEARNER_FOLDER / LEARNER_MANIFEST)
        return step

    return save


def save_shard(folder):
    """The answer of a replay shard to `checkpoint`: writes its part, without contents; it had 100 samples."""
    _write_empty(folder / SHARD_MANIFEST)
    return 100


def _write_empty(file):
    file.parent.mkdir(parents=True)
    file.write_text("{}")


def done_of(calls):
    """Takes the place of `remote.done_of`, which asks Ray."""
    return {call for call in calls if call.done}


class FakeCall:
    exception = Call.exception

    def __init__(self, method, args, answer):
        self.method, self.args = method, args
        self.end(answer(*args) if callable(answer) else answer)

    @property
    def done(self):
        return self._answer is not PENDING

    def result(self, timeout_s):
        if not self.done:
            raise ClusterError(f"waited {timeout_s:.0f} s for '{self.method}'")
        if isinstance(self._answer, Exception):
            raise self._answer
        return self._answer

    def end(self, answer):
        """Returns, or raises if it is an exception, the answer of a pending call."""
        self._answer = answer


class FakeRemoteActor:
    """Answers each method by `answers`: a value, an exception to raise, or a function of the arguments."""

    def __init__(self, name, node=None, history=None, **answers):
        self.name, self.node, self.answers = name, node, answers
        self.actor = f"the Ray actor {name}"
        self.calls, self.killed = [], False
        self._history = [] if history is None else history

    def begin(self, method, *args):
        self._history.append(f"{self.name} {method}")
        self.calls.append(FakeCall(method, args, self.answers.get(method)))
        return self.calls[-1]

    def ask(self, method, *args, timeout_s=0.0):
        return self.begin(method, *args).result(timeout_s)

    def kill(self):
        self._history.append(f"{self.name} killed")
        self.killed = True

    def last(self, method):
        """The last call of a method."""
        return [call for call in self.calls if call.method == method][-1]

    def die(self, failure):
        """Ends all pending calls and all later ones with `failure`."""
        for call in self.calls:
            if not call.done:
                call.end(failure)
        self.answers = dict.fromkeys([*self.answers, "drain", "ready"], failure)


class FakeAgent(FakeRemoteActor):
    """The agent of a node, which reads the answers of its processes at once."""

    def __init__(self, cluster, node):
        super().__init__(f"the agent of {node}", node, drain=self._drain, add=self._add)
        self._cluster, self._drains = cluster, {}
        self.restarts = 0

    def kill(self, restart=False):
        """Forgets all processes, as after its death."""
        self._drains, self.restarts, self.killed = {}, self.restarts + restart, not restart

    def _add(self, processes):
        for name in processes:
            process = self._cluster.named(name)
            if name not in self._drains or self._drains[name][0] is not process:
                self._drains[name] = process, process.begin("drain")

    def _drain(self):
        reports = []
        for name, (process, call) in list(self._drains.items()):
            if call.done:
                del self._drains[name]
                with suppress(Exception):
                    answer = call.result(0.0)
                    if not process.killed:
                        reports += [MetricsReport(0.0, name, {}), *answer]
                        self._drains[name] = process, process.begin("drain")
        return reports


class FakeCluster:
    """A cluster of the given nodes, which may be changed at any time."""

    def __init__(self, *nodes, joined=True):
        self.listed, self.joined = list(nodes), joined
        self.ended = lambda: False
        self.processes = []
        """All processes that were started, in order, without preflight checks."""
        self.started = {}
        """The last process of each name, as it was sent to its node."""
        self.options = {}
        """What it reserved there, and its environment."""
        self.placement_groups, self.requests, self.history = [], [], []
        self.agents = {}
        """The agent of each node that has one."""
        self.answers = {
            PreflightCheck: {
                "versions": versions,
                "end_stale_processes": [],
                "reserve_port": 4321,
                "examine": "its state is 'stopped'",
            },
            ReplayProcess: {"drain": [], "checkpoint": save_shard},
            LearnerProcess: {"run": PENDING, "drain": []},
            InferenceProcess: {"run": PENDING, "drain": []},
            ActorProcess: {"run": PENDING, "drain": []},
            ReanalysisProcess: {"run": PENDING, "drain": []},
            EvaluatorProcess: {"run": PENDING, "drain": [], "ladder": {"rounds": 3}},
        }
        """What a process of each class answers when it is started."""

    def nodes(self):
        return list(self.listed)

    def spawn(self, host, name, process=None, *, node, **options):
        answers = dict(self.answers[type(process) if process else host])
        if host is PreflightCheck:
            return FakeRemoteActor(name, node.id, self.history, **answers)
        self.processes.append(FakeRemoteActor(name, node.id, self.history, **answers))
        self.started[name], self.options[name] = process, options
        return self.processes[-1]

    def reserve(self, nodes, resources, timeout_s):
        bundles = [Bundle(node, resources, f"bundle {node.id}") for node in nodes]
        group = SimpleNamespace(nodes=nodes, resources=resources, bundles=bundles)
        group.released = False
        group.release = lambda: setattr(group, "released", True)
        self.placement_groups += [group] if resources else []
        return group

    def start_agent(self, node, directory, store):
        """Takes the place of `services.start_agent`."""
        del directory, store
        self.agents[node] = FakeAgent(self, node)
        return self.agents[node]

    def request_capacity(self, cpus, beyond):
        self.requests.append((sorted(cpus), sorted(beyond)))

    def named(self, name):
        """The last process of that name."""
        return [process for process in self.processes if process.name == name][-1]

    def places(self, prefix):
        """The node of each process that nobody killed and whose name begins so."""
        return {process.name: process.node for process in self.processes if self._alive(process, prefix)}

    def alive(self, prefix=""):
        """The names of the processes that nobody killed."""
        return [process.name for process in self.processes if self._alive(process, prefix)]

    @staticmethod
    def _alive(process, prefix):
        return process.name.startswith(prefix) and not process.killed


def cpu_node(name, cpus=8.0, **resources):
    """A node without accelerators and labels."""
    return Node(name, f"host-{name}", cpus, {"CPU": cpus, **resources}, {})


def learner_group(*actors):
    """The learner's group whose hosts, by rank, are these remote actors; it does not train yet."""
    hosts = len(actors)
    table = program(
        load("tic_tac_toe", [f"cluster.hosts={hosts}", f"replay.shards={hosts}", f"learner.batch_size={64 * hosts}"])
    )
    group = LearnerGroup(next(kind for kind in table if kind.name == "learner"), lambda kind, rank, node: actors[rank])
    for rank in range(len(actors)):
        group.start(rank, None)
    return group
