"""The command `analyze`: searches of positions that arrive as lines of JSON."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from functools import cache
from queue import Empty
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax

from podzero.config import KOMI
from podzero.core.errors import ConfigError, nearest
from podzero.core.protocols import Env
from podzero.core.reading import End, read_ahead, unique_keys
from podzero.core.types import Array, EnvState, SearchResult
from podzero.envs import GameOfChance, make_env, notation_for, simulator_errors
from podzero.envs.boards.go import Go, check_komi, with_komi
from podzero.envs.notation import NotationError
from podzero.evaluation.players import SearchPlayer
from podzero.evaluation.resolve import search_player, usual_simulations, with_simulations
from podzero.files.players import TrainedPlayer, game_to_play, knows_komi, parse_player

BATCH = 64
"""Batch size of the search: batches of several positions are padded to it, so that only two programs are compiled."""
FRACTIONS = (1, 4, 16, 64)
"""What the usual number of simulations is divided by for the sizes that `maxVisits` chooses from."""
_KEYS = ("id", "moves", "names", "maxVisits", "komi")


def analyze(
    who: str, lines: Iterable[str], simulations: int | None = None, game: str | None = None
) -> Iterator[dict[str, Any]]:
    """Searches positions given as JSON lines, by the moves that lead to them.

    `{"id": 1, "moves": [3, 3, 4]}` gives `{"id": 1, "move": 2, "policy": [...], "value": 0.31, "visits": [...]}`, with
    the value for the player to move. Moves may be names, as `"d"`; then, or with `"names": true`, the answer names its
    move, and `policy` and `visits` are objects with the moves that have any. With `"maxVisits": N` the search is the
    largest of the usual one, a quarter, a 16th and a 64th of it with at most N simulations. An invalid line, or an
    unknown key, gives `{"id": ..., "error": "..."}`. Answers keep the order of lines; waiting lines are one batch.

    Raises:
      ConfigError, WorkdirError, SnapshotError: see `resolve`; raised before the first line is read.
    """
    where, player = game_to_play(game, who), parse_player(who)
    env = make_env(where)
    if isinstance(env, GameOfChance):
        raise ConfigError(f"{env.spec.name} is a game of chance: its moves alone do not lead to a position")
    usual = simulations if simulations and isinstance(player, TrainedPlayer) else usual_simulations(player)

    def searcher(size: int) -> SearchPlayer:
        return search_player(with_simulations(who, size), env, size, where.discount)

    return Analyst(env, searcher, usual, knows_komi(player)).answers(lines)


class AnalysisRequest(NamedTuple):
    """A parsed line."""

    id: Any = None
    moves: Sequence[int | str] = ()
    """Actions, or their names."""
    named: bool = False
    """Whether the answer names moves."""
    simulations: int | None = None
    """None for the usual number."""
    komi: float = KOMI
    error: str | None = None
    """What is wrong with the line."""


class Analyst:
    """Answers requests with the searches of one player."""

    def __init__(self, env: Env, searcher: Callable[[int], SearchPlayer], usual: int, knows_komi: bool = False) -> None:
        """Makes the search with the `usual` number of simulations; `searcher` makes smaller ones when they are needed.

        `knows_komi`: whether the search is told the komi of a game of Go.
        """
        self._env = env
        self._sizes = sorted({max(usual // part, 1) for part in FRACTIONS})
        self._searcher = cache(searcher)
        self._searcher(usual)
        self._notation = notation_for(env)
        self._key = jax.random.key(0)
        self._start = env.init(jax.random.key(0))
        self._knows_komi = knows_komi
        self._view = jax.jit(jax.vmap(env.view))
        self._advance = jax.jit(self._play_where_legal)

    def answers(self, lines: Iterable[str]) -> Iterator[dict[str, Any]]:
        """One answer per non-empty line; see `analyze`."""
        for batch in _as_they_come(lines):
            requests = [self.request(line) for line in batch]
            answers: dict[int, dict[str, Any]] = {}
            sizes = [request.simulations or self._sizes[-1] for request in requests]
            for size in set(sizes):
                places = [place for place, wanted in enumerate(sizes) if wanted == size]
                answers |= zip(places, self._answer([requests[place] for place in places], size), strict=True)
            yield from (answers[place] for place in range(len(requests)))

    def request(self, line: str) -> AnalysisRequest:
        """Parses a line."""
        try:
            tree = json.loads(line, object_pairs_hook=unique_keys)
            # The answer repeats the id; NaN is not JSON.
            json.dumps(tree, allow_nan=False)
        except (ValueError, RecursionError) as error:
            return AnalysisRequest(error=f"invalid JSON: {error}")
        if not isinstance(tree, dict):
            return AnalysisRequest(error='expected an object, for example {"id": 1, "moves": [3, 3, 4]}')
        try:
            return self._checked(tree)
        except ValueError as error:
            return AnalysisRequest(tree.get("id"), error=str(error))

    def _checked(self, tree: dict[str, Any]) -> AnalysisRequest:
        """The request of an object; raises ValueError for one that is none."""
        for key in (key for key in tree if key not in _KEYS):
            raise ValueError(f"unknown key '{key}'{nearest(key, _KEYS)}; known: {', '.join(_KEYS)}")
        moves, most, names = tree.get("moves"), tree.get("maxVisits"), tree.get("names", False)
        actions = range(self._env.spec.num_actions)
        # Not `isinstance`, for which `true` is an integer.
        if type(moves) is not list or not all(type(m) is str or (type(m) is int and m in actions) for m in moves):
            raise ValueError(f'expected "moves" to be a list of names, or of actions from 0 to {actions[-1]}')
        if most is not None and not (type(most) is int and most > 0):
            raise ValueError(f'expected "maxVisits" to be a positive integer, found {json.dumps(most)}')
        if not isinstance(names, bool):
            raise ValueError(f'expected "names" to be true or false, found {json.dumps(names)}')
        if "komi" in tree:
            self._check_komi(tree["komi"])
        size = max((size for size in self._sizes if most is None or size <= most), default=self._sizes[0])
        named = names or any(isinstance(move, str) for move in moves)
        return AnalysisRequest(tree.get("id"), moves, named, size, tree.get("komi", KOMI))

    def _check_komi(self, komi: Any) -> None:
        if not isinstance(self._env, Go):
            raise ValueError(f"{self._env.spec.name} has no komi")
        if komi == KOMI:
            return
        if not self._knows_komi:
            raise ValueError(f"komi {komi}: the search knows only {KOMI}; train with env.komi to have others")
        if type(komi) not in (int, float):
            raise ValueError(f'expected "komi" to be a number, found {json.dumps(komi)}')
        check_komi(komi)

    def _answer(self, requests: list[AnalysisRequest], simulations: int) -> Iterator[dict[str, Any]]:
        """The answers to at most `BATCH` requests."""
        padding = [AnalysisRequest()] * ((1 if len(requests) == 1 else BATCH) - len(requests))
        self._key, key = jax.random.split(self._key)
        with simulator_errors():
            roots, errors = self._replay([*requests, *padding])
            result = jax.device_get(self._searcher(simulations).search(key, roots))
        for i, request in enumerate(requests):
            if error := request.error or errors[i]:
                yield {"id": request.id, "error": error}
            else:
                row = jax.tree.map(lambda leaf, i=i: leaf[i], result)
                yield {"id": request.id, **(self._with_names(roots, i, row) if request.named else _with_numbers(row))}

    def _with_names(self, roots: EnvState, i: int, result: SearchResult) -> dict[str, Any]:
        root = jax.tree.map(lambda leaf: leaf[i], roots)
        policy = np.round(np.asarray(result.policy, np.float64), 6)
        names = {int(a): self._notation.name(root, int(a)) for a in np.flatnonzero((policy > 0) | (result.visits > 0))}
        return {
            "move": names[int(result.action)],
            "policy": {name: float(policy[action]) for action, name in names.items()},
            "value": round(float(result.value), 6),
            "visits": {name: int(result.visits[action]) for action, name in names.items()},
        }

    def _replay(self, requests: list[AnalysisRequest]) -> tuple[EnvState, list[str | None]]:
        """Roots of the search, and errors in the moves; the root is the initial state where there is an error."""
        fresh = jax.tree.map(lambda leaf: jnp.broadcast_to(leaf, (len(requests), *leaf.shape)), self._start)
        if isinstance(self._env, Go):
            fresh = with_komi(fresh, np.array([request.komi for request in requests]))
        states = fresh
        errors: list[str | None] = [None] * len(requests)
        for ply in range(max(len(request.moves) for request in requests)):
            actions = [-1] * len(requests)
            for i, request in enumerate(requests):
                if ply < len(request.moves) and errors[i] is None:
                    actions[i], errors[i] = self._action(states, i, request.moves[ply], ply)
            if max(actions) < 0:
                break
            states, refused = self._advance(states, np.array(actions, np.int32))
            for i in np.flatnonzero(refused).tolist():
                errors[i] = f"move {ply + 1} ({requests[i].moves[ply]}) is illegal in that position"
        over = np.asarray(self._view(states).done)
        for i in np.flatnonzero(over).tolist():
            errors[i] = errors[i] or f"the game is over after these {len(requests[i].moves)} moves"
        failed = over | np.array([error is not None for error in errors])
        return jax.vmap(optax.tree.where)(failed, fresh, states), errors

    def _action(self, states: EnvState, i: int, move: int | str, ply: int) -> tuple[int, str | None]:
        """The action of a move of request `i`, and the error if its name means none; the action is then -1."""
        if not isinstance(move, str):
            return move, None
        try:
            return self._notation.action(jax.tree.map(lambda leaf: leaf[i], states), move), None
        except NotationError as error:
            return -1, f"move {ply + 1}: {error}"

    def _play_where_legal(self, states: EnvState, actions: Array) -> tuple[EnvState, Array]:
        """Plays the legal actions; -1 is none. Returns the states and a mask of illegal actions."""
        view = jax.vmap(self._env.view)(states)
        legal = jnp.take_along_axis(view.legal, jnp.maximum(actions, 0)[:, None], axis=1)[:, 0] & ~view.done
        goes_on = (actions >= 0) & legal
        played = jax.vmap(self._env.step)(states, jnp.where(goes_on, actions, jnp.argmax(view.legal, axis=1)))
        return jax.vmap(optax.tree.where)(goes_on, played, states), (actions >= 0) & ~legal


def _with_numbers(result: SearchResult) -> dict[str, Any]:
    return {
        "move": int(result.action),
        "policy": [round(float(p), 6) for p in result.policy],
        "value": round(float(result.value), 6),
        "visits": result.visits.tolist(),
    }


def _as_they_come(lines: Iterable[str]) -> Iterator[list[str]]:
    """Batches of the lines that have arrived, at most `BATCH`; never waits to fill a batch."""
    waiting = read_ahead(lines, 4 * BATCH)
    item: str | End
    while isinstance(item := waiting.get(), str):
        batch = [item]
        with suppress(Empty):
            while len(batch) < BATCH and isinstance(item := waiting.get_nowait(), str):
                batch.append(item)
        yield batch
        if not isinstance(item, str):
            break
    if isinstance(item, Exception):
        raise item
