"""Evaluation rounds of board games: matches against opponents, a solver's judgement, and ratings."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import suppress
from functools import cached_property
from pathlib import Path
from typing import Any

import jax

from podzero.config import Experiment
from podzero.evaluation.arena import Arena, MatchResult
from podzero.evaluation.judge import BANDS, Judge, JudgeResult, judged_positions
from podzero.evaluation.players import Contestant, NetworkPlayers, SearchPlayer
from podzero.evaluation.ratings import Ladder
from podzero.evaluation.solvers import SOLVED
from podzero.evaluation.who import resolve
from podzero.params import SnapshotError, load_snapshot, snapshot_steps
from podzero.protocols import Env
from podzero.types import Array, Params

OPPONENTS = ("random", "mcts:100", "earlier")
"""The default of `evaluation.opponents`."""


class MatchRounds:
    """Plays the configured opponents, asks the solver, and keeps the ratings; a `Rounds`.

    Parameters are arguments of the compiled programs, so that all snapshots share them.
    """

    def __init__(
        self,
        experiment: Experiment,
        env: Env,
        snapshots: Path,
        ladder: dict[str, Any] | None = None,
    ) -> None:
        """Resolves the opponents; plays no match yet.

        Args:
          experiment: whose `evaluation` section configures the rounds.
          env: the game.
          snapshots: `Workdir.snapshots`, for matches against earlier snapshots.
          ladder: the result of `ladder()` of an earlier evaluator process.

        Raises:
          ConfigError: an opponent does not exist or cannot play this game.
          LadderError: `ladder` cannot be read.
        """
        self._config = experiment.evaluation
        self._env = env
        self._snapshots = snapshots
        self._ladder = Ladder.from_json(ladder or {})
        self._ladder_tree = self._ladder.to_json()
        search = experiment.search.model_copy(update={"simulations": self._config.simulations})
        self._selves = NetworkPlayers(env, experiment.network, search, experiment.env.discount)
        self._names = OPPONENTS if self._config.opponents is None else self._config.opponents
        self._opponents = {
            name: resolve(name, env, discount=experiment.env.discount) for name in self._names if name != "earlier"
        }
        self._arena = Arena(env)
        self._seed = jax.random.key(experiment.seed)
        self._rated = max(self._rated_steps(), default=-1)

    @property
    def rated(self) -> int:
        """The newest step judged so far; -1 before the first."""
        return self._rated

    def ladder(self) -> dict[str, Any]:
        """The ratings after the last complete round, as plain values."""
        return self._ladder_tree

    def judge(self, step: int, params: Params, keep_going: Callable[[], bool]) -> dict[str, float]:
        """Matches, the solver's judgement, and ratings."""
        player = self._selves.player(_name(step), params)
        match_key, judge_key = jax.random.split(jax.random.fold_in(self._seed, step))
        results = self._play(player, step, match_key, keep_going)
        metrics = _scores(results)
        if self._judge is not None:
            metrics |= judgement_metrics(self._judge(player, judge_key), self._judge.positions_by_ply)
        for opponent, result in results.items():
            self._ladder.add(player.name, opponent, result)
        self._rated, self._ladder_tree = step, self._ladder.to_json()
        rating = self._ladder.ratings().get(player.name)
        if rating is not None:
            metrics |= {"evaluation/elo": rating.elo, "evaluation/elo_error": rating.error}
        return metrics

    @cached_property
    def _judge(self) -> Judge | None:
        """Made in the first round, since solving the positions takes long if they are not cached."""
        if self._env.spec.name not in SOLVED:
            return None
        return Judge(self._env, judged_positions(self._env, self._config.positions, seed=0))

    def _play(
        self, player: SearchPlayer, step: int, key: Array, keep_going: Callable[[], bool]
    ) -> dict[str, MatchResult]:
        """One match against each opponent, by name."""
        opponents: dict[str, Contestant] = dict(self._opponents)
        if "earlier" in self._names:
            for earlier in self._earlier(step):
                with suppress(SnapshotError):  # the driver may have deleted it meanwhile
                    params = load_snapshot(self._snapshots, earlier).params
                    opponents[_name(earlier)] = self._selves.player(_name(earlier), params)
        games = self._config.games + self._config.games % 2
        results = {}
        for i, (name, opponent) in enumerate(opponents.items()):
            match_key = jax.random.fold_in(key, i)
            results[name] = self._arena.play(player, opponent, games, match_key, keep_going=keep_going)
        return results

    def _earlier(self, step: int) -> list[int]:
        """Rated snapshots to play: the last one before `step`, and the one nearest to half of it."""
        kept = set(snapshot_steps(self._snapshots))
        rated = [earlier for earlier in self._rated_steps() if earlier < step and earlier in kept]
        return sorted({rated[-1], min(rated, key=lambda earlier: abs(earlier - step / 2))}) if rated else []

    def _rated_steps(self) -> list[int]:
        names = [name.removeprefix("@") for name in self._ladder.players() if name.startswith("@")]
        return sorted(int(name) for name in names if name.isdigit())


def _name(step: int) -> str:
    """The name of a snapshot in the ratings of its run."""
    return f"@{step}"


def judgement_metrics(result: JudgeResult, positions_by_ply: Mapping[int, int]) -> dict[str, float]:
    """`evaluation/keeps_value` of all positions; of each of `BANDS` with positions the same, and their number."""
    metrics = {"evaluation/keeps_value": result.keeps_value}
    for first, last in BANDS:
        plies = [ply for ply in positions_by_ply if first <= ply <= last]
        positions = sum(positions_by_ply[ply] for ply in plies)
        if positions:
            kept = sum(result.by_ply[ply] * positions_by_ply[ply] for ply in plies)
            metrics[f"evaluation/keeps_value_{first}_{last}"] = kept / positions
            metrics[f"evaluation/positions_{first}_{last}"] = float(positions)
    return metrics


def _scores(results: dict[str, MatchResult]) -> dict[str, float]:
    """`evaluation/score_OPPONENT`; all earlier snapshots count as one opponent."""
    scores = {f"evaluation/score_{name}": r.score for name, r in results.items() if not name.startswith("@")}
    earlier = [result.score for name, result in results.items() if name.startswith("@")]
    if earlier:
        scores["evaluation/score_earlier"] = sum(earlier) / len(earlier)
    return scores
