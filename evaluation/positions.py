"""Positions in which a solver judges moves: drawn evenly over the plies, each with the exact score of every move.

Labels for connect four come with podzero (`evaluation/labels/`), so that training runs need no solver installed.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Iterable
from contextlib import suppress
from itertools import zip_longest
from pathlib import Path
from typing import Any, Literal, NamedTuple, get_args
from zipfile import BadZipFile

import jax
import jax.numpy as jnp
import numpy as np
import optax

from podzero.core.errors import ConfigError
from podzero.core.machine import user_cache
from podzero.core.protocols import Env
from podzero.core.types import Array, EnvState
from podzero.evaluation.players import Player, SearchPlayer, random_actions
from podzero.evaluation.solvers import Scores, Solver, game_values, known_game, make_solver
from podzero.evaluation.statistics import wilson

log = logging.getLogger(__name__)

MAX_PLY = 30
"""Last ply of judged positions."""
Part = Literal["test", "validation"]
"""Results are measured on `test`; a run judges its snapshots on the disjoint `validation`."""
LABELS = Path(__file__).parent / "labels"
"""Labelled positions that come with podzero: GAME-PART.npz."""
_CANDIDATES = 512
"""Random games per batch."""
_MOST_MISSES = 2000
"""After so many random games without a new position at a ply, it counts as exhausted."""
_FORMAT = 3
"""Version of the drawing procedure, part of the cache's key."""


class JudgedPositions(NamedTuple):
    """N positions whose legal moves differ in value, with the exact score of each move."""

    moves: np.ndarray[Any, Any]
    """`[N, max_ply]` int32, the moves that lead to each position, padded with -1."""
    scores: Scores
    """`[N, A]` float32, exact scores of the actions (`Solver`)."""

    @property
    def plies(self) -> np.ndarray[Any, Any]:
        """`[N]`, moves played before each position."""
        plies: np.ndarray[Any, Any] = (self.moves >= 0).sum(axis=1)
        return plies

    def at(self, rows: Any) -> JudgedPositions:
        """The positions that a slice, indices or a mask choose."""
        return JudgedPositions(self.moves[rows], self.scores[rows])


def judged_positions(env: Env, count: int, seed: int, part: Part = "test", max_ply: int = MAX_PLY) -> JudgedPositions:
    """`count` solved positions, evenly over the plies; the same for the same arguments.

    They come from the game's labels if these suffice, otherwise from the user's cache
    (`$XDG_CACHE_HOME/podzero`, else `~/.cache/podzero`), otherwise they are drawn and solved.

    Raises:
      ConfigError: the game has no solver or too few positions, or a solver is needed and not installed.
    """
    labels = read_labels(env.spec.name, part)
    if labels is not None and count <= len(labels.moves) and max_ply == MAX_PLY:
        return _ordered(labels, np.random.default_rng(seed)).at(slice(count))
    solver = make_solver(env.spec.name)
    game = env.spec.name.replace("/", "-")
    file = user_cache() / f"positions-{game}-{count}-{seed}-{part}-{max_ply}-{_FORMAT}.npz"
    cached = _load(file, count)
    if cached is not None:
        return cached
    # The two parts have even and odd seeds, so that no seed draws the same positions for both.
    positions = draw_positions(env, solver, count, get_args(Part).index(part) + 2 * seed, max_ply)
    _save(file, positions)
    return positions


def read_labels(game: str, part: Part) -> JudgedPositions | None:
    """The labelled positions of a game that come with podzero, or None."""
    file = LABELS / f"{known_game(game)}-{part}.npz"
    if not file.is_file():
        return None
    with np.load(file) as arrays:
        return JudgedPositions(arrays["moves"].astype(np.int32), arrays["scores"].astype(np.float32))


def all_positions(env: Env, max_ply: int) -> JudgedPositions:
    """All distinct positions up to a ply in which legal moves differ in value.

    Holds a whole ply in memory, so the game must be small.
    """
    solver, look, found = make_solver(env.spec.name), jax.jit(jax.vmap(env.view)), []
    moves = np.full((1, max_ply), -1, np.int32)
    for ply in range(max_ply + 1):
        view = jax.device_get(look(replay(env, moves)))
        _, distinct = np.unique(view.observation.reshape(len(moves), -1), axis=0, return_index=True)
        open_ = distinct[~view.done[distinct]]
        if not len(open_):
            break
        moves, legal = moves[open_], view.legal[open_]
        scores = solver(view.observation[open_])
        values = game_values(scores)
        differ = np.nanmax(values, axis=1) > np.nanmin(values, axis=1)
        found.append(JudgedPositions(moves, scores).at(differ))
        rows, actions = np.nonzero(legal)
        moves = moves[rows]
        moves[:, ply : ply + 1] = actions[:, None]
    return JudgedPositions(*(np.concatenate(field) for field in zip(*found, strict=True)))


