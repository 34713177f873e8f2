"""Publication through Ray: a small actor holds the newest version, Ray's object store transfers the arrays.

    learner: RayParamSink.publish -> ray.put -> ParamStore.hold(publication)    (pending until superseded)
    actor:   RayParamSource.poll  <- ray.get <- ParamStore.other_than(known)    (pending until there is another one)

The arrays are sent to each node once, however many actors it has, and the actors read them in the node's object store,
without a copy. The store holds exactly one reference, since a reference keeps its object in memory.

**Versions never go backwards for a reader**, which also knows how many publications it is behind: it asks for others
than it knows of while arrays are fetched. Faults are handled without a thread or a timer:

- *The store dies.* Ray restarts it, empty, and repeats every pending call. The `hold` of the newest publication is
  always pending, so the store gets its parameters back without a new publication.
- *The learner dies* and resumes from a checkpoint, at a lower step. Its objects are lost, so the driver lets the store
  forget them. The new sink is another publisher, whose first publication is accepted whatever its version. Readers with
  newer parameters keep them until the learner has passed their version; new readers wait for the next publication.
- *Ray takes no parameters, or loses or damages them* (their checksum differs). The sink writes those that Ray does not
  take into a folder, where readers look while they get none from Ray.
"""

from __future__ import annotations

import logging
import threading
import time
import uuid
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax
import numpy as np
import ray
from ray.exceptions import RayActorError, RayError

from podzero.config import Experiment
from podzero.core.errors import ClusterError
from podzero.core.types import Params, Versioned
from podzero.files.storage import StorageError
from podzero.files.store import store_of
from podzero.networks.snapshots import SnapshotError, load_snapshot, save_snapshot, snapshot_steps
from podzero.runtime.checkpoints import delete_old_snapshots
from podzero.runtime.cluster.services import LONG_POLL_S, Publication

log = logging.getLogger(__name__)

MAX_PENDING = 4
"""Most publications of a sink that may be pending: the newest, and those still being sent to the store."""
STORE_TIMEOUT_S = 60.0
"""How long publishing waits for the store, restarts included, when that many are pending, and readers for an answer."""
LOST_PAUSE_S = 1.0
"""Pause after the store was lost: without it, the same answer would come at once."""
FOLDER_EVERY_S = 5.0
"""Time between two looks into the folder."""
OLD_S = 1.0
"""The answer to a request before that time may be old itself: for a hundredth of it, a newer answer is waited for."""


def checksum(params: Params) -> int:
    """The CRC-32 of the bytes of all leaves."""
    crc = 0
    for leaf in jax.tree.leaves(params):
        # As bytes, since zlib does not know bfloat16.
        crc = zlib.crc32(np.ascontiguousarray(leaf).reshape(-1).view(np.uint8), crc)
    return crc


class RayParamSink:
    """Publishes parameters; a `ParamSink`. Only one thread may call it at a time."""

    def __init__(self, store: Any, fallback: tuple[Path, Experiment] | None = None) -> None:
        """Publishes to `store`, the handle from `start_param_store`.

        `fallback` is a folder for the newest parameters that Ray did not take, and the experiment that they belong to.
        """
        self._store = store
        self._fallback = fallback
        self._publisher = uuid.uuid4().hex
        self._serial = 0
        self._pending: list[Any] = []
        if fallback is not None:  # what is there may be of a later step than this publisher's
            store_of(fallback[0]).delete(fallback[0])

    def publish(self, version: int, params: Params) -> None:
        """Makes `params`, arrays of the host, the newest; returns once they are in this node's object store.

        Waits for the parameter store only while `MAX_PENDING` publications are pending. Raises `ClusterError` if Ray
        did not take them, even if they were written into the folder.
        """
        failure = reference = None
        try:
            full = len(self._pending) >= MAX_PENDING
            if full and not ray.wait(self._pending, num_returns=1, timeout=STORE_TIMEOUT_S)[0]:
                raise TimeoutError(
                    f"the parameter store has not answered the learner for {STORE_TIMEOUT_S:g} s: "
                    "Ray may be restarting it on an overloaded node, or have lost its connection to it"
                )
            if self._pending:
                done, self._pending = ray.wait(self._pending, num_returns=len(self._pending), timeout=0)
                ray.get(done)
            reference = ray.put(params)
        except Exception as error:  # Ray raises errors of many kinds
            failure = ClusterError(f"Ray does not take those of step {version}: {error}")
            if self._fallback is not None:
                folder, experiment = self._fallback
                save_snapshot(folder, version, params, experiment)
                delete_old_snapshots(folder, newest=1, ladder={})
                failure = ClusterError(f"{failure}. They are in {folder}, where actors find them")
        self._serial += 1
        publication = Publication(self._publisher, self._serial, version, checksum(params), reference)
        self._pending.append(self._store.hold.remote(publication))
        if failure is not None:
            raise failure


