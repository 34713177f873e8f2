"""Judgement by a solver: how often a player's move keeps the game-theoretic value of the position."""

from __future__ import annotations

import logging
import os
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple
from zipfile import BadZipFile

import jax
import jax.numpy as jnp
import numpy as np
import optax

from podzero.errors import ConfigError
from podzero.evaluation.players import Player, SearchPlayer, random_actions
from podzero.evaluation.solvers import Scores, Solver, game_values, make_solver
from podzero.intervals import wilson
from podzero.protocols import Env
from podzero.types import Array, EnvState

log = logging.getLogger(__name__)

MAX_PLY = 30
"""Latest ply of judged positions."""
BANDS = ((0, 9), (10, 19), (20, MAX_PLY))
"""First and last plies of the bands in which training is judged: opening, middle and end differ in difficulty."""
_CANDIDATES = 512
_PATIENCE = 20
"""How often `_CANDIDATES` random games without a new position say that there is none."""
_FORMAT = 2
"""Version of the way in which positions are drawn: part of the cache's key."""


class Positions(NamedTuple):
    """N positions whose legal moves differ in value, with the exact score of each move."""

    moves: np.ndarray[Any, Any]
    """`[N, max_ply]` int32, the moves that lead to each position, -1 after the last."""
    scores: Scores
    """`[N, A]` float32, exact scores of the actions (`Solver.scores`)."""

    @property
    def plies(self) -> np.ndarray[Any, Any]:
        """`[N]`, moves played before each position."""
        plies: np.ndarray[Any, Any] = (self.moves >= 0).sum(axis=1)
        return plies


class BandResult(NamedTuple):
    """A solver's judgement of moves in a band of plies."""

    first: int
    """The first ply."""
    last: int
    """The last ply."""
    positions: int
    keeps_value: float
    exact: float
    """See `JudgeResult`."""
    interval: tuple[float, float]
    """95% interval of `keeps_value`, by Wilson's formula."""


class JudgeResult(NamedTuple):
    """A solver's judgement of a player's moves."""

    positions: int
    keeps_value: float
    """Share of moves that keep the value of the game: a win stays a win, a draw a draw."""
    exact: float
    """Share of moves with the best exact score: of all winning moves the soonest, of all losing ones the latest."""
    by_ply: dict[int, float]
    """`keeps_value` by ply."""
    interval: tuple[float, float]
    """95% interval of `keeps_value`, by Wilson's formula."""
    bands: tuple[BandResult, ...]
    """The same for each of `BANDS` with positions."""


class Judge:
    """Judges players on the same positions, so that a player is compiled once for all rounds."""

    def __init__(self, env: Env, positions: Positions) -> None:
        self._positions = positions
        self._states = replay(env, positions.moves)

    def __call__(self, player: Player, key: Array) -> JudgeResult:
        """Lets `player` choose in all positions, as one batch; `key` is consumed."""
        return judge_actions(np.asarray(player.choose(key, self._states)), self._positions)

    def network(self, player: SearchPlayer) -> JudgeResult:
        """Judges the most probable moves of a player's network, without search.

        Raises:
          ConfigError: it has no network.
        """
        policy, _ = player.evaluate(self._states)
        return judge_actions(np.asarray(policy).argmax(axis=1), self._positions)


def judge_actions(actions: np.ndarray[Any, Any], positions: Positions) -> JudgeResult:
    """Judges one action (`[N]`) for each position."""
    kept = _is_best(actions, game_values(positions.scores))
    exact = _is_best(actions, positions.scores)
    plies = positions.plies
    return JudgeResult(
        positions=len(actions),
        keeps_value=float(kept.mean()),
        exact=float(exact.mean()),
        by_ply={int(ply): float(kept[plies == ply].mean()) for ply in np.unique(plies)},
        interval=wilson(float(kept.sum()), len(kept)),
        bands=tuple(
            BandResult(first, last, int(inside.sum()), *_shares(kept[inside], exact[inside]))
            for first, last in BANDS
            if (inside := (plies >= first) & (plies <= last)).any()
        ),
    )


def _shares(kept: np.ndarray[Any, Any], exact: np.ndarray[Any, Any]) -> tuple[float, float, tuple[float, float]]:
    return float(kept.mean()), float(exact.mean()), wilson(float(kept.sum()), len(kept))


def judged_positions(env: Env, count: int, seed: int, max_ply: int = MAX_PLY) -> Positions:
    """`count` solved positions, from the user's cache if it has them, otherwise drawn and solved now.

    The cache (`$XDG_CACHE_HOME/podzero`, else `~/.cache/podzero`) only saves time and may be deleted.

    Raises:
      ConfigError: the game has no solver, or fewer positions.
    """
    solver = make_solver(env.spec.name)
    game = env.spec.name.replace("/", "-")
    file = _cache_folder() / f"positions-{game}-{count}-{seed}-{max_ply}-{_FORMAT}.npz"
    held = _load(file, count)
    if held is not None:
        return held
    positions = draw_positions(env, solver, count, seed, max_ply)
    _save(file, positions)
    return positions


