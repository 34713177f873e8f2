"""Publication through Ray: a small actor holds the newest version, Ray's object store transfers the arrays.

    learner: RayParamSink.publish -> ray.put -> ParamStore.hold(version, [ref])   (pending until superseded)
    actor:   RayParamSource.poll  <- ray.get <- ParamStore.newer_than(version)    (pending until there is a newer one)

The arrays are sent to each node once, however many actors it has, and the actors read them in the node's object store,
without a copy. The store holds exactly one reference, since a reference keeps its object in memory.

**Versions never go backwards for a reader**: it asks for versions newer than the last it returned. Two faults are
handled without a thread or a timer:

- *The store dies.* Ray restarts it, empty, and repeats every pending call. The `hold` of the newest publication is
  always pending, so the store gets its parameters back without a new publication.
- *The learner dies* and resumes from a checkpoint, at a lower step. Its objects are lost. The new sink is another
  publisher, whose first publication replaces the old one whatever its version. Readers with newer parameters keep
  them until the learner has passed their version; new readers get the published ones.

`LocalParams` needs none of this: learner and reader are in one process. Ray is imported where it is used, so that
reading snapshots does not need it.
"""

from __future__ import annotations

import logging
import threading
import time
import uuid
from typing import Any

import jax

from podzero.core.errors import ClusterError
from podzero.core.types import Params, Versioned

log = logging.getLogger(__name__)

LONG_POLL_S = 60.0
"""How long the store may leave a reader's request pending; the reader then repeats it."""
MAX_PENDING = 4
"""Most publications of a sink that may be pending: the newest, and those still being sent to the store."""
STORE_TIMEOUT_S = 60.0
"""How long publishing waits for the store, restarts included, when that many are pending."""
LOST_PAUSE_S = 1.0
"""Pause after parameters were lost in transit: without it, the same answer would come at once."""


class RayParamSink:
    """Publishes parameters; a `ParamSink`. Only one thread may call it at a time."""

    def __init__(self, store: Any) -> None:
        """Publishes to `store`, the handle from `start_param_store`."""
        self._store = store
        self._publisher = uuid.uuid4().hex
        self._pending: list[Any] = []

    def publish(self, version: int, params: Params) -> None:
        """Makes `params`, arrays of the host, the newest; returns once they are in this node's object store.

        Waits for the parameter store only while `MAX_PENDING` publications are pending.
        """
        import ray

        full = len(self._pending) >= MAX_PENDING
        if full and not ray.wait(self._pending, num_returns=1, timeout=STORE_TIMEOUT_S)[0]:
            raise TimeoutError(
                f"the parameter store has not answered the learner for {STORE_TIMEOUT_S:g} s: "
                "Ray may be restarting it on an overloaded node, or have lost its connection to it"
            )
        if self._pending:
            done, self._pending = ray.wait(self._pending, num_returns=len(self._pending), timeout=0)
            for call in done:
                _result(call)
        # Ray replaces an argument that is a reference by its object, but not a reference in a list.
        self._pending.append(self._store.hold.remote(self._publisher, version, [ray.put(params)]))


class RayParamSource:
    """Receives parameters in an actor or evaluator; a `ParamSource`.

    One request to the store is always pending, and Ray fetches the arrays in the background, so `poll` only checks
    whether they have arrived. Leaves are read-only views into the node's object store.
    """

    def __init__(self, store: Any) -> None:
        """Reads from `store`, the handle from `start_param_store`."""
        self._store = store
        self._last: Versioned | None = None
        self._fetching: tuple[int, list[Any]] | None = None
        self._paused_until = 0.0
        self._lost: int | None = None
        self._ask()

    def wait(self, timeout_s: float) -> Versioned:
        """The newest parameters; waits for the first ones if there are none yet."""
        newest, deadline = self.poll() or self._last, time.monotonic() + timeout_s
        while newest is None and (left_s := deadline - time.monotonic()) > 0:
            newest = self._next(left_s)
        if newest is None:
            raise TimeoutError(
                f"none within {timeout_s:g} s: the learner has not published any to the parameter store; is it "
                "running, and past its start-up?"
            )
        return newest

    def poll(self) -> Versioned | None:
        """Parameters newer than the last ones returned, or None; never waits."""
        return self._next(0.0)

    def _ask(self) -> None:
        version = -1 if self._last is None else self._last.version
        self._request = self._store.newer_than.remote(version, LONG_POLL_S)

    def _next(self, timeout_s: float) -> Versioned | None:
        """Waits at most `timeout_s` for the next event, the store's answer or the arrays; returns the arrays if any."""
        pause_s = self._paused_until - time.monotonic()
        if pause_s > 0:
            time.sleep(min(pause_s, timeout_s))
            return None
        if self._fetching is None:
            if not _arrived(self._request, timeout_s):
                return None
            self._fetching = _result(self._request)
            if self._fetching is None:
                self._ask()
                return None
            # The time may be used up. The arrays are the next event, and are fetched in the background.
            timeout_s = 0.0
        version, (reference,) = self._fetching
        return self._fetched(version, reference) if _arrived(reference, timeout_s) else None

    def _fetched(self, version: int, reference: Any) -> Versioned | None:
        """The parameters that have arrived; None if they were lost on their way."""
        import ray
        from ray.exceptions import ObjectLostError

        try:
            self._last = Versioned(version, ray.get(reference))
        except ObjectLostError as error:
            if version != self._lost:
                log.warning("parameters of step %d were lost in transit (their publisher died?): %s", version, error)
            self._lost = version
            self._paused_until = time.monotonic() + LOST_PAUSE_S
            return None
        finally:
            self._fetching = None
            self._ask()
        return self._last


def _arrived(reference: Any, timeout_s: float) -> bool:
    """Whether a result is on this node within `timeout_s`; Ray begins to fetch it."""
    import ray

    return bool(ray.wait([reference], timeout=timeout_s)[0])


def _result(call: Any) -> Any:
    """The result of a finished call to the store."""
    import ray
    from ray.exceptions import RayActorError

    try:
        return ray.get(call)
    except RayActorError as error:
        raise ClusterError(f"the parameter store has died; start the run again to resume it: {error}") from None


class LocalParams:
    """Parameters that stay on the devices: a `ParamSink` for the learner and a `ParamSource` for an actor beside it."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._newest: Versioned | None = None
        self._returned: int | None = None

    def publish(self, version: int, params: Params) -> None:
        """Publishes arrays that are whole on every device; they must not be donated later."""
        own = jax.tree.map(lambda leaf: leaf.addressable_data(0), params)
        with self._changed:
            self._newest = Versioned(version, own)
            self._changed.notify_all()

    def wait(self, timeout_s: float) -> Versioned:
        """The newest parameters; waits until there are any."""
        with self._changed:
            if not self._changed.wait_for(lambda: self._newest is not None, timeout_s):
                raise TimeoutError(f"none within {timeout_s:g} s: the learner beside has not published any")
            assert self._newest is not None
            self._returned = self._newest.version
            return self._newest

    def poll(self) -> Versioned | None:
        """Parameters newer than those returned last, or None; never waits."""
        with self._changed:
            if self._newest is None or self._newest.version == self._returned:
                return None
            self._returned = self._newest.version
            return self._newest