class RayParamSource:
    """Receives parameters in an actor or evaluator; a `ParamSource`.

    One request to the store is always pending, and Ray fetches the arrays in the background, so `poll` only checks
    what has arrived. A fetch is never given up for a newer publication, so that a slow network makes progress too.
    Leaves are read-only views into the node's object store.
    """

    def __init__(self, store: Any, folder: Path | None = None, damaged: Callable[[], object] = lambda: None) -> None:
        """Reads from `store`, the handle from `start_param_store`, or else from the `folder` of the sink.

        `damaged` is called for each publication that is damaged.
        """
        self._store, self._folder, self._count_damaged = store, folder, damaged
        self._last = Versioned(-1, None)
        self._known = Publication()
        """The newest publication that it has heard of."""
        self._heard = self._returned = 0
        self._fetching: tuple[int, Publication] | None = None
        """The number of the publication whose arrays are being fetched, among those that it has heard of, and that."""
        self._paused_until = self._folder_at = 0.0
        self._unreadable = -1
        """The step of the damaged parameters in the folder."""
        self._ask()

    @property
    def publications(self) -> tuple[int, int]:
        """See `ParamSource.publications`."""
        return self._returned, self._heard

    def wait(self, timeout_s: float) -> Versioned:
        """The newest parameters; waits for the first ones if there are none yet."""
        deadline = time.monotonic() + timeout_s
        self.poll()
        while self._last.version < 0:
            if (left_s := deadline - time.monotonic()) <= 0:
                raise TimeoutError(
                    f"none within {timeout_s:g} s: the learner has not published any to the parameter store; is it "
                    "running, and past its start-up?"
                )
            self._next(left_s)
        return self._last

    def poll(self) -> Versioned | None:
        """Parameters newer than the last ones returned, or None; waits at most a hundredth of `OLD_S`."""
        return self._next(0.0)

    def _ask(self) -> None:
        self._asked_at = time.monotonic()
        self._request = self._store.other_than.remote(self._known.publisher, self._known.serial, LONG_POLL_S)

    def _next(self, timeout_s: float) -> Versioned | None:
        """Waits at most `timeout_s` for the next event, the store's answer or the arrays; returns the arrays if any."""
        if (pause_s := self._paused_until - time.monotonic()) > 0:
            time.sleep(min(pause_s, timeout_s))
            return self._from_folder()
        awaited = [self._request, *([self._fetching[1].params] if self._fetching else [])]
        count, longest_s = 1 if timeout_s else len(awaited), min(timeout_s, FOLDER_EVERY_S)
        if self._request in ray.wait(awaited, num_returns=count, timeout=longest_s)[0]:
            old = time.monotonic() - self._asked_at > OLD_S
            self._hear()
            if old and _arrived(self._request, OLD_S / 100):
                self._hear()
            if not self._paused_until:
                self._begin()
        if self._fetching is not None and _arrived(self._fetching[1].params, 0.0):
            return self._fetched(*self._fetching)
        return self._from_folder()

    def _hear(self) -> None:
        """Takes the store's answer, and asks for the next one."""
        try:
            newest = ray.get(self._request)
        except RayActorError as error:
            if not self._paused_until:
                log.warning("the parameter store is lost; the parameters used so far stay in use: %s", error)
            self._paused_until = time.monotonic() + LOST_PAUSE_S
        else:
            self._paused_until = 0.0
            if newest is not None:
                before = self._known.serial if self._known.publisher == newest.publisher else 0
                self._heard += max(1, newest.serial - before)
                self._known = newest
        self._ask()

    def _begin(self) -> None:
        """Begins to fetch the newest publication that it has heard of, if it is newer, unless one is being fetched."""
        if self._fetching is not None:
            return
        if self._known.version > self._last.version and self._known.params is not None:
            self._fetching = self._heard, self._known
        else:
            self._returned = self._heard  # nobody waits for what does not come

    def _fetched(self, number: int, publication: Publication) -> Versioned | None:
        """The parameters that have arrived; None if they were lost on their way, or damaged."""
        # Also if they cannot be used: nobody waits for what does not come.
        self._returned, self._fetching, found = number, None, None
        try:
            params = ray.get(publication.params)
        except RayError as error:
            log.warning("parameters of step %d are lost (did their publisher die?): %s", publication.version, error)
        else:
            if checksum(params) != publication.checksum:
                self._drop(publication.version, "their checksum differs")
            elif publication.version > self._last.version:  # those of the folder may be newer
                found = self._last = Versioned(publication.version, params)
        if self._known is not publication:
            self._begin()
        elif found is not None:
            self._known = publication._replace(params=None)  # a reference would keep the learner's copy in memory
        return found

    def _from_folder(self) -> Versioned | None:
        """Newer parameters from the sink's folder, where it looks now and then while it cannot get any from Ray."""
        now = time.monotonic()
        silent = self._paused_until or now - self._asked_at > LONG_POLL_S + STORE_TIMEOUT_S
        missing = self._known.version > self._last.version and self._fetching is None
        if self._folder is None or now < self._folder_at or not (silent or missing):
            return None
        self._folder_at = now + FOLDER_EVERY_S
        try:
            step = max(snapshot_steps(self._folder), default=-1)
            if step <= self._last.version or step == self._unreadable:
                return None
            self._last = load_snapshot(self._folder, step)
        except StorageError as error:  # it may pass
            log.warning("no parameters are read from the folder: %s", error)
            return None
        except SnapshotError as error:
            self._unreadable = step
            self._drop(step, str(error))
            return None
        return self._last

    def _drop(self, version: int, why: str) -> None:
        """Counts damaged parameters, which are not used."""
        log.warning("parameters of step %d are damaged, and not used: %s", version, why)
        self._count_damaged()


