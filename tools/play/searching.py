"""Searches of single positions, for people and for engines, within limits of simulations and time; clocks of engines.

A search within limits is made in steps, each with a better result: of a tree that grows, or of growing sizes.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor, wait
from dataclasses import dataclass
from functools import cached_property
from itertools import count
from typing import Any, NamedTuple

import jax
import numpy as np

from podzero.core.errors import described
from podzero.core.protocols import Env
from podzero.core.types import Array, EnvState, SearchedNodes, SearchResult
from podzero.evaluation.growing import PlayerTree
from podzero.evaluation.players import MovesPlayer, Player, SearchPlayer
from podzero.evaluation.resolve import resolve
from podzero.search import LimitedState
from podzero.tools.play.game import PlayableGame, ShownPosition

log = logging.getLogger(__name__)

SIMULATIONS = (1, 8, 32, 128, 512, 2048)
"""The numbers of simulations that the page offers; few, because each one is compiled."""


def make_player(who: str, env: Env, simulations: int, discount: float, keep_nodes: bool = False) -> Player:
    """`resolve`, for a player that is not an engine and so plays from any position."""
    player = resolve(who, env, simulations, discount, keep_nodes)
    assert not isinstance(player, MovesPlayer)
    return player


class Searched(NamedTuple):
    """A player's answer for one position; players that do not search give only the action."""

    action: int
    policy: np.ndarray[Any, Any] | None = None
    """`[A]` float32, the improved policy."""
    value: float | None = None
    """The value for the player to move, in [-1, 1]."""
    visits: np.ndarray[Any, Any] | None = None
    """`[A]` int32, the visit counts at the root."""
    nodes: SearchedNodes | None = None
    """The tree, `[N]` in each field; None unless the player keeps nodes."""
    qvalues: np.ndarray[Any, Any] | None = None
    """`[A]` float32, the values of visited actions for the player to move; undefined elsewhere."""

    @classmethod
    def of(cls, result: SearchResult, row: int = 0) -> Searched:
        """The result of one search of a batch, on the host."""
        # The depth is that of the whole batch.
        one = jax.tree.map(lambda leaf: np.asarray(leaf)[row], result._replace(depth=None))
        return cls(int(one.action), one.policy, float(one.value), one.visits, one.nodes, one.qvalues)

    def probabilities(self, actions: Iterable[int]) -> dict[int, float]:
        """The probability of each of `actions`; empty without a policy."""
        return {} if self.policy is None else {action: float(self.policy[action]) for action in actions}


def best_moves(game: PlayableGame, found: Searched, most: int) -> list[tuple[str, str, int]]:
    """Name, policy and visits of the most probable moves of a search of the position shown; empty without a search."""
    if found.policy is None or found.visits is None:
        return []
    policy = found.probabilities(game.legal)
    best = sorted(policy, key=lambda action: -policy[action])[:most]
    return [(game.name(action), f"{policy[action]:.1%}", int(found.visits[action])) for action in best]


def search_one(player: Player, key: Array, state: EnvState) -> Searched:
    """Searches a state, or a `LimitedState`, in which the game is not over."""
    batch = batch_of_one(state)
    if isinstance(player, SearchPlayer):
        return Searched.of(player.search(key, batch))
    return Searched(int(np.asarray(player.choose(key, batch.state if isinstance(batch, LimitedState) else batch))[0]))


class PositionSearch:
    """A player that searches one position per call; thread-safe. `make` is called once per number of simulations."""

    def __init__(self, make: Callable[[int], Player]) -> None:
        self._make = make
        self._players: dict[int, Player] = {}
        self._lock = threading.Lock()
        self._keys = map(jax.random.key, count(1))

    def name(self, simulations: int) -> str:
        """The player's full name, such as RUN@STEP."""
        return self._player(simulations).name

    def __call__(self, state: EnvState, simulations: int) -> Searched:
        """Searches a position in which the game is not over; compiles for each new number of simulations."""
        player = self._player(simulations)
        with self._lock:
            # Another key for each call: repeated searches of a position explore differently.
            key = next(self._keys)
        return search_one(player, key, state)

    def _player(self, simulations: int) -> Player:
        with self._lock:
            if simulations not in self._players:
                self._players[simulations] = self._make(simulations)
            return self._players[simulations]


