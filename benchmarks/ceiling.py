"""How much a network can learn: trains it on the solver's values and moves instead of those of self-play.

JAX_PLATFORMS=cpu uv run --group dev python benchmarks/ceiling.py runs/ceiling --positions 200000 --steps 4000
JAX_PLATFORMS=cpu uv run --group dev python benchmarks/diagnose.py runs/ceiling --only simulations values

The batch, the optimizer and the network are those of `podzero train connect_four`; overrides follow the folder.
Solving takes most of the time, about 13 ms a position. Solved positions are kept in `--labels`. Several processes share
the work with `--only-label FIRST LAST`.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterable, Iterator
from itertools import count
from pathlib import Path
from typing import Any

import jax
import numpy as np

from podzero.actors.assembly import rows_of
from podzero.config import Experiment, load
from podzero.core.protocols import Env
from podzero.core.types import Batch, Sample
from podzero.envs import make_env
from podzero.evaluation.positions import MAX_PLY, random_games
from podzero.evaluation.solvers import game_values, make_solver
from podzero.files.workdir import Workdir
from podzero.learner.build import Training, learner_parts, make_training
from podzero.learner.step import with_progress
from podzero.networks.snapshots import save_snapshot

EXPERIMENT = "connect_four"
PIECE = 5000
"""Random games for one file of solved positions; about two fifths of the positions are finished games or duplicates."""
SEED = 1000
"""The seed of the first file; the judged positions have other seeds."""
REPORT_EVERY = 200
"""The steps between two lines of progress."""


def main() -> None:
    """Solves positions, trains on them, and writes a working directory that other commands can judge."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("workdir", type=Path)
    parser.add_argument("overrides", nargs="*", metavar="SECTION.FIELD=VALUE")
    parser.add_argument("--positions", type=int, default=200_000)
    parser.add_argument("--steps", type=int, default=4000)
    parser.add_argument("--labels", type=Path, default=Path("runs/labels"), help="the folder of solved positions")
    parser.add_argument("--only-label", type=int, nargs=2, metavar=("FIRST", "LAST"), help="solve only these files")
    arguments = parser.parse_args()
    experiment = load(EXPERIMENT, arguments.overrides)
    env = make_env(experiment.env)
    if arguments.only_label:
        for _ in solved(env, arguments.labels, range(*arguments.only_label)):
            pass
    else:
        teach(experiment, enough(solved(env, arguments.labels, count()), arguments.positions), arguments)


def enough(pieces: Iterable[Sample], positions: int) -> Sample:
    """The first positions of the pieces, joined."""
    held: list[Sample] = []
    for piece in pieces:
        held.append(piece)
        if sum(len(part.version) for part in held) >= positions:
            break
    joined: Sample = jax.tree.map(lambda *leaves: np.concatenate(leaves)[:positions], *held)
    return joined


def solved(env: Env, folder: Path, pieces: Iterable[int]) -> Iterator[Sample]:
    """The solved positions of each piece, from its file; draws and solves them if there is none."""
    folder.mkdir(parents=True, exist_ok=True)
    play = random_games(env, MAX_PLY)
    solver = make_solver(env.spec.name)
    for piece in pieces:
        file = folder / f"{piece:04d}.npz"
        if not file.exists():
            observations = drawn(play, piece)
            scores = solver(observations)
            np.savez_compressed(file.with_suffix(".part.npz"), observations=observations, scores=scores)
            file.with_suffix(".part.npz").rename(file)
            print(f"{file}: {len(scores)} positions", file=sys.stderr, flush=True)
        with np.load(file) as arrays:
            yield taught(arrays["observations"], arrays["scores"])


def drawn(play: Any, piece: int) -> np.ndarray[Any, Any]:
    """The distinct positions of uniformly random games, at plies drawn uniformly from 0 to `MAX_PLY`."""
    random = np.random.default_rng(SEED + piece)
    games = jax.device_get(play(jax.random.key(SEED + piece), random.integers(0, MAX_PLY + 1, PIECE)))
    distinct: np.ndarray[Any, Any] = np.unique(games.observations[~games.over], axis=0)
    return distinct


def taught(observations: np.ndarray[Any, Any], scores: np.ndarray[Any, Any]) -> Sample:
    """Samples with the game's value, and equal probabilities for the moves that keep it."""
    values = game_values(scores)
    value = np.nanmax(values, axis=1, keepdims=True)
    best = values == value
    return Sample(
        observation=observations,
        legal=~np.isnan(scores),
        policy_target=(best / best.sum(axis=1, keepdims=True)).astype(np.float32),
        value_target=value[:, 0].astype(np.float32),
        version=np.zeros(len(scores), np.int32),
    )


def teach(experiment: Experiment, samples: Sample, arguments: argparse.Namespace) -> None:
    """Trains the network and writes its snapshot."""
    training = make_training(experiment, *learner_parts(experiment))
    state = training.init()
    dispatches = arguments.steps // experiment.learner.steps_per_dispatch
    for index, batch in zip(range(dispatches), batches(experiment, training, samples), strict=False):
        output = training.step(with_progress(state, index / dispatches), batch)
        state = output.state
        step = (index + 1) * experiment.learner.steps_per_dispatch
        if step % REPORT_EVERY == 0:
            sums = jax.device_get(output.sums)
            losses = {name: round(float(value / sums.steps), 4) for name, value in sums.metrics.items()}
            print(f"step {step} of {arguments.steps}: {losses}", file=sys.stderr, flush=True)
    workdir = Workdir(arguments.workdir)
    workdir.open(experiment)
    save_snapshot(workdir.snapshots, int(state.step), state.ema, experiment)
    print(f"{len(samples.version)} positions, {int(state.step)} steps: {workdir.root}")


def batches(experiment: Experiment, training: Training, samples: Sample) -> Iterator[Batch]:
    """Random batches `[K, B, ...]`, each for one dispatch, endlessly."""
    random = np.random.default_rng(experiment.seed)
    shape = (experiment.learner.steps_per_dispatch, experiment.learner.batch_size)
    while True:
        chosen = random.integers(0, len(samples.version), shape)
        yield training.put(Batch(rows_of(samples, chosen)))


if __name__ == "__main__":
    main()