def all_positions(env: Env, max_ply: int) -> Positions:
    """All positions up to a ply in which legal moves differ in value, each once, whatever moves lead to it.

    For small games: each ply is held in memory.

    Raises:
      ConfigError: the game has no solver.
    """
    solver, found = make_solver(env.spec.name), []
    moves = np.full((1, max_ply), -1, np.int32)
    for ply in range(max_ply + 1):
        view = jax.device_get(jax.vmap(env.view)(replay(env, moves)))
        _, distinct = np.unique(view.observation.reshape(len(moves), -1), axis=0, return_index=True)
        open_ = distinct[~view.done[distinct]]
        if not len(open_):
            break
        moves, legal = moves[open_], view.legal[open_]
        scores = solver.scores(view.observation[open_])
        values = game_values(scores)
        differ = np.nanmax(values, axis=1) > np.nanmin(values, axis=1)
        found.append(Positions(moves[differ], scores[differ]))
        rows, actions = np.nonzero(legal)
        moves = moves[rows]
        moves[:, ply : ply + 1] = actions[:, None]
    return Positions(*(np.concatenate(field) for field in zip(*found, strict=True)))


def draw_positions(env: Env, solver: Solver, count: int, seed: int, max_ply: int = MAX_PLY) -> Positions:
    """Draws and solves positions: uniformly random legal play up to a ply drawn uniformly from 0 to `max_ply`.

    Each position is drawn once, whatever moves lead to it: one that is judged often would count as often. Terminal
    positions, and positions in which all legal moves have the same value, are rejected. Early plies are more frequent,
    because long random games are often over or decided.

    Raises:
      ConfigError: the game has fewer positions.
    """
    key, rng = jax.random.key(seed), np.random.default_rng(seed)
    play = random_games(env, max_ply)
    moves: list[np.ndarray[Any, Any]] = []
    scores: list[Scores] = []
    known: set[bytes] = set()
    without = 0
    while len(moves) < count and without < _PATIENCE:
        key, play_key = jax.random.split(key)
        candidates = jax.device_get(play(play_key, rng.integers(0, max_ply + 1, _CANDIDATES)))
        before = len(known)
        for played, observation in zip(*(leaf[~candidates.over] for leaf in candidates[:2]), strict=True):
            if len(moves) < count and observation.tobytes() not in known:
                known.add(observation.tobytes())
                exact = solver.scores(observation[None])[0]
                if len(np.unique(game_values(exact[~np.isnan(exact)]))) > 1:
                    moves.append(played)
                    scores.append(exact)
        without = 0 if len(known) > before else without + 1
    if len(moves) < count:
        raise ConfigError(
            f"{env.spec.name} has only some {len(moves)} positions in which moves differ in value; ask for fewer "
            f"than {count}"
        )
    return Positions(np.stack(moves), np.stack(scores))


def replay(env: Env, moves: np.ndarray[Any, Any]) -> EnvState:
    """The states after `moves` (`[N, T]` int32, -1 after the last), all from the same initial state."""

    def ply(t: Array, states: EnvState) -> EnvState:
        goes_on = actions[:, t] >= 0
        any_legal = jnp.argmax(jax.vmap(env.view)(states).legal, axis=1)
        played = jax.vmap(env.step)(states, jnp.where(goes_on, actions[:, t], any_legal))
        return jax.vmap(optax.tree.where)(goes_on, played, states)

    actions = jnp.asarray(moves)
    starts = jax.vmap(env.init)(jnp.broadcast_to(jax.random.key(0), actions.shape[:1]))
    return jax.jit(partial(jax.lax.fori_loop, 0, actions.shape[1], ply))(starts)


class RandomGames(NamedTuple):
    """N random games, each stopped at its ply."""

    moves: Array
    """`[N, max_ply]` int32, -1 after the last."""
    observations: Array
    """`[N, *observation_shape]`."""
    over: Array
    """`[N]` bool."""


def random_games(env: Env, max_ply: int) -> Callable[[Array, Array], RandomGames]:
    """Compiles uniformly random play up to given plies, as a function of `(key, plies [N])`."""

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


def _is_best(actions: np.ndarray[Any, Any], scores: Scores) -> np.ndarray[Any, Any]:
    chosen = scores[np.arange(len(actions)), actions]
    best: np.ndarray[Any, Any] = chosen == np.nanmax(scores, axis=1)
    return best


def _cache_folder() -> Path:
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "podzero"


def _load(file: Path, count: int) -> Positions | None:
    """The cached positions; None if there are none or the file is damaged."""
    try:
        with np.load(file) as arrays:
            held = Positions(arrays["moves"], arrays["scores"])
    except (OSError, ValueError, KeyError, EOFError, BadZipFile):
        return None
    return held if len(held.moves) == len(held.scores) == count else None


def _save(file: Path, positions: Positions) -> None:
    """Replaces the cache file atomically. If it cannot be written, the next run solves the positions again."""
    temporary = file.with_name(f".{os.getpid()}-{file.name}")
    try:
        file.parent.mkdir(parents=True, exist_ok=True)
        np.savez_compressed(temporary, moves=positions.moves, scores=positions.scores)
        os.replace(temporary, file)
    except OSError as error:
        log.warning("cannot cache the solved positions for the next run in %s: %s", file, error.strerror)
        with suppress(OSError):
            temporary.unlink()
