"""From steps to windows: what MuZero learns from is cut out of running episodes. Pure NumPy, no clock, no I/O."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from podzero.config import Experiment
from podzero.samples import observations_kept, window_steps
from podzero.types import Array, EnvSpec, Window

Floats = npt.NDArray[np.float32]
Numbers = npt.NDArray[np.int64]


class Position(NamedTuple):
    """One searched position of B environments."""

    observation: Array
    """`[B, *observation_shape]`."""
    action: Array
    """`[B]` int32 or `[B, D]` float32, what is done there."""
    policy: Array
    """`[B, P]` float32."""
    candidates: Array
    """`[B, P, D]` float32, or `[B, 0]` where actions are counted."""
    value: Array
    """`[B]` float32, the search's."""
    version: Array
    """`[B]` int32, learner step of the parameters that searched."""


class Outcome(NamedTuple):
    """What the action at a position led to."""

    reward: Array
    """`[B]` float32."""
    terminated: Array
    """`[B]` bool, whether the next position is the true end of its episode."""
    truncated: Array
    """`[B]` bool, whether the next position is the last that a time limit allows."""
    started: Array
    """`[B]` bool, whether the next position is the first of another episode: nothing leads there from this one."""


class Cut(NamedTuple):
    """Windows and what the actor already knows of their worth."""

    windows: Window
    """`[N, ...]` on every field."""
    errors: Floats
    """`[N]`, absolute difference of the search's value at position 0 and the n-step return from there."""
    states: Window | None = None
    """The same windows with the observations of all positions, where they shall be searched again."""


