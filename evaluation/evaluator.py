"""The evaluator: judges the newest snapshot periodically during training.

In board games a round plays matches, asks the solver if there is one, and updates the ratings. Matches are chosen, as
in a tournament, by how much they reduce the uncertainty of the newest snapshot's rating.
"""

from __future__ import annotations

import logging
import time
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from copy import deepcopy
from functools import cached_property
from pathlib import Path
from statistics import fmean
from threading import Event
from typing import Any

import jax

from podzero.config import Experiment, GymnasiumConfig, in_matches
from podzero.core.protocols import Env, Report
from podzero.core.types import Array, Params
from podzero.envs import EnvironmentFailed, SimulatorError, make_env, simulator_errors
from podzero.evaluation.arena import Arena, Interrupted
from podzero.evaluation.episodes import ReturnRounds, gymnasium_returns, simulator_returns
from podzero.evaluation.games import GamesFolder, PlayedGame
from podzero.evaluation.players import Contestant, NetworkPlayers
from podzero.evaluation.ratings import ANCHOR, Ladder, Rating
from podzero.evaluation.resolve import resolve
from podzero.evaluation.solvers import SOLVED, Judge, JudgeResult, judged_positions
from podzero.files.storage import StorageError
from podzero.networks.snapshots import SnapshotError, load_snapshot, snapshot_steps

log = logging.getLogger(__name__)

WORKER = "evaluator"
_LOOK_EVERY_S = 1.0


class Evaluator:
    """Judges the newest snapshot every `every_minutes`; the first of the `rounds` compiles programs for all."""

    def __init__(self, rounds: Rounds, every_minutes: float, snapshots: Path, report: Report) -> None:
        """`snapshots` is `Workdir.snapshots`; `report` receives the metrics."""
        self._rounds = rounds
        self._every_s = 60 * every_minutes
        self._snapshots = snapshots
        self._report = report
        self._stop = Event()
        self._last = -1

    def run(self) -> None:
        """Judges until `stop`. A round that fails is logged and repeated after `every_minutes`."""
        due = time.monotonic()
        while not self._stop.wait(_LOOK_EVERY_S):
            began = time.monotonic()
            if began >= due and self._attempt():
                due = began + self._every_s
        if self._rounds.rated < self._last:
            self._attempt()

    def _attempt(self) -> bool:
        """Judges the newest snapshot, if it is new; returns whether a round began."""
        try:
            if max(snapshot_steps(self._snapshots), default=-1) <= self._rounds.rated:
                return False
            self.judge_newest()
        except Interrupted:
            pass
        except (EnvironmentFailed, SimulatorError, SnapshotError, StorageError, OSError) as error:
            log.warning(
                "an evaluation round failed; while training goes on, one begins every %g minutes "
                "(evaluation.every_minutes): %s",
                self._every_s / 60,
                error,
            )
        return True

    def stop(self, last: int = -1) -> None:
        """Makes `run` return once it has judged the snapshot of step `last`; does not wait.

        A round under way goes on if it judges `last`, else it ends before its next move. Without `last` none follows.
        """
        self._last = last
        self._stop.set()

    def ladder(self) -> dict[str, Any]:
        """The rating ladder after the last complete round, as plain values."""
        return self._rounds.ladder()

    def judge_newest(self) -> None:
        """Runs and reports one round."""
        step, params = load_snapshot(self._snapshots)
        if step <= self._rounds.rated:
            raise SnapshotError(f"{self._snapshots}: no snapshot after step {self._rounds.rated} is intact")
        with simulator_errors():
            metrics = self._rounds.judge(step, params, lambda: step == self._last or not self._stop.is_set())
        self._report(WORKER, {"evaluation/step": float(step)} | metrics)


OPPONENTS = ("random", "mcts:25", "mcts:200", "earlier")
"""The default of `evaluation.opponents`: the searches anchor the ratings of agents that always beat `random`."""