def batch_of_one(state: EnvState) -> EnvState:
    """Adds a batch axis of size 1."""
    return jax.tree.map(lambda leaf: leaf[None], state)


def most_visited(nodes: SearchedNodes, action: int) -> tuple[int, ...]:
    """The principal variation of one search that begins with `action`; may extend beyond the end of the game."""
    parent, actions, visits = (np.asarray(field) for field in (nodes.parent, nodes.action, nodes.visits))
    line: list[int] = []
    below = (parent == 0) & (actions == action)
    while (visited := np.flatnonzero(below & (visits > 0))).size:
        node = visited[np.argmax(visits[visited])]
        line.append(int(actions[node]))
        below = parent == node
    return tuple(line) or (action,)


class Root(NamedTuple):
    """A non-terminal position to search."""

    limited: LimitedState
    lines: np.ndarray[Any, Any]
    """`[A]` bool, the legal actions that are not forbidden: those to return lines for."""

    @classmethod
    def of(cls, position: ShownPosition, forbidden: np.ndarray[Any, Any] | None = None) -> Root:
        """The root for a position; `forbidden` actions, `[A]` bool, are not searched."""
        legal = np.asarray(position.view.legal)
        left_out = np.zeros_like(legal) if forbidden is None else forbidden
        return cls(LimitedState(position.state, left_out), legal & ~left_out)


class Line(NamedTuple):
    """A move that a search considered, with its principal variation."""

    action: int
    value: float
    """The value for the player to move, in [-1, 1]."""
    probability: float
    """The improved policy's probability of the action."""
    visits: int
    moves: tuple[int, ...]
    """The principal variation, from the action on; may extend beyond the end of the game."""


@dataclass
class SearchedLines:
    """The result of a search so far."""

    found: Searched
    legal: np.ndarray[Any, Any]
    """`[A]` bool, the actions that have lines."""
    simulations: int
    """The number of simulations in the tree."""
    reused: int
    """How many of them earlier searches have made."""
    seconds: float
    """The time of the others."""

    @cached_property
    def lines(self) -> list[Line]:
        """The selected move, then the others by visits, descending."""
        found, nodes = self.found, self.found.nodes
        if found.policy is None or found.visits is None or found.value is None:
            return [Line(found.action, 0.0, 1.0, 1, (found.action,))]
        policy, visits = found.policy, found.visits
        # The last key is the first criterion.
        order = np.lexsort((-policy, -visits, np.arange(len(policy)) != found.action))
        lines = []
        for one in order[self.legal[order]].tolist():
            # Unvisited actions have no Q-value, and searches of one's own may have none: they take the root's value.
            mean = found.value if found.qvalues is None or not visits[one] else found.qvalues[one]
            moves = (one,) if nodes is None or not visits[one] else most_visited(nodes, one)
            lines.append(Line(one, float(np.clip(mean, -1, 1)), float(policy[one]), int(visits[one]), moves))
        return lines


MARGIN = 1.2
"""A step is assumed to take this multiple of the time measured before."""
_STEP_S = 0.1
"""About how many seconds a step of a tree takes."""
_TIMED = 4
"""Simulations by which the first speed is measured."""
_MEMORY = 0.8
"""Weight of earlier steps in the speed, relative to that of the newest one."""


