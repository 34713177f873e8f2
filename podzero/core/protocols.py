"""The interfaces between packages."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Protocol

import numpy as np

from podzero.core.types import (
    Array,
    EnvSpec,
    EnvState,
    Exploration,
    Keys,
    PackedBatch,
    Params,
    Sample,
    SearchResult,
    StoredState,
    Symmetry,
    Versioned,
    View,
    Window,
)


class JaxGame(Protocol):
    """A game as pure functions of a state, any pytree of arrays; they are traced and batched.

    Four class attributes are optional: `players` (by default 2), `zero_sum` (whether the rewards of two players sum to
    zero, by default true), `max_plies` (the length of the longest possible game, by default unlimited), and
    `symmetries` (a sequence of `podzero.core.types.Symmetry`, by default none).
    """

    def init(self, key: Array) -> EnvState:
        """Starts a game; `key` may decide which player moves first."""
        ...

    def step(self, state: EnvState, action: Array) -> EnvState:
        """Plays a legal `action` (`[]` int32). If the game is over, the state does not change and rewards are zero."""
        ...

    def view(self, state: EnvState) -> View:
        """The visible part of `state`; see `podzero.core.types.View`."""
        ...


class Env(JaxGame, Protocol):
    """A game as pure JAX functions of one state, and what is known of it; `vmap` batches them."""

    @property
    def spec(self) -> EnvSpec:
        """Observations, actions and players."""
        ...

    @property
    def symmetries(self) -> Sequence[Symmetry]:
        """The symmetries other than the identity; empty if the game has none."""
        ...


class BatchedSearch(Protocol):
    """A batched tree search."""

    def __call__(self, params: Params, key: Array, roots: EnvState, exploration: Exploration) -> SearchResult:
        """Searches B roots: states with a leading axis B, none of which is over. Consumes `key`."""
        ...


class ReplayWriter(Protocol):
    """Writes samples of an actor or reanalyser to replay."""

    def write(
        self,
        samples: Sample | Window | StoredState | np.ndarray[Any, Any],
        priorities: np.ndarray[Any, Any] | None = None,
        stopping: threading.Event | None = None,
    ) -> None:
        """Writes T samples (`[T, ...]` on every field); blocks while the rate limiter blocks inserts.

        Args:
          samples: the samples to write, or rows `[T, row_bytes]` uint8 that `podzero.envs.SamplePacking` has packed.
            Rows that do not decode are left out.
          priorities: `[T]`, non-negative, for a prioritized table; 1 by default.
          stopping: while it is set, samples that would have to wait are dropped.

        Raises:
          SignatureError: a field's name, shape or dtype differs from the table's, a field contains NaN or infinity, or
            T is not a multiple of `replay.samples_per_item`.
        """
        ...


class ReplayReader(Iterator[PackedBatch], Protocol):
    """Reads the learner's batches from replay: an endless iterator over host batches."""

    def __next__(self) -> PackedBatch:
        """The next batch (`[steps_per_dispatch, batch_size, ...]` on every field).

        Raises:
          StopIteration: `close` was called before or during the call.
        """
        ...

    def update_priorities(self, keys: Keys, errors: np.ndarray[Any, Any]) -> None:
        """Sets the priorities of samples in a prioritized table by `errors`, their absolute value errors `[..., B]`.

        Larger errors give higher priorities. Returns without waiting.
        """
        ...

    def close(self) -> None:
        """Stops prefetching and closes the connections; any thread may call it."""
        ...


class ParamSink(Protocol):
    """Receives the parameters that the learner publishes."""

    def publish(self, version: int, params: Params) -> None:
        """Makes `params` the newest; returns without waiting for any reader."""
        ...


class ParamSource(Protocol):
    """Gives actors the published parameters."""

    def wait(self, timeout_s: float) -> Versioned:
        """The newest parameters; waits until there are any.

        Raises:
          TimeoutError: nothing was published within `timeout_s`; the message says who waits for whom.
        """
        ...

    def poll(self) -> Versioned | None:
        """Parameters newer than those returned last, or None; returns at once, or within milliseconds."""
        ...

    @property
    def publications(self) -> tuple[int, int]:
        """The numbers of the publication returned last, or lost since, and of the newest one that it has heard of."""
        return 0, 0


Report = Callable[[str, Mapping[str, float]], None]
"""Reports the metrics of a worker, such as `actor-0`; never blocks, never raises. They are named `stage/quantity`, with
the unit in the name."""


def with_metrics(report: Report, more: Callable[[], Mapping[str, float]]) -> Report:
    """A report that adds the newest metrics of something that the worker uses."""
    return lambda worker, metrics: report(worker, {**metrics, **more()})
