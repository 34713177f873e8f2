"""The self-play loop of an actor, games in which opponents have one side, and several actors in one process."""

from __future__ import annotations

import logging
import threading
from collections import defaultdict
from collections.abc import Callable, Sequence
from concurrent.futures import wait
from dataclasses import dataclass
from functools import partial
from itertools import accumulate, pairwise
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from podzero.actors.assembly import Game, GameAssembler, SampleShuffler, rows_of
from podzero.actors.clients import ActorLoop, Played, Positions, SelfPlayMetrics
from podzero.actors.core import Replies, SelfPlayCore, SelfPlayState, keys_of
from podzero.core.types import Array, EnvState, Move, Params
from podzero.core.waiting import in_thread
from podzero.envs import SimulatorError, faults_of, simulator_errors
from podzero.inference.serving import ServerClient

log = logging.getLogger(__name__)

GRACE_S = 3.0
"""Time in which actors that are asked to stop may end their moves, before their waits are interrupted."""


@dataclass(eq=False, kw_only=True)
class SelfPlayActor(ActorLoop):
    """Plays `actors.games` games in parallel and writes the finished ones to replay."""

    seed: int
    """It differs between actors and between restarts."""
    core: SelfPlayCore
    opponents: Sequence[Opponent] = ()
    """The players that have one side of some games."""

    def __post_init__(self) -> None:
        self._key = jax.random.key(self.seed)
        self._init = jax.jit(self.core.init)
        games, opponents = self.experiment.actors.games, self.opponents
        self._opposed = OpposedGames(self.core, games, opponents) if opponents else None
        self._move = self._opposed.move if self._opposed else jax.jit(self.core.move, donate_argnums=1)
        self._faults = faults_of(self.experiment.env)
        self._metrics = SelfPlayMetrics(self.experiment)
        per_item = self.experiment.replay.samples_per_item
        self._shuffler: SampleShuffler[Positions] = SampleShuffler(per_item, [self.seed, 1])

    def run(self) -> None:
        """Plays until `stop` is called."""
        assembler = self._assembler()
        try:
            state = self._start_games()
            for version, params in self.newest_params():
                if self.report_due:
                    self._report()
                try:
                    state, move = self._play_move(params, state)
                except SimulatorError as error:
                    state, assembler = self._start_games(error), self._assembler()
                    continue
                with self.clock("assemble"):
                    games = list(assembler.add(move, version))
                    for game in games:
                        self._shuffler.add((game.samples, game.states))
                self._count(move, games, version)
                if games:
                    self._faults.completed()
        finally:
            # Also after too many failures, which this report counts.
            self._report()
        self._write(self._shuffler.take())
        self._write(self._shuffler.take_rest())

    def _play_move(self, params: Params, state: SelfPlayState) -> tuple[SelfPlayState, Move]:
        """Plays one move of all games; meanwhile writes the games that had ended before it."""
        with simulator_errors():
            # Dispatch is asynchronous: `_move` returns at once, and the host writes while the device searches.
            with self.clock("search"):
                state, move = self._move(params, state)
            with self.clock("write"):
                self._write(self._shuffler.take())
            with self.clock("search"):
                return state, jax.device_get(move)

    def _report(self) -> None:
        scores = self._opposed.flush() if self._opposed else {}
        self.report(self._metrics.flush(self._faults.total) | scores)

    def _count(self, move: Move, games: list[Game], version: int) -> None:
        if self._opposed:
            self._opposed.count(move)
        samples = sum(len(game.samples.version) for game in games)
        certainty = np.abs(move.value)
        played = Played(samples, len(games), move.dropped, move.depth, certainty, move.resignations)
        self._metrics.add(played, version, plies=sum(game.plies for game in games))

    def _assembler(self) -> GameAssembler:
        experiment, values = self.experiment, self.core.env.spec.values
        return GameAssembler(experiment.actors, experiment.env.discount, experiment.has_auxiliary_heads, values)

    def _start_games(self, error: SimulatorError | None = None) -> SelfPlayState:
        """Starts new games, after an `error` in place of all running ones."""
        while True:
            if error is not None:
                # All games of the batch are lost, since they are stepped together.
                self._faults.add(str(error), episodes=self.experiment.actors.games)
            try:
                with simulator_errors():
                    state: SelfPlayState = self._init(jax.random.fold_in(self._key, self._faults.total))
                    # Wait for the games here, where their errors are caught.
                    jax.device_get(state.plies)
                return state
            except SimulatorError as another:
                error = another

    def _write(self, positions: Positions | None) -> None:
        if positions is not None:
            self.clients.write(*positions)


class Opponent(NamedTuple):
    """A player that self-play plays against."""

    name: str
    """Its name in metrics."""
    share: float
    """Fraction of the games in which it has a side, in (0, 1]."""
    choose: Callable[[Array, EnvState], Array | None]
    """Maps a key and n states that are not over to actions, `[n]` int32. None: there is no such player yet, and the
    search plays both sides."""


