"""Simulated tournaments: how often rating intervals hold the truth, and how many games the choice of matches saves.

uv run --group dev python benchmarks/tournaments.py

takes half an hour on one core; `--only NAME` restricts it to some of the scenarios.

Players have known ratings; each draws the two games of an opening from the Bradley-Terry model, with draws, and with a
correlation between the two games. Coverage is the share of ratings (without the anchor) whose 95% interval holds the
truth. Other intervals are computed from the same results for comparison.
"""

from __future__ import annotations

import argparse
import json
import math
import sys
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from itertools import combinations, cycle, islice
from statistics import median
from typing import Any, NamedTuple

import numpy as np
from scipy import special

from podzero.evaluation.statistics import (
    ELO_PER_NAT,
    Z_95,
    Estimates,
    Floats,
    PairResults,
    Unit,
    connected,
    covariance,
    estimate,
    firth,
    maximum_likelihood,
    next_pair,
)

REPLICATES = 500
"""The replicates of each bootstrap."""
Method = Callable[[PairResults, Floats], Estimates]


class Scenario(NamedTuple):
    """A kind of tournament."""

    name: str
    players: int
    spread: float
    """The standard deviation of the players' true ratings in Elo points."""
    batches: int
    """The matches in a tournament."""
    openings: int = 4
    """The openings in a match; each is played from both sides."""
    draws: float = 0.2
    """How often evenly matched players draw."""
    correlation: float = -0.2
    """The correlation of the two games of an opening; negative if openings favour a side."""


SCENARIOS = (
    Scenario("two equal players, 16 games", 2, 0, 2),
    Scenario("two unequal players, 32 games", 2, 300, 4),
    Scenario("four players, 64 games", 4, 200, 8),
    Scenario("four very unequal players, 64 games", 4, 600, 8, draws=0),
    Scenario("six players, correlated games", 6, 200, 15, correlation=0.3),
    Scenario("six players, many draws", 6, 100, 20, draws=0.6, correlation=-0.5),
    Scenario("eight unequal players, 256 games", 8, 400, 32),
)
SAVINGS = (
    Scenario("saving: four players", 4, 300, 400),
    Scenario("saving: four very unequal players", 4, 600, 400),
    Scenario("saving: six players", 6, 300, 400),
    Scenario("saving: eight players", 8, 300, 400),
    Scenario("saving: eight very unequal players", 8, 600, 400),
)


class Simulation:
    """One tournament of players of known strength; player 0 is the anchor."""

    def __init__(self, scenario: Scenario, seed: int) -> None:
        self.scenario = scenario
        self._random = np.random.default_rng(seed)
        truth = self._random.normal(scale=scenario.spread, size=scenario.players)
        self.truth: Floats = truth - truth[0]
        self.anchors: Floats = np.where(np.arange(scenario.players) == 0, 0.0, np.nan)
        self._counts: Counter[Unit] = Counter()

    @property
    def results(self) -> PairResults:
        """The results so far."""
        return PairResults.of(self._counts)

    @property
    def games(self) -> int:
        """The number of games so far."""
        return 2 * self._counts.total()

    def by_uncertainty(self) -> Iterator[tuple[int, int]]:
        """Pairs of players as `podzero tournament` chooses them."""
        while True:
            results = self.results
            points = results.points_of(self.scenario.players, results.count)
            pair = next_pair(points, self.anchors / ELO_PER_NAT, 2 * self.scenario.openings)
            assert pair is not None
            yield pair

    def round_robin(self) -> Iterator[tuple[int, int]]:
        """All pairs of players in turn."""
        return cycle(combinations(range(self.scenario.players), 2))

    def play(self, i: int, j: int) -> None:
        """Plays a match."""
        chance = special.expit((self.truth[i] - self.truth[j]) / ELO_PER_NAT)
        drawn = self.scenario.draws * 2 * min(chance, 1 - chance)
        cor = self.scenario.correlation
        normal = self._random.multivariate_normal((0, 0), ((1, cor), (cor, 1)), size=self.scenario.openings)
        level = special.ndtr(normal)
        lost, undecided = level < 1 - chance - drawn / 2, level < 1 - chance + drawn / 2
        points = np.where(lost, 0, np.where(undecided, 0.5, 1)).sum(axis=1)
        self._counts.update(Unit(i, j, float(scored)) for scored in points)


def played(scenario: Scenario, seed: int) -> Simulation:
    """A finished tournament, paired by uncertainty."""
    simulation = Simulation(scenario, seed)
    for pair in islice(simulation.by_uncertainty(), scenario.batches):
        simulation.play(*pair)
    return simulation


def coverage(scenario: Scenario, tournaments: int, methods: Mapping[str, Method]) -> dict[str, Any]:
    """The share of ratings whose interval holds the truth, and the median of half the intervals, for each method."""
    held: dict[str, list[float]] = {name: [] for name in methods}
    halves: dict[str, list[float]] = {name: [] for name in methods}
    for seed in range(tournaments):
        simulation = played(scenario, seed)
        for name, method in methods.items():
            found = method(simulation.results, simulation.anchors)
            inside = (found.low <= simulation.truth) & (simulation.truth <= found.high)
            held[name].append(float(inside[1:].mean()))
            halves[name] += found.error[1:].tolist()
    return {
        name: {"coverage": round(float(np.mean(held[name])), 4), "half_interval": round(median(halves[name]), 1)}
        for name in methods
    }


