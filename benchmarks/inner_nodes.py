"""Which rule below the root keeps the value of the game, in the same positions, and why searches with each rule err.

uv run --group dev python benchmarks/inner_nodes.py connect_four --hardware "2 cores of an AMD EPYC (Zen 5)"
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import jax
import numpy as np

from podzero.benchmarks.refutations import Refutations
from podzero.config import Experiment
from podzero.envs import make_env
from podzero.evaluation.players import make_decide
from podzero.evaluation.positions import MAX_PLY, JudgedPositions, judged_positions, random_games, replay
from podzero.evaluation.solvers import game_values, make_solver
from podzero.inference.evaluation_cache import EvaluationCache
from podzero.inference.openvino_model import CpuCompiler, float_model, infer
from podzero.networks import make_inference
from podzero.networks.resnet import layers_of
from podzero.networks.snapshots import load_snapshot
from podzero.player_names import zoo_workdir
from podzero.protocols import Env
from podzero.types import Array, EnvState, Params

SEED = 77
"""Of the judged positions, as in `benchmarks/diagnose.py`."""
PIECE = 250
"""Positions that are searched at once."""
NO_FLOOR = {"min_value_range": 1e-8}
RULES: Mapping[str, Mapping[str, Any]] = {
    "range of the node": NO_FLOOR,
    "bounds, 0.1": {"q_scale": "bounds", "value_scale": 0.1},
    "bounds, 1.0": {"q_scale": "bounds", "value_scale": 1.0},
}
"""Settings of the search, all with sequential halving at the root. The first is what the others are paired with."""
FLOORS: Mapping[str, Mapping[str, Any]] = {
    f"range of the node, at least {floor}": {"min_value_range": floor} for floor in (0.01, 0.05, 0.1, 0.2, 0.5)
}
OF_TRAINING = (32, 128)
"""Simulations with which floors are compared as well."""
RESULTS = Path(__file__).with_name("results") / "inner_nodes.json"
EQUAL = 500
"""Positions in which all moves are equally good."""
CACHE_MIB = 1024.0
"""Of evaluations that all searches share."""
BATCH = 64
"""Positions that OpenVINO evaluates at once."""

Json = dict[str, Any]
Rows = np.ndarray[Any, Any]


class HostNetwork:
    """A network of the host, in float32 by OpenVINO, that evaluates no position twice."""

    def __init__(self, env: Env, folded: Params, threads: int) -> None:
        spec = env.spec
        model = float_model(layers_of(jax.device_get(folded)), BATCH, spec.observation_shape, spec.observation_dtype)
        self._engine = CpuCompiler(threads, "f32").compile(model)
        self._outputs = spec.num_actions + 1
        self._view = jax.vmap(env.view)
        self.cache = EvaluationCache(CACHE_MIB, self._outputs)

    def evaluate(self, params: Params, key: Array, states: EnvState) -> tuple[jax.Array, jax.Array]:
        """Evaluates B states; see `Evaluate`."""
        del params, key
        observation = self._view(states).observation
        like = np.zeros((observation.shape[0], self._outputs), np.float32)
        found = jax.pure_callback(self._rows, like, observation)
        return found[:, :-1], found[:, -1]

    def logits(self, observations: Rows) -> Rows:
        """Of N observations, `[N, A]`."""
        return self._rows(observations)[:, :-1]

    def _rows(self, observations: Array) -> Rows:
        return self.cache(0, np.asarray(observations), self._computed)

    def _computed(self, rows: Rows) -> Rows:
        found = []
        for start in range(0, len(rows), BATCH):
            piece = np.resize(rows[start : start + BATCH], (BATCH, *rows.shape[1:]))
            found.append(infer(self._engine, piece.view(np.uint8))[0])
        evaluations: Rows = np.concatenate(found)[: len(rows)]
        return evaluations


class Subject:
    """A trained agent and the positions in which it is judged."""

    def __init__(self, agent: str, count: int, threads: int) -> None:
        workdir = zoo_workdir(agent)
        self._experiment: Experiment = workdir.experiment()
        self._env = make_env(self._experiment.env)
        self.positions: JudgedPositions = judged_positions(self._env, count, SEED, "validation")
        fold, _ = make_inference(self._experiment.network, self._env.spec)
        self.network = HostNetwork(self._env, fold(load_snapshot(workdir.snapshots, None).params), threads)
        self._refutations = Refutations(self._env, make_solver(self._env.spec.name), self.network.logits)

    def judged(self, simulations: int, count: int, settings: Mapping[str, Any]) -> Json:
        """The errors of a search without noise in the first `count` positions."""
        config = self._experiment.search.model_copy(update={"simulations": simulations, **settings})
        decide = make_decide(self._env, config, self.network.evaluate, keep_nodes=True)
        errors: list[Json] = []
        plies = self.positions.plies
        for start in range(0, count, PIECE):
            piece = JudgedPositions(*(field[start : min(start + PIECE, count)] for field in self.positions))
            states = replay(self._env, piece.moves)
            result = jax.device_get(decide(None, jax.random.key(0), states))
            for error in self._refutations(states, piece.scores, result):
                position = start + error.pop("row")
                errors.append({"position": position, "ply": int(plies[position]), **error})
        return {"settings": dict(settings), "simulations": simulations, "positions": count, "errors": errors}

    def ranges(self, simulations: int, equal: EnvState) -> list[float]:
        """The quartiles of the range of a root's Q-values, in states whose moves are all equally good."""
        config = self._experiment.search.model_copy(update={"simulations": simulations, **NO_FLOOR})
        decide = make_decide(self._env, config, self.network.evaluate)
        result = jax.device_get(decide(None, jax.random.key(0), equal))
        qvalues = np.where(result.visits > 0, result.qvalues, np.nan)
        found = np.nanmax(qvalues, axis=1) - np.nanmin(qvalues, axis=1)
        return [round(float(quartile), 3) for quartile in np.quantile(found, (0.25, 0.5, 0.75))]

    def equal(self, count: int) -> EnvState:
        """States after random play in which several moves are legal and all have the same value, each once."""
        solver, play, rng = make_solver(self._env.spec.name), random_games(self._env, MAX_PLY), np.random.default_rng(7)
        key, known = jax.random.key(7), set[bytes]()
        moves: list[Rows] = []
        while len(moves) < count:
            key, play_key = jax.random.split(key)
            games = jax.device_get(play(play_key, rng.integers(0, MAX_PLY + 1, 512)))
            for played, observation in zip(games.moves[~games.over], games.observations[~games.over], strict=True):
                if len(moves) == count or observation.tobytes() in known:
                    continue
                known.add(observation.tobytes())
                scores = solver.scores(observation[None])[0]
                values = game_values(scores[~np.isnan(scores)])
                if len(values) > 1 and len(np.unique(values)) == 1:
                    moves.append(played)
        return replay(self._env, np.stack(moves))