class _Block(NamedTuple):
    """The games of one opponent, which are consecutive."""

    opponent: Opponent
    games: slice
    side: np.ndarray[Any, Any]
    """`[n]` int32, the player whose moves the search chooses."""


class OpposedGames:
    """Plays all games like the core; in some of them, opponents have one side.

    Each opponent has a block of games, in one half of which the search plays for player 0, in the other for player 1.
    The searches of an opponent's turns are of no use: batches keep their size, so that nothing is compiled again.
    """

    def __init__(self, core: SelfPlayCore, games: int, opponents: Sequence[Opponent]) -> None:
        self._search = jax.jit(core.search)
        self._play = jax.jit(core.play, donate_argnums=0)
        self._rows = jax.jit(rows_of, static_argnums=1)
        self._games = games
        self._blocks = blocks(opponents, games)
        self._points: dict[str, list[float]] = defaultdict(list)

    def move(self, params: Params, state: SelfPlayState) -> tuple[SelfPlayState, Move]:
        """Plays one move in every game, as `SelfPlayCore.move` does; `state` cannot be used afterwards."""
        result = self._search(params, state)
        key = keys_of(state).replies
        action, side = [], np.full(self._games, -1, np.int32)
        for number, block in enumerate(self._blocks):
            size = len(block.side)
            states = self._rows(state.games, block.games)
            chosen = block.opponent.choose(jax.random.fold_in(key, number), states)
            if chosen is not None:
                side[block.games] = block.side
            action.append(jnp.zeros(size, jnp.int32) if chosen is None else jnp.asarray(chosen, jnp.int32))
        alone = self._games - sum(map(len, action))
        replies = Replies(jnp.concatenate([*action, jnp.zeros(alone, jnp.int32)]), jnp.asarray(side))
        after: tuple[SelfPlayState, Move] = self._play(state, result, replies)
        return after

    def count(self, move: Move) -> None:
        """Counts the results of the games that ended with a move (host arrays)."""
        for block in self._blocks:
            done, rewards = move.done[block.games], move.rewards[block.games]
            ours = np.take_along_axis(rewards, block.side[:, None], axis=1)[:, 0]
            self._points[block.opponent.name] += (0.5 + 0.5 * np.sign(ours[done])).tolist()

    def flush(self) -> dict[str, float]:
        """`selfplay/score_OPPONENT`, the search's mean points per game since the last call: 1 won, 0.5 drew, 0 lost."""
        scores = {f"selfplay/score_{name}": float(np.mean(points)) for name, points in self._points.items() if points}
        self._points.clear()
        return scores


def blocks(opponents: Sequence[Opponent], games: int) -> list[_Block]:
    """The games of each opponent: its share of `games`, rounded to an even number of at least 2."""
    sizes = [2 * max(1, round(opponent.share * games / 2)) for opponent in opponents]
    while sum(sizes) > games:
        sizes[int(np.argmax(sizes))] -= 2
    ends = pairwise(accumulate(sizes, initial=0))
    return [
        _Block(opponent, slice(start, end), np.arange(end - start, dtype=np.int32) % 2)
        for opponent, (start, end) in zip(opponents, ends, strict=True)
    ]


@dataclass(eq=False)
class ActorGroups:
    """Runs several actors in one process: while one waits for evaluations, the others search."""

    actors: Sequence[SelfPlayActor]
    servers: Sequence[ServerClient]
    """Their connections to inference servers."""

    def __post_init__(self) -> None:
        self._stopping = threading.Event()
        self._failures: list[Exception] = []

    def run(self) -> None:
        """Plays until `stop` is called, or an actor fails; then stops the others and raises its error."""
        running = [in_thread(f"games-{number}", partial(self._run, actor)) for number, actor in enumerate(self.actors)]
        # Set by `stop`, which an actor that fails calls too.
        self._stopping.wait()
        wait(running, GRACE_S)
        for server in self.servers:
            server.close()
        wait(running)
        if self._failures:
            raise self._failures[0]

    def stop(self) -> None:
        """Ends `run` after the current moves, at the latest after `GRACE_S`; thread-safe, returns at once."""
        for actor in self.actors:
            actor.stop()
        self._stopping.set()

    def _run(self, actor: SelfPlayActor) -> None:
        try:
            actor.run()
        except Exception as failure:
            if self._stopping.is_set():
                log.info("games that waited for an inference server at the end are lost")
            else:
                # JAX keeps only the text of an error raised in a callback; the connection has the error itself.
                causes = [server.failure for server in self.servers if server.failure is not None]
                self._failures.append(causes[0] if causes else failure)
        finally:
            self.stop()