def draw_positions(env: Env, solver: Solver, count: int, seed: int, max_ply: int = MAX_PLY) -> JudgedPositions:
    """Draws distinct positions by uniformly random play and solves them.

    Positions that are terminal, or whose legal moves all have the same value, are rejected. Every prefix of the result
    is even over plies 0 to `max_ply`, except that early plies have few positions.
    """
    key, rng = jax.random.key(seed), np.random.default_rng(seed)
    play = random_games(env, max_ply)
    drawn = _Drawn(solver, max_ply, count)
    while len(wanted := drawn.wanted()):
        key, play_key = jax.random.split(key)
        plies = rng.choice(wanted, _CANDIDATES)
        games = jax.device_get(play(play_key, plies))
        for ply, moves, observation, over in zip(plies, *games, strict=True):
            drawn.offer(ply, moves, observation, over)
    positions = drawn.positions()
    if len(positions.moves) < count:
        raise ConfigError(
            f"found only {len(positions.moves)} positions of {env.spec.name} in which moves differ in value; ask for "
            f"fewer than {count}"
        )
    return positions.at(slice(count))


class _Drawn:
    """Positions drawn so far, by ply."""

    def __init__(self, solver: Solver, max_ply: int, count: int) -> None:
        self._solver = solver
        self._count = count
        self._found: list[list[tuple[np.ndarray[Any, Any], Scores]]] = [[] for _ in range(max_ply + 1)]
        self._misses = np.zeros(max_ply + 1, np.int64)
        """Consecutive candidates without a new position, by ply."""
        self._known: set[bytes] = set()

    def wanted(self) -> np.ndarray[Any, Any]:
        """The plies that need more positions."""
        sizes, is_open = self._sizes(), self._misses < _MOST_MISSES
        each = -(-(self._count - sizes[~is_open].sum()) // max(is_open.sum(), 1))
        wanted: np.ndarray[Any, Any] = np.flatnonzero(is_open & (sizes < each))
        return wanted

    def offer(self, ply: int, moves: np.ndarray[Any, Any], observation: np.ndarray[Any, Any], over: bool) -> None:
        """Solves a candidate, and keeps it if its moves differ in value."""
        board = observation.tobytes()
        if over or board in self._known:
            self._misses[ply] += 1
            return
        self._known.add(board)
        self._misses[ply] = 0
        scores = self._solver(observation[None])[0]
        if len(np.unique(game_values(scores[~np.isnan(scores)]))) > 1:
            self._found[ply].append((moves, scores))

    def positions(self) -> JudgedPositions:
        """All positions: the first of each ply, then the second of each ply, and so on."""
        found = [entry for each in zip_longest(*self._found) for entry in each if entry is not None]
        return JudgedPositions(*map(np.stack, zip(*found, strict=True)))

    def _sizes(self) -> np.ndarray[Any, Any]:
        return np.array([len(of_ply) for of_ply in self._found])


def _ordered(positions: JudgedPositions, rng: np.random.Generator) -> JudgedPositions:
    """The positions in an order that is random, with every prefix even over the plies."""
    shuffled = rng.permutation(len(positions.moves))
    plies = positions.plies[shuffled]
    rounds = np.zeros(len(plies), np.int64)
    for ply in np.unique(plies):
        rounds[plies == ply] = np.arange((plies == ply).sum())
    order = shuffled[np.lexsort((plies, rounds))]
    return positions.at(order)


def replay(env: Env, moves: np.ndarray[Any, Any]) -> EnvState:
    """The states after `moves` (`[N, T]` int32, padded with -1), all from the same initial state."""

    @jax.jit
    def played(actions: Array) -> EnvState:
        def ply(t: Array, states: EnvState) -> EnvState:
            goes_on = actions[:, t] >= 0
            any_legal = jnp.argmax(jax.vmap(env.view)(states).legal, axis=1)
            after = jax.vmap(env.step)(states, jnp.where(goes_on, actions[:, t], any_legal))
            return jax.vmap(optax.tree.where)(goes_on, after, states)

        starts = jax.vmap(env.init)(jnp.broadcast_to(jax.random.key(0), actions.shape[:1]))
        return jax.lax.fori_loop(0, actions.shape[1], ply, starts)

    return played(moves)


class RandomGames(NamedTuple):
    """N random games, each stopped at its ply."""

    moves: Array
    """`[N, max_ply]` int32, padded with -1."""
    observations: Array
    """`[N, *observation_shape]`."""
    over: Array
    """`[N]` bool."""


def random_games(env: Env, max_ply: int) -> Callable[[Array, Array], RandomGames]:
    """Compiles uniformly random play up to given plies: a function of `(key, plies [N])`."""

    def ply(states: EnvState, key: Array) -> tuple[EnvState, tuple[Array, Array, Array]]:
        view = jax.vmap(env.view)(states)
        actions = random_actions(key, view.legal)
        return jax.vmap(env.step)(states, actions), (actions, view.observation, view.done)

    @jax.jit
    def play(key: Array, plies: Array) -> RandomGames:
        starts = jax.vmap(env.init)(jnp.broadcast_to(jax.random.key(0), plies.shape))
        _, (actions, observations, over) = jax.lax.scan(ply, starts, jax.random.split(key, max_ply + 1))
        games = jnp.arange(plies.shape[0])
        moves = jnp.where(jnp.arange(max_ply) < plies[:, None], actions[:max_ply].T, -1)
        return RandomGames(moves, observations[plies, games], over[plies, games])

    compiled: Callable[[Array, Array], RandomGames] = play
    return compiled


def _load(file: Path, count: int) -> JudgedPositions | None:
    """The cached positions; None if the file is missing or damaged."""
    try:
        with np.load(file) as arrays:
            cached = JudgedPositions(arrays["moves"], arrays["scores"])
    except (OSError, ValueError, KeyError, EOFError, BadZipFile):
        return None
    return cached if len(cached.moves) == len(cached.scores) == count else None


def _save(file: Path, positions: JudgedPositions) -> None:
    """Replaces the cache file atomically; a failure is only logged."""
    temporary = file.with_name(f".{os.getpid()}-{file.name}")
    try:
        file.parent.mkdir(parents=True, exist_ok=True)
        np.savez_compressed(temporary, moves=positions.moves, scores=positions.scores)
        os.replace(temporary, file)
    except OSError as error:
        log.warning("cannot cache the solved positions for the next run in %s: %s", file, error.strerror)
        with suppress(OSError):
            temporary.unlink()


BANDS = ((0, 9), (10, 19), (20, MAX_PLY))
"""First and last plies of bands that are judged separately: opening, middle and end differ in difficulty."""


class JudgeResult(NamedTuple):
    """A solver's judgement of a player's moves."""

    positions: int
    keeps_value: float
    """Share of moves that keep the game's value: a win stays a win, a draw a draw."""
    exact: float
    """Share of moves with the best exact score: the soonest win or the latest loss."""
    by_ply: dict[int, float]
    """`keeps_value` by ply."""
    interval: tuple[float, float]
    """95% interval of `keeps_value`, by Wilson's formula."""
    bands: dict[tuple[int, int], JudgeResult]
    """Results, without bands of their own, in each of `BANDS` with positions."""


class Judge:
    """Judges players on fixed positions, so that a player is compiled only once."""

    def __init__(self, env: Env, positions: JudgedPositions) -> None:
        self._positions = positions
        self._states = replay(env, positions.moves)

    def __call__(self, player: Player, key: Array) -> JudgeResult:
        """Judges the player's moves in all positions, chosen as one batch; `key` is consumed."""
        return judge_actions(np.asarray(player.choose(key, self._states)), self._positions)

    def network(self, player: SearchPlayer) -> JudgeResult:
        """Judges the most probable moves of a player's network, without search."""
        policy, _ = player.evaluate(self._states)
        return judge_actions(np.asarray(policy).argmax(axis=1), self._positions)


def judge_actions(
    actions: np.ndarray[Any, Any], positions: JudgedPositions, bands: Iterable[tuple[int, int]] = BANDS
) -> JudgeResult:
    """Judges an action for each position, `[N]`."""
    good = _is_best(actions, game_values(positions.scores))
    plies = positions.plies
    return JudgeResult(
        positions=len(actions),
        keeps_value=float(good.mean()),
        exact=float(_is_best(actions, positions.scores).mean()),
        by_ply={int(ply): float(good[plies == ply].mean()) for ply in np.unique(plies)},
        interval=wilson(float(good.sum()), len(good)),
        bands={
            (first, last): judge_actions(actions[inside], positions.at(inside), ())
            for first, last in bands
            if (inside := (plies >= first) & (plies <= last)).any()
        },
    )


def _is_best(actions: np.ndarray[Any, Any], scores: Scores) -> np.ndarray[Any, Any]:
    chosen = scores[np.arange(len(actions)), actions]
    best: np.ndarray[Any, Any] = chosen == np.nanmax(scores, axis=1)
    return best
