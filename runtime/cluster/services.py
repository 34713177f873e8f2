"""Small Ray actors that last as long as the driver: on its node the directory and the parameter store, and agents.

Servers announce their addresses to the directory, and other processes ask it. The parameter store holds a reference to
the newest parameters (`podzero.runtime.params`). On each node of a cluster an agent answers for both, and drains the
node's processes for the driver, so that all three count nodes and not processes. None of them needs JAX.
"""

from __future__ import annotations

import asyncio
import logging
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

from podzero.core.errors import ClusterError
from podzero.runtime.cluster.remote import RemoteActor, start_lasting

log = logging.getLogger(__name__)

STALE_S = 10.0
"""A server that has not announced itself for this long counts as away."""
ANNOUNCE_EVERY_S = 2.0
"""Time between two announcements by `keep_announced`."""
ASK_EVERY_S = 2.0
"""Time between two updates of an `AddressBook`."""
ANSWER_TIMEOUT_S = 20.0
"""Longest wait for the directory's answer: Ray may be restarting it."""
LONG_POLL_S = 60.0
"""How long the store may leave a reader's request pending; the reader then repeats it."""
MAX_READERS = 100_000
"""Most requests to the parameter store that wait at the same time."""


class Directory:
    """Addresses by name, for `start_lasting`. After a restart, announcements refill it."""

    def __init__(self) -> None:
        self._entries: dict[str, tuple[int, str, float]] = {}

    def announce(self, name: str, attempt: int, address: str) -> None:
        """Sets the address of a server such as `replay-0`; must be repeated every few seconds.

        An announcement of an earlier attempt is ignored: a process that was replaced may not have ended yet.
        """
        if attempt >= self._entries.get(name, (attempt,))[0]:
            self._entries[name] = attempt, address, time.monotonic()

    def addresses(self) -> dict[str, str]:
        """The addresses of the servers that have announced themselves lately, by name."""
        now = time.monotonic()
        return {name: address for name, (_, address, heard) in self._entries.items() if now - heard < STALE_S}


def keep_announced(directory: Any, name: str, attempt: int, address: str) -> None:
    """Announces a server at once, and every few seconds in a thread for as long as this process lives."""

    def repeat() -> None:
        while True:
            directory.announce.remote(name, attempt, address)
            time.sleep(ANNOUNCE_EVERY_S)

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


class Publication(NamedTuple):
    """Parameters that a learner has published.

    Attributes:
      publisher: the id of the sink that published them.
      serial: their number among its publications, from 1.
      version: the learner step.
      checksum: see `podzero.runtime.params.checksum`.
      params: Ray's reference of the arrays, which Ray does not replace by its object in a tuple; None if it has none.
    """

    publisher: str = ""
    serial: int = 0
    version: int = -1
    checksum: int = 0
    params: Any = None


class ParamStore:
    """Holds the newest publication. A Ray asyncio actor; `start_param_store` starts it."""

    def __init__(self) -> None:
        self._newest = Publication()
        self._changed = asyncio.Condition()

    async def hold(self, publication: Publication) -> None:
        """Makes a publication the newest; returns once a newer one has replaced it.

        A publisher's versions must increase; other calls are ignored. The first publication of a new publisher is
        always accepted.
        """
        # After a restart Ray repeats the pending calls, in any order.
        if publication.publisher == self._newest.publisher and publication.version <= self._newest.version:
            return
        await self._replace(publication)
        async with self._changed:
            # Pending until then, so that Ray repeats it if this actor is restarted without its contents.
            await self._changed.wait_for(lambda: self._newest is not publication)

    async def forget(self) -> None:
        """Forgets the newest publication, whose publisher is lost: who does not know it waits for the next one."""
        await self._replace(Publication())

    async def other_than(self, publisher: str, serial: int, timeout_s: float) -> Publication | None:
        """Waits until the newest publication is another one than this, and returns it; None after `timeout_s`."""
        try:
            async with asyncio.timeout(timeout_s):
                async with self._changed:
                    await self._changed.wait_for(lambda: self._newest[:2] not in ((publisher, serial), ("", 0)))
        except TimeoutError:
            return None
        return self._newest

    async def _replace(self, publication: Publication) -> None:
        self._newest = publication
        async with self._changed:
            self._changed.notify_all()


class NodeAgent(ParamStore):
    """Directory and parameter store for the processes of one node, which it drains. A Ray asyncio actor.

    After a restart it knows no processes until the driver names them again.
    """

    def __init__(self, handles: bytes) -> None:
        """Takes the pickled handles of directory and store: Ray warns of others in what it starts again."""
        from ray import cloudpickle

        super().__init__()
        self._directory, self._store = cloudpickle.loads(handles)
        self._following: asyncio.Future[None] | None = None
        self._answer: Any = None
        self._ask_at = 0.0
        self._drains: dict[str, tuple[Any, Any, asyncio.Future[Any]]] = {}
        """Each process of the node, what says that it has answered, and the pending answer to its `drain`."""

    async def addresses(self) -> dict[str, str]:
        """See `Directory.addresses`; asks once for all processes."""
        if time.monotonic() >= self._ask_at:
            self._ask_at = time.monotonic() + ASK_EVERY_S
            self._answer = self._directory.addresses.remote()
        return dict(await self._answer)

    async def other_than(self, publisher: str, serial: int, timeout_s: float) -> Publication | None:
        """See `ParamStore.other_than`; one request to the store is pending for all processes."""
        if self._following is None or self._following.done():
            self._following = asyncio.ensure_future(self._follow())
        return await super().other_than(publisher, serial, timeout_s)

    async def add(self, processes: Mapping[str, tuple[Any, Any]]) -> None:
        """Drains these Ray actors from now on, each with a report that says that it has answered, by name."""
        for name, (process, answers) in processes.items():
            if name not in self._drains or self._drains[name][0] != process:
                self._begin(name, process, answers)

    async def drain(self) -> list[Any]:
        """The reports of all processes since the last call, and of each that has answered the one that says so."""
        reports = list[Any]()
        for name, (process, answers, answer) in list(self._drains.items()):
            if answer.done():
                del self._drains[name]
                if answer.exception() is None:  # else it has died
                    reports += [answers, *answer.result()]
                    self._begin(name, process, answers)
        return reports

    def _begin(self, name: str, process: Any, answers: Any) -> None:
        self._drains[name] = process, answers, asyncio.ensure_future(process.drain.remote())

    async def _follow(self) -> None:
        """Takes over each publication that the store gets."""
        while True:
            newest = await self._store.other_than.remote(*self._newest[:2], LONG_POLL_S)
            if newest is not None:
                await self._replace(newest)


def start_param_store(node: str) -> Any:
    """Starts the store on the node with this id, the driver's; returns its Ray handle."""
    return start_lasting(ParamStore, node, max_concurrency=MAX_READERS)


def start_agent(node: str, directory: Any, store: Any) -> RemoteActor:
    """Starts the agent of the node with this id."""
    from ray import cloudpickle

    agent = start_lasting(NodeAgent, node, cloudpickle.dumps((directory, store)), max_concurrency=MAX_READERS)
    return RemoteActor(f"the agent of node {node[:8]}", agent, node)
