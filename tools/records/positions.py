"""Replays recorded games under the rules, many at once, and turns them into samples as self-play does."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cache, partial
from typing import Any, NamedTuple

import jax
import numpy as np
import optax
from numpy.typing import NDArray

from podzero.actors.assembly import GameAssembler, rows_of
from podzero.config import KOMI, ActorsConfig
from podzero.config.samples import UNSEARCHED
from podzero.core.protocols import Env
from podzero.core.types import Array, EnvState, Move, Sample, View
from podzero.envs import notation_for, simulator_errors
from podzero.envs.boards.go import Go, check_komi, with_komi
from podzero.envs.notation import NotationError
from podzero.tools.records.games import Fault, FaultKind, RecordedGame
from podzero.tools.records.pgn import recorded_action

Bools = NDArray[np.bool_]
Floats = NDArray[np.float32]
Ints = NDArray[np.int32]
PolicyOf = Callable[[EnvState], Floats]
"""The policy targets `[B, A]` of B positions."""

GAMES_AT_ONCE = 64
"""Positions wait in memory until all games that began before them have ended: in chess 2 MB for each ply."""


class ReplayedGame(NamedTuple):
    """A game and its positions."""

    game: RecordedGame
    samples: Sample
    """`[T, ...]`, the positions after the opening in order, with targets of auxiliary heads. The policy target is the
    move played or a search's policy; the value target is the discounted outcome for the player to move."""


@dataclass(eq=False)
class _Running:
    """A game that is being replayed."""

    game: RecordedGame
    ply: int = 0
    """Plies played so far."""
    first: int = 0
    """The player that moved first."""
    score: float = 0.0
    """That player's rewards so far."""
    fault: tuple[FaultKind, str] | None = None


