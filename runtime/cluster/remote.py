"""Remote actors: every call is bounded in time, and every error of Ray becomes one of podzero's errors.

Two small actors last as long as the driver, on its node. Servers announce their addresses to the directory, and other
processes ask it. The parameter store holds a reference to the newest parameters (`podzero.runtime.params`); its process
needs no JAX.
"""

from __future__ import annotations

import asyncio
import logging
import threading
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from podzero.core.errors import TRY_AGAIN, ClusterError, PodzeroError, described
from podzero.core.waiting import doubled

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
STALE_S = 10.0
"""A server that has not announced itself for this long counts as away."""
ANNOUNCE_EVERY_S = 2.0
"""Time between two announcements by `keep_announced`."""
ASK_EVERY_S = 2.0
"""Time between two updates of an `AddressBook`."""
ANSWER_TIMEOUT_S = 20.0
"""Longest wait for the directory's answer: Ray may be restarting it."""
MAX_READERS = 100_000
"""Most requests to the parameter store that wait at the same time."""
FIRST_RETRY_S = 15.0
"""Pause after the first call of a node that failed; each further failure doubles it."""
LONGEST_RETRY_S = 300.0


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

    def kill(self) -> None:
        """Ends the process at once; does nothing if it has ended."""
        import ray

        ray.kill(self.actor, no_restart=True)

    def diagnose(self, method: str, error: RayError) -> ClusterError | WorkerDied:
        """Why a call failed with Ray's `error`: the node is lost, the process died, or only the answer was lost.

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
                return ClusterError(f"{self.name} is alive, but Ray lost its answer to '{method}': {error}")
        lost = self.node is not None and not any(node["NodeID"] == self.node and node["Alive"] for node in ray.nodes())
        return (NodeLost if lost else WorkerDied)(f"{self.name} is gone: {death}")


class Call:
    """The pending result of a method of a `RemoteActor`."""

    def __init__(self, actor: RemoteActor, method: str, reference: Any) -> None:
        self._actor = actor
        self._method = method
        self._reference = reference
        self._begun_at = time.monotonic()

    @property
    def done(self) -> bool:
        """Whether a result or an error is there; never waits."""
        import ray

        ready, _ = ray.wait([self._reference], timeout=0)
        return bool(ready)

    def result(self, timeout_s: float) -> Any:
        """The result.

        Raises:
          ClusterError: no result within `timeout_s`, or the result was lost although the process lives.
          NodeLost: the process is gone with its node.
          WorkerDied: the process is gone, or could not be started.
          Exception: the error that the method raised; its cause is Ray's error with the remote traceback.
        """
        import ray
        from ray.exceptions import GetTimeoutError, RayError, RayTaskError

        try:
            return ray.get(self._reference, timeout=timeout_s)
        except GetTimeoutError:
            raise ClusterError(
                f"waited {time.monotonic() - self._begun_at:.0f} s for {self._actor.name} to answer '{self._method}'; "
                "it may be starting, overloaded, or without a node that has room for it"
            ) from None
        except RayTaskError as error:
            # The method's own exception, with its own type.
            cause = error.cause if isinstance(error.cause, Exception) else error.as_instanceof_cause()
            raise cause from error
        except RayError as error:
            raise self._actor.diagnose(self._method, error) from error


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


def start_lasting(service: type, node: str, **options: Any) -> Any:
    """Starts `service()` as a small Ray actor, which reserves no CPU; returns its handle.

    Ray restarts it, on the same node (its id), for as long as its owner lives, and repeats the calls that were pending.
    Choose the driver's node: it must survive the loss of any other.
    """
    import ray

    lasting = {"num_cpus": 0, "max_restarts": -1, "max_task_retries": -1, "scheduling_strategy": node_affinity(node)}
    return ray.remote(service).options(**lasting, **options).remote()


def current_node_id() -> str:
    """The id of this process's node."""
    import ray

    return str(ray.get_runtime_context().get_node_id())


def own_address() -> str:
    """The name or IP at which other nodes reach this process's node; loopback if there are no other nodes."""
    from ray.util import get_node_ip_address

    return str(get_node_ip_address())


class Directory:
    """Addresses by name, for `start_lasting`. After a restart, announcements refill it."""

    def __init__(self) -> None:
        self._entries: dict[str, tuple[int, str, float]] = {}

    def announce(self, name: str, address: str, attempt: int) -> None:
        """Sets the address of a server such as `replay-0`; must be repeated every few seconds.

        An announcement of an earlier attempt is ignored: a process that was replaced may not have ended yet.
        """
        if attempt >= self._entries.get(name, (attempt,))[0]:
            self._entries[name] = attempt, address, time.monotonic()

    def addresses(self) -> dict[str, str]:
        """The addresses of the servers that have announced themselves lately, by name."""
        now = time.monotonic()
        return {name: address for name, (_, address, heard) in self._entries.items() if now - heard < STALE_S}


