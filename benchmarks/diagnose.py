"""Where a trained agent loses strength: judges its search by a perfect solver under several settings.

uv run --group dev python benchmarks/diagnose.py runs/connect_four > diagnosis.json
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Iterator, Sequence
from typing import Any

import jax
import numpy as np

from podzero.benchmarks.value_targets import target_errors
from podzero.config import Experiment
from podzero.envs import make_env
from podzero.evaluation.players import Decide, make_decide
from podzero.evaluation.positions import JudgedPositions, judge_actions, judged_positions, replay
from podzero.evaluation.solvers import game_values, make_solver
from podzero.networks import make_inference
from podzero.networks.snapshots import load_snapshot
from podzero.protocols import Env
from podzero.search import Evaluate, network_evaluation
from podzero.types import Array, EnvState, Params, SearchResult
from podzero.workdir import Workdir

BANDS = {"0 to 9": (0, 9), "10 to 19": (10, 19), "20 to 30": (20, 30)}
"""Plies that are judged apart."""
SEED = 77
"""Of the judged positions, which no evaluator of a run has seen."""
SIMULATIONS = (1, 8, 32, 128, 512)
"""Of the section `simulations`, if no others are asked for."""
BOTH = (32, 128)
"""Simulations with which settings are compared."""
PIECE = 250
"""Positions that are searched at once."""
ROOT_VALUES = ("network", "mean", "action", "policy")

Json = dict[str, Any]


class Subject:
    """A trained agent and the positions in which it is judged."""

    def __init__(self, workdir: str, count: int) -> None:
        self.experiment: Experiment = Workdir(workdir).experiment()
        self.env: Env = make_env(self.experiment.env)
        self.positions: JudgedPositions = judged_positions(self.env, count, SEED, "validation")
        self.values = game_values(np.nanmax(self.positions.scores, axis=1))
        fold, network = make_inference(self.experiment.network, self.env.spec)
        self.published: Params = load_snapshot(Workdir(workdir).snapshots, None).params
        self.params: Params = fold(self.published)
        self.evaluate: Evaluate = network_evaluation(self.env, network.apply)

    def judged(self, evaluate: Evaluate | None = None, count: int | None = None, **settings: Any) -> Json:
        """The share of moves in the first `count` positions that keep the game's value, in all plies and by band."""
        results = self._search(evaluate, count, settings)
        actions = np.concatenate([result.action for result in results])
        positions = JudgedPositions(*(field[: len(actions)] for field in self.positions))
        found = judge_actions(actions, positions)
        bands = {
            name: judge_actions(actions[inside], JudgedPositions(*(field[inside] for field in positions)))
            for name, inside in bands_of(positions)
        }
        return settings | {
            "keeps_value": found.keeps_value,
            "interval": found.interval,
            "bands": {
                name: {"share": band.keeps_value, "interval": band.interval, "positions": band.positions}
                for name, band in bands.items()
            },
        }

    def errors(self, **settings: Any) -> Json:
        """The mean distance of root values from the game's value, in all plies and by band."""
        error = np.abs(np.concatenate([result.value for result in self._search(None, None, settings)]) - self.values)
        bands = {name: float(error[inside].mean()) for name, inside in bands_of(self.positions)}
        return settings | {"error": float(error.mean()), "bands": bands}

    def targets(self, positions: int, **settings: Any) -> Json:
        """How near the value targets of self-play are to the game's value; `settings` change the search."""
        search = self.experiment.search.model_copy(update=settings)
        experiment = self.experiment.model_copy(update={"search": search})
        return settings | {"bands": target_errors(experiment, self.published, BANDS, positions)}

    def _search(self, evaluate: Evaluate | None, count: int | None, settings: Json) -> list[SearchResult]:
        """Searches without noise; returns one result for each `PIECE` of the positions."""
        config = self.experiment.search.model_copy(update=settings)
        decide: Decide = make_decide(self.env, config, evaluate or self.evaluate)
        moves = self.positions.moves[:count]
        pieces = (replay(self.env, moves[start : start + PIECE]) for start in range(0, len(moves), PIECE))
        return [jax.device_get(decide(self.params, jax.random.key(0), states)) for states in pieces]


def bands_of(positions: JudgedPositions) -> Iterator[tuple[str, np.ndarray[Any, Any]]]:
    """Which of the positions lie in each band: `[N]` bool."""
    for name, (first, last) in BANDS.items():
        yield name, (positions.plies >= first) & (positions.plies <= last)


def solver_evaluation(subject: Subject) -> Evaluate:
    """The network's policy with the solver's values at the leaves."""
    solver = make_solver(subject.env.spec.name)
    view = jax.vmap(subject.env.view)

    def solve(observations: np.ndarray[Any, Any], over: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
        values = np.zeros(len(over), np.float32)
        if not np.all(over):
            values[~over] = game_values(np.nanmax(solver.scores(np.asarray(observations)[~over]), axis=1))
        return values

    def evaluate(params: Params, key: Array, states: EnvState) -> tuple[jax.Array, jax.Array]:
        logits, value = subject.evaluate(params, key, states)
        seen = view(states)
        return logits, jax.pure_callback(solve, value, seen.observation, seen.done)

    return evaluate


def sections(subject: Subject, few: int, simulations: Sequence[int]) -> dict[str, Iterator[Json]]:
    """What is measured, by name; each entry when it is asked for."""
    scales = {"node": (0.03, 0.1, 0.3), "tree": (0.1, 0.3), "bounds": (0.1, 0.3, 1.0)}
    solver = solver_evaluation(subject)
    return {
        "values": (subject.errors(simulations=n, root_value=value) for value in ROOT_VALUES for n in BOTH),
        "targets": (subject.targets(few, root_value=value) for value in ROOT_VALUES[1:]),
        "scales": (
            subject.judged(simulations=n, q_scale=scale, value_scale=weight)
            for scale, weights in scales.items()
            for weight in weights
            for n in BOTH
        ),
        "puct": (subject.judged(simulations=n, algorithm="puct") for n in BOTH),
        "simulations": (subject.judged(simulations=n) for n in simulations),
        "solver at the leaves": (subject.judged(solver, few, simulations=n) for n in (8, 32)),
    }


def main() -> None:
    """Prints one JSON object, and each entry on the error output as soon as it is measured."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("workdir")
    parser.add_argument("--positions", type=int, default=1000)
    parser.add_argument(
        "--few",
        type=int,
        default=PIECE,
        help="positions that are searched with the solver at leaves, or whose targets are solved in each band",
    )
    parser.add_argument("--only", nargs="*", help="names of sections")
    parser.add_argument("--simulations", nargs="*", type=int, default=SIMULATIONS, help="of the section of this name")
    arguments = parser.parse_args()
    found: dict[str, list[Json]] = {}
    subject = Subject(arguments.workdir, arguments.positions)
    for name, entries in sections(subject, arguments.few, arguments.simulations).items():
        if not arguments.only or name in arguments.only:
            for entry in entries:
                print(name, json.dumps(entry), file=sys.stderr, flush=True)
                found.setdefault(name, []).append(entry)
    print(json.dumps(found))


if __name__ == "__main__":
    main()