class GameReplay:
    """Replays games of one environment.

    Where the rules end a game they give its outcome, elsewhere the record does. In Go the record always does: podzero's
    rules count dead stones as alive. If the network observes the komi, it is the record's, or `KOMI` if that has none.

    B games are replayed `at_once`. The `discount` is per move, of the value targets. `policy_of` searches the positions
    for their policy targets; None for the moves played.
    """

    def __init__(
        self, env: Env, discount: float = 1.0, at_once: int = GAMES_AT_ONCE, policy_of: PolicyOf | None = None
    ) -> None:
        self._env, self._discount, self._at_once, self._policy_of = env, discount, at_once, policy_of
        self._notation = notation_for(env)
        self._record_decides = isinstance(env, Go)
        self._shows_komi = isinstance(env, Go) and env.shows_komi

    def __call__(self, games: Iterable[RecordedGame]) -> Iterator[ReplayedGame | Fault]:
        """Replays games; each comes back once, with its positions or the reason why it cannot be used."""
        waiting = iter(games)
        slots = [self._next(waiting) for _ in range(self._at_once)]
        if not any(slots):
            return
        one_hot = np.eye(self._env.spec.num_actions, dtype=np.float32)
        assembler = GameAssembler(ActorsConfig(games=self._at_once), self._discount, auxiliary_targets=True)
        with simulator_errors():
            states, see, play = _programs(self._env, self._at_once)
            view = see(states)
            while any(slots):
                if self._shows_komi:
                    states = with_komi(states, _komis(slots))
                    view = see(states)
                before: View = jax.device_get(view)
                action, last = self._choose(slots, states, before)
                policy = one_hot[action] if self._policy_of is None else self._policy_of(states)
                states, view, after = play(states, action, last)
                move, over = self._move(slots, before, policy, action, last, jax.device_get(after))
                for index, game in zip(np.flatnonzero(over), assembler.add(move, UNSEARCHED), strict=True):
                    running = slots[index]
                    assert running is not None
                    if running.fault is None:
                        learned = slice(running.game.opening_plies, None)
                        yield ReplayedGame(running.game, rows_of(game.samples, learned))
                    else:
                        yield Fault(running.game.where, *running.fault)
                    slots[index] = self._next(waiting)

    def _next(self, waiting: Iterator[RecordedGame]) -> _Running | None:
        if (game := next(waiting, None)) is None:
            return None
        running = _Running(game)
        if self._shows_komi and game.komi is not None:
            try:
                check_komi(game.komi)
            except ValueError as error:
                running.fault = "foreign", str(error)
        return running

    def _choose(self, slots: Sequence[_Running | None], states: EnvState, view: View) -> tuple[Ints, Bools]:
        """The next action of each slot, and whether its game ends with it: both `[B]`."""
        # Slots without a game, and games whose move is illegal, play any legal action.
        action = np.argmax(view.legal, axis=1).astype(np.int32)
        last = np.zeros(len(slots), np.bool_)
        on_host = cache(lambda: jax.device_get(states))
        for index, running in enumerate(slots):
            if running is None:
                continue
            if running.ply == 0:
                running.first = int(np.asarray(view.player)[index])
            move = running.game.moves[running.ply]
            running.ply += 1
            try:
                legal, state = np.asarray(view.legal)[index], partial(_row, on_host, index)
                action[index] = recorded_action(self._notation, legal, state, move)
            except NotationError as error:
                running.fault = "illegal", f"move {running.ply}: {error}"
            last[index] = running.fault is not None or running.ply == len(running.game.moves)
        return action, last

    def _move(
        self, slots: Sequence[_Running | None], before: View, policy: Floats, action: Ints, last: Bools, after: View
    ) -> tuple[Move, Bools]:
        """The ply as self-play would have played it, and whether each slot's game is over, `[B]`."""
        playing = np.array([running is not None for running in slots])
        over, rewards = playing & (last | after.done), np.array(after.rewards)
        for running, own, done, truncated, ended in zip(slots, rewards, after.done, after.truncated, over, strict=True):
            if running is not None:
                running.score += float(own[running.first])
                if ended and running.fault is None:
                    self._end(running, own, bool(done), bool(truncated))
        move = Move(
            observation=before.observation,
            legal=before.legal,
            policy=policy,
            value=np.zeros(len(slots), np.float32),
            action=action,
            player=before.player,
            rewards=rewards,
            done=over,
            truncated=np.zeros(len(slots), np.bool_),
        )
        return move, over

    def _end(self, running: _Running, rewards: Floats, done: bool, truncated: bool) -> None:
        """Sets the rewards `[2]` of a game's last move, or says why the game cannot be used."""
        points, left = running.game.points, len(running.game.moves) - running.ply
        recorded = None if points is None or self._env.spec.players == 1 else 2 * points - 1
        if left:
            running.fault = "illegal", f"move {running.ply} ends the game, and {left} more are recorded"
        elif truncated or (recorded is None and not done):
            running.fault = "unfinished", f"its outcome after move {running.ply} is not known"
        elif recorded is not None and (self._record_decides or not done):
            rewards[:] = np.where(np.arange(2) == running.first, recorded, -recorded)
        elif recorded is not None and np.sign(running.score) != recorded:
            won = {1.0: "1-0", 0.0: "1/2-1/2", -1.0: "0-1"}[float(np.sign(running.score))]
            running.fault = "wrong result", f"by the rules it ends {won}"


def _komis(slots: Sequence[_Running | None]) -> Floats:
    """The komi of each slot's game, `[B]`; `KOMI` where the record gives none, or none that games can have."""
    known = (None if running is None or running.fault else running.game.komi for running in slots)
    return np.array([KOMI if komi is None else komi for komi in known], np.float32)


def _row(states: Callable[[], EnvState], index: int) -> EnvState:
    return jax.tree.map(lambda leaf: leaf[index], states())


def _programs(env: Env, games: int) -> tuple[EnvState, Callable[[EnvState], View], Callable[..., Any]]:
    """The beginnings of games, their view, and a function that plays an action in each and replaces ended games."""
    fresh = jax.jit(jax.vmap(env.init))(jax.random.split(jax.random.key(0), games))
    see = jax.jit(jax.vmap(env.view))
    first = see(fresh)

    @jax.jit
    def play(states: EnvState, action: Array, last: Array) -> tuple[EnvState, View, View]:
        played = jax.vmap(env.step)(states, action)
        after = jax.vmap(env.view)(played)
        over = last | after.done
        next_states, next_view = jax.vmap(optax.tree.where)(over, (fresh, first), (played, after))
        return next_states, next_view, after

    return fresh, see, play
