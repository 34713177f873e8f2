"""Solvers: exact scores of every action in games that can be solved; and how they judge the moves of players.

Players are judged in positions that are drawn evenly over the plies, each with the exact score of every move. Labelled
positions come with podzero (`evaluation/labels/`), so that training runs need no solver installed.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from functools import cache, lru_cache
from itertools import zip_longest
from pathlib import Path
from typing import Any, Literal, NamedTuple, cast, get_args

import jax
import jax.numpy as jnp
import numpy as np
import optax

from podzero.core.errors import ConfigError
from podzero.core.importing import import_extra
from podzero.core.protocols import Env
from podzero.core.types import Array, EnvState
from podzero.envs.notation import notation_of
from podzero.evaluation.players import Player, SearchPlayer, random_actions
from podzero.evaluation.statistics import wilson

Scores = np.ndarray[Any, np.dtype[np.float32]]
"""`[B, A]` float32, NaN for illegal actions."""


Solver = Callable[[np.ndarray[Any, Any]], Scores]
"""The exact scores of all actions for the player to move, from `[B, *observation_shape]` of non-terminal positions.

Positive scores win, zero draws, negative ones lose; sooner wins and later losses score higher.
"""


def game_values(scores: Scores) -> Scores:
    """Game values of scores: 1 wins, 0 draws, -1 loses, NaN is illegal."""
    return np.asarray(np.sign(scores))


def _planes_of_the_mover(board: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    """Planes of the player to move and the opponent, from planes of players 0 and 1 and one with the mover's number."""
    first, second, mover = board[..., :1], board[..., 1:2], board[..., -1:]
    return np.where(mover == 0, np.concatenate([first, second], -1), np.concatenate([second, first], -1))


_ELSEWHERE: Mapping[str, tuple[str, Callable[[np.ndarray[Any, Any]], np.ndarray[Any, Any]]]] = {
    # Row 0 of OpenSpiel's board is the lowest.
    "open_spiel/connect_four": ("connect_four", lambda seen: _planes_of_the_mover(seen[..., ::-1, :, :])),
    "open_spiel/connect_four(egocentric_obs_tensor=True)": ("connect_four", lambda seen: seen[..., ::-1, :, 1::-1]),
    "open_spiel/tic_tac_toe": ("tic_tac_toe", lambda seen: _planes_of_the_mover(seen[..., [2, 1, 3]])),
}
"""Games of other libraries that have a JAX version: its name, and the conversion of observations to its format."""
SOLVED = ("connect_four", "tic_tac_toe", *_ELSEWHERE)
"""Games that have a solver."""


@cache
def make_solver(game: str) -> Solver:
    """The solver of a game; cached. `ConfigError` if there is none, or its package is not installed."""
    match game:
        case "tic_tac_toe":
            return tic_tac_toe_solver()
        case "connect_four":
            return connect_four_solver()
        case _ if game in _ELSEWHERE:
            name, translate = _ELSEWHERE[game]
            solver = make_solver(name)
            return lambda observations: solver(translate(np.asarray(observations)).astype(np.bool_))
        case _:
            raise ConfigError(f"no solver for '{game}'; games with one: {', '.join(SOLVED)}")


_POWERS_OF_3 = 3 ** np.arange(9)
_OTHER_SIDE = (0, 2, 1)
_LINES = ((0, 1, 2), (3, 4, 5), (6, 7, 8), (0, 3, 6), (1, 4, 7), (2, 5, 8), (0, 4, 8), (2, 4, 6))