def saving(scenario: Scenario, tournaments: int, until: float) -> dict[str, Any]:
    """Games until all intervals are at most `until` Elo points to each side, by uncertainty and in round robin."""
    games: dict[str, list[int]] = {"by_uncertainty": [], "round_robin": []}
    for seed in range(tournaments):
        for name, counts in games.items():
            simulation = Simulation(scenario, seed)
            pairs = getattr(simulation, name)()
            for pair in islice(pairs, scenario.batches):
                simulation.play(*pair)
                if _largest(simulation) <= until:
                    break
            counts.append(simulation.games)
    ratio = float(np.mean(games["by_uncertainty"]) / np.mean(games["round_robin"]))
    return {"games": {name: float(np.mean(counts)) for name, counts in games.items()}, "ratio": round(ratio, 3)}


def _largest(simulation: Simulation) -> float:
    """The largest half of an interval; infinite until games connect all players."""
    results, players = simulation.results, simulation.scenario.players
    if len(connected(results.points_of(players, results.count), simulation.anchors, 0)) < players:
        return math.inf
    return float(estimate(results, simulation.anchors, replicates=REPLICATES).error.max())


def fisher(results: PairResults, anchors: Floats) -> Estimates:
    """The ratings, and 1.96 standard deviations from the Fisher information."""
    fixed = anchors / ELO_PER_NAT
    points = results.points_of(len(anchors), results.count)
    ratings, _ = firth(points, fixed)
    spread = Z_95 * np.sqrt(np.diagonal(covariance(ratings, points, fixed)))
    return Estimates(ELO_PER_NAT * ratings, ELO_PER_NAT * (ratings - spread), ELO_PER_NAT * (ratings + spread))


def drawn_again(results: PairResults, anchors: Floats, method: str) -> Estimates:
    """Intervals by `scipy.stats.bootstrap`: units are drawn again, and rated by Firth's likelihood."""
    from scipy import stats  # here: it takes a second to import

    fixed, players = anchors / ELO_PER_NAT, len(anchors)
    units = np.repeat(np.arange(len(results.count)), results.count.astype(int))
    _, leverages = firth(results.points_of(players, results.count), fixed)

    def rate(drawn: Floats, axis: int = -1) -> Floats:
        weights = (np.moveaxis(drawn, axis, -1)[..., None] == np.arange(len(results.count))).sum(axis=-2)
        points = results.points_of(players, weights.astype(np.float64)) + leverages / 2
        ratings = maximum_likelihood(points, fixed)
        return np.moveaxis(ratings, -1, 0)

    found = stats.bootstrap(
        (units,), rate, n_resamples=REPLICATES, method=method, vectorized=True, rng=np.random.default_rng(0)
    )
    low, high = np.nan_to_num(found.confidence_interval.low), np.nan_to_num(found.confidence_interval.high)
    ratings, _ = firth(results.points_of(players, results.count), fixed)
    return Estimates(ELO_PER_NAT * ratings, ELO_PER_NAT * low, ELO_PER_NAT * high)


def main() -> None:
    """Prints one JSON object."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "--tournaments", type=int, default=1000, help="tournaments of each kind for the intervals that are used"
    )
    parser.add_argument("--few", type=int, default=200, help="tournaments of each kind for other intervals")
    parser.add_argument("--saving", type=int, default=20, help="tournaments of each kind for the number of games")
    parser.add_argument("--only", help="the scenarios whose name contains this")
    parser.add_argument("--until", type=float, default=100, help="largest half of an interval, for the number of games")
    arguments = parser.parse_args()
    used = {"used": partial(estimate, replicates=REPLICATES)}
    others: dict[str, Method] = {
        "fisher": fisher,
        "percentile": partial(drawn_again, method="percentile"),
        "bca": partial(drawn_again, method="BCa"),
    }
    found: dict[str, Any] = {"intervals": {}, "saving": {}}
    for scenario in (one for one in SCENARIOS if (arguments.only or "") in one.name):
        found["intervals"][scenario.name] = {
            **scenario._asdict(),
            "methods": coverage(scenario, arguments.tournaments, used) | coverage(scenario, arguments.few, others),
        }
        print(scenario.name, json.dumps(found["intervals"][scenario.name]), file=sys.stderr, flush=True)
    for scenario in (one for one in SAVINGS if (arguments.only or "") in one.name):
        found["saving"][scenario.name] = saving(scenario, arguments.saving, arguments.until)
        print(scenario.name, json.dumps(found["saving"][scenario.name]), file=sys.stderr, flush=True)
    found |= {"tournaments": arguments.tournaments, "few": arguments.few}
    found |= {"saving_tournaments": arguments.saving, "until": arguments.until}
    print(json.dumps({"result": found}))


if __name__ == "__main__":
    main()
