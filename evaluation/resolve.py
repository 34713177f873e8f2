"""Makes players from their names (`podzero.player_names`)."""

from __future__ import annotations

from collections.abc import Hashable
from functools import lru_cache
from typing import cast

from podzero.config import GymnasiumConfig, ModelNetworkConfig, NetworkConfig, SearchConfig
from podzero.envs import spec_of
from podzero.errors import ConfigError
from podzero.evaluation.engines import engine_contestant
from podzero.evaluation.episodes import ActAndValue, SearchActors
from podzero.evaluation.players import Contestant, NetworkPlayers, RandomPlayer, SearchPlayer, SolverPlayer, mcts_player
from podzero.evaluation.solvers import make_solver
from podzero.networks import make_model_network, make_network
from podzero.networks.snapshots import check_matches, load_snapshot
from podzero.player_names import EnginePlayer, TrainedPlayer, full_name, parse_player
from podzero.protocols import Env


def resolve(
    name: str, env: Env, simulations: int | None = None, discount: float = 1.0, keep_nodes: bool = False
) -> Contestant:
    """Makes the player called `name`.

    Args:
      name: see `podzero.player_names`.
      env: the game to play.
      simulations: a trained player's simulations per move; None for the number used in training.
      discount: discount per move for `mcts:N`; trained players use that of their experiment.
      keep_nodes: whether search results keep the nodes of the trees.

    Raises:
      ConfigError: the player does not exist, cannot play this game, or its program is not installed.
      WorkdirError: the working directory's experiment cannot be read.
      SnapshotError: the snapshot is missing or damaged.
    """
    player = parse_player(name)
    if isinstance(player, TrainedPlayer):
        return _network_player(name, player, env, simulations, keep_nodes)
    if isinstance(player, EnginePlayer):
        return engine_contestant(name, player, env.spec)
    match player.kind:
        case "random":
            return RandomPlayer(env)
        case "solver":
            return SolverPlayer(env, make_solver(env.spec.name))
        case "mcts":
            return mcts_player(env, player.simulations, discount, keep_nodes)
        case _:
            raise ConfigError(f"player '{name}' acts only in gymnasium environments, not in {env.spec.name}")


def acting(name: str, env: GymnasiumConfig, simulations: int | None = None) -> tuple[str, ActAndValue]:
    """The full name and the policy, with values, of an agent trained on a gymnasium environment.

    Args:
      name: see `podzero.player_names`; must be a working directory.
      env: the environment to act in.
      simulations: simulations per step; None for the number used in training.

    Raises:
      ConfigError, WorkdirError, SnapshotError: see `resolve`.
    """
    player = parse_player(name)
    if not isinstance(player, TrainedPlayer):
        raise ConfigError(f"player '{name}' cannot act in {env.title}; expected random, greedy or a working directory")
    experiment = player.workdir.experiment()
    if experiment.env.title != env.title:
        raise ConfigError(f"player '{name}' was trained on {experiment.env.title} and cannot act in {env.title}")
    assert isinstance(experiment.network, ModelNetworkConfig)
    spec = spec_of(env)
    snapshot = load_snapshot(player.workdir.snapshots, player.step)
    origin = f"{player.workdir.snapshots} at step {snapshot.version}"
    check_matches(snapshot.params, make_model_network(experiment.network, spec), origin)
    actors = SearchActors(experiment, spec, _with_simulations(experiment.search, simulations))
    return full_name(name, player, snapshot.version), actors.decider(snapshot.params)


def _network_player(
    name: str, player: TrainedPlayer, env: Env, simulations: int | None, keep_nodes: bool
) -> SearchPlayer:
    experiment = player.workdir.experiment()
    if not experiment.plays(env.spec.name):
        raise ConfigError(f"player '{name}' was trained on {experiment.env.title} and cannot play {env.spec.name}")
    snapshot = load_snapshot(player.workdir.snapshots, player.step)
    origin = f"{player.workdir.snapshots} at step {snapshot.version}"
    check_matches(snapshot.params, make_network(experiment.network, env.spec), origin)
    search = _with_simulations(experiment.search, simulations)
    players = _network_players(cast(Hashable, env), experiment.network, search, experiment.env.discount, keep_nodes)
    return players.player(full_name(name, player, snapshot.version), snapshot.params)


def _with_simulations(search: SearchConfig, simulations: int | None) -> SearchConfig:
    return search if simulations is None else search.model_copy(update={"simulations": simulations})


@lru_cache(maxsize=8)
def _network_players(
    env: Env, network: NetworkConfig, search: SearchConfig, discount: float, keep_nodes: bool
) -> NetworkPlayers:
    """Cached, so that two snapshots of a run share the compiled search."""
    return NetworkPlayers(env, network, search, discount, keep_nodes)
