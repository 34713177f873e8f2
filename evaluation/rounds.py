"""Chooses the evaluation rounds of an experiment."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from podzero.config import Experiment, GymnasiumConfig
from podzero.envs import make_env
from podzero.evaluation.evaluator import Rounds
from podzero.evaluation.kept_games import GamesFolder
from podzero.evaluation.matches import MatchRounds
from podzero.evaluation.returns import EpisodeRounds, SoloRounds


def make_rounds(experiment: Experiment, snapshots: Path, games: Path, ladder: dict[str, Any]) -> Rounds:
    """Matches for two-player games, episodes for single-agent environments.

    Args:
      experiment: whose `evaluation` section configures the rounds.
      snapshots: `Workdir.snapshots`.
      games: `Workdir.games`, where the games of matches are kept.
      ladder: the result of `ladder()` of an earlier evaluator process.

    Raises:
      ConfigError: an opponent does not exist or cannot play, or the environment cannot be created.
      LadderError: `ladder` cannot be read.
    """
    if isinstance(experiment.env, GymnasiumConfig):
        return EpisodeRounds(experiment)
    env = make_env(experiment.env)
    if env.spec.players == 1:
        return SoloRounds(experiment, env)
    return MatchRounds(experiment, env, snapshots, ladder, GamesFolder(games).write)
