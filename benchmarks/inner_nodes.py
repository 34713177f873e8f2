"""How often the search keeps the game's value with each selection rule below the root, and why it errs.

uv run --group dev python benchmarks/inner_nodes.py connect_four --hardware "2 cores of an AMD EPYC (Zen 5)"
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, NamedTuple

import jax
import numpy as np

from podzero.config import Experiment
from podzero.core.protocols import Env
from podzero.core.types import Array, EnvState, Params, SearchedNodes, SearchResult
from podzero.envs import make_env
from podzero.evaluation.players import make_decide
from podzero.evaluation.positions import MAX_PLY, JudgedPositions, judged_positions, random_games, replay
from podzero.evaluation.solvers import Solver, game_values, make_solver
from podzero.files.players import zoo_workdir
from podzero.inference.evaluation_cache import EvaluationCache
from podzero.inference.openvino_model import CpuCompiler, float_model, infer
from podzero.networks import make_inference
from podzero.networks.resnet import layers_of
from podzero.networks.snapshots import load_snapshot

SEED = 77
"""The seed of the judged positions, as in `benchmarks/diagnose.py`."""
PIECE = 250
"""The positions that are searched at once."""
NO_FLOOR = {"min_value_range": 1e-8}
RULES: Mapping[str, Mapping[str, Any]] = {
    "range of the node": NO_FLOOR,
    "bounds, 0.1": {"q_scale": "bounds", "value_scale": 0.1},
    "bounds, 1.0": {"q_scale": "bounds", "value_scale": 1.0},
}
"""Settings of the search, all with sequential halving at the root. The others are compared with the first."""
FLOORS: Mapping[str, Mapping[str, Any]] = {
    f"range of the node, at least {floor}": {"min_value_range": floor} for floor in (0.01, 0.05, 0.1, 0.2, 0.5)
}
OF_TRAINING = (32, 128)
"""The simulations with which floors are compared as well."""
RESULTS = Path(__file__).with_name("results") / "inner_nodes.json"
EQUAL = 500
"""The number of positions in which all moves are equally good."""
CACHE_MIB = 1024.0
"""The cache of evaluations, which all searches share."""
BATCH = 64
"""The positions that OpenVINO evaluates at once."""

Json = dict[str, Any]
Rows = np.ndarray[Any, Any]


class HostNetwork:
    """A network on the host, in float32 by OpenVINO, with a cache of evaluated positions."""

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
        """The logits `[N, A]` of N observations."""
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


class ProbedAgent:
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
        """The quartiles of the range of a root's Q-values, in states in which all moves are equally good."""
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
                scores = solver(observation[None])[0]
                values = game_values(scores[~np.isnan(scores)])
                if len(values) > 1 and len(np.unique(values)) == 1:
                    moves.append(played)
        return replay(self._env, np.stack(moves))


def main() -> None:
    """Measures what the file of results lacks, and rewrites the file after each search."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("agent", help="the name of an agent of the zoo")
    parser.add_argument("--hardware", default="not recorded", help="where it runs, for the result")
    parser.add_argument("--positions", type=int, default=1000)
    parser.add_argument("--simulations", nargs="*", type=int, default=(*OF_TRAINING, 512, 2048))
    parser.add_argument("--only", nargs="*", help="the names of rules")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--results", type=Path, default=RESULTS)
    arguments = parser.parse_args()
    agent = ProbedAgent(arguments.agent, arguments.positions, arguments.threads)
    found: Json = (
        json.loads(arguments.results.read_text(encoding="utf-8")) if arguments.results.exists() else {"searches": {}}
    )
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
            search = {"rule": rule, **agent.judged(simulations, arguments.positions, settings)}
            found["searches"][name] = search
            arguments.results.write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")
            cache = agent.network.cache
            print(name, len(search["errors"]), f"{cache.found / cache.asked:.3f}", file=sys.stderr, flush=True)
    if not arguments.only:
        equal = agent.equal(EQUAL)
        found["ranges_where_all_moves_are_equal"] = {n: agent.ranges(n, equal) for n in OF_TRAINING}
        arguments.results.write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")


# Why a search errs: the line that refutes its estimate, followed through its tree.

NEVER_VISITED = "never visited"
VALUE_WRONG = "visited, value wrong"
SEEN_TO_THE_END = "visited to the end of the game"
NOT_CHOSEN = "valued higher, not chosen"


class _Walk(NamedTuple):
    """An error, and the node that its line has reached."""

    row: int
    """The row of the batch."""
    prover: int
    """The player who stands better than the search believes."""
    node: int
    error: Json


class Refutations:
    """Follows refutations through kept trees.

    The line of an error begins with the move whose estimate is farther from the truth: the played move, if the opponent
    refutes it, or the best other move, if the player to move stands better there than the search believes. The prover
    then plays the most visited of the moves that are right by the solver, and the other player the most visited move.
    The line ends where the tree holds no such move:

    - `NEVER_VISITED`: it holds none of the prover's right moves, although the node has more visits than legal moves;
    - `VALUE_WRONG`: the tree ends, so its only knowledge of the line is the network's value of the last position;
    - `SEEN_TO_THE_END`: the game is over.

    The reason is `NOT_CHOSEN` if a right move has a higher Q-value than the played move: sequential halving had dropped
    it before, or the prior outweighs the values.

    Args:
      env: the game.
      solver: a solver of the game.
      logits: gives the network's logits `[N, A]` of N observations.
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
          result: the searches' result, on the host.

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
        """The lines that do not end, each with one more move."""
        view = jax.device_get(self._view(states))
        found = []
        for walk in walks:
            if view.done[walk.row]:
                walk.error["reason"] = SEEN_TO_THE_END
                continue
            observation, allowed = view.observation[walk.row], np.asarray(view.legal[walk.row])
            proves = view.player[walk.row] == walk.prover
            if proves:
                values = game_values(self._solver(observation[None]))[0]
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
    """The error of one search, with the first move of its line."""
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


if __name__ == "__main__":
    main()
