"""The acting loop in environments without known rules: search a learned model, act, write windows to replay."""

from __future__ import annotations

import threading
from collections.abc import Callable
from contextlib import closing
from dataclasses import dataclass

import jax
import numpy as np

from podzero.actors.assembly import concatenated
from podzero.actors.clients import ActorClients
from podzero.actors.core import explore
from podzero.actors.windows import CutWindows, Position, WindowCutter
from podzero.config import Experiment
from podzero.core.clock import StageClock
from podzero.core.types import EnvSpec
from podzero.core.waiting import first_params
from podzero.envs import VectorEnv, VectorStep
from podzero.replay import priorities_of
from podzero.search import ModelSearch, ModelSearchResult

_Transition = tuple[Position, VectorStep]
"""A position, and the step that its actions led to."""

_AT_ONCE = 48
"""Windows per write: a request costs client and server about as much with dozens of windows as with one."""


@dataclass(eq=False)
class EnvironmentActor:
    """Acts in `actors.games` parallel environments and writes windows of their episodes to replay."""

    experiment: Experiment
    name: str
    """Its name in metrics and messages, such as `actor-0`."""
    seed: int
    """It differs between actors and between restarts."""
    spec: EnvSpec
    make_environments: Callable[[], VectorEnv]
    """Creates the environments; called at the beginning of `run`."""
    search: ModelSearch
    """Searches the learned model."""
    clients: ActorClients

    def __post_init__(self) -> None:
        self._key = jax.random.key(self.seed)
        # Keys and exploration are derived inside the compiled program: outside, each would be a dispatch of its own.
        self._search = jax.jit(
            lambda params, key, step, observation, legal, age: self.search(
                params, jax.random.fold_in(key, step), observation, explore(self.experiment.actors, age), legal
            )
        )
        self._stopping = threading.Event()

    def stop(self) -> None:
        """Ends `run` after the current step; thread-safe, returns at once."""
        self._stopping.set()

    def run(self) -> None:
        """Acts until `stop` is called; each call of `run` starts new episodes.

        Raises:
          EnvironmentFailed: the environments failed more often in a row than `env.max_failures` allows.
        """
        self._stopping.clear()
        experiment, clock, metrics = self.experiment, StageClock(), _Metrics(self.experiment)
        cutter = WindowCutter(experiment, self.spec, experiment.actors.games, self.seed)
        with closing(self.make_environments()) as environments:

            def report() -> None:
                self.clients.report(self.name, metrics.flush(environments.failures) | clock.flush())

            try:
                with clock("wait_params"):
                    if (first := first_params(self.clients.source, self._stopping)) is None:
                        return
                    version, params = first
                step, age, steps = environments.reset(), np.zeros(experiment.actors.games, np.int64), 0
                transition: _Transition | None = None
                cuts: list[CutWindows] = []
                while not self._stopping.is_set():
                    with clock("search"):
                        steps += 1
                        result = self._search(params, self._key, steps, step.observation, step.legal, age)
                    # Dispatch is asynchronous: the last transition is written while the device searches.
                    self._add(transition, cutter, cuts, metrics, clock)
                    self._write(cuts, _AT_ONCE, clock)
                    with clock("search"):
                        result = jax.device_get(result)
                    position = _position(step, result, version)
                    with clock("environment"):
                        step = environments.step(result.action)
                    transition, age = (position, step), np.where(step.started, 0, age + 1)
                    with clock("params"):
                        version, params = self.clients.source.poll() or (version, params)
                    if clock.elapsed_s >= self.clients.report_every_s:
                        report()
                        # No window waits longer than for a report, however slowly windows are completed.
                        self._write(cuts, 1, clock)
                self._add(transition, cutter, cuts, metrics, clock)
                self._write(cuts, 1, clock)
            finally:
                # Also after too many failures, which this report counts.
                report()

    def _add(
        self,
        transition: _Transition | None,
        cutter: WindowCutter,
        cuts: list[CutWindows],
        metrics: _Metrics,
        clock: StageClock,
    ) -> None:
        """Adds a transition to the metrics, and the windows it completes to `cuts`."""
        if transition is None:
            return
        with clock("assemble"):
            position, step = transition
            cut = cutter.add_position(position)
            cutter.add_step(step)
            metrics.add(position, step, cut)
        if cut is not None:
            cuts.append(cut)

    def _write(self, cuts: list[CutWindows], least: int, clock: StageClock) -> None:
        """Writes and removes the windows in `cuts`, unless they are fewer than `least`."""
        if sum(len(cut.errors) for cut in cuts) < least:
            return
        with clock("write"):
            cut = concatenated(cuts)
            cuts.clear()
            self.clients.write(cut.windows, cut.states, priorities_of(cut.errors))


def _position(step: VectorStep, result: ModelSearchResult, version: int) -> Position:
    return Position(
        observation=step.observation,
        action=result.action,
        policy=result.policy,
        candidates=result.candidates,
        value=result.value,
        version=np.full(len(step.reward), version, np.int32),
    )


class _Metrics:
    """Accumulates the metrics of the loop between two reports."""

    def __init__(self, experiment: Experiment) -> None:
        self._evaluations = experiment.search.simulations + 1
        self._return = np.zeros(experiment.actors.games)
        self._length = np.zeros(experiment.actors.games, np.int64)
        self._searched = self._moves = self._samples = 0
        self._ended: list[tuple[float, int]] = []
        self._failures = 0
        self._version = 0

    def add(self, position: Position, step: VectorStep, cut: CutWindows | None) -> None:
        # The step that starts an episode is a reset: its action was ignored and it has no reward.
        self._return = np.where(step.started, 0.0, self._return + step.reward)
        self._length = np.where(step.started, 0, self._length + 1)
        for slot in np.flatnonzero(step.terminated | step.truncated):
            self._ended.append((float(self._return[slot]), int(self._length[slot])))
        self._searched += len(step.reward)
        self._moves += len(step.reward) - int(np.count_nonzero(step.started))
        self._samples += 0 if cut is None else len(cut.errors)
        self._version = int(position.version[0])

    def flush(self, failures: int) -> dict[str, float]:
        metrics = {
            "count/moves": float(self._moves),
            "count/evaluations": float(self._searched * self._evaluations),
            "count/games": float(len(self._ended)),
            "count/samples": float(self._samples),
            "count/failed_episodes": float(failures - self._failures),
            "acting/version": float(self._version),
        }
        if self._ended:
            metrics["acting/mean_return"] = float(np.mean([returns for returns, _ in self._ended]))
            metrics["acting/steps_per_episode"] = float(np.mean([length for _, length in self._ended]))
        self._searched = self._moves = self._samples = 0
        self._ended, self._failures = [], failures
        return metrics