class MatchRounds:
    """Judges snapshots by matches, ratings and the game's solver."""

    def __init__(
        self, experiment: Experiment, env: Env, snapshots: Path, games: Path, ladder: dict[str, Any] | None = None
    ) -> None:
        """Resolves the opponents.

        `snapshots` and `games` are in the `Workdir`; `ladder` is what an earlier evaluator's `ladder()` returned.
        """
        self._config = experiment.evaluation
        self._env = env
        self._snapshots = snapshots
        self._games = GamesFolder(games)
        self._ladder = Ladder.from_json(ladder or {})
        self._ladder.rated |= self._ladder.ratings(among=relevant(self._ladder, {}))
        search = experiment.search.model_copy(update={"simulations": self._config.simulations})
        self._selves = NetworkPlayers(env, experiment.network, search, experiment.env.discount)
        self._names = OPPONENTS if self._config.opponents is None else self._config.opponents
        others = [name for name in self._names if name != "earlier"]
        self._opponents = {name: resolve(name, env, discount=experiment.env.discount) for name in others}
        self._arena = Arena(env)
        self._seed = jax.random.key(experiment.seed)
        self.rated = max(snapshot_steps_of(self._ladder), default=-1)
        """The newest step judged so far, including by earlier evaluator processes; -1 before the first."""

    def ladder(self) -> dict[str, Any]:
        """The ratings after the last complete round, as plain values."""
        return self._ladder.to_json()

    def judge(self, step: int, params: Params, keep_going: Callable[[], bool]) -> dict[str, float]:
        """Metrics `evaluation/...` of matches, ratings and the solver; `Interrupted` once `keep_going` is false."""
        player = self._selves.player(snapshot_name(step), params)
        match_key, judge_key = jax.random.split(jax.random.fold_in(self._seed, step))
        matches = RatingRound(self._arena, self._players(step, player), player.name, self._ladder, self._config.games)
        matches.play(match_key, keep_going)
        metrics = _scores(matches.games, player.name)
        if self._judge is not None:
            metrics |= judgement_metrics(self._judge(player, judge_key))
        if (rating := matches.rate()) is not None:
            metrics |= {"evaluation/elo": rating.elo, "evaluation/elo_error": rating.error}
        # Another thread may read the ladder, so it is replaced when it is complete.
        self.rated, self._ladder = step, matches.ladder
        self._games.write(step, matches.games)
        return metrics

    @cached_property
    def _judge(self) -> Judge | None:
        """Made in the first round, since solving positions without labels is slow."""
        if self._env.spec.name not in SOLVED:
            return None
        return Judge(self._env, judged_positions(self._env, self._config.positions, seed=0, part="validation"))

    def _players(self, step: int, newest: Contestant) -> dict[str, Contestant]:
        """The newest snapshot, that of `step`, its opponents and earlier snapshots, by name."""
        players: dict[str, Contestant] = {**self._opponents, newest.name: newest}
        if "earlier" in self._names:
            for earlier in self._earlier(step):
                # The driver may have deleted it meanwhile.
                with suppress(SnapshotError):
                    params = load_snapshot(self._snapshots, earlier).params
                    players[snapshot_name(earlier)] = self._selves.player(snapshot_name(earlier), params)
        return players

    def _earlier(self, step: int) -> list[int]:
        """Rated snapshots to play: the last before `step` and the one nearest to half of it."""
        present = set(snapshot_steps(self._snapshots))
        rated = [earlier for earlier in snapshot_steps_of(self._ladder) if earlier < step and earlier in present]
        return sorted({rated[-1], min(rated, key=lambda earlier: abs(earlier - step / 2))}) if rated else []


Rounds = MatchRounds | ReturnRounds
"""A way to judge parameters."""


def make_rounds(experiment: Experiment, snapshots: Path, games: Path, ladder: dict[str, Any]) -> Rounds:
    """Matches for two-player games, episodes for single-agent environments; the other arguments are for matches.

    Raises `ConfigError` also if an opponent does not exist or cannot play, `LadderError` if `ladder` cannot be read.
    """
    if isinstance(experiment.env, GymnasiumConfig):
        return ReturnRounds(gymnasium_returns(experiment), experiment.seed)
    env = make_env(in_matches(experiment.env))
    if env.spec.players == 1:
        return ReturnRounds(simulator_returns(experiment, env), experiment.seed)
    return MatchRounds(experiment, env, snapshots, games, ladder)


def judgement_metrics(result: JudgeResult) -> dict[str, float]:
    """`evaluation/keeps_value` over all positions, and the share and number of positions in each band."""
    metrics = {"evaluation/keeps_value": result.keeps_value}
    for (first, last), band in result.bands.items():
        metrics[f"evaluation/keeps_value_{first}_{last}"] = band.keeps_value
        metrics[f"evaluation/positions_{first}_{last}"] = float(band.positions)
    return metrics


def _scores(games: Iterable[PlayedGame], newest: str) -> dict[str, float]:
    """`evaluation/score_OPPONENT` and `evaluation/games_OPPONENT`; all earlier snapshots count as one opponent."""
    points = defaultdict[str, list[float]](list)
    for game in games:
        for one, other, scored in ((game.first, game.second, game.points), (game.second, game.first, 1 - game.points)):
            if one == newest:
                points["earlier" if other.startswith("@") else other].append(scored)
    scores = {f"evaluation/score_{name}": fmean(scored) for name, scored in points.items()}
    return scores | {f"evaluation/games_{name}": float(len(scored)) for name, scored in points.items()}


