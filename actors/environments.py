"""The acting loop of environments that can only be acted in: search a learned model, act, write windows."""

from __future__ import annotations

import threading
from collections.abc import Callable
from contextlib import ExitStack, closing
from typing import Any

import jax
import numpy as np

from podzero.actors.clients import ActorClients
from podzero.actors.windows import Cut, Outcome, Position, WindowCutter
from podzero.clock import StageClock
from podzero.config import Experiment
from podzero.envs import Step, VectorEnv
from podzero.replay import priorities_of
from podzero.search import ModelSearch, ModelSearchResult
from podzero.types import EnvSpec

REPORT_EVERY_S = 2.0

_Acted = tuple[Position, Step]
"""A position, and what came of the actions there."""


class EnvironmentActor:
    """One actor: acts in `actors.games` environments side by side and writes windows of their episodes to replay.

    Args:
      experiment: the experiment; `env`, `actors`, `search` and `muzero` matter here.
      name: the actor's name in figures and messages, as `actor-0`.
      seed: seed of this actor; differs between actors and between restarts.
      spec: of the environment.
      make_environments: makes them; called at the beginning of `run`.
      search: the search over the learned model.
      doors: to parameters, replay and the figures.
    """

    def __init__(
        self,
        *,
        experiment: Experiment,
        name: str,
        seed: int,
        spec: EnvSpec,
        make_environments: Callable[[], VectorEnv],
        search: ModelSearch,
        clients: ActorClients,
    ) -> None:
        self._experiment = experiment
        self._name = name
        self._seed = seed
        self._key = jax.random.key(seed)
        self._spec = spec
        self._make_environments = make_environments
        self._search = jax.jit(_keyed(search))
        self._clients = clients
        self._stopping = threading.Event()

    def stop(self) -> None:
        """Ends `run` after the current step; thread-safe, returns at once."""
        self._stopping.set()

    def run(self) -> None:
        """Acts until told to stop; called again, it starts fresh episodes.

        Raises:
          EnvironmentFailed: the environments fail again and again.
        """
        self._stopping.clear()
        experiment, clock, metrics = self._experiment, StageClock(), _Metrics(self._experiment)
        cutter = WindowCutter(experiment, self._spec, experiment.actors.games, self._seed)
        with closing(self._make_environments()) as environments, ExitStack() as ending:

            def report() -> None:
                self._clients.report(self._name, metrics.flush(environments.failures) | clock.flush())

            ending.callback(report)  # also when the environments fail for good: how often they did is wanted then
            with clock("wait_params"):
                version, params = self._clients.source.wait(experiment.replay.timeout_s)
            step, age, turn = environments.reset(), np.zeros(experiment.actors.games, np.int64), 0
            acted: _Acted | None = None
            while not self._stopping.is_set():
                with clock("search"):
                    turn += 1
                    found = self._search(params, self._key, turn, step.observation, self._temperature(age))
                # Where dispatch is asynchronous, what the last actions led to is written while this is searched.
                self._keep(acted, cutter, metrics, clock)
                with clock("search"):
                    found = jax.device_get(found)
                position = _position(step, found, version)
                with clock("environment"):
                    step = environments.step(found.action)
                acted, age = (position, step), np.where(step.started, 0, age + 1)
                with clock("params"):
                    version, params = self._clients.source.poll() or (version, params)
                if clock.elapsed_s >= REPORT_EVERY_S:
                    report()
            self._keep(acted, cutter, metrics, clock)

    def _keep(self, acted: _Acted | None, cutter: WindowCutter, metrics: _Metrics, clock: StageClock) -> None:
        """Writes the windows that are complete with a position and the step that followed; counts both."""
        if acted is None:
            return
        with clock("assemble"):
            position, step = acted
            cut = cutter.add(position)
            cutter.follow(Outcome(step.reward, step.terminated, step.truncated, step.started))
            metrics.add(position, step, cut)
        if cut is not None:
            with clock("write"):
                self._clients.write(cut.windows, cut.states, priorities_of(cut.errors))

    def _temperature(self, age: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
        config = self._experiment.actors
        warm = age < config.temperature_plies
        return np.where(warm, config.temperature, config.final_temperature).astype(np.float32)


def _keyed(search: ModelSearch) -> Callable[..., ModelSearchResult]:
    """The search with the key of a turn, made where it costs nothing: inside of the compiled program."""

    def turn(params: Any, key: Any, number: Any, observation: Any, temperature: Any) -> ModelSearchResult:
        return search(params, jax.random.fold_in(key, number), observation, temperature)

    return turn


def _position(step: Step, found: ModelSearchResult, version: int) -> Position:
    return Position(
        observation=step.observation,
        action=found.action,
        policy=found.policy,
        candidates=found.candidates,
        value=found.value,
        version=np.full(len(step.reward), version, np.int32),
    )


class _Metrics:
    """Counts what the loop did between two reports."""

    def __init__(self, experiment: Experiment) -> None:
        self._evaluations = experiment.search.simulations + 1
        self._return = np.zeros(experiment.actors.games)
        self._length = np.zeros(experiment.actors.games, np.int64)
        self._searched = self._moves = self._samples = 0
        self._ended: list[tuple[float, int]] = []
        self._failures = 0
        self._version = 0

    def add(self, position: Position, step: Step, cut: Cut | None) -> None:
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
