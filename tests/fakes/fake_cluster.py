"""Processes and clusters in memory, whose answers and ends a test decides."""

from __future__ import annotations

from podzero.cluster.placement import Node
from podzero.cluster.preflight import PreflightCheck
from podzero.cluster.remote import ClusterError
from podzero.driver.processes import ActorProcess, EvaluatorProcess, LearnerProcess, ReanalysisProcess, ReplayProcess

PENDING = object()
"""The answer of a method that does not return yet."""


class FakeCall:
    """What `Role.begin` returns."""

    def __init__(self, method, args, answer):
        self.method, self.args = method, args
        self._answer = answer

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
        self._answer = answer


class FakeRemoteActor:
    """A `Role`. What is not in `answers`, by method, returns None at once; exceptions are raised."""

    def __init__(self, name, node=None, diary=None, **answers):
        self.name, self.node = name, node
        self.answers = answers
        self.calls = []
        self.killed = False
        self._diary = [] if diary is None else diary

    def begin(self, method, *args):
        self._diary.append(f"{self.name} {method}")
        self.calls.append(FakeCall(method, args, self.answers.get(method)))
        return self.calls[-1]

    def ask(self, method, *args, timeout_s=0.0):
        return self.begin(method, *args).result(timeout_s)

    def kill(self):
        self._diary.append(f"{self.name} killed")
        self.killed = True

    def call(self, method):
        """The last call of a method."""
        return [call for call in self.calls if call.method == method][-1]

    def die(self, failure):
        """Ends everything that is pending, and everything that is asked later."""
        for call in self.calls:
            if not call.done:
                call.end(failure)
        self.answers = dict.fromkeys([*self.answers, "run", "drain", "metrics"], failure)


class FakeGang:
    def __init__(self, nodes, resources):
        self.nodes, self.resources = nodes, resources
        self.bundles = [f"bundle on {node.id}" for node in nodes]
        self.released = False

    def release(self):
        self.released = True


class FakeCluster:
    """A cluster of the given nodes, which may change at any time."""

    address = "10.0.0.1:6379"

    def __init__(self, *nodes, joined=True, versions=None):
        self.listed = list(nodes)
        self.joined = joined
        self.processes = []
        """Every process that was started, in order, scouts left out."""
        self.arguments = {}
        """What the last process of a name was started with."""
        self.gangs = []
        self.requests = []
        """Requests for capacity: CPUs of each process without room, and ids of the nodes that have none for it."""
        self.diary = []
        drain = {"drain": []}
        self.answers = {
            PreflightCheck: {"versions": versions or {}, "end_stale_processes": [], "free_port": 4321},
            ReplayProcess: drain,
            LearnerProcess: {"ready": 1, "run": PENDING} | drain,
            ActorProcess: {"run": PENDING} | drain,
            ReanalysisProcess: {"run": PENDING} | drain,
            EvaluatorProcess: {"run": PENDING, "ladder": {"rounds": 3}} | drain,
        }

    def nodes(self):
        return list(self.listed)

    def spawn(self, role, name, *, node=None, **arguments):
        answers = dict(self.answers[role])
        if role is PreflightCheck:
            return FakeRemoteActor(name, node.id, **answers)
        if role is ReplayProcess:
            answers["address"] = f"{name}, life {sum(made.name == name for made in self.processes)}"
        self.processes.append(FakeRemoteActor(name, node.id, self.diary, **answers))
        self.arguments[name] = arguments
        return self.processes[-1]

    def named(self, name):
        """The last process of that name."""
        return [role for role in self.processes if role.name == name][-1]

    def living(self, name):
        """The processes whose names begin so and that nobody killed."""
        return [role for role in self.processes if role.name.startswith(name) and not role.killed]

    def reserve(self, nodes, resources, timeout_s):
        self.gangs.append(FakeGang(nodes, resources))
        return self.gangs[-1]

    def request_capacity(self, cpus, beyond):
        self.requests.append((sorted(cpus), sorted(beyond)))


def cpu_node(name, cpus=8.0, **resources):
    """A machine without labels."""
    return Node(name, f"host-{name}", cpus, {"CPU": cpus, **resources}, {})
