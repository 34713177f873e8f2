"""Makes players from their names (`podzero.files.players`): those of matches, and the opponents of self-play."""

from __future__ import annotations

import logging
from collections.abc import Callable, Hashable
from functools import lru_cache, partial
from pathlib import Path
from typing import NamedTuple, cast

import jax
import jax.numpy as jnp
import numpy as np

from podzero.actors import Opponent
from podzero.config import Experiment, GymnasiumConfig, ModelNetworkConfig, observes_komi
from podzero.core.errors import ConfigError
from podzero.core.machine import has_int8_instructions
from podzero.core.protocols import Env
from podzero.core.types import Array, EnvState, ModelNetwork, Network, Params, Versioned
from podzero.envs import make_env, spec_of
from podzero.envs.boards.go import Go
from podzero.evaluation.engines import engine_contestant
from podzero.evaluation.episodes import Policy, search_actors
from podzero.evaluation.players import Contestant, MovesPlayer, NetworkPlayers, RandomPlayer, SearchPlayer, mcts_player
from podzero.evaluation.solvers import SolverPlayer, make_solver
from podzero.files.players import BuiltinPlayer, EnginePlayer, TrainedPlayer, full_name, parse_player
from podzero.files.storage import StorageError
from podzero.inference import quantized_network
from podzero.networks import make_model_network, trainable_network
from podzero.networks.snapshots import SnapshotError, check_matches, load_snapshot, snapshot_steps

log = logging.getLogger(__name__)

MOVES_PER_DRAW = 128
"""Moves after which `earlier` draws another snapshot."""


def resolve(
    name: str, env: Env, simulations: int | None = None, discount: float = 1.0, keep_nodes: bool = False
) -> Contestant:
    """Makes the player called `name` (see `podzero.files.players`) for a game.

    `simulations` are a trained player's for each move; None for those of training. `mcts:N` takes the `discount`, per
    move; trained players have that of their experiment. With `keep_nodes` results keep the nodes of the trees.

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


def search_player(
    name: str, env: Env, simulations: int | None = None, discount: float = 1.0, keep_nodes: bool = False
) -> SearchPlayer:
    """`resolve`, for a player that searches; another is a `ConfigError`."""
    player = resolve(name, env, simulations, discount, keep_nodes)
    if not isinstance(player, SearchPlayer):
        raise ConfigError(f"player '{name}' does not search; give a trained agent or mcts:N")
    return player


def usual_simulations(player: BuiltinPlayer | EnginePlayer | TrainedPlayer) -> int:
    """A player's default simulations per move: those of training, those in its name, or 1 without a search."""
    if isinstance(player, TrainedPlayer):
        return player.workdir.experiment().search.simulations
    if isinstance(player, BuiltinPlayer) and player.kind == "mcts":
        return player.simulations
    return 1


def with_simulations(who: str, simulations: int) -> str:
    """Replaces the number of simulations in the name `mcts:N`; other names stay the same."""
    return f"mcts:{simulations}" if who.startswith("mcts:") else who


def acting(name: str, env: GymnasiumConfig, simulations: int | None = None) -> tuple[str, Policy]:
    """The full name, and the policy with values, of an agent of a gymnasium environment; arguments as of `resolve`."""
    player = parse_player(name)
    if not isinstance(player, TrainedPlayer):
        raise ConfigError(f"player '{name}' cannot act in {env.title}; expected random or a working directory")
    experiment = player.workdir.experiment()
    if experiment.env.title != env.title:
        raise ConfigError(f"player '{name}' was trained on {experiment.env.title} and cannot act in {env.title}")
    assert isinstance(experiment.network, ModelNetworkConfig)
    spec = spec_of(env)
    snapshot = snapshot_of(player, make_model_network(experiment.network, spec))
    actor = search_actors(experiment, spec, simulations)
    return full_name(name, player, snapshot.version), actor(snapshot.params)


def _network_player(name: str, run: TrainedPlayer, env: Env, simulations: int | None, keep_nodes: bool) -> SearchPlayer:
    experiment = run.workdir.experiment()
    if not experiment.plays(env.spec.name):
        raise ConfigError(f"player '{name}' was trained on {experiment.env.title} and cannot play {env.spec.name}")
    env = _as_observed(env, experiment)
    snapshot = snapshot_of(run, trainable_network(experiment.network, env.spec))
    search = experiment.search
    if simulations is not None:
        search = search.model_copy(update={"simulations": simulations})
    players = _network_players(cast(Hashable, env), experiment.network, search, experiment.env.discount, keep_nodes)
    return players.player(full_name(name, run, snapshot.version), snapshot.params)


def _as_observed(env: Env, experiment: Experiment) -> Env:
    """The game as the experiment's network observes it; the states are the same."""
    return env.observed(shows_komi=observes_komi(experiment.env)) if isinstance(env, Go) else env