class TreeSteps:
    """Steps of a tree that grows, with `room` for as many simulations; the next search goes on with the part it shares.

    One step is made at a time; it may still be under way when the next search begins.
    """

    def __init__(self, tree: PlayerTree, room: int) -> None:
        self._tree, self._room = tree, room
        self._keys = map(jax.random.key, count())
        # Of the last steps, their weights decreasing.
        self._simulations, self._seconds = 1.0, _STEP_S
        # Of the current search.
        self._reused, self._spent = 0, 0.0
        self.anew = False
        """Whether the next search is to share nothing with those before."""

    def prepare(self, root: Root) -> None:
        """Compiles and times the search of `root`."""
        self._turn_to(root)
        self._grow(root, 1)
        self._turn_to(root)
        if timed := min(_TIMED, self._room - 1):
            self._simulations = self._seconds = 0.0
            self._grow(root, timed)

    def search(self, root: Root, simulations: int, left: Callable[[], float] | None) -> Iterator[SearchedLines]:
        """The result after each step of one search, at least one; `simulations` include those of earlier searches.

        All steps but the first must fit into the seconds that are `left`.
        """
        most = max(min(simulations, self._room), 1)
        self._turn_to(root)
        yield self._grow(root, max(min(max(self._fitting(left), 1), most - self._reused), 0))
        while self._tree.simulations < most and (fitting := self._fitting(left)):
            yield self._grow(root, min(fitting, most - self._tree.simulations))

    def _fitting(self, left: Callable[[], float] | None) -> int:
        """How many simulations fit into a step."""
        seconds = _STEP_S if left is None else min(_STEP_S, left() / MARGIN)
        return max(int(seconds * self._simulations / self._seconds), 0)

    def _turn_to(self, root: Root) -> None:
        start = time.perf_counter()
        if self.anew:
            self._tree.forget()
            self.anew = False
        self._tree.turn_to(next(self._keys), batch_of_one(root.limited))
        self._reused, self._spent = self._tree.simulations, time.perf_counter() - start

    def _grow(self, root: Root, simulations: int) -> SearchedLines:
        start = time.perf_counter()
        found = Searched.of(self._tree.grow(next(self._keys), simulations))
        seconds = time.perf_counter() - start
        if simulations:
            self._simulations = _MEMORY * self._simulations + simulations
            self._seconds = _MEMORY * self._seconds + seconds
        self._spent += seconds
        return SearchedLines(found, root.lines, self._tree.simulations, self._reused, self._spent)


STEP = 4
"""Ratio between successive sizes (numbers of simulations)."""
COUNT = 4
"""Number of sizes, without the usual one."""


