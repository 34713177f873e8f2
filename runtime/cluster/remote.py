"""Remote actors: every call is bounded in time, and every error of Ray becomes one of podzero's errors."""

from __future__ import annotations

import logging
import time
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import Future
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING, Any, NoReturn

from podzero.core.errors import TRY_AGAIN, ClusterError, PodzeroError, described
from podzero.core.waiting import doubled, in_thread

if TYPE_CHECKING:
    from ray.exceptions import RayError

    from podzero.runtime.cluster.placement import Node

log = logging.getLogger(__name__)

START_TIMEOUT_S = 180.0
BUILD_TIMEOUT_S = 1800.0
"""Longest time to build a replay shard, or a process that waits for one: enough to restore 180 GB at 100 MB/s."""
STOP_TIMEOUT_S = 30.0
VERDICT_TIMEOUT_S = 60.0
"""Longest time until Ray knows whether an actor has died: it takes 15 s to declare a silent node dead."""
FIRST_RETRY_S = 15.0
"""Pause after the first call of a node that failed; each further failure doubles it."""
LONGEST_RETRY_S = 300.0
READ_TIMEOUT_S = 1.0
"""Longest time to read an answer that is there."""


class WorkerDied(PodzeroError, RuntimeError):
    """A process has died or could not be started; the message includes Ray's reason."""

    exit_code = TRY_AGAIN


class NodeLost(WorkerDied):
    """A process is gone because its node is: preempted, shut down, or cut off."""


class RemoteActor:
    """A plain Python object in a Ray actor; its methods are called by name."""

    def __init__(self, name: str, actor: Any, node: str | None = None) -> None:
        self.name = name
        self.actor = actor
        self.node = node
        """The id of the node that the actor was sent to; None if Ray chose it."""

    def begin(self, method: str, *args: Any) -> Call:
        """Starts a method and returns at once."""
        return Call(self, method, getattr(self.actor, method).remote(*args))

    def ask(self, method: str, *args: Any, timeout_s: float = START_TIMEOUT_S) -> Any:
        """Calls a method and waits for its result (`Call.result`)."""
        return self.begin(method, *args).result(timeout_s)

    def kill(self, restart: bool = False) -> None:
        """Ends the process at once, and lets Ray start it again if asked to; does nothing if it has ended."""
        import ray

        ray.kill(self.actor, no_restart=not restart)

    def diagnose(self, method: str, error: RayError) -> NoReturn:
        """Raises why a call failed with Ray's `error`: the node is lost, the process died, or only the answer was lost.

        Asks Ray until it knows whether the process lives.
        """
        import ray
        from ray.exceptions import ActorUnavailableError, GetTimeoutError, RayError

        death, deadline = error, time.monotonic() + VERDICT_TIMEOUT_S
        while time.monotonic() < deadline:
            try:
                # Ray gives every actor this method, which answers once the actor is up.
                ray.get(self.actor.__ray_ready__.remote(), timeout=5.0)
            except GetTimeoutError:
                continue
            except ActorUnavailableError as unavailable:  # Ray does not know yet
                death = unavailable
                time.sleep(0.5)
            except RayError as final:
                death = final
                break
            else:
                raise ClusterError(f"{self.name} is alive, but Ray lost its answer to '{method}': {error}") from error
        lost = self.node is not None and not any(node["NodeID"] == self.node and node["Alive"] for node in ray.nodes())
        # Without the lines of identifiers, such as `class_name`, which Ray indents by a tab.
        why = "\n".join(line for line in str(death).splitlines() if not line.startswith("\t"))
        raise (NodeLost if lost else WorkerDied)(f"{self.name} is gone: {why}") from error


