"""Parameters for an actor in the learner's own process: they stay on the devices."""

from __future__ import annotations

import threading

import jax

from podzero.types import Params, Versioned


class LocalParams:
    """Both ends in one process: a `ParamSink` for the learner and a `ParamSource` for the actor."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._newest: Versioned | None = None
        self._returned: int | None = None

    def publish(self, version: int, params: Params) -> None:
        """Makes device arrays, each of them whole on every device, the newest; they must not be donated later."""
        own = jax.tree.map(lambda leaf: leaf.addressable_data(0), params)
        with self._changed:
            self._newest = Versioned(version, own)
            self._changed.notify_all()

    def wait(self, timeout_s: float) -> Versioned:
        """The newest parameters; waits until there are any.

        Raises:
          TimeoutError: the learner published none within `timeout_s`.
        """
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