def snapshot_of(player: TrainedPlayer, network: Network | ModelNetwork) -> Versioned:
    """The player's parameters, which are those of `network`."""
    snapshot = load_snapshot(player.workdir.snapshots, player.step)
    check_matches(snapshot.params, network, f"{player.workdir.snapshots} at step {snapshot.version}")
    return snapshot


_network_players = lru_cache(maxsize=8)(NetworkPlayers)
"""Cached, so that two snapshots of a run share the compiled search."""


class Outlook(NamedTuple):
    """What a network makes of B positions by itself, for the player to move."""

    policy: Array
    """`[B, A]` float32, zero for illegal actions."""
    ownership: Array | None
    """`[B, S]` float32, whose each square will be, from -1, the opponent's, to 1, one's own; None without that head."""


def outlook_of(name: str, env: Env) -> Callable[[EnvState], Outlook] | None:
    """The compiled network of a trained player, as a function of B states; None for other players.

    Raises the errors of `resolve`.
    """
    player = parse_player(name)
    if not isinstance(player, TrainedPlayer):
        return None
    experiment = player.workdir.experiment()
    env = _as_observed(env, experiment)
    network = trainable_network(experiment.network, env.spec)
    assert isinstance(network, Network)
    params = snapshot_of(player, network).params

    def look(params: Params, states: EnvState) -> Outlook:
        view = jax.vmap(env.view)(states)
        logits, _, *predicted = (network.apply_all or network.apply)(params, view.observation)
        ownership = predicted[0].ownership if predicted else None
        policy = jax.nn.softmax(jnp.where(view.legal, logits, -jnp.inf), axis=-1)
        if ownership is not None:
            # The classes are the opponent's, nobody's and one's own.
            shares = jax.nn.softmax(ownership, axis=-1)
            ownership = shares[..., 2] - shares[..., 0]
        return Outlook(policy, ownership)

    return partial(jax.jit(look), params)


def make_opponents(experiment: Experiment, snapshots: Path, seed: int) -> list[Opponent]:
    """The players of `actors.opponents` except `self`; a trained player is its newest snapshot.

    `earlier` draws, with `seed`, from `snapshots`, which are those of the run (`Workdir.snapshots`).

    Raises the errors of `resolve`; `ConfigError` also if the game does not have two players.
    """
    listed = [entry for entry in experiment.actors.opponents if entry.who != "self"]
    if not listed:
        return []
    env, discount = make_env(experiment.env), experiment.env.discount
    if env.spec.players != 2:
        raise ConfigError(f"actors.opponents: remove them: {env.spec.name} has {env.spec.players} players, not two")
    made = []
    for entry in listed:
        if entry.who == "earlier":
            games = max(2, round(entry.share * experiment.actors.games))
            # In float32 the snapshots would take several times as long as the run's own network.
            quantized = experiment.actors.inference == "int8" and has_int8_instructions()
            int8 = quantized_network(experiment, env, games) if quantized else None
            players = NetworkPlayers(env, experiment.network, experiment.search, discount, int8=int8)
            made.append(Opponent("earlier", entry.share, Earlier(players, snapshots, seed).choose))
            continue
        try:
            if isinstance(parse_player(entry.who), EnginePlayer):
                raise ConfigError(
                    f"'{entry.who}' thinks about one game at a time, which is too slow for self-play; name it in "
                    "evaluation.opponents, or import games that it has played (podzero import)"
                )
            player = resolve(entry.who, env, discount=discount)
        except ConfigError as error:
            raise ConfigError(f"actors.opponents: {error}") from None
        assert not isinstance(player, MovesPlayer)
        made.append(Opponent(player.name, entry.share, player.choose))
    return made


class Earlier:
    """An earlier snapshot of the run, drawn uniformly from those that exist, every `MOVES_PER_DRAW` moves."""

    def __init__(self, players: NetworkPlayers, snapshots: Path, seed: int) -> None:
        self._players = players
        self._snapshots = snapshots
        self._random = np.random.default_rng([seed, 2])
        self._player: SearchPlayer | None = None
        self._moves = 0

    def choose(self, key: Array, states: EnvState) -> Array | None:
        """Its actions, as `Opponent.choose`; None before the run's first snapshot."""
        if self._moves % MOVES_PER_DRAW == 0:
            self._draw()
        self._moves += 1
        return None if self._player is None else self._player.choose(key, states)

    def _draw(self) -> None:
        try:
            if not (steps := sorted(snapshot_steps(self._snapshots))):
                return
            step = int(self._random.choice(steps))
            self._player = self._players.player(f"@{step}", load_snapshot(self._snapshots, step).params)
        except (SnapshotError, StorageError) as error:
            # The run may have deleted it meanwhile.
            log.warning("no earlier snapshot was drawn; the opponent stays as it was: %s", error)
