"""Evaluation rounds of board games: matches against opponents, a solver's judgement, and ratings.

Matches are chosen as in a tournament, by what makes the rating of the newest snapshot more certain; they may be matches
between two opponents. Their games choose nothing else: no snapshot is preferred to another because of its rating, so
ratings are not biased by a choice of the best.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from functools import cached_property
from pathlib import Path
from typing import Any

import jax

from podzero.config import Experiment
from podzero.evaluation.arena import Arena
from podzero.evaluation.games import MatchResult, PlayedGame
from podzero.evaluation.judge import Judge, JudgeResult
from podzero.evaluation.players import Contestant, NetworkPlayers
from podzero.evaluation.positions import judged_positions
from podzero.evaluation.rating_round import RatingRound, relevant, snapshot_name, snapshot_steps_of
from podzero.evaluation.ratings import Ladder, saved_ratings
from podzero.evaluation.solvers import SOLVED
from podzero.evaluation.who import resolve
from podzero.networks.snapshots import SnapshotError, load_snapshot, snapshot_steps
from podzero.protocols import Env
from podzero.types import Params

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
        keep: Callable[[int, Sequence[PlayedGame]], None] = lambda step, games: None,
    ) -> None:
        """Resolves the opponents; plays no match yet.

        Args:
          experiment: whose `evaluation` section configures the rounds.
          env: the game.
          snapshots: `Workdir.snapshots`, for matches against earlier snapshots.
          ladder: the result of `ladder()` of an earlier evaluator process.
          keep: gets the step and the games of each complete round.

        Raises:
          ConfigError: an opponent does not exist or cannot play this game.
          LadderError: `ladder` cannot be read.
        """
        self._config = experiment.evaluation
        self._env = env
        self._snapshots = snapshots
        self._keep = keep
        self._ladder = Ladder.from_json(ladder or {})
        self._ratings = saved_ratings(ladder or {}) | self._ladder.ratings(among=relevant(self._ladder, {}))
        self._ladder_tree = self._ladder.to_json(self._ratings)
        search = experiment.search.model_copy(update={"simulations": self._config.simulations})
        self._selves = NetworkPlayers(env, experiment.network, search, experiment.env.discount)
        self._names = OPPONENTS if self._config.opponents is None else self._config.opponents
        self._opponents = {
            name: resolve(name, env, discount=experiment.env.discount) for name in self._names if name != "earlier"
        }
        self._arena = Arena(env)
        self._seed = jax.random.key(experiment.seed)
        self._rated = max(snapshot_steps_of(self._ladder), default=-1)

    @property
    def rated(self) -> int:
        """The newest step judged so far; -1 before the first."""
        return self._rated

    def ladder(self) -> dict[str, Any]:
        """The ratings after the last complete round, as plain values."""
        return self._ladder_tree

    def judge(self, step: int, params: Params, keep_going: Callable[[], bool]) -> dict[str, float]:
        """Matches, the solver's judgement, and ratings."""
        player = self._selves.player(snapshot_name(step), params)
        match_key, judge_key = jax.random.split(jax.random.fold_in(self._seed, step))
        matches = RatingRound(self._arena, self._players(step, player), player.name, self._ladder, self._config.games)
        matches.play(match_key, keep_going)
        metrics = _scores(matches.results)
        if self._judge is not None:
            metrics |= judgement_metrics(self._judge(player, judge_key))
        self._rated, self._ladder = step, matches.ladder
        rated = self._ladder.ratings(among=matches.relevant())
        self._ratings |= rated
        self._ladder_tree = self._ladder.to_json(self._ratings)
        rating = matches.rating(rated)
        if rating is not None:
            metrics |= {"evaluation/elo": rating.elo, "evaluation/elo_error": rating.error}
        self._keep(step, matches.games)
        return metrics

    @cached_property
    def _judge(self) -> Judge | None:
        """Made in the first round, since solving the positions takes long if they are not cached."""
        if self._env.spec.name not in SOLVED:
            return None
        return Judge(self._env, judged_positions(self._env, self._config.positions, seed=0, part="validation"))

    def _players(self, step: int, newest: Contestant) -> dict[str, Contestant]:
        """The newest snapshot, that of `step`, its opponents, and earlier snapshots, by name."""
        players: dict[str, Contestant] = {**self._opponents, newest.name: newest}
        if "earlier" in self._names:
            for earlier in self._earlier(step):
                with suppress(SnapshotError):  # the driver may have deleted it meanwhile
                    held = load_snapshot(self._snapshots, earlier).params
                    players[snapshot_name(earlier)] = self._selves.player(snapshot_name(earlier), held)
        return players

    def _earlier(self, step: int) -> list[int]:
        """Rated snapshots to play: the last one before `step`, and the one nearest to half of it."""
        kept = set(snapshot_steps(self._snapshots))
        rated = [earlier for earlier in snapshot_steps_of(self._ladder) if earlier < step and earlier in kept]
        return sorted({rated[-1], min(rated, key=lambda earlier: abs(earlier - step / 2))}) if rated else []


def judgement_metrics(result: JudgeResult) -> dict[str, float]:
    """`evaluation/keeps_value` of all positions; of each band with positions the same, and their number."""
    metrics = {"evaluation/keeps_value": result.keeps_value}
    for band in result.bands:
        metrics[f"evaluation/keeps_value_{band.first}_{band.last}"] = band.keeps_value
        metrics[f"evaluation/positions_{band.first}_{band.last}"] = float(band.positions)
    return metrics


def _scores(results: Mapping[str, MatchResult]) -> dict[str, float]:
    """`evaluation/score_OPPONENT` and `evaluation/games_OPPONENT`; all earlier snapshots count as one opponent."""
    met: dict[str, MatchResult] = {}
    for name, result in results.items():
        opponent = "earlier" if name.startswith("@") else name
        met[opponent] = MatchResult(*map(sum, zip(met.get(opponent, (0, 0, 0)), result, strict=True)))
    played = {name: result for name, result in met.items() if result.games}
    scores = {f"evaluation/score_{name}": result.score for name, result in played.items()}
    return scores | {f"evaluation/games_{name}": float(result.games) for name, result in played.items()}