class SizedSteps:
    """Searches from scratch with a few sizes (numbers of simulations), each compiled, where no tree can grow.

    The methods are as those of `TreeSteps`.
    """

    def __init__(self, make: Callable[[int], Player], usual: int, most: int) -> None:
        self._sizes = sorted({max(most // STEP**step, 1) for step in range(COUNT)} | {min(usual, most)})
        self._players = {size: make(size) for size in self._sizes}
        self._seconds: dict[int, float] = {}
        self._keys = map(jax.random.key, count())

    def prepare(self, root: Root) -> None:
        """Compiles and times the searches of `root`."""
        for size in self._sizes:
            # The first search compiles, the second is timed.
            self._run(root, size)
            self._seconds[size] = self._run(root, size).seconds

    def search(self, root: Root, simulations: int, left: Callable[[], float] | None) -> Iterator[SearchedLines]:
        """The result with each size; without a limit of time, the largest size is searched alone."""
        sizes = [size for size in self._sizes if size <= simulations] or self._sizes[:1]
        for size in sizes if left else sizes[-1:]:
            if left and size != sizes[0] and MARGIN * self._seconds[size] > left():
                return
            searched = self._run(root, size)
            self._seconds[size] = (self._seconds[size] + searched.seconds) / 2
            yield searched

    def _run(self, root: Root, size: int) -> SearchedLines:
        start = time.perf_counter()
        found = search_one(self._players[size], next(self._keys), root.limited)
        return SearchedLines(found, root.lines, size, 0, time.perf_counter() - start)


_POLL_S = 0.01
"""Interval in seconds at which a search checks whether it is given up."""


class TimedSearch:
    """A player that searches in steps; `prepare` must be called first. `make` is given a number of simulations."""

    def __init__(self, make: Callable[[int], Player], usual: int, most: int) -> None:
        self._make = make
        self.usual, self.most = self._started = min(usual, most), most
        """The simulations without a time limit, and the most simulations."""
        self._steps: TreeSteps | SizedSteps | None = None
        self.can_forbid = False
        """Whether the search leaves out forbidden actions; players that do not search ignore them."""
        # One thread: a step that was given up delays the next search instead of competing with it.
        self._worker = ThreadPoolExecutor(max_workers=1, thread_name_prefix="search")

    def limit(self, most: int) -> None:
        """Makes `most` the usual and the most simulations, or 0 those of the start; `prepare` must be called again."""
        limits = (most, most) if most else self._started
        if limits != (self.usual, self.most):
            self.usual, self.most = limits
            self._steps = None

    def forget(self) -> None:
        """Lets the next search share nothing with those before."""
        if isinstance(self._steps, TreeSteps):
            self._steps.anew = True

    def prepare(self, root: Root) -> None:
        """Compiles and times the search of `root`, unless that has been done."""
        if self._steps is None:
            player = self._make(self.most)
            self.can_forbid = isinstance(player, SearchPlayer)
            tree = player.tree if isinstance(player, SearchPlayer) else None
            steps = SizedSteps(self._make, self.usual, self.most) if tree is None else TreeSteps(tree, self.most)
            self._worker.submit(steps.prepare, root).result()
            self._steps = steps

    def results(
        self, root: Root, simulations: int, seconds: float | None = None, given_up: Callable[[], bool] = lambda: False
    ) -> Iterator[SearchedLines]:
        """Searches a position with at most `simulations` or `most`; each result is better than the one before.

        `seconds` may be infinite, or None to use the last result only. `given_up` ends the search after a first result.
        """
        assert self._steps is not None
        # Taken here, so that the time counts which a step that was given up still takes.
        end = None if seconds is None else time.monotonic() + seconds
        left = None if end is None else lambda: end - time.monotonic()
        steps, first = self._steps.search(root, simulations, left), True
        while first or not given_up():
            running = self._worker.submit(lambda: next(steps, None))
            while not wait([running], timeout=_POLL_S).done:
                if not first and given_up():
                    # This stops it only before it has started; a running program continues in the background.
                    running.cancel()
                    return
            if (searched := running.result()) is None:
                return
            yield searched
            first = False


OVERHEAD_S = 0.05
"""Seconds per move reserved for communication."""
MOVES_LEFT = 30
"""Moves that the remaining time has to last for, by default."""
_GREATEST_SHARE = 0.5
"""Largest share of the remaining time for one move."""


def share_of_clock(remaining_s: float, increment_s: float = 0.0, moves: int = MOVES_LEFT) -> float:
    """Seconds for the next move, on a clock that has to last for `moves` moves."""
    usable = max(remaining_s - OVERHEAD_S, 0.0)
    # A quarter of the increment and half of the clock (except at its last move) stay for searches that take longer.
    return min(usable / max(moves, 1) + 0.75 * increment_s, max(_GREATEST_SHARE, 1 / max(moves, 1)) * usable)


class GtpClock:
    """One colour's clock: main time in seconds, then `stones` moves per period; a period of 0 stones means no limit."""

    def __init__(self, main_s: float, period_s: float, stones: int) -> None:
        self._limited = not (period_s > 0 and stones == 0)
        self._period, self._stones = period_s, stones
        self._left, self._stones_left = (main_s, 0) if main_s > 0 or stones == 0 else (period_s, stones)

    def left(self, seconds: float, stones: int) -> None:
        """Sets the seconds left: of the main time if `stones` is 0, else for the next `stones` moves of a period."""
        self._left, self._stones_left = seconds, stones

    def seconds(self) -> float | None:
        """Seconds for the next move; None without a limit."""
        if not self._limited:
            return None
        if self._stones_left:
            return share_of_clock(self._left, moves=self._stones_left)
        # A move may use its share of a period, less a reserve, even when little main time is left.
        after = self._period / self._stones if self._stones else 0.0
        return max(share_of_clock(self._left), 0.9 * after - OVERHEAD_S)

    def spend(self, seconds: float) -> None:
        """Subtracts the time of a move; the controller's next `time_left` corrects it."""
        if self._stones_left > 1:
            self.left(max(self._left - seconds, 0.0), self._stones_left - 1)
        elif self._stones_left == 1 or (seconds >= self._left and self._stones):
            self.left(self._period, self._stones)
        else:
            self.left(max(self._left - seconds, 0.0), 0)


class EngineParts(NamedTuple):
    """The game and the player of an engine."""

    game: PlayableGame
    search: TimedSearch
    knows_komi: bool = False
    """Whether the game is Go, and the search can be told its komi."""


def failure_of(command: str, error: Exception, parts: Future[EngineParts]) -> str:
    """A line that says why a command failed; logs the error, and raises it again if there is no player.

    The game of the other program goes on, whatever a command does wrong; without a player it cannot.
    """
    if parts.done() and parts.exception() is error:
        raise error
    log.error("the command %s failed", command, exc_info=error)
    return " ".join(f"{command} failed: {described(error)}".split())[:500]
