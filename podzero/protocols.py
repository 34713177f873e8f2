"""The doors between the rooms: what each part may ask of another, and nothing else."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Protocol

import numpy as np

from podzero.types import (
    Array,
    Batch,
    EnvSpec,
    EnvState,
    Keys,
    Params,
    Sample,
    SearchResult,
    StoredState,
    Symmetry,
    Versioned,
    View,
    Window,
)


class Env(Protocol):
    """A two-player game written in JAX: pure functions of one game, batched by `vmap`."""

    @property
    def spec(self) -> EnvSpec:
        """Shapes and dtypes of observations, and the number of actions."""
        ...

    @property
    def symmetries(self) -> Sequence[Symmetry]:
        """The symmetries besides the identity; empty when the game has none."""
        ...

    def init(self, key: Array) -> EnvState:
        """Starts a game; `key` is consumed (it may choose who begins)."""
        ...

    def step(self, state: EnvState, action: Array) -> EnvState:
        """Plays a legal `action` (`[]` int32). A state that is over stays as it is, with zero rewards."""
        ...

    def view(self, state: EnvState) -> View:
        """What can be seen of `state`."""
        ...


class Search(Protocol):
    """A batched tree search."""

    def __call__(self, params: Params, key: Array, roots: EnvState, temperature: Array) -> SearchResult:
        """Searches B roots.

        Args:
          params: network parameters.
          key: PRNG key, consumed.
          roots: states with a leading axis B; none of them over.
          temperature: `[B]` float32, how much to explore when choosing the move: 1 is the full noise
            of the algorithm, 0 plays the strongest move.
        """
        ...


class ReplayWriter(Protocol):
    """The door of an actor or reanalyser into replay."""

    def write(self, samples: Sample | Window | StoredState, priorities: np.ndarray[Any, Any] | None = None) -> None:
        """Writes T samples (`[T, ...]` on every field), waiting while the rate limiter holds inserts back.

        Args:
          samples: to write.
          priorities: `[T]` for a prioritized table, at least zero; 1 by default.

        Raises:
          SignatureError: a field's name, shape or dtype is not the table's, it holds NaN or infinity, or T is no
            multiple of `replay.samples_per_item`.
          ReplayTimeout: the insert was held back or the server silent for longer than the configured wait.
        """
        ...

    def flush(self) -> None:
        """Waits until everything written has been confirmed."""
        ...

    def close(self) -> None:
        """Gives the connection back."""
        ...


class ReplayReader(Protocol):
    """The door of the learner out of replay: an endless iterator over host batches."""

    def __iter__(self) -> Iterator[Batch]: ...

    def __next__(self) -> Batch:
        """The next batch (`[steps_per_dispatch, batch_size, ...]` on every field).

        Raises:
          ReplayTimeout: no batch came within the configured wait; says which limiter holds whom.
          StopIteration: `close` was called, perhaps while this waited.
        """
        ...

    def update_priorities(self, keys: Keys, errors: np.ndarray[Any, Any]) -> None:
        """Says how wrong the learner was about samples of a batch, by their keys and absolute value errors, both
        `[..., B]`; a prioritized table gives those with large errors more often from then on. Never waits.
        """
        ...

    def close(self) -> None:
        """Stops prefetching and gives the connections back; any thread may call it."""
        ...


class StateReader(Protocol):
    """The door of a reanalyser out of replay: an endless iterator over what was played, drawn at random."""

    def __iter__(self) -> Iterator[StoredState | Window]: ...

    def __next__(self) -> StoredState | Window:
        """The next past samples (`[reanalyse.games, ...]` on every field).

        Raises:
          ReplayTimeout: none came within the configured wait; says who waits for whom.
          StopIteration: `close` was called, perhaps while this waited.
        """
        ...

    def close(self) -> None:
        """Stops prefetching and gives the connections back; any thread may call it."""
        ...


class ParamSink(Protocol):
    """Where the learner publishes."""

    def publish(self, version: int, params: Params) -> None:
        """Makes `params` the newest; returns without waiting for any reader."""
        ...


class ParamSource(Protocol):
    """Where an actor looks for parameters."""

    def wait(self, timeout_s: float) -> Versioned:
        """The newest parameters, waiting for the first ones if there are none yet.

        Raises:
          TimeoutError: nothing was published within `timeout_s`; says who waits for whom.
        """
        ...

    def poll(self) -> Versioned | None:
        """Parameters newer than the last ones returned, or None; never waits."""
        ...


class Report(Protocol):
    """Where a role drops its figures; never blocks, never raises."""

    def __call__(self, worker: str, metrics: Mapping[str, float]) -> None:
        """Adds `figures`, named `stage/quantity` with units in the name, under `role` (as `actor-0`)."""
        ...