def tic_tac_toe_solver() -> Solver:
    """A table of all positions, by negamax; a win with e empty cells left scores e + 1, a loss -(e + 1)."""
    table = np.full((3**9, 9), np.nan, np.float32)

    def fill(cells: tuple[int, ...]) -> float:
        """The score of a position (0 empty, 1 the mover's, 2 the opponent's); fills the table for its subtree."""
        empty = cells.count(0)
        if any(all(cells[cell] == 2 for cell in line) for line in _LINES):
            return -(empty + 1)
        if not empty:
            return 0
        row = table[int(np.dot(cells, _POWERS_OF_3))]
        if np.isnan(row).all():
            for cell in (cell for cell in range(9) if not cells[cell]):
                played = (*cells[:cell], 1, *cells[cell + 1 :])
                row[cell] = -fill(tuple(_OTHER_SIDE[mark] for mark in played))
        return float(np.nanmax(row))

    def solve(observations: np.ndarray[Any, Any]) -> Scores:
        mine, theirs = (observations[..., side].reshape(-1, 9).astype(np.int64) for side in (0, 1))
        return np.asarray(table[(mine + 2 * theirs) @ _POWERS_OF_3])

    fill((0,) * 9)
    return solve


def connect_four_solver() -> Solver:
    """BitBully with its 12-ply book (Thill, https://github.com/MarkusThill/BitBully).

    A win scores the number of moves the winner has left. Solved positions are cached. The slowest positions, just
    beyond the book, take about 0.2 s each on one core.
    """
    library = import_extra("bitbully", "solving connect four", "solver")
    bitbully = library.BitBully()

    @lru_cache(maxsize=200_000)
    def solve_board(packed: bytes) -> tuple[float, ...]:
        board = np.unpackbits(np.frombuffer(packed, np.uint8))[: 6 * 7 * 2].reshape(6, 7, 2)
        # Plane 0 holds the stones of the player to move; BitBully's player 1 is the one who began.
        mover = 1 if board[..., 0].sum() == board[..., 1].sum() else 2
        marks = mover * board[..., 0] + (3 - mover) * board[..., 1]
        known = bitbully.score_all_moves(library.Board.from_array(marks.tolist()))
        return tuple(float(known.get(column, np.nan)) for column in range(7))

    def solve(observations: np.ndarray[Any, Any]) -> Scores:
        boards = np.asarray(observations).reshape(-1, 6, 7, 2)
        return np.array([solve_board(np.packbits(board).tobytes()) for board in boards], np.float32)

    return solve


class SolverPlayer:
    """Perfect play: a uniformly random action among those with the best exact score."""

    name = "solver"
    deterministic = False

    def __init__(self, env: Env, solver: Solver) -> None:
        self._solver = solver
        self._observe = jax.jit(lambda states: jax.vmap(env.view)(states).observation)
        self._choose = jax.jit(random_actions)

    def choose(self, key: Array, states: EnvState) -> Array:
        """See `Player`."""
        scores = self._solver(np.asarray(self._observe(states)))
        return cast(Array, self._choose(key, scores == np.nanmax(scores, axis=-1, keepdims=True)))


MAX_PLY = 30
"""Last ply of judged positions."""
Part = Literal["test", "validation"]
"""Results are measured on `test`; a run judges its snapshots on `validation`. In connect four the two are disjoint, in
tic-tac-toe both are all positions in which moves differ in value."""
LABELS = Path(__file__).parent / "labels"
"""Labelled positions that come with podzero: GAME-PART.npz."""
_CANDIDATES = 512
"""Random games per batch."""
_MOST_MISSES = 2000
"""After so many random games without a new position at a ply, it counts as exhausted."""


class JudgedPositions(NamedTuple):
    """N positions whose legal moves differ in value, with the exact score of each move."""

    moves: np.ndarray[Any, Any]
    """`[N, max_ply]` int32, the moves that lead to each position, padded with -1."""
    scores: Scores
    """`[N, A]` float32, exact scores of the actions (`Solver`)."""

    @property
    def plies(self) -> np.ndarray[Any, Any]:
        """`[N]`, moves played before each position."""
        return np.asarray((self.moves >= 0).sum(axis=1))

    def at(self, rows: Any) -> JudgedPositions:
        """The positions that a slice, indices or a mask choose."""
        return JudgedPositions(self.moves[rows], self.scores[rows])