def main() -> None:
    """Measures what the file of results lacks, and writes it after each search."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("agent", help="of the zoo")
    parser.add_argument("--hardware", default="not recorded", help="where it runs, for the result")
    parser.add_argument("--positions", type=int, default=1000)
    parser.add_argument("--simulations", nargs="*", type=int, default=(*OF_TRAINING, 512, 2048))
    parser.add_argument("--only", nargs="*", help="names of rules")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--results", type=Path, default=RESULTS)
    arguments = parser.parse_args()
    subject = Subject(arguments.agent, arguments.positions, arguments.threads)
    found: Json = json.loads(arguments.results.read_text()) if arguments.results.exists() else {"searches": {}}
    found |= {
        "agent": f"zoo:{arguments.agent}",
        "command": f"python benchmarks/inner_nodes.py {arguments.agent}",
        "hardware": arguments.hardware,
        "date": datetime.now(UTC).date().isoformat(),
    }
    for simulations in arguments.simulations:
        for rule, settings in {**RULES, **(FLOORS if simulations in OF_TRAINING else {})}.items():
            name = f"{rule}; {simulations}"
            if name in found["searches"] or (arguments.only and rule not in arguments.only):
                continue
            search = {"rule": rule, **subject.judged(simulations, arguments.positions, settings)}
            found["searches"][name] = search
            arguments.results.write_text(json.dumps(found, indent=1) + "\n")
            cache = subject.network.cache
            print(name, len(search["errors"]), f"{cache.found / cache.asked:.3f}", file=sys.stderr, flush=True)
    if not arguments.only:
        equal = subject.equal(EQUAL)
        found["ranges_where_all_moves_are_equal"] = {n: subject.ranges(n, equal) for n in OF_TRAINING}
        arguments.results.write_text(json.dumps(found, indent=1) + "\n")


if __name__ == "__main__":
    main()
