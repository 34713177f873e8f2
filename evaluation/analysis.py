"""Batched analysis of positions: JSON lines in, one answer per line out, in the same order."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from queue import Empty
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax

from podzero.envs import simulator_errors
from podzero.evaluation.players import SearchPlayer
from podzero.protocols import Env
from podzero.reading import read_ahead
from podzero.types import Array, EnvState

BATCH = 64
"""Batch size of the search. One position alone is a batch of one; all other batches are padded to this size, so that
only two programs are ever compiled."""


class _Request(NamedTuple):
    """A parsed line: moves, or the error in it."""

    id: Any
    moves: list[int]
    error: str | None


class Analyst:
    """Answers requests with the search of one player."""

    def __init__(self, env: Env, player: SearchPlayer) -> None:
        self._env = env
        self._player = player
        self._key = jax.random.key(0)
        self._start = env.init(jax.random.key(0))
        self._view = jax.jit(jax.vmap(env.view))
        self._advance = jax.jit(self._play_where_legal)

    def answers(self, lines: Iterable[str]) -> Iterator[dict[str, Any]]:
        """One answer to every non-empty line; see `podzero.evaluation.evaluate.analyze`."""
        for batch in _as_they_come(lines):
            yield from self._answer([_parse(line, self._env.spec.num_actions) for line in batch])

    def _answer(self, requests: list[_Request]) -> Iterator[dict[str, Any]]:
        size = 1 if len(requests) == 1 else BATCH
        padding = [_Request(None, [], None)] * (size - len(requests))
        self._key, key = jax.random.split(self._key)
        with simulator_errors():
            roots, errors = self._replay([*requests, *padding])
            result = jax.device_get(self._player.search(key, roots))
        for i, request in enumerate(requests):
            error = request.error or errors[i]
            if error:
                yield {"id": request.id, "error": error}
            else:
                yield {
                    "id": request.id,
                    "move": int(result.action[i]),
                    "policy": [round(float(p), 6) for p in result.policy[i]],
                    "value": round(float(result.value[i]), 6),
                    "visits": result.visits[i].tolist(),
                }

    def _replay(self, requests: list[_Request]) -> tuple[EnvState, list[str | None]]:
        """Roots for the search and errors in the moves; a request with an error gets the initial state as its root."""
        fresh = jax.tree.map(lambda leaf: jnp.broadcast_to(leaf, (len(requests), *leaf.shape)), self._start)
        states = fresh
        errors: list[str | None] = [None] * len(requests)
        for ply in range(max(len(request.moves) for request in requests)):
            actions = [r.moves[ply] if ply < len(r.moves) else -1 for r in requests]
            states, refused = self._advance(states, np.array(actions, np.int32))
            for i in np.flatnonzero(refused):
                errors[i] = errors[i] or f"move {ply + 1} ({actions[i]}) is illegal in that position"
        over = np.asarray(self._view(states).done)
        for i in np.flatnonzero(over):
            errors[i] = errors[i] or f"the game is over after these {len(requests[i].moves)} moves"
        return jax.vmap(optax.tree.where)(over, fresh, states), errors

    def _play_where_legal(self, states: EnvState, actions: Array) -> tuple[EnvState, Array]:
        """Plays the actions except -1; refuses illegal ones and all in terminal states. Returns states, refused."""
        view = jax.vmap(self._env.view)(states)
        legal = jnp.take_along_axis(view.legal, jnp.maximum(actions, 0)[:, None], axis=1)[:, 0] & ~view.done
        goes_on = (actions >= 0) & legal
        played = jax.vmap(self._env.step)(states, jnp.where(goes_on, actions, jnp.argmax(view.legal, axis=1)))
        return jax.vmap(optax.tree.where)(goes_on, played, states), (actions >= 0) & ~legal


def _parse(line: str, num_actions: int) -> _Request:
    try:
        tree = json.loads(line)
        json.dumps(tree, allow_nan=False)  # the answer repeats the id, and NaN is not JSON
    except (ValueError, RecursionError) as error:
        return _Request(None, [], f"invalid JSON: {error}")
    if not isinstance(tree, dict):
        return _Request(None, [], 'expected an object, for example {"id": 1, "moves": [3, 3, 4]}')
    moves = tree.get("moves")
    if not isinstance(moves, list) or not all(type(move) is int and 0 <= move < num_actions for move in moves):
        return _Request(tree.get("id"), [], f'expected "moves" to be a list of actions from 0 to {num_actions - 1}')
    return _Request(tree.get("id"), moves, None)


def _as_they_come(lines: Iterable[str]) -> Iterator[list[str]]:
    """Batches of at most `BATCH` lines that have arrived; a single line is not held back to fill a batch."""
    waiting = read_ahead(lines, 4 * BATCH)
    batch: list[str] = []
    while True:
        try:
            item = waiting.get(block=not batch)
        except Empty:
            yield batch
            batch = []
            continue
        if isinstance(item, str):
            batch.append(item)
        if batch and (len(batch) == BATCH or not isinstance(item, str)):
            yield batch
            batch = []
        if isinstance(item, Exception):
            raise item
        if item is None:
            return