def judged_positions(env: Env, count: int, seed: int, part: Part = "test") -> JudgedPositions:
    """`count` solved positions, evenly over the plies; the same for the same arguments.

    They come from the game's labels if these suffice, otherwise they are drawn and solved, which takes minutes.
    """
    labels = read_labels(env.spec.name, part)
    if labels is not None and count <= len(labels.moves):
        return evenly_ordered(labels, np.random.default_rng(seed)).at(slice(count))
    # The two parts have even and odd seeds, so that no seed draws the same positions for both.
    return draw_positions(env, make_solver(env.spec.name), count, get_args(Part).index(part) + 2 * seed)


def read_labels(game: str, part: Part | Literal["games"]) -> JudgedPositions | None:
    """The labelled positions of a game that come with podzero, or None. `games` are of strong players against perfect
    play, all others of random play.
    """
    known = _ELSEWHERE[game][0] if game in _ELSEWHERE else game
    file = LABELS / f"{known}-{part}.npz"
    if not file.is_file():
        return None
    with np.load(file) as arrays:
        return JudgedPositions(arrays["moves"].astype(np.int32), arrays["scores"].astype(np.float32))


def draw_positions(env: Env, solver: Solver, count: int, seed: int, max_ply: int = MAX_PLY) -> JudgedPositions:
    """Draws distinct positions by uniformly random play and solves them.

    Positions that are terminal, or whose legal moves all have the same value, are rejected. Every prefix of the result
    is even over plies 0 to `max_ply`, except that early plies have few positions.
    """
    key, rng = jax.random.key(seed), np.random.default_rng(seed)
    play = random_games(env, max_ply)
    found: list[list[tuple[np.ndarray[Any, Any], Scores]]] = [[] for _ in range(max_ply + 1)]
    # Consecutive candidates without a new position, by ply.
    misses = np.zeros(max_ply + 1, np.int64)
    known: set[bytes] = set()
    while len(wanted := _wanted(np.array([*map(len, found)]), misses, count)):
        key, play_key = jax.random.split(key)
        plies = rng.choice(wanted, _CANDIDATES)
        for ply, moves, observation, over in zip(plies, *jax.device_get(play(play_key, plies)), strict=True):
            board = observation.tobytes()
            if over or board in known:
                misses[ply] += 1
                continue
            known.add(board)
            misses[ply] = 0
            scores = solver(observation[None])[0]
            if len(np.unique(game_values(scores[~np.isnan(scores)]))) > 1:
                found[ply].append((moves, scores))
    # The first of each ply, then the second of each ply, and so on.
    listed = [entry for each in zip_longest(*found) for entry in each if entry is not None]
    if len(listed) < count:
        raise ConfigError(
            f"found only {len(listed)} positions of {env.spec.name} in which moves differ in value; ask for fewer than "
            f"{count}"
        )
    return JudgedPositions(*map(np.stack, zip(*listed[:count], strict=True)))