def tell(directory: Any, name: str, attempt: int, address: str) -> None:
    """Announces a server to the directory once (`Directory.announce`); returns at once."""
    directory.announce.remote(name, address, attempt)


def keep_announced(directory: Any, name: str, attempt: int, address: str) -> None:
    """Announces a server at once, and every few seconds in a thread for as long as this process lives."""
    tell(directory, name, attempt, address)

    def repeat() -> None:
        while True:
            time.sleep(ANNOUNCE_EVERY_S)
            tell(directory, name, attempt, address)

    threading.Thread(target=repeat, name=f"announce-{name}", daemon=True).start()


def ask(directory: Any) -> dict[str, str]:
    """Asks the directory for the addresses of the servers that are up, by name."""
    import ray
    from ray.exceptions import GetTimeoutError, RayError

    try:
        found: dict[str, str] = ray.get(directory.addresses.remote(), timeout=ANSWER_TIMEOUT_S)
    except GetTimeoutError:
        raise ClusterError(f"waited {ANSWER_TIMEOUT_S:g} s for the directory of addresses") from None
    except RayError as error:
        raise ClusterError(f"the directory of addresses is gone: {error}") from None
    return found


class AddressBook:
    """A process's copy of what `ask()` answers, updated by a thread every few seconds; reading it never waits."""

    def __init__(self, ask: Callable[[], Mapping[str, str]]) -> None:
        self._ask = ask
        self._present: Mapping[str, str] = {}
        self._last: dict[str, str] = {}
        """The last known address of every server."""
        self._failure: ClusterError | None = None
        self._updated = threading.Condition()
        threading.Thread(target=self._follow, name="addresses", daemon=True).start()

    def present(self, kind: str) -> dict[str, str]:
        """The addresses of the servers of one kind, such as `inference`, that announced themselves lately, by name."""
        if self._failure is not None:
            raise ClusterError(str(self._failure))
        return {name: address for name, address in self._present.items() if name.startswith(f"{kind}-")}

    def await_servers(self, names: Sequence[str], timeout_s: float) -> Callable[[], list[str]]:
        """Waits until all these servers have announced themselves; returns a function that gives their addresses.

        They are in the order of `names`. A server that is missing from the directory keeps its last address: it may be
        away, or the directory was restarted and does not know it yet.
        """
        with self._updated:
            if not self._updated.wait_for(lambda: self._last.keys() >= set(names), timeout_s):
                missing = ", ".join(name for name in names if name not in self._last)
                raise ClusterError(
                    f"waited {timeout_s:.0f} s for {missing} to listen; "
                    f"{self._failure or 'they may still restore their contents, or be without a node'}"
                )
        return lambda: [self._last[name] for name in names]

    def _follow(self) -> None:
        while True:
            try:
                present = self._ask()
            except ClusterError as failure:
                if self._failure is None:
                    log.warning("%s; the addresses known so far stay in use", failure)
                self._failure = failure
            else:
                with self._updated:
                    self._present, self._failure = present, None
                    self._last |= present
                    self._updated.notify_all()
            time.sleep(ASK_EVERY_S)


class ParamStore:
    """Holds the newest (version, reference). A Ray asyncio actor; `start_param_store` starts it."""

    def __init__(self) -> None:
        self._publisher = ""
        self._version = -1
        self._refs: list[Any] = []
        self._serial = 0
        self._changed = asyncio.Condition()

    async def hold(self, publisher: str, version: int, refs: list[Any]) -> None:
        """Makes a publication, a list of one reference, the newest; returns once a newer one has replaced it.

        A publisher's versions must increase; other calls are ignored. The first publication of a new publisher is
        always accepted.
        """
        # After a restart Ray repeats the pending calls, in any order.
        if publisher == self._publisher and version <= self._version:
            return
        self._publisher, self._version, self._refs = publisher, version, refs
        self._serial += 1
        mine = self._serial
        async with self._changed:
            self._changed.notify_all()
            # Pending until then, so that Ray repeats it if this actor is restarted without its contents.
            await self._changed.wait_for(lambda: self._serial != mine)

    async def newer_than(self, version: int, timeout_s: float) -> tuple[int, list[Any]] | None:
        """Waits for a version above `version`; returns the newest (version, [reference]), or None after `timeout_s`."""
        try:
            async with asyncio.timeout(timeout_s):
                async with self._changed:
                    await self._changed.wait_for(lambda: self._version > version)
        except TimeoutError:
            return None
        return self._version, self._refs


def start_param_store(node: str) -> Any:
    """Starts the store on the node with this id, the driver's; returns its Ray handle."""
    return start_lasting(ParamStore, node, max_concurrency=MAX_READERS)