class WindowCutter:
    """Remembers the last K + n + 1 positions of B environments and cuts windows out of them.

    A window is cut when the search has judged all of its positions: K + n steps after its beginning, or at the end of
    its episode. No window reaches into another episode; one whose last steps are missing starts anew.
    """

    def __init__(self, experiment: Experiment, spec: EnvSpec, environments: int, seed: int = 0) -> None:
        """Remembers nothing yet; `seed` is of the actions beyond the end of an episode."""
        config = experiment.muzero
        self._unroll, self._steps, self._stride = config.unroll_steps, window_steps(experiment), config.stride
        self._td_steps, self._discount = config.td_steps, experiment.env.discount
        self._kept = observations_kept(experiment)
        self._searched_again = experiment.reanalyse.share > 0
        self._spec = spec
        self._random = np.random.default_rng(seed)
        self._memory: Position | None = None
        self._rewards = np.zeros((self._steps + 1, environments), np.float32)
        self._now = 0
        """Number of the position that comes next, counted from the start."""
        self._first: Numbers = np.zeros(environments, np.int64)
        """`[B]` number of the first position of each running episode."""
        self._last = np.zeros(environments, np.bool_)
        """`[B]` whether the position that comes next is the last of its episode."""
        self._terminated = np.zeros(environments, np.bool_)
        """`[B]` whether that is a true end."""

    def add(self, position: Position) -> Cut | None:
        """Takes the next position of all environments; returns the windows that it completes, None if there are none.

        Call `follow` with what came of it before the next one.
        """
        self._remember(position)
        starts, slots = self._complete()
        return self._cut(starts, slots) if len(starts) else None

    def follow(self, outcome: Outcome) -> None:
        """Takes what the actions at the position just added led to."""
        self._rewards[self._now % len(self._rewards)] = outcome.reward
        self._now += 1
        self._terminated = np.asarray(outcome.terminated)
        self._last = self._terminated | np.asarray(outcome.truncated)
        self._first[np.asarray(outcome.started)] = self._now

    def _remember(self, position: Position) -> None:
        if self._memory is None:
            size = len(self._rewards)
            self._memory = Position(*(np.zeros((size, *np.shape(f)), np.asarray(f).dtype) for f in position))
        for memory, field in zip(self._memory, position, strict=True):
            memory[self._now % len(memory)] = field

    def _complete(self) -> tuple[Numbers, Numbers]:
        """Beginnings (position numbers) and environments, both `[N]`, of the windows that the newest position ends."""
        oldest = self._now - self._steps
        # All begin within the episode; where it goes on, only the one that has reached its full length is complete.
        running = np.flatnonzero(~self._last & (self._first <= oldest))
        running = running[(oldest - self._first[running]) % self._stride == 0]
        over = np.flatnonzero(self._last)
        begun = np.arange(max(oldest, 0), self._now)[:, None] - self._first[over]
        index, which = np.nonzero((begun >= 0) & (begun % self._stride == 0))
        starts = np.concatenate([np.full(len(running), oldest), index + max(oldest, 0)])
        return starts, np.concatenate([running, over[which]])

    def _cut(self, starts: Numbers, slots: Numbers) -> Cut:
        assert self._memory is not None
        memory, size = self._memory, len(self._rewards)
        length = np.minimum(self._now - starts, self._steps)
        terminated = self._terminated[slots]
        seen = self._steps + 1 if self._searched_again else self._kept
        times = (starts[:, None] + np.arange(self._steps + 1)) % size

        def taken(field: npt.NDArray[Any], count: int, exists: npt.NDArray[np.bool_]) -> npt.NDArray[Any]:
            """The first `count` entries of a field from each beginning on, zero where they do not exist."""
            values: npt.NDArray[Any] = field[times[:, :count], slots[:, None]]
            values[~exists[:, :count]] = 0
            return values

        order = np.arange(self._steps + 1)
        steps = order < length[:, None]
        positions = order <= length[:, None]
        judged = steps | (positions & ~terminated[:, None])
        counted = memory.candidates.ndim == 3  # [time, B, 0]
        candidates = np.asarray(memory.candidates)
        windows = Window(
            observation=taken(np.asarray(memory.observation), seen, positions),
            action=self._actions(np.asarray(memory.action)[times[:, : self._unroll], slots[:, None]], steps),
            reward=taken(self._rewards, self._steps, steps),
            value=taken(np.asarray(memory.value), self._steps + 1, judged),
            policy=taken(np.asarray(memory.policy), self._unroll + 1, steps),
            candidates=np.zeros((len(starts), self._unroll + 1, 0), np.float32)
            if counted
            else taken(candidates, self._unroll + 1, steps),
            length=length.astype(np.int32),
            terminated=terminated,
            version=np.asarray(memory.version)[times[:, 0], slots],
        )
        errors = value_errors(windows, self._discount, self._td_steps)
        learned = windows._replace(observation=windows.observation[:, : self._kept])
        return Cut(learned, errors, windows if self._searched_again else None)

    def _actions(self, taken: npt.NDArray[Any], steps: npt.NDArray[np.bool_]) -> npt.NDArray[Any]:
        """Actions `[N, K, ...]`, at random where there are no `steps` `[N, K + n + 1]`."""
        missing = ~steps[:, : self._unroll]
        count = int(np.count_nonzero(missing))
        if self._spec.action_bounds is None:
            taken[missing] = self._random.integers(0, self._spec.num_actions, count)
        else:
            taken[missing] = self._random.uniform(-1.0, 1.0, (count, *self._spec.action_shape))
        return taken


def value_errors(windows: Window, discount: float, td_steps: int) -> Floats:
    """`[N]`, how far the search's value of each window's position 0 is from the n-step return."""
    errors: Floats = np.abs(first_return(windows, discount, td_steps) - np.asarray(windows.value)[:, 0])
    return errors


def first_return(windows: Window, discount: float, td_steps: int) -> Floats:
    """The n-step return `[N]` of each window's position 0: `sum_{i<m} g^i r_i + g^m v_m`, m = min(n, L)."""
    reward, value = np.asarray(windows.reward), np.asarray(windows.value)
    reach = np.minimum(td_steps, np.asarray(windows.length))
    factors = discount ** np.arange(td_steps)
    within = np.arange(td_steps) < reach[:, None]
    rewards = np.sum(reward[:, :td_steps] * factors * within, axis=1)
    returns: Floats = (rewards + discount**reach * value[np.arange(len(reach)), reach]).astype(np.float32)
    return returns
