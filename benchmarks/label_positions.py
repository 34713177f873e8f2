"""Writes the labelled positions that come with podzero.

    uv run --group dev python benchmarks/label_positions.py

Of connect four 1,000 random positions are `validation`, 5,000 are `test`, and `games` are of games between
`zoo:connect_four` and perfect play. Of tic-tac-toe all positions are both of the former. Needs the extra `solver`;
takes some minutes.
"""

from __future__ import annotations

from itertools import chain
from typing import Literal

import jax
import numpy as np

from podzero.core.protocols import Env
from podzero.envs import make_env
from podzero.evaluation.arena import Arena
from podzero.evaluation.resolve import resolve
from podzero.evaluation.solvers import (
    LABELS,
    MAX_PLY,
    JudgedPositions,
    Part,
    SolverPlayer,
    draw_positions,
    evenly_ordered,
    game_values,
    make_solver,
    replay,
)

COUNT = 6000
VALIDATION = 1000
STRONG, SIMULATIONS = "zoo:connect_four", 64
OPENINGS, OPENING_PLIES, FROM_GAMES = 200, 2, 1000
"""Openings of games against perfect play, each played from both sides; and positions that are taken from them."""
SEED = 2026


def main() -> None:
    """Draws, solves and writes both parts."""
    game = "connect_four"
    positions = draw_positions(make_env(game), make_solver(game), COUNT, SEED)
    chosen = np.random.default_rng(SEED).permutation(COUNT)
    _write(game, "validation", positions.at(np.sort(chosen[:VALIDATION])))
    _write(game, "test", positions.at(np.sort(chosen[VALIDATION:])))
    _write(game, "games", positions_of_games(make_env(game)))
    game = "tic_tac_toe"
    positions = all_positions(make_env(game), max_ply=8)
    _write(game, "validation", positions)
    _write(game, "test", positions)


def positions_of_games(env: Env) -> JudgedPositions:
    """Distinct positions of games between a strong player and perfect play in which legal moves differ in value, as
    evenly over the plies as these games allow.
    """
    solver, strong = make_solver(env.spec.name), resolve(STRONG, env, SIMULATIONS)
    pairs = Arena(env).pairs(
        strong, SolverPlayer(env, solver), OPENINGS, jax.random.key(SEED), OPENING_PLIES,
        report=lambda over, games, plies: print(f"ply {plies}: {over} of {games} games are over"),
    )  # fmt: skip
    moves = np.array([
        (*game.moves[:ply], *(MAX_PLY - ply) * (-1,))
        for game in chain.from_iterable(pairs)
        for ply in range(OPENING_PLIES, min(len(game.moves), MAX_PLY + 1))
    ], np.int32)  # fmt: skip
    boards = np.asarray(jax.jit(jax.vmap(env.view))(replay(env, moves)).observation)
    _, distinct = np.unique(boards.reshape(len(moves), -1), axis=0, return_index=True)
    scores = solver(boards[distinct])
    values = game_values(scores)
    differ = np.nanmax(values, axis=1) > np.nanmin(values, axis=1)
    found = JudgedPositions(moves[distinct], scores).at(differ)
    return evenly_ordered(found, np.random.default_rng(SEED)).at(slice(FROM_GAMES))


def _write(game: str, part: Part | Literal["games"], positions: JudgedPositions) -> None:
    file = LABELS / f"{game}-{part}.npz"
    np.savez_compressed(file, moves=positions.moves.astype(np.int8), scores=positions.scores.astype(np.float16))
    print(f"{file}: {len(positions.moves)} positions, {file.stat().st_size:,} bytes")


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


if __name__ == "__main__":
    main()