class Call:
    """The pending result of a method of a `RemoteActor`."""

    def __init__(self, actor: RemoteActor, method: str, reference: Any) -> None:
        self._actor = actor
        self._method = method
        self._reference = reference
        self._begun_at = time.monotonic()
        self._outcome: Future[Any] | None = None
        """The result or error; None until it is there. If Ray has lost the answer, a thread finds out why."""

    @property
    def done(self) -> bool:
        """Whether a result or an error is there; never waits."""
        import ray

        if self._outcome is None and ray.wait([self._reference], timeout=0)[0]:
            with suppress(ClusterError):  # Ray has it, but does not give it yet
                self._outcome = self._fetched(READ_TIMEOUT_S)
        return self._outcome is not None and self._outcome.done()

    @staticmethod
    def done_of(calls: Iterable[Call]) -> set[Call]:
        """Those of many calls that are done; asks Ray once for all."""
        import ray

        asked = {call._reference: call for call in calls}
        ready, _ = ray.wait(list(asked), num_returns=len(asked), timeout=0)
        return {asked[reference] for reference in ready if asked[reference].done}

    def result(self, timeout_s: float) -> Any:
        """The result.

        Raises:
          ClusterError: no result within `timeout_s`, or the result was lost although the process lives.
          NodeLost: the process is gone with its node.
          WorkerDied: the process is gone, or could not be started.
          Exception: the error that the method raised; its cause is Ray's error with the remote traceback.
        """
        if self._outcome is None:
            self._outcome = self._fetched(timeout_s)
        return self._outcome.result()

    def exception(self, timeout_s: float) -> Exception | None:
        """The error that `result` raises; None if it raises none."""
        try:
            self.result(timeout_s)
        except Exception as failure:
            return failure
        return None

    def _fetched(self, timeout_s: float) -> Future[Any]:
        """What `result` returns or raises; raises `ClusterError` if it is not there in time."""
        import ray
        from ray.exceptions import GetTimeoutError, RayError, RayTaskError

        outcome: Future[Any] = Future()
        try:
            outcome.set_result(ray.get(self._reference, timeout=timeout_s))
        except GetTimeoutError:
            raise ClusterError(
                f"waited {time.monotonic() - self._begun_at:.0f} s for {self._actor.name} to answer '{self._method}'; "
                "it may be starting, overloaded, or without a node that has room for it"
            ) from None
        except RayTaskError as error:
            # The method's own exception, with its own type.
            cause = error.cause if isinstance(error.cause, Exception) else error.as_instanceof_cause()
            cause.__cause__ = error
            outcome.set_exception(cause)
        except RayError as error:
            return in_thread("diagnosis", partial(self._actor.diagnose, self._method, error))
        return outcome


class NodeCalls:
    """A call that each node must answer before it is used; where it fails, it is repeated after a pause.

    `start` starts a process on a node, whose method `call` (its name and arguments) must answer within `limit_s`;
    messages call it `what`.
    """

    def __init__(
        self, start: Callable[[Node], RemoteActor], call: tuple[str, *tuple[Any, ...]], limit_s: float, what: str
    ) -> None:
        self.answers: dict[str, Any] = {}
        """The answers, by node id."""
        self.errors: dict[str, str] = {}
        """Why the last call failed, by the ids of the nodes that have not answered any."""
        self._start = start
        self._call = call
        self._limit_s = limit_s
        self._what = what
        self._pending: dict[str, tuple[Node, RemoteActor, Call, float]] = {}
        """The calls without an answer yet, with their deadlines on the monotonic clock."""
        self._failures: Counter[str] = Counter()
        self._retry_at: dict[str, float] = {}

    def update(self, nodes: Sequence[Node], wait: bool) -> list[Node]:
        """Begins the calls that are due, and returns the nodes that have answered since the last update.

        If asked to, waits for the first call of each node.
        """
        for node in nodes:
            begun = node.id in self.answers or node.id in self._pending
            if not begun and time.monotonic() >= self._retry_at.get(node.id, 0.0):
                process = self._start(node)
                self._pending[node.id] = node, process, process.begin(*self._call), time.monotonic() + self._limit_s
        ended = []
        for node, process, call, deadline in list(self._pending.values()):
            left_s = deadline - time.monotonic()
            if (wait and node.id not in self.errors) or call.done or left_s <= 0:
                del self._pending[node.id]
                try:
                    self.answers[node.id] = call.result(max(0.0, left_s))
                    self.errors.pop(node.id, None)
                    ended.append(node)
                except Exception as failure:  # a process with another Python or other packages may fail in any way
                    self._record(node, failure)
                process.kill()
        return ended

    def _record(self, node: Node, failure: Exception) -> None:
        error = self.errors[node.id] = f"{self._what} failed: {described(failure)}"
        self._failures[node.id] += 1
        pause_s = doubled(FIRST_RETRY_S, self._failures[node.id], LONGEST_RETRY_S)
        self._retry_at[node.id] = time.monotonic() + pause_s
        log.warning("%s is not used yet: %s; it may be tried again after %.0f s", node, error, pause_s)


def node_affinity(node: str) -> Any:
    """Ray's scheduling strategy for a process that must run on the node with this id."""
    from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

    return NodeAffinitySchedulingStrategy(node, soft=False)


def start_lasting(service: type, node: str, *arguments: Any, **options: Any) -> Any:
    """Starts `service(*arguments)` as a small Ray actor, which reserves no CPU; returns its handle.

    Ray restarts it, on the same node (its id), for as long as its owner lives, and repeats the calls that were pending.
    What serves several nodes belongs on the driver's, which must survive the loss of any other.
    """
    import ray

    lasting = {"num_cpus": 0, "max_restarts": -1, "max_task_retries": -1, "scheduling_strategy": node_affinity(node)}
    return ray.remote(service).options(**lasting, **options).remote(*arguments)


def current_node_id() -> str:
    """The id of this process's node."""
    import ray

    return str(ray.get_runtime_context().get_node_id())


def own_address() -> str:
    """The name or IP at which other nodes reach this process's node; loopback if there are no other nodes."""
    from ray.util import get_node_ip_address

    return str(get_node_ip_address())