def _wanted(sizes: np.ndarray[Any, Any], misses: np.ndarray[Any, Any], count: int) -> np.ndarray[Any, Any]:
    """The plies that need more positions, of those that are not exhausted."""
    is_open = misses < _MOST_MISSES
    each = -(-(count - sizes[~is_open].sum()) // max(is_open.sum(), 1))
    return np.flatnonzero(is_open & (sizes < each))


def evenly_ordered(positions: JudgedPositions, rng: np.random.Generator) -> JudgedPositions:
    """The positions in an order that is random, with every prefix even over the plies."""
    shuffled = rng.permutation(len(positions.moves))
    plies = positions.plies[shuffled]
    rounds = np.zeros(len(plies), np.int64)
    for ply in np.unique(plies):
        rounds[plies == ply] = np.arange((plies == ply).sum())
    return positions.at(shuffled[np.lexsort((plies, rounds))])


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


def random_games(env: Env, max_ply: int) -> Callable[[Array, Array], tuple[Array, Array, Array]]:
    """Compiles uniformly random play of N games, each up to a ply of its own: a function of `(key, plies [N])`.

    Returns moves `[N, max_ply]` int32, padded with -1, last observations, and whether games are over, `[N]` bool.
    """

    def ply(states: EnvState, key: Array) -> tuple[EnvState, tuple[Array, Array, Array]]:
        view = jax.vmap(env.view)(states)
        actions = random_actions(key, view.legal)
        return jax.vmap(env.step)(states, actions), (actions, view.observation, view.done)

    def play(key: Array, plies: Array) -> tuple[Array, Array, Array]:
        starts = jax.vmap(env.init)(jnp.broadcast_to(jax.random.key(0), plies.shape))
        _, (actions, observations, over) = jax.lax.scan(ply, starts, jax.random.split(key, max_ply + 1))
        games = jnp.arange(plies.shape[0])
        moves = jnp.where(jnp.arange(max_ply) < plies[:, None], actions[:max_ply].T, -1)
        return moves, observations[plies, games], over[plies, games]

    return cast(Callable[[Array, Array], tuple[Array, Array, Array]], jax.jit(play))


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
    value_error: float | None
    """Mean absolute difference of a network's values from those of the game; None where moves alone are judged."""
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
        """Judges the values and the most probable moves of a player's network, without search."""
        policy, values = map(np.asarray, player.evaluate(self._states))
        return judge_actions(policy.argmax(axis=1), self._positions, values)


def judge_actions(
    actions: np.ndarray[Any, Any],
    positions: JudgedPositions,
    values: np.ndarray[Any, Any] | None = None,
    bands: Iterable[tuple[int, int]] = BANDS,
) -> JudgeResult:
    """Judges an action for each position, `[N]`, and a value for its player to move, `[N]` in [-1, 1]."""
    known = game_values(positions.scores)
    good = _is_best(actions, known)
    plies = positions.plies
    return JudgeResult(
        positions=len(actions),
        keeps_value=float(good.mean()),
        exact=float(_is_best(actions, positions.scores).mean()),
        by_ply={int(ply): float(good[plies == ply].mean()) for ply in np.unique(plies)},
        interval=wilson(float(good.sum()), len(good)),
        value_error=None if values is None else float(np.abs(values - np.nanmax(known, axis=1)).mean()),
        bands={
            (first, last): judge_actions(
                actions[inside], positions.at(inside), None if values is None else values[inside], ()
            )
            for first, last in bands
            if (inside := (plies >= first) & (plies <= last)).any()
        },
    )


def _is_best(actions: np.ndarray[Any, Any], scores: Scores) -> np.ndarray[Any, Any]:
    chosen = scores[np.arange(len(actions)), actions]
    return np.asarray(chosen == np.nanmax(scores, axis=1))


OPENINGS_GAME = "hex_7x7"
"""The game whose openings are judged."""
WON_OPENINGS = "a4 a6 a7 b3 b4 b5 b6 c2 c3 c4 c5 c6 d3 d4 d5 e2 e3 e4 e5 e6 f2 f3 f4 f5 g1 g2 g4"
"""The openings of Hex on the 7 x 7 board that win unless the opponent swaps; the other 22 lose (Hayward et al. 2005,
Solving 7x7 Hex with domination, fill-in, and virtual connections, Theoretical Computer Science 349).
"""


def judge_openings(env: Env, player: Player, key: Array) -> dict[str, Any]:
    """Judges a player's answers to the 49 openings of Hex on the 7 x 7 board: it should swap those that win, no other.

    Returns `right`, a number of openings, and `wrong`, the names of the others.
    """
    swap = env.spec.num_actions - 1
    openings = [notation_of(env.spec).names([square])[0] for square in range(swap)]
    swaps = np.asarray(player.choose(key, replay(env, np.arange(swap, dtype=np.int32)[:, None]))) == swap
    wrong = [name for name, swapped in zip(openings, swaps, strict=True) if swapped != (name in WON_OPENINGS.split())]
    return {"right": swap - len(wrong), "wrong": wrong}
