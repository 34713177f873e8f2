"""From an experiment to the way in which its snapshots are judged."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from podzero.config import Experiment, GymnasiumConfig
from podzero.envs import make_env
from podzero.evaluation.evaluator import Rounds
from podzero.evaluation.matches import MatchRounds
from podzero.evaluation.returns import EpisodeRounds, SoloRounds
from podzero.networks import make_network


def make_rounds(experiment: Experiment, snapshots: Path, ladder: dict[str, Any]) -> Rounds:
    """Matches where two play, episodes where one does.

    Args:
      experiment: its `evaluation` section says what to do.
      snapshots: `Workdir.snapshots`.
      ladder: what `ladder()` gave in an earlier life.

    Raises:
      ConfigError: an opponent that does not exist or cannot play; or an environment that cannot be made.
      LadderError: `ladder` cannot be read.
    """
    if isinstance(experiment.env, GymnasiumConfig):
        return EpisodeRounds(experiment)
    env = make_env(experiment.env)
    network = make_network(experiment.network, env.spec)
    if env.spec.players == 1:
        return SoloRounds(experiment, env, network)
    return MatchRounds(experiment, env, network, snapshots, ladder)