ENOUGH_ELO = 60.0
"""A round ends when half the interval of the newest rating is below this."""
BATCH_OPENINGS = 4
"""Most openings in a match of a round; each is played from both sides."""
RATED_TOGETHER = 24
"""Newest snapshots that a round rates; older ratings are frozen, so that rounds do not slow down during a run."""


class RatingRound:
    """The matches of one round. Two opponents may also meet, if that reduces the newest rating's uncertainty most."""

    def __init__(self, arena: Arena, players: dict[str, Contestant], newest: str, ladder: Ladder, games: int) -> None:
        """Prepares a round of `players`: the newest snapshot, whose name is `newest`, and at least one opponent.

        `ladder`, of earlier rounds, is copied; `games` are the most for each opponent, rounded up to an even number.
        """
        self._arena = arena
        self._players = players
        self._newest = newest
        self._openings = min(BATCH_OPENINGS, -(-games // 2))
        self._opponents = [name for name in players if name != newest]
        earlier = [int(name[1:]) for name in self._opponents if name.startswith("@")]
        self._before = snapshot_name(max(earlier)) if earlier else ANCHOR
        self._most = -(-games // (2 * self._openings)) * len(self._opponents)
        self._excluded: set[frozenset[str]] = set()
        self.ladder = deepcopy(ladder)
        """The given ladder with the games of this round."""
        self.games: list[PlayedGame] = []
        """Games of this round, in the order of play."""

    def play(self, key: Array, keep_going: Callable[[], bool]) -> None:
        """Plays one match against each opponent, then matches chosen by uncertainty, until the newest rating's interval
        is short enough or all games are played. `key` is consumed.
        """
        known: dict[frozenset[str], list[str]] = {}
        for number in range(self._most):
            pair = self._choose(number)
            if pair is None:
                return
            one, other = (self._players[name] for name in pair)
            met, match_key = frozenset(pair), jax.random.fold_in(key, number)
            before = known.setdefault(met, [])
            played = self._arena.pairs(one, other, self._openings, match_key, None, keep_going, before)
            if not played:
                self._excluded.add(met)
                continue
            before += [both.opened.position for both in played]
            self.ladder.add(*pair, [both.points for both in played])
            self.games += [game for both in played for game in both]

    def rate(self) -> Rating | None:
        """Rates all players but old snapshots that do not play in this round.

        Returns:
          the newest snapshot's rating, with the interval of its difference from the previous snapshot (for the first
          one, from random play); None if no games connect it with random play.
        """
        names = relevant(self.ladder, self._players)
        self.ladder.rated |= self.ladder.ratings(among=names)
        # How far random play lies below the first snapshots is uncertain by hundreds of Elo points, but that shifts all
        # snapshots alike.
        rating, compared = self.ladder.rated.get(self._newest), self._compared(names)
        if rating is None or compared is None:
            return None
        shift = rating.elo - compared.elo
        return rating._replace(error=compared.error, low=compared.low + shift, high=compared.high + shift)

    def _compared(self, names: list[str]) -> Rating | None:
        """The newest snapshot's rating with the previous one at 0."""
        return self.ladder.ratings({self._before: 0.0}, names).get(self._newest)

    def _choose(self, number: int) -> tuple[str, str] | None:
        """The next two players, the newest first; None if the newest rating is certain enough."""
        if number < len(self._opponents):
            return self._newest, self._opponents[number]
        names = relevant(self.ladder, self._players)
        rating = self._compared(names)
        if rating is None:
            # Nothing to rate: all games serve the scores.
            return self._newest, self._opponents[number % len(self._opponents)]
        if rating.error < ENOUGH_ELO:
            return None

        def may_play(one: str, other: str) -> bool:
            # Two earlier snapshots never meet, since the openings they have played are not stored.
            both_earlier = self._newest not in (one, other) and one.startswith("@") and other.startswith("@")
            present = one in self._players and other in self._players
            return present and not both_earlier and frozenset((one, other)) not in self._excluded

        games, anchors = 2 * self._openings, {self._before: 0.0}
        pair = self.ladder.next_pair(names, anchors, games, [self._newest], may_play)
        return pair if pair is None or pair[1] != self._newest else (pair[1], pair[0])


def relevant(ladder: Ladder, present: Mapping[str, Contestant]) -> list[str]:
    """The players of a ladder, without old snapshots that are not `present`."""
    names = ladder.players()
    old = {snapshot_name(step) for step in snapshot_steps_of(ladder)[:-RATED_TOGETHER]}
    return [name for name in names if name not in old or name in present]


def snapshot_name(step: int) -> str:
    """A snapshot's name in the ratings of its run."""
    return f"@{step}"


def snapshot_steps_of(ladder: Ladder) -> list[int]:
    """The steps of the rated snapshots, ascending."""
    numbers = [name.removeprefix("@") for name in ladder.players() if name.startswith("@")]
    return sorted(int(number) for number in numbers if number.isdigit())
