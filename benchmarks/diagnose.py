"""Where a trained agent loses strength: a perfect solver judges its search under several settings.

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

from podzero.actors.assembly import GameAssembler
from podzero.actors.build import actor_parts
from podzero.config import Experiment
from podzero.core.protocols import Env
from podzero.core.types import Array, EnvState, Params, Sample, SearchResult
from podzero.envs import make_env
from podzero.evaluation.players import Decide, make_decide
from podzero.evaluation.solvers import (
    JudgedPositions,
    game_values,
    judge_actions,
    judged_positions,
    make_solver,
    replay,
)
from podzero.files.workdir import Workdir
from podzero.networks import make_inference
from podzero.networks.snapshots import load_snapshot
from podzero.search import Evaluate, network_evaluation, rules_model

BANDS = {"0 to 9": (0, 9), "10 to 19": (10, 19), "20 to 30": (20, 30)}
"""The bands of plies that are judged separately."""
SEED = 77
"""The seed of the judged positions, which no evaluator of a run has seen."""
SIMULATIONS = (1, 8, 32, 128, 512)
"""The simulations of the section `simulations`, unless others are given."""
BOTH = (32, 128)
"""The simulations with which settings are compared."""
PIECE = 250
"""The positions that are searched at once."""
ROOT_VALUES = ("network", "mean", "action", "policy")
LAMBDAS = (1.0, 0.9, 0.7, 0.4, 0.0)
"""1 is the outcome of the game, 0 the root value of the next position."""
MOVES = 80
"""The moves that are played in all games."""

Json = dict[str, Any]


class DiagnosedAgent:
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
        """How close the value targets of self-play are to the game's value; `settings` change the search."""
        search = self.experiment.search.model_copy(update=settings)
        experiment = self.experiment.model_copy(update={"search": search})
        return settings | {"bands": target_errors(experiment, self.published, positions)}

    def _search(self, evaluate: Evaluate | None, count: int | None, settings: Json) -> list[SearchResult]:
        """Searches the positions without noise; returns one result for each `PIECE` of them."""
        config = self.experiment.search.model_copy(update=settings)
        decide: Decide = make_decide(config, rules_model(self.env, evaluate or self.evaluate))
        moves = self.positions.moves[:count]
        pieces = (replay(self.env, moves[start : start + PIECE]) for start in range(0, len(moves), PIECE))
        return [jax.device_get(decide(self.params, jax.random.key(0), states)) for states in pieces]


def bands_of(positions: JudgedPositions) -> Iterator[tuple[str, np.ndarray[Any, Any]]]:
    """The name of each band of plies, and which positions lie in it: `[N]` bool."""
    for name, (first, last) in BANDS.items():
        yield name, (positions.plies >= first) & (positions.plies <= last)


def solver_evaluation(agent: DiagnosedAgent) -> Evaluate:
    """The network's policy with the solver's values at the leaves."""
    solver = make_solver(agent.env.spec.name)
    view = jax.vmap(agent.env.view)

    def solve(observations: np.ndarray[Any, Any], over: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
        values = np.zeros(len(over), np.float32)
        if not np.all(over):
            values[~over] = game_values(np.nanmax(solver(np.asarray(observations)[~over]), axis=1))
        return values

    def evaluate(params: Params, key: Array, states: EnvState) -> tuple[jax.Array, jax.Array]:
        logits, value = agent.evaluate(params, key, states)
        seen = view(states)
        return logits, jax.pure_callback(solve, value, seen.observation, seen.done)

    return evaluate


def target_errors(experiment: Experiment, params: Params, positions: int) -> dict[str, Any]:
    """Correlation and squared error of each target with the game's value, from `positions` in each band of plies.

    The game is connect four or tic-tac-toe, whose observations are planes of stones.
    """
    played = play(experiment, params)
    observations = np.asarray(played[1.0].observation)
    plies = observations.reshape(len(observations), -1).sum(axis=1)  # one stone a ply
    solver, random = make_solver(experiment.env.name), np.random.default_rng(0)
    found: dict[str, Any] = {}
    for name, (first, last) in BANDS.items():
        inside = random.permutation(np.flatnonzero((plies >= first) & (plies <= last)))[:positions]
        values = game_values(np.nanmax(solver(observations[inside]), axis=1))
        found[name] = {
            str(weight): {
                "correlation": float(np.corrcoef(samples.value_target[inside], values)[0, 1]),
                "squared_error": float(np.mean((samples.value_target[inside] - values) ** 2)),
            }
            for weight, samples in played.items()
        }
    return found


def play(experiment: Experiment, params: Params) -> dict[float, Sample]:
    """Plays as an actor of the experiment; returns the positions of finished games by the lambda of their targets."""
    parts = actor_parts(experiment, "local")
    folded, move = parts.fold(params), jax.jit(parts.core.move, donate_argnums=1)
    state = jax.jit(parts.core.init)(jax.random.key(experiment.seed))
    every = {"root_value_weight": 0.0}
    configs = {weight: experiment.actors.model_copy(update=every | {"td_lambda": weight}) for weight in LAMBDAS}
    assemblers = {weight: GameAssembler(config, experiment.env.discount) for weight, config in configs.items()}
    games: dict[float, list[Sample]] = {weight: [] for weight in LAMBDAS}
    for _ in range(MOVES):
        state, played = move(folded, state)
        played = jax.device_get(played)
        for weight, assembler in assemblers.items():
            games[weight] += [game.samples for game in assembler.add(played, version=0)]
    return {weight: jax.tree.map(lambda *leaves: np.concatenate(leaves), *each) for weight, each in games.items()}


def sections(agent: DiagnosedAgent, few: int, simulations: Sequence[int]) -> dict[str, Iterator[Json]]:
    """The measurements by name. Each is made when its iterator is advanced."""
    scales = {"node": (0.03, 0.1, 0.3), "tree": (0.1, 0.3), "bounds": (0.1, 0.3, 1.0)}
    solver = solver_evaluation(agent)
    return {
        "values": (agent.errors(simulations=n, root_value=value) for value in ROOT_VALUES for n in BOTH),
        "targets": (agent.targets(few, root_value=value) for value in ROOT_VALUES[1:]),
        "scales": (
            agent.judged(simulations=n, q_scale=scale, value_scale=weight)
            for scale, weights in scales.items()
            for weight in weights
            for n in BOTH
        ),
        "puct": (agent.judged(simulations=n, algorithm="puct") for n in BOTH),
        "simulations": (agent.judged(simulations=n) for n in simulations),
        "solver at the leaves": (agent.judged(solver, few, simulations=n) for n in (8, 32)),
    }


def main() -> None:
    """Prints one JSON object, and each entry on standard error as soon as it is measured."""
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
    parser.add_argument(
        "--simulations", nargs="*", type=int, default=SIMULATIONS, help="the numbers of the section `simulations`"
    )
    arguments = parser.parse_args()
    found: dict[str, list[Json]] = {}
    agent = DiagnosedAgent(arguments.workdir, arguments.positions)
    for name, entries in sections(agent, arguments.few, arguments.simulations).items():
        if not arguments.only or name in arguments.only:
            for entry in entries:
                print(name, json.dumps(entry), file=sys.stderr, flush=True)
                found.setdefault(name, []).append(entry)
    print(json.dumps(found))


if __name__ == "__main__":
    main()
