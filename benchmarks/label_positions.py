"""Writes the labelled positions of connect four that come with podzero.

    uv run --group dev python benchmarks/label_positions.py

1,000 random positions are `validation`, 5,000 are `test`. Needs the extra `solver`; takes some minutes.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from podzero.envs import make_env
from podzero.evaluation.solvers import LABELS, JudgedPositions, Part, draw_positions, make_solver

GAME = "connect_four"
COUNT = 6000
VALIDATION = 1000
SEED = 2026


def main() -> None:
    """Draws, solves and writes both parts."""
    positions = draw_positions(make_env(GAME), make_solver(GAME), COUNT, SEED)
    chosen = np.random.default_rng(SEED).permutation(COUNT)
    _write("validation", positions, np.sort(chosen[:VALIDATION]))
    _write("test", positions, np.sort(chosen[VALIDATION:]))


def _write(part: Part, positions: JudgedPositions, chosen: np.ndarray[Any, Any]) -> None:
    file = LABELS / f"{GAME}-{part}.npz"
    moves, scores = positions.moves[chosen].astype(np.int8), positions.scores[chosen].astype(np.float16)
    np.savez_compressed(file, moves=moves, scores=scores)
    print(f"{file}: {len(moves)} positions, {file.stat().st_size:,} bytes")


if __name__ == "__main__":
    main()