def _arrived(reference: Any, timeout_s: float) -> bool:
    """Whether a result is on this node within `timeout_s`; Ray begins to fetch it."""
    return bool(ray.wait([reference], timeout=timeout_s)[0])


class LocalParams:
    """Parameters that stay on the devices: a `ParamSink` for the learner and a `ParamSource` for an actor beside it."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._newest: Versioned | None = None
        self._published = self._returned = 0

    @property
    def publications(self) -> tuple[int, int]:
        """See `ParamSource.publications`."""
        return self._returned, self._published

    def publish(self, version: int, params: Params) -> None:
        """Publishes arrays that are whole on every device; they must not be donated later."""
        own = jax.tree.map(lambda leaf: leaf.addressable_data(0), params)
        with self._changed:
            self._newest = Versioned(version, own)
            self._published += 1
            self._changed.notify_all()

    def wait(self, timeout_s: float) -> Versioned:
        """The newest parameters; waits until there are any."""
        with self._changed:
            if not self._changed.wait_for(lambda: self._newest is not None, timeout_s):
                raise TimeoutError(f"none within {timeout_s:g} s: the learner beside has not published any")
            assert self._newest is not None
            self._returned = self._published
            return self._newest

    def poll(self) -> Versioned | None:
        """Parameters newer than those returned last, or None; never waits."""
        with self._changed:
            if self._returned == self._published:
                return None
            self._returned = self._published
            return self._newest
