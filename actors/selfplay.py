"""The self-play loop: what one actor process does all day."""

from __future__ import annotations

import threading
from collections.abc import Callable
from contextlib import ExitStack

import jax
import numpy as np

from podzero.actors.assembly import GameAssembler
from podzero.actors.clients import ActorClients
from podzero.actors.core import SelfPlayCore, SelfPlayState
from podzero.actors.shuffling import SampleShuffler
from podzero.clock import StageClock
from podzero.config import Experiment
from podzero.envs import SimulatorError, faults_of, simulator_errors
from podzero.types import Params, Sample, StoredState

REPORT_EVERY_S = 2.0

_Positions = tuple[Sample, StoredState | None]
"""The same positions, to be learned from and to be searched again."""


class SelfPlayActor:
    """One actor: plays `actors.games` games side by side and writes the finished ones to replay.

    Args:
      experiment: the experiment; `actors` and `search` matter here.
      name: the actor's name in figures and messages, as `actor-0`.
      seed: seed of this actor; differs between actors and between restarts.
      core: the jittable self-play step.
      fold: prepares published parameters for the network that searches, once per version.
      doors: to parameters, replay and the figures.
    """

    def __init__(
        self,
        *,
        experiment: Experiment,
        name: str,
        seed: int,
        core: SelfPlayCore,
        fold: Callable[[Params], Params],
        clients: ActorClients,
    ) -> None:
        self._experiment = experiment
        self._name = name
        self._seed = seed
        self._key = jax.random.key(seed)
        self._start = jax.jit(core.init)
        self._play = jax.jit(core.move, donate_argnums=1)
        self._fold = fold
        self._clients = clients
        self._faults = faults_of(experiment.env)
        self._stopping = threading.Event()

    def stop(self) -> None:
        """Ends `run` after the current move; thread-safe, returns at once."""
        self._stopping.set()

    def run(self) -> None:
        """Plays until told to stop; called again, it starts fresh games.

        Raises:
          EnvironmentFailed: games on the host fail again and again.
        """
        self._stopping.clear()
        experiment = self._experiment
        clock, metrics = StageClock(), _Metrics(experiment, self._faults.total)
        assembler = self._assembler()
        shuffler: SampleShuffler[_Positions] = SampleShuffler(experiment.replay.samples_per_item, self._seed)

        def report() -> None:
            self._clients.report(self._name, metrics.flush(self._faults.total) | clock.flush())

        with ExitStack() as ending:
            ending.callback(report)  # also when games fail for good: how many were lost is wanted then
            state = self._fresh()
            with clock("wait_params"):
                version, params = self._clients.source.wait(experiment.replay.timeout_s)
                params = self._fold(params)
            while not self._stopping.is_set():
                if clock.elapsed_s >= REPORT_EVERY_S:
                    report()
                # Where dispatch is asynchronous, what the last move ended is written while this one is found.
                try:
                    with simulator_errors():
                        with clock("search"):
                            state, move = self._play(params, state)
                        with clock("write"):
                            self._write(shuffler.take())
                        with clock("search"):
                            move = jax.device_get(move)
                except SimulatorError as error:
                    state, assembler = self._fresh(error), self._assembler()
                    continue
                with clock("assemble"):
                    games = list(assembler.add(move, version))
                    for game in games:
                        shuffler.add((game.samples, game.states))
                with clock("params"):
                    if newer := self._clients.source.poll():
                        version, params = newer.version, self._fold(newer.params)
                metrics.add([game.plies for game in games], float(np.mean(np.abs(move.value))), version)
                if games:
                    self._faults.completed()
        self._write(shuffler.take())
        self._write(shuffler.take_rest())

    def _assembler(self) -> GameAssembler:
        actors = self._experiment.actors
        return GameAssembler(actors.games, actors.root_value_weight, self._experiment.env.discount)

    def _fresh(self, error: SimulatorError | None = None) -> SelfPlayState:
        """Fresh games, after `error` if one on the host failed, which takes all of them along: they are one batch.

        Raises:
          EnvironmentFailed: it has happened too often.
        """
        while True:
            if error is not None:
                self._faults.add(str(error), episodes=self._experiment.actors.games)
            try:
                with simulator_errors():
                    state: SelfPlayState = self._start(jax.random.fold_in(self._key, self._faults.total))
                    jax.device_get(state.plies)  # waits
            except SimulatorError as again:
                error = again
            else:
                return state

    def _write(self, positions: _Positions | None) -> None:
        if positions is not None:
            self._clients.write(*positions)


class _Metrics:
    """Counts what the loop did between two reports."""

    def __init__(self, experiment: Experiment, failures: int) -> None:
        self._games_aside = experiment.actors.games
        self._evaluations_per_move = experiment.search.simulations + 1
        self._moves = 0
        self._plies: list[int] = []
        self._certainty = 0.0
        self._version = 0
        self._failures = failures

    def add(self, plies: list[int], certainty: float, version: int) -> None:
        self._moves += 1
        self._plies += plies
        self._certainty = certainty
        self._version = version

    def flush(self, failures: int) -> dict[str, float]:
        moves = self._moves * self._games_aside
        metrics = {
            "count/moves": float(moves),
            "count/evaluations": float(moves * self._evaluations_per_move),
            "count/games": float(len(self._plies)),
            "count/samples": float(sum(self._plies)),
            "count/failed_episodes": float(failures - self._failures),
            "selfplay/abs_root_value": self._certainty,
            "selfplay/version": float(self._version),
        }
        if self._plies:
            metrics["selfplay/plies_per_game"] = sum(self._plies) / len(self._plies)
        self._moves, self._plies, self._failures = 0, [], failures
        return metrics
