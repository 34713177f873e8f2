"""The self-play loop of one actor."""

from __future__ import annotations

import threading
from collections.abc import Callable

import jax
import numpy as np

from podzero.actors.assembly import Game, GameAssembler
from podzero.actors.clients import ActorClients
from podzero.actors.core import SelfPlayCore, SelfPlayState
from podzero.actors.resignation import ResignThreshold
from podzero.actors.shuffling import SampleShuffler
from podzero.clock import REPORT_EVERY_S, StageClock
from podzero.config import Experiment
from podzero.envs import SimulatorError, faults_of, simulator_errors
from podzero.types import Move, Params, Sample, StoredState

_Positions = tuple[Sample, StoredState | None]
"""Training samples, and the same positions as stored for reanalysis."""


class SelfPlayActor:
    """One actor: plays `actors.games` games in parallel and writes the finished ones to replay.

    Args:
      experiment: of which `actors`, `search`, `replay` and `env` are used.
      name: of the actor in metrics and messages, as `actor-0`.
      seed: of this actor; differs between actors and between restarts.
      core: the self-play step.
      fold: converts published parameters for the search, once per version.
      clients: of parameters, replay and metrics.
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
        self._search = experiment.search
        self._name = name
        self._seed = seed
        self._key = jax.random.key(seed)
        self._random = np.random.default_rng(seed)
        self._resign_threshold = ResignThreshold(experiment.actors.max_false_resignations)
        self._init = jax.jit(core.init)
        self._move = jax.jit(core.move, donate_argnums=1, static_argnames=("simulations", "fast"))
        self._fold = fold
        self._clients = clients
        self._faults = faults_of(experiment.env)
        self._stopping = threading.Event()

    def stop(self) -> None:
        """Ends `run` after the current move; thread-safe, returns at once."""
        self._stopping.set()

    def run(self) -> None:
        """Plays until `stop` is called; each call of `run` starts new games.

        Raises:
          EnvironmentFailed: games on the host failed more often in a row than `env.max_failures` allows.
        """
        self._stopping.clear()
        experiment = self._experiment
        clock, metrics = StageClock(), _Metrics(experiment, self._faults.total)
        assembler = self._assembler()
        shuffler: SampleShuffler[_Positions] = SampleShuffler(experiment.replay.samples_per_item, self._seed)

        def report() -> None:
            self._clients.report(self._name, metrics.flush(self._faults.total) | clock.flush())

        try:
            state = self._start_games()
            with clock("wait_params"):
                version, params = self._clients.source.wait(experiment.replay.timeout_s)
                params = self._fold(params)
            while not self._stopping.is_set():
                if clock.elapsed_s >= REPORT_EVERY_S:
                    report()
                try:
                    state, move = self._play_move(params, version, state, shuffler, clock)
                except SimulatorError as error:
                    state, assembler = self._start_games(error), self._assembler()
                    continue
                with clock("assemble"):
                    games = list(assembler.add(move, version))
                    for game in games:
                        shuffler.add((game.samples, game.states))
                        if game.lowest is not None:
                            self._resign_threshold.add(game.lowest)
                metrics.add(move, games, version)
                if games:
                    self._faults.completed()
                with clock("params"):
                    if newer := self._clients.source.poll():
                        version, params = newer.version, self._fold(newer.params)
        finally:
            report()  # also if games failed too often: the report counts the failures
        self._write(shuffler.take())
        self._write(shuffler.take_rest())

    def _play_move(
        self,
        params: Params,
        version: int,
        state: SelfPlayState,
        shuffler: SampleShuffler[_Positions],
        clock: StageClock,
    ) -> tuple[SelfPlayState, Move]:
        """Plays one move of all games; writes the games that ended before it while the device searches.

        Raises:
          SimulatorError: a game on the host failed.
        """
        with simulator_errors():
            with clock("search"):
                fast = self._random.random() >= self._experiment.actors.full_search_share
                simulations = self._search.simulations_at(version, fast)
                resign_at = np.float32(self._resign_threshold.value)
                state, move = self._move(params, state, simulations=simulations, fast=fast, resign_at=resign_at)
            with clock("write"):
                self._write(shuffler.take())
            with clock("search"):
                return state, jax.device_get(move)

    def _assembler(self) -> GameAssembler:
        experiment = self._experiment
        return GameAssembler(
            experiment.actors, experiment.env.discount, self._seed, auxiliary_targets=experiment.has_auxiliary_heads
        )

    def _start_games(self, error: SimulatorError | None = None) -> SelfPlayState:
        """Starts new games; all running games are lost after an `error`, because they are stepped as one batch.

        Raises:
          EnvironmentFailed: games on the host failed more often in a row than `env.max_failures` allows.
        """
        while True:
            if error is not None:
                self._faults.add(str(error), episodes=self._experiment.actors.games)
            try:
                with simulator_errors():
                    state: SelfPlayState = self._init(jax.random.fold_in(self._key, self._faults.total))
                    jax.device_get(state.plies)  # waits for the games, which raises their errors
                return state
            except SimulatorError as another:
                error = another

    def _write(self, positions: _Positions | None) -> None:
        if positions is not None:
            self._clients.write(*positions)


class _Metrics:
    """Adds up the metrics of the loop between two reports."""

    def __init__(self, experiment: Experiment, failures: int) -> None:
        self._parallel_games = experiment.actors.games
        self._search = experiment.search
        self._resignation = experiment.actors.resignation
        self._moves = 0
        self._evaluations = 0
        self._samples = 0
        self._plies: list[int] = []
        self._resigned = 0
        self._dropped: int | None = None
        self._abs_root_value = 0.0
        self._version = 0
        self._failures = failures

    def add(self, move: Move, games: list[Game], version: int) -> None:
        simulations = self._search.simulations_at(version, fast=not np.all(move.recorded))
        self._moves += 1
        self._evaluations += simulations + 1
        self._samples += sum(len(game.samples.version) for game in games)
        self._plies += [game.plies for game in games]
        self._resigned += sum(game.resigned for game in games)
        if move.dropped is not None:
            self._dropped = (self._dropped or 0) + int(np.sum(move.dropped))
        self._abs_root_value = float(np.mean(np.abs(move.value)))
        self._version = version

    def flush(self, failures: int) -> dict[str, float]:
        metrics = {
            "count/moves": float(self._moves * self._parallel_games),
            "count/evaluations": float(self._evaluations * self._parallel_games),
            "count/games": float(len(self._plies)),
            "count/samples": float(self._samples),
            "count/failed_episodes": float(failures - self._failures),
            "selfplay/abs_root_value": self._abs_root_value,
            "selfplay/version": float(self._version),
        }
        if self._plies:
            metrics["selfplay/plies_per_game"] = sum(self._plies) / len(self._plies)
            if self._resignation:
                metrics["selfplay/resigned"] = self._resigned / len(self._plies)
        if self._dropped is not None:
            metrics["count/dropped_actions"] = float(self._dropped)
        self._moves, self._evaluations, self._samples, self._resigned, self._dropped = 0, 0, 0, 0, None
        self._plies, self._failures = [], failures
        return metrics
