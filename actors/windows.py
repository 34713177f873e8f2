"""Cuts MuZero's windows out of running episodes. Pure NumPy."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from podzero.config import Experiment
from podzero.config.samples import nstep_returns, observations_kept, window_steps
from podzero.core.types import Array, EnvSpec, Window
from podzero.envs import VectorStep

Floats = npt.NDArray[np.float32]
Integers = npt.NDArray[np.int64]


class Position(NamedTuple):
    """One searched position of B environments."""

    observation: Array
    """`[B, *observation_shape]`."""
    action: Array
    """`[B]` int32 or `[B, D]` float32, the action taken there."""
    policy: Array
    """`[B, P]` float32."""
    candidates: Array
    """`[B, C, D]` float32, or `[B, 0]` for discrete actions."""
    value: Array
    """`[B]` float32, the search value."""
    version: Array
    """`[B]` int32, the learner step of the parameters that searched."""


class CutWindows(NamedTuple):
    """New windows and their value errors."""

    windows: Window
    """`[N, ...]` on every field."""
    errors: Floats
    """`[N]`, the absolute difference between the search value at position 0 and the n-step return from there."""
    states: Window | None = None
    """The same windows with the observations of all positions, for reanalysis; None without it."""


class WindowCutter:
    """Stores the last K + n + 1 positions of B environments and cuts windows out of them.

    A window is cut when all of its positions have been searched: K + n steps after its first position, or at the end of
    its episode. No window spans two episodes.
    """

    def __init__(self, experiment: Experiment, spec: EnvSpec, environments: int, seed: int = 0) -> None:
        """Starts without positions; `seed` determines the random actions after the end of an episode."""
        config = experiment.muzero
        self._unroll, self._steps, self._stride = config.unroll_steps, window_steps(experiment), config.stride
        self._td_steps, self._discount = config.td_steps, experiment.env.discount
        self._kept = observations_kept(experiment)
        self._stores_states = experiment.reanalyse.share > 0
        self._spec = spec
        self._random = np.random.default_rng(seed)
        self._positions: Position | None = None
        """`[K + n + 1, B, ...]` on every field: a ring buffer of the last positions."""
        self._rewards = np.zeros((self._steps + 1, environments), np.float32)
        self._now = 0
        """Index of the next position, counted from the first one ever."""
        self._first: Integers = np.zeros(environments, np.int64)
        """`[B]` index of the first position of each running episode."""
        self._last = np.zeros(environments, np.bool_)
        """`[B]` whether the next position is the last of its episode."""
        self._terminated = np.zeros(environments, np.bool_)
        """`[B]` whether the episode terminates there."""

    def add_position(self, position: Position) -> CutWindows | None:
        """Adds the next position of all environments; returns the windows that it completes, or None.

        Call `add_step` before the next `add_position`.
        """
        self._store(position)
        starts, slots = self._complete()
        return self._cut(starts, slots) if len(starts) else None

    def add_step(self, step: VectorStep) -> None:
        """Adds what the actions at the position added last led to."""
        self._rewards[self._now % len(self._rewards)] = step.reward
        self._now += 1
        self._terminated = np.asarray(step.terminated)
        self._last = self._terminated | np.asarray(step.truncated)
        # If an episode broke off without an end, this discards its positions that are in no window yet.
        self._first[np.asarray(step.started)] = self._now

    def _store(self, position: Position) -> None:
        if self._positions is None:
            size = len(self._rewards)
            self._positions = Position(*(np.zeros((size, *np.shape(f)), np.asarray(f).dtype) for f in position))
        for stored, field in zip(self._positions, position, strict=True):
            stored[self._now % len(stored)] = field

    def _complete(self) -> tuple[Integers, Integers]:
        """The windows that the newest position completes: first positions and environments, both `[N]`."""
        oldest = self._now - self._steps
        # A running episode completes the window that began K + n steps ago; an ended one all that are left.
        running = np.flatnonzero(~self._last & (self._first <= oldest))
        running = running[(oldest - self._first[running]) % self._stride == 0]
        ended = np.flatnonzero(self._last)
        offset = np.arange(max(oldest, 0), self._now)[:, None] - self._first[ended]
        index, which = np.nonzero((offset >= 0) & (offset % self._stride == 0))
        starts = np.concatenate([np.full(len(running), oldest), index + max(oldest, 0)])
        return starts, np.concatenate([running, ended[which]])

    def _cut(self, starts: Integers, slots: Integers) -> CutWindows:
        assert self._positions is not None
        stored = Position(*map(np.asarray, self._positions))
        length = np.minimum(self._now - starts, self._steps)
        terminated = self._terminated[slots]
        observations = self._steps + 1 if self._stores_states else self._kept
        # Indices into the ring buffers, which hold exactly the longest window.
        times = (starts[:, None] + np.arange(self._steps + 1)) % len(self._rewards)

        def gather(field: Any, count: int, exists: npt.NDArray[np.bool_]) -> npt.NDArray[Any]:
            """The first `count` entries of each window, with zeros where they do not exist."""
            values: npt.NDArray[Any] = field[times[:, :count], slots[:, None]]
            values[~exists[:, :count]] = 0
            return values

        index = np.arange(self._steps + 1)
        # The episode's steps 0 to L - 1 and positions 0 to L exist; a terminal position has no value.
        steps, positions = index < length[:, None], index <= length[:, None]
        has_value = steps | (positions & ~terminated[:, None])
        discrete = stored.candidates.ndim == 3  # [time, B, 0]
        windows = Window(
            observation=gather(stored.observation, observations, positions),
            action=self._actions(np.asarray(stored.action)[times[:, : self._unroll], slots[:, None]], steps),
            reward=gather(self._rewards, self._steps, steps),
            value=gather(stored.value, self._steps + 1, has_value),
            policy=gather(stored.policy, self._unroll + 1, steps),
            candidates=np.zeros((len(starts), self._unroll + 1, 0), np.float32)
            if discrete
            else gather(stored.candidates, self._unroll + 1, steps),
            length=length.astype(np.int32),
            terminated=terminated,
            version=np.asarray(stored.version)[times[:, 0], slots],
        )
        errors = value_errors(windows, self._discount, self._td_steps)
        samples = windows._replace(observation=windows.observation[:, : self._kept])
        return CutWindows(samples, errors, windows if self._stores_states else None)

    def _actions(self, actions: npt.NDArray[Any], steps: npt.NDArray[np.bool_]) -> npt.NDArray[Any]:
        """Replaces the actions `[N, K, ...]` of steps that do not exist (`steps`, `[N, K + n + 1]`) by random ones."""
        # Random actions teach the dynamics that no action leaves the absorbing state after the end.
        missing = ~steps[:, : self._unroll]
        count = int(np.count_nonzero(missing))
        if self._spec.action_bounds is None:
            actions[missing] = self._random.integers(0, self._spec.num_actions, count)
        else:
            actions[missing] = self._random.uniform(-1.0, 1.0, (count, *self._spec.action_shape))
        return actions


def value_errors(windows: Window, discount: float, td_steps: int) -> Floats:
    """`[N]`, the absolute difference between the search value at each window's position 0 and its n-step return."""
    value = np.asarray(windows.value)
    returns = nstep_returns(np, np.asarray(windows.reward), value, np.asarray(windows.length), discount, td_steps, 0)
    errors: Floats = np.abs(returns[:, 0].astype(np.float32) - value[:, 0])
    return errors
