"""Makes the opponents of self-play from their names."""

from __future__ import annotations

import logging
from pathlib import Path

import numpy as np

from podzero.actors import Opponent
from podzero.config import Experiment
from podzero.envs import make_env
from podzero.errors import ConfigError
from podzero.evaluation.players import MovesPlayer, NetworkPlayers, SearchPlayer
from podzero.evaluation.resolve import resolve
from podzero.networks.snapshots import SnapshotError, load_snapshot, snapshot_steps
from podzero.types import Array, EnvState

log = logging.getLogger(__name__)

MOVES_PER_DRAW = 128
"""Moves after which `earlier` draws another snapshot."""


def make_opponents(experiment: Experiment, snapshots: Path, seed: int) -> list[Opponent]:
    """The players of `actors.opponents` except `self`; a trained player is its newest snapshot.

    Args:
      experiment: the run's experiment.
      snapshots: `Workdir.snapshots`, from which `earlier` draws.
      seed: seed of the draws.

    Raises:
      ConfigError: the game has one player, or an opponent does not exist or cannot play it in self-play.
      WorkdirError: an opponent's experiment cannot be read.
      SnapshotError: an opponent's snapshot is missing or damaged.
    """
    listed = [entry for entry in experiment.actors.opponents if entry.who != "self"]
    if not listed:
        return []
    env, discount = make_env(experiment.env), experiment.env.discount
    if env.spec.players != 2:
        raise ConfigError(f"actors.opponents: {env.spec.name} has one player, so there are no opponents; remove them")
    made = []
    for entry in listed:
        if entry.who == "earlier":
            players = NetworkPlayers(env, experiment.network, experiment.search, discount)
            made.append(Opponent("earlier", entry.share, Earlier(players, snapshots, seed).choose))
            continue
        try:
            player = resolve(entry.who, env, discount=discount)
        except ConfigError as error:
            raise ConfigError(f"actors.opponents: {error}") from None
        if isinstance(player, MovesPlayer):
            raise ConfigError(
                f"actors.opponents: '{entry.who}' thinks about one game at a time, which is too slow for self-play; "
                "name it in evaluation.opponents, or import games that it has played (podzero import)"
            )
        made.append(Opponent(player.name, entry.share, player.choose))
    return made


class Earlier:
    """An earlier snapshot of the run, drawn uniformly from those that exist, every `MOVES_PER_DRAW` moves.

    Args:
      players: makes a player from a snapshot's parameters.
      snapshots: `Workdir.snapshots`.
      seed: seed of the draws.
    """

    def __init__(self, players: NetworkPlayers, snapshots: Path, seed: int) -> None:
        self._players = players
        self._snapshots = snapshots
        self._random = np.random.default_rng([seed, 2])
        self._player: SearchPlayer | None = None
        self._moves = 0

    def choose(self, key: Array, states: EnvState) -> Array | None:
        """Its actions, as `Opponent.choose`; None before the run's first snapshot."""
        if self._moves % MOVES_PER_DRAW == 0:
            self._player = self._draw() or self._player
        self._moves += 1
        return None if self._player is None else self._player.choose(key, states)

    def _draw(self) -> SearchPlayer | None:
        steps = sorted(snapshot_steps(self._snapshots))
        if not steps:
            return None
        step = int(self._random.choice(steps))
        try:
            return self._players.player(f"@{step}", load_snapshot(self._snapshots, step).params)
        except SnapshotError as error:
            # The run may have deleted it meanwhile.
            log.warning("no earlier snapshot was drawn; the opponent stays as it was: %s", error)
            return None
