"""The section of a report on strength: ratings, scores, a solver's judgement, returns. Pure."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from functools import partial
from typing import Any

from podzero.config import Experiment
from podzero.intervals import student, wilson
from podzero.tools.report.curves import Metrics
from podzero.tools.report.figures import Figure, Section, Table
from podzero.tools.report.rounds import Rounds

_BAND = re.compile(r"keeps_value_(\d+)_(\d+)")
_NEWEST_MATCHES = 50
"""Matches that the table shows."""


def strength(metrics: Metrics, experiment: Experiment, ladder: Mapping[str, Any]) -> Section:
    """How well the run plays, with 95% intervals.

    Args:
      metrics: of the run.
      experiment: its experiment; `evaluation` says how many games and positions there are.
      ladder: the rating ladder of the newest checkpoint (`Ladder.to_json`).
    """
    rounds = Rounds(metrics, ladder)
    figures = [
        *_ratings(rounds),
        *_judgement(rounds, experiment.evaluation.positions),
        *_scores(rounds, experiment.evaluation.games),
        *_returns(rounds),
        *_acting_returns(metrics),
    ]
    return Section("Strength", figures, _matches(ladder))


def _ratings(rounds: Rounds) -> list[Figure]:
    def interval(elo: float, step: int) -> tuple[float, float]:
        error = rounds.get(step, "elo_error") or math.nan
        return elo - error, elo + error

    return rounds.figure(
        "Rating",
        "Elo",
        "Elo rating of each evaluated snapshot by the matches of this run; random play has 0. The 95% intervals are "
        "those of the difference from the snapshot before.",
        [rounds.curve("elo", "rating", interval)],
    )


def _judgement(rounds: Rounds, positions: int) -> list[Figure]:
    whole = rounds.curve("keeps_value", "all plies", lambda share, _: _interval(share, positions))
    found = sorted((int(band[1]), int(band[2])) for name in rounds.names if (band := _BAND.fullmatch(name)))

    def interval(share: float, step: int, first: int, last: int) -> tuple[float, float]:
        judged = int(rounds.get(step, f"positions_{first}_{last}") or 0)
        return _interval(share, judged)

    bands = [
        rounds.curve(
            f"keeps_value_{first}_{last}",
            f"plies {first} to {last}",
            lambda share, step, first=first, last=last: interval(share, step, first, last),  # type: ignore[misc]
        )
        for first, last in found
    ]
    return rounds.figure(
        "Moves that keep the value",
        "share",
        "Share of random positions, by ply, in which the chosen move keeps the game's value by a perfect solver, "
        "with 95% intervals.",
        [whole, *bands],
    )


def _scores(rounds: Rounds, games: int) -> list[Figure]:
    """`games` against each opponent, where an evaluation does not say how many; `earlier` are all snapshots."""

    def interval(score: float, step: int, opponent: str) -> tuple[float, float]:
        return _interval(score, round(rounds.get(step, f"games_{opponent}") or games + games % 2))

    opponents = [name.removeprefix("score_") for name in sorted(rounds.names) if name.startswith("score_")]
    curves = [rounds.curve(f"score_{name}", name, partial(interval, opponent=name)) for name in opponents]
    return rounds.figure(
        "Scores against opponents",
        "share",
        "Mean score of each evaluation's games (win 1, draw 1/2, loss 0) by opponent, with 95% intervals.",
        curves,
    )


def _interval(share: float, trials: int) -> tuple[float, float]:
    """Wilson's interval; of damaged files also shares beyond 0 and 1."""
    return wilson(min(max(share, 0.0), 1.0) * trials, trials)


def _returns(rounds: Rounds) -> list[Figure]:
    def interval(mean: float, step: int) -> tuple[float, float]:
        deviation, episodes = rounds.get(step, "std_return"), rounds.get(step, "episodes")
        if deviation is None or episodes is None or episodes < 2:
            return math.nan, math.nan
        return student(mean, deviation, int(episodes))

    return rounds.figure(
        "Returns in evaluation",
        "return",
        "Mean return of each evaluation's episodes, with search and without noise, with 95% intervals.",
        [rounds.curve("mean_return", "mean return", interval)],
    )


def _acting_returns(metrics: Metrics) -> list[Figure]:
    return metrics.figure(
        "Returns of the actors",
        "return",
        "Return of the actors' own episodes, with exploration: mean, least and greatest report of each span.",
        [metrics.gauge("actor", "acting/mean_return", "actors")],
    )


def _matches(ladder: Mapping[str, Any]) -> list[Table]:
    results = ladder.get("results")
    rows = [row for match in results if (row := _match_row(match))] if isinstance(results, list) else []
    if not rows:
        return []
    rows.sort(key=lambda row: row[0], reverse=True)
    texts = [cells for _, cells in rows[:_NEWEST_MATCHES]]
    caption = "Matches behind the ratings, the newest snapshot first; @N is the snapshot of step N."
    return [Table(caption, ("player", "opponent", "wins", "draws", "losses", "score"), texts)]


def _match_row(match: object) -> tuple[int, list[str]] | None:
    """The step of a match's newest player and the cells of its row; None if it is damaged."""
    match match:
        case {
            "first": str(first),
            "second": str(second),
            "wins": int(wins),
            "draws": int(draws),
            "losses": int(losses),
        }:
            games = max(wins + draws + losses, 1)
            steps = [int(name[1:]) for name in (first, second) if name[:1] == "@" and name[1:].isdigit()]
            score = f"{(wins + draws / 2) / games:.1%}"
            return max(steps, default=-1), [first, second, f"{wins:,}", f"{draws:,}", f"{losses:,}", score]
    return None
