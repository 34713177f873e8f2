"""The grammar of players (WHO) of all commands.

runs/mine         a working directory: its newest snapshot
runs/mine@1200    the snapshot of one step
random            uniformly random legal moves
mcts:400          tree search with 400 random rollouts, no network
solver            perfect play, where the game is solved
greedy            the action with the highest next reward, in gymnasium environments that can be copied
"""

from __future__ import annotations

from collections.abc import Callable, Hashable
from functools import lru_cache
from pathlib import Path
from typing import NamedTuple, cast

from podzero.config import EnvConfig, GymnasiumConfig, ModelNetworkConfig, NetworkConfig, SearchConfig
from podzero.envs import spec_of
from podzero.errors import ConfigError, nearest
from podzero.evaluation.episodes import Choose
from podzero.evaluation.players import NetworkPlayers, Player, RandomPlayer, SearchPlayer, SolverPlayer, mcts_player
from podzero.evaluation.returns import SearchActors
from podzero.evaluation.solvers import make_solver
from podzero.networks import make_inference, make_model_network, make_network
from podzero.params import check_matches, load_snapshot
from podzero.protocols import Env
from podzero.types import Params
from podzero.workdir import Workdir

NAMED = ("random", "mcts:N", "solver", "greedy")
"""Players that need no working directory."""


class _Run(NamedTuple):
    """A working directory and a step of it; None for the newest."""

    workdir: Workdir
    step: int | None


def resolve(who: str, env: Env, simulations: int | None = None, discount: float = 1.0) -> Player:
    """The player `who`.

    Args:
      who: in the grammar of this module.
      env: the game to play.
      simulations: per move of players with a network; None means as many as in training.
      discount: discount factor per move for `mcts:N`; networks use that of their experiment.

    Raises:
      ConfigError: the player is unknown or cannot play this game.
      WorkdirError: the working directory's experiment cannot be read.
      SnapshotError: the snapshot, or every snapshot, is missing or damaged.
    """
    name, colon, argument = who.partition(":")
    match name:
        case "random" | "solver" if colon:
            raise ConfigError(f"player '{who}': '{name}' takes no number")
        case "random":
            return RandomPlayer(env)
        case "solver":
            return SolverPlayer(env, make_solver(env.spec.name))
        case "greedy":
            raise ConfigError(f"player 'greedy' acts in gymnasium environments only, not in {env.spec.name}")
        case "mcts":
            return mcts_player(env, _rollouts(who, argument), discount)
    return _network_player(who, _run(who), env, simulations)


def acting(who: str, env: GymnasiumConfig, simulations: int | None = None) -> tuple[str, Choose]:
    """The name and the policy of the agent in a working directory that was trained in `env`.

    Raises:
      ConfigError, WorkdirError, SnapshotError: as `resolve`.
    """
    if game_of(who) is None:
        raise ConfigError(f"player '{who}' cannot act in {env.title}: expected a working directory, random, or greedy")
    run = _run(who)
    experiment = run.workdir.experiment()
    if experiment.env.title != env.title:
        raise ConfigError(f"player '{who}' was trained on {experiment.env.title} and cannot act in {env.title}")
    assert isinstance(experiment.network, ModelNetworkConfig)
    spec = spec_of(env)
    snapshot = load_snapshot(run.workdir.snapshots, run.step)
    origin = f"{run.workdir.snapshots} at step {snapshot.version}"
    check_matches(snapshot.params, make_model_network(experiment.network, spec), origin)
    actors = SearchActors(experiment, spec, _with_simulations(experiment.search, simulations))
    return f"{run.workdir.root}@{snapshot.version}", actors.actor(snapshot.params)


def game_of(who: str) -> EnvConfig | None:
    """The game that a working directory was trained on; None for named players, which play any game.

    Raises:
      ConfigError: the player is unknown.
      WorkdirError: the working directory's experiment cannot be read.
    """
    if who.partition(":")[0] in {"random", "mcts", "solver", "greedy"}:
        return None
    return _run(who).workdir.experiment().env


def _rollouts(who: str, argument: str) -> int:
    if not (argument.isascii() and argument.isdigit() and int(argument) > 0):
        raise ConfigError(f"player '{who}': expected a positive number of simulations, as mcts:400")
    return int(argument)


def _run(who: str) -> _Run:
    """Finds the working directory; its own name may contain an @."""
    if who and Path(who).expanduser().is_dir():
        return _Run(Workdir(who), None)
    folder, at, step = who.rpartition("@")
    if at and Path(folder).expanduser().is_dir():
        if not (step.isascii() and step.isdigit()):
            raise ConfigError(f"player '{who}': expected a learner step after the @, as {folder}@1200")
        return _Run(Workdir(folder), int(step))
    known = ", ".join(NAMED)
    raise ConfigError(
        f"unknown player '{who}'{nearest(who, ('random', 'mcts:400', 'solver'))}: expected {known}, "
        "or a working directory (DIR, or DIR@STEP for one snapshot); there is no such directory"
    )


def _network_player(who: str, run: _Run, env: Env, simulations: int | None) -> SearchPlayer:
    experiment = run.workdir.experiment()
    if experiment.env.title != env.spec.name:
        raise ConfigError(f"player '{who}' was trained on {experiment.env.title} and cannot play {env.spec.name}")
    snapshot = load_snapshot(run.workdir.snapshots, run.step)
    origin = f"{run.workdir.snapshots} at step {snapshot.version}"
    check_matches(snapshot.params, make_network(experiment.network, env.spec), origin)
    search = _with_simulations(experiment.search, simulations)
    fold, players = _network_players(cast(Hashable, env), experiment.network, search, experiment.env.discount)
    return players.player(f"{run.workdir.root}@{snapshot.version}", fold(snapshot.params))


def _with_simulations(search: SearchConfig, simulations: int | None) -> SearchConfig:
    return search if simulations is None else search.model_copy(update={"simulations": simulations})


@lru_cache(maxsize=8)
def _network_players(
    env: Env, network: NetworkConfig, search: SearchConfig, discount: float
) -> tuple[Callable[[Params], Params], NetworkPlayers]:
    """Cached, so that two snapshots of a run share their compiled programs."""
    fold, folded = make_inference(network, env.spec)
    return fold, NetworkPlayers(env, folded, search, discount)
