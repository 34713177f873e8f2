"""Why a search errs: the line that refutes its estimate, followed through the tree that it has grown."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import numpy as np

from podzero.evaluation.solvers import Solver, game_values
from podzero.protocols import Env
from podzero.types import EnvState, SearchedNodes, SearchResult

NEVER_VISITED = "never visited"
VALUE_WRONG = "visited, value wrong"
SEEN_TO_THE_END = "visited to the end of the game"
NOT_CHOSEN = "valued higher, not chosen"
REASONS = (NEVER_VISITED, VALUE_WRONG, SEEN_TO_THE_END, NOT_CHOSEN)
"""Why a search errs; see `Refutations`."""

Json = dict[str, Any]
Rows = np.ndarray[Any, Any]


class _Walk(NamedTuple):
    """One error, and the node that its line has reached."""

    row: int
    """Of the batch."""
    prover: int
    """The player who stands better than the search believes."""
    node: int
    error: Json


class Refutations:
    """Follows refutations through kept trees.

    The line of an error begins with the move whose estimate is farther from the truth: the move that was played, if the
    opponent refutes it, or the best other move, if the player to move stands better there than the search believes. In
    the line the prover plays right moves by the solver, of several the one with the most visits, and the other player
    the move with the most visits. It ends where the tree holds no such move:

    - `NEVER_VISITED`: it holds none of the prover's right moves, although the node has more visits than legal moves;
    - `VALUE_WRONG`: it goes no further, so what it knows of the line is the network's value of its end;
    - `SEEN_TO_THE_END`: the game is over.

    The reason is `NOT_CHOSEN` where the Q-value of a right move is above that of the move that was played: sequential
    halving had dropped it before, or the prior outweighs the values.

    Args:
      env: the game.
      solver: of the game.
      logits: the network's, `[N, A]`, of N observations.
    """

    def __init__(self, env: Env, solver: Solver, logits: Callable[[Rows], Rows]) -> None:
        self._solver = solver
        self._logits = logits
        self._view = jax.jit(jax.vmap(env.view))
        self._step = jax.jit(jax.vmap(env.step))

    def __call__(self, states: EnvState, scores: Rows, result: SearchResult) -> list[Json]:
        """The errors of a batch of B searches with kept nodes.

        Args:
          states: B searched states.
          scores: `[B, A]`, exact scores of the actions (`Solver.scores`).
          result: on the host.

        Returns:
          for each error its `row`, the `played` and the `right` move with their Q-values, the `reason`, the `line` of
          actions, and the `visits` of the node where it ends. For `NEVER_VISITED` also the number of `replies` there
          and the largest `prior` of a right one.
        """
        values, player = game_values(scores), np.asarray(self._view(states).player)
        wrong = np.flatnonzero(values[np.arange(len(values)), result.action] < np.nanmax(values, axis=1))
        begun = [_begun(int(row), int(player[row]), values[row], result) for row in wrong]
        walks = [walk for walk in begun if "reason" not in walk.error]
        while walks:
            moves = np.asarray(self._view(states).legal).argmax(axis=1).astype(np.int32)
            for walk in walks:
                moves[walk.row] = walk.error["line"][-1]
            states = self._step(states, moves)
            walks = self._advanced(states, walks, result.nodes)
        return [walk.error for walk in begun]

    def _advanced(self, states: EnvState, walks: list[_Walk], nodes: SearchedNodes | None) -> list[_Walk]:
        """The lines that go on, each with one move more."""
        view = jax.device_get(self._view(states))
        found = []
        for walk in walks:
            if view.done[walk.row]:
                walk.error["reason"] = SEEN_TO_THE_END
                continue
            observation, allowed = view.observation[walk.row], np.asarray(view.legal[walk.row])
            proves = view.player[walk.row] == walk.prover
            if proves:
                values = game_values(self._solver.scores(observation[None]))[0]
                allowed = values == np.nanmax(values)
            moved = _moved(walk, allowed, nodes)
            if moved is not None:
                found.append(moved)
                continue
            replies = int(view.legal[walk.row].sum())
            walk.error["reason"] = NEVER_VISITED if proves and walk.error["visits"] > replies else VALUE_WRONG
            if walk.error["reason"] == NEVER_VISITED:
                prior = np.exp(self._logits(observation[None])[0]) * view.legal[walk.row]
                walk.error.update(replies=replies, prior=round(float((prior / prior.sum())[allowed].max()), 4))
        return found


def _begun(row: int, player: int, values: Rows, result: SearchResult) -> _Walk:
    """The error of one search, and the first move of its line."""
    qvalues, visits, played = np.asarray(result.qvalues)[row], np.asarray(result.visits)[row], int(result.action[row])
    right = int(np.argmax(np.where(values == np.nanmax(values), visits, -1)))
    error: Json = {
        "row": row,
        "played": played,
        "right": right,
        "played_qvalue": round(float(qvalues[played]), 3),
        "right_qvalue": round(float(qvalues[right]), 3),
        "line": [],
    }
    if visits[right] and qvalues[right] > qvalues[played]:
        error["reason"] = NOT_CHOSEN
    overrated, underrated = qvalues[played] - values[played], values[right] - qvalues[right]
    if not visits[right] or overrated >= underrated:
        first, prover = played, 1 - player
    else:
        first, prover = right, player
    moved = _moved(_Walk(row, prover, 0, error), np.arange(len(values)) == first, result.nodes)
    assert moved is not None
    return moved


def _moved(walk: _Walk, allowed: Rows, nodes: SearchedNodes | None) -> _Walk | None:
    """The line with the most visited of the allowed moves; None if the tree has none of them."""
    assert nodes is not None, "the search kept no nodes"
    children = np.flatnonzero(np.asarray(nodes.parent[walk.row]) == walk.node)
    children = children[allowed[np.asarray(nodes.action[walk.row])[children]]]
    if not len(children):
        return None
    visits = np.asarray(nodes.visits[walk.row])[children]
    child = int(children[visits.argmax()])
    walk.error["line"].append(int(nodes.action[walk.row][child]))
    walk.error["visits"] = int(visits.max())
    return walk._replace(node=child)
