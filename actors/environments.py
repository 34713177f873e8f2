"""Acting in environments without known rules: search a learned model, act, and write windows of episodes to replay."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import closing
from dataclasses import dataclass
from typing import Any, NamedTuple

import jax
import numpy as np
import numpy.typing as npt

from podzero.actors.assembly import concatenated
from podzero.actors.clients import ActorLoop, EpisodeMetrics, Running, acted
from podzero.actors.core import explore
from podzero.config import Experiment
from podzero.config.samples import nstep_returns, stored_observations, window_steps, windows_of
from podzero.core.types import Array, EnvSpec, Window
from podzero.envs import VectorEnv, VectorStep
from podzero.replay import LEAST_PRIORITY
from podzero.search import ModelSearch

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


Cut = tuple[Window, Window | None]
"""New windows, and the same with the observations of all positions for reanalysis; None without it."""


class WindowCutter:
    """Stores the last K + n + 1 positions of B environments and cuts windows out of them.

    A window is cut when all of its positions have been searched: K + n steps after its first position, or at the end of
    its episode. No window spans two episodes.
    """

    def __init__(self, experiment: Experiment, spec: EnvSpec, environments: int, seed: int = 0) -> None:
        """Starts without positions; `seed` determines the random actions after the end of an episode."""
        self._experiment, self._steps = experiment, window_steps(experiment)
        self._stride = experiment.muzero.stride
        self._kept = stored_observations(experiment)
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

    def add_position(self, position: Position) -> Cut | None:
        """Adds the next position of all environments; returns the windows that it completes, or None.

        Call `add_step` before the next `add_position`.
        """
        if self._positions is None:
            size = len(self._rewards)
            self._positions = Position(*(np.zeros((size, *np.shape(f)), np.asarray(f).dtype) for f in position))
        for stored, field in zip(self._positions, position, strict=True):
            stored[self._now % len(stored)] = field
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

    def _cut(self, starts: Integers, slots: Integers) -> Cut:
        assert self._positions is not None
        fields = self._positions._asdict() | {"reward": self._rewards}
        # Indices into the ring buffers, which hold exactly the longest window.
        times = (starts[:, None] + np.arange(self._steps + 1)) % len(self._rewards)
        windows = windows_of(
            self._experiment,
            lambda name, count: np.asarray(fields[name])[times[:, :count], slots[:, None]],
            length=np.minimum(self._now - starts, self._steps),
            terminated=self._terminated[slots],
            drawn=self._random_actions(len(starts)),
            observations=self._steps + 1 if self._stores_states else self._kept,
        )
        samples = windows._replace(observation=windows.observation[:, : self._kept])
        return samples, windows if self._stores_states else None

    def _random_actions(self, count: int) -> npt.NDArray[Any]:
        shape = (count, self._experiment.muzero.unroll_steps, *self._spec.action_shape)
        if self._spec.action_bounds is None:
            return self._random.integers(0, self._spec.num_actions, shape)
        return self._random.uniform(-1.0, 1.0, shape)


def window_priorities(windows: Window, experiment: Experiment, xp: Any = np) -> Any:
    """The priorities `[N]` of windows: by the absolute difference between the search value at position 0 and the n-step
    return from there. `xp` is `numpy` or `jax.numpy`.
    """
    reward, value, length = map(xp.asarray, (windows.reward, windows.value, windows.length))
    returns = nstep_returns(xp, reward, value, length, experiment.env.discount, experiment.muzero.td_steps, 0)
    return xp.abs(returns[:, 0].astype(np.float32) - value[:, 0]) + LEAST_PRIORITY


_Transition = tuple[Position, VectorStep]
"""A position, and the step that its actions led to."""

_AT_ONCE = 48
"""Windows per write: a request costs client and server about as much with dozens of windows as with one."""


@dataclass(eq=False, kw_only=True)
class EnvironmentActor(ActorLoop):
    """Acts in `actors.games` parallel environments and writes windows of their episodes to replay."""

    seed: int
    """It differs between actors and between restarts."""
    spec: EnvSpec
    make_environments: Callable[[], VectorEnv]
    """Creates the environments; called at the beginning of `run`."""
    search: ModelSearch

    def __post_init__(self) -> None:
        self._key = jax.random.key(self.seed)
        # Keys and exploration are derived inside the compiled program: outside, each would be a dispatch of its own.
        self._search = jax.jit(
            lambda params, key, step, observation, legal, age: self.search(
                params, jax.random.fold_in(key, step), observation, explore(self.experiment.actors, age), legal
            )
        )
        self._cutter = WindowCutter(self.experiment, self.spec, self.experiment.actors.games, self.seed)
        self._cuts: list[Cut] = []
        """Windows that are not written yet."""
        self._metrics = EpisodeMetrics(self.experiment)
        games = self.experiment.actors.games
        self._running = Running(np.zeros(games), np.zeros(games, np.int64))

    def run(self) -> None:
        """Acts until `stop` is called."""
        with closing(self.make_environments()) as environments:
            try:
                age, steps = np.zeros(self.experiment.actors.games, np.int64), 0
                step: VectorStep | None = None
                transition: _Transition | None = None
                for version, params in self.newest_params():
                    # Not before there are parameters: an episode may go on in real time.
                    step = step or environments.reset()
                    with self.clock("search"):
                        steps += 1
                        result = self._search(params, self._key, steps, step.observation, step.legal, age)
                    # Dispatch is asynchronous: the last transition is written while the device searches.
                    self._add(transition)
                    self._write(_AT_ONCE)
                    with self.clock("search"):
                        result = jax.device_get(result)
                    versions = np.full(len(step.reward), version, np.int32)
                    position = Position(
                        step.observation, result.action, result.policy, result.candidates, result.value, versions
                    )
                    with self.clock("environment"):
                        step = environments.step(result.action)
                    transition, age = (position, step), np.where(step.started, 0, age + 1)
                    if self.report_due:
                        self._report_metrics(environments)
                        # No window waits longer than for a report, however slowly windows are completed.
                        self._write(1)
                self._add(transition)
                self._write(1)
            finally:
                # Also after too many failures, which this report counts.
                self._report_metrics(environments)

    def _report_metrics(self, environments: VectorEnv) -> None:
        own = {f"acting/info_{name}": mean for name, mean in environments.measured().items()}
        self.report(self._metrics.flush(environments.failures) | own)

    def _add(self, transition: _Transition | None) -> None:
        """Adds a transition to the metrics and to the windows."""
        if transition is None:
            return
        with self.clock("assemble"):
            position, step = transition
            cut = self._cutter.add_position(position)
            self._cutter.add_step(step)
            samples, ended = 0 if cut is None else len(cut[0].length), step.terminated | step.truncated
            self._running, sums = acted(self._running, step.reward, step.started, ended, samples)
            self._metrics.add(sums, int(position.version[0]))
        if cut is not None:
            self._cuts.append(cut)

    def _write(self, least: int) -> None:
        """Writes all windows that have been cut, once there are `least`."""
        if sum(len(windows.length) for windows, _ in self._cuts) < least:
            return
        with self.clock("write"):
            windows, states = concatenated(self._cuts)
            self._cuts.clear()
            self.clients.write(windows, states, window_priorities(windows, self.experiment))
