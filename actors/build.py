"""Builds an experiment's actors: of environments, and of games with the network in one of four places."""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import NamedTuple

import jax
import numpy as np

from podzero.actors.clients import ActorClients
from podzero.actors.core import SelfPlayCore
from podzero.actors.device_actor import ChipRollouts, DeviceActor, RolloutCore
from podzero.actors.environments import EnvironmentActor
from podzero.actors.muzero_rollouts import MuZeroRollout
from podzero.actors.reanalysis import Reanalyse, position_reanalysis, window_reanalysis
from podzero.actors.selfplay import ActorGroups, Opponent, SelfPlayActor
from podzero.config import ActorsConfig, Experiment, GymnasiumConfig, ModelNetworkConfig, OwnAlgorithmConfig
from podzero.core.errors import ConfigError
from podzero.core.machine import has_int8_instructions
from podzero.core.protocols import Env, with_metrics
from podzero.core.types import EnvSpec, ModelNetwork, Params
from podzero.envs import VectorEnv, holds_states, make_env, spec_of
from podzero.inference import BackgroundSource, FoldedSource, QuantizedNetwork, quantized_network
from podzero.inference.build import PlacedNetwork, placed_network
from podzero.inference.serving import Hello, ServedParams, ServerClient, encoding_of, identity_of, served_evaluation
from podzero.networks import make_inference, make_model_network, trainable_network
from podzero.search import (
    Evaluate,
    ModelSearch,
    check_search,
    make_model_search,
    make_search,
    network_evaluation,
    rules_model,
)

log = logging.getLogger(__name__)

_CHECKED_ROOTS = 6
"""Roots of the check of a search of the user's own."""
_RANDOM_PLIES = 3
"""The largest number of random plies before them, so that some actions are illegal."""
_CHECKED_SIMULATIONS = 16
"""The largest number of simulations of that check."""

Actor = SelfPlayActor | ActorGroups | DeviceActor | EnvironmentActor


class FoundServers(NamedTuple):
    """The inference servers of a run, as an actor finds them."""

    run: str
    addresses: Callable[[], Mapping[str, str]]
    """Finds the addresses of the servers that are up, by name."""
    first: int = 0
    """The number of the server that the actor's first group of games asks first."""


def make_actor(
    experiment: Experiment,
    name: str,
    seed: int,
    clients: Sequence[ActorClients],
    *,
    opponents: Sequence[Opponent] = (),
    servers: FoundServers | None = None,
    devices: Sequence[jax.Device] = (),
) -> Actor:
    """The actor of an experiment; no other actor of the run has its `seed`.

    `clients` are the connections of each group of games: several with the inference servers `servers`, else one.
    `opponents` have one side of some games (`local`, `int8`), `devices` are the accelerators that play (`device`).

    Raises:
      ConfigError: OpenVINO, which evaluates in int8, is not installed; the devices cannot share the games evenly; or
        the length of games on devices is unlimited.
    """
    if isinstance(experiment.env, GymnasiumConfig):
        spec = spec_of(experiment.env)
        return EnvironmentActor(
            experiment=experiment,
            name=name,
            clients=clients[0],
            seed=seed,
            spec=spec,
            make_environments=partial(VectorEnv, experiment.env, experiment.actors.games, seed),
            search=model_search(experiment, spec),
        )
    match experiment.actors.inference:
        case "local" | "int8":
            core, fold, int8 = actor_parts(experiment)
            alone = clients[0]._replace(source=FoldedSource(clients[0].source, fold))
            if int8 is not None:
                # Quantizing takes seconds: games go on meanwhile.
                source = BackgroundSource(clients[0].source, fold, max_lag=experiment.actors.max_lag)
                alone = alone._replace(source=source, report=with_metrics(alone.report, int8.metrics))
            return SelfPlayActor(
                experiment=experiment, name=name, clients=alone, seed=seed, core=core, opponents=opponents
            )
        case "server":
            assert servers is not None
            return _served_groups(experiment, name, seed, clients, servers)
        case "device":
            return _device_actor(experiment, name, seed, clients[0], devices)


class ActorParts(NamedTuple):
    """The parts of an actor that evaluates the network on the CPUs of its process."""

    core: SelfPlayCore
    fold: Callable[[Params], Params]
    """Turns published parameters into the core's."""
    int8: QuantizedNetwork | None = None
    """The network in int8, which the core calls on the host; None if the network is part of the core's program."""


def actor_parts(experiment: Experiment, inference: str | None = None) -> ActorParts:
    """The parts of an actor on CPUs, by `inference` in place of `actors.inference`: `int8`, or else `local`."""
    env = make_env(experiment.env)
    unfolded, network = make_inference(experiment.network, env.spec)
    fold = jax.jit(unfolded)
    if (inference or experiment.actors.inference) == "int8":
        if has_int8_instructions():
            int8 = quantized_network(experiment, env, experiment.actors.games)
            core = selfplay_core(experiment, env, int8.evaluation(env))
            return ActorParts(core, lambda params: int8.load(fold(params)), int8)
        log.warning("this CPU has no int8 instructions (VNNI): actors.inference = int8 evaluates in float32 here")
    return ActorParts(selfplay_core(experiment, env, network_evaluation(env, network.apply)), fold)


def selfplay_core(experiment: Experiment, env: Env, evaluate: Evaluate) -> SelfPlayCore:
    """The self-play step, whose searches follow the rules of `env` and evaluate states with `evaluate`."""
    search = make_search(experiment.search, rules_model(env, evaluate, experiment.env.discount))
    keep_states = experiment.reanalyse.share > 0 or holds_states(experiment, env.spec)
    return SelfPlayCore(env, search, experiment.actors, keep_states, experiment.predicts_ownership)


def model_search(experiment: Experiment, spec: EnvSpec) -> ModelSearch:
    """The search of an experiment whose network learns a model of its environment."""
    assert isinstance(experiment.network, ModelNetworkConfig)
    network = make_model_network(experiment.network, spec)
    return make_model_search(experiment.search, network, spec, experiment.env.discount)


def _served_groups(
    experiment: Experiment, name: str, seed: int, clients: Sequence[ActorClients], servers: FoundServers
) -> ActorGroups:
    """Groups of games whose network inference servers evaluate: while one group waits, the others search."""
    config, games = experiment.server, experiment.actors.games // experiment.server.groups
    group = experiment.changed(actors={"games": games})
    actors, connections = [], []
    for number, group_clients in enumerate(clients):
        env = make_env(experiment.env)
        encoding = encoding_of(env, experiment.int8.on_tpu)
        identity = identity_of(experiment, servers.run, encoding.row_bytes, env.spec.outputs)
        hello = Hello(f"{name}, group {number}", games, identity)
        connection = ServerClient(hello, servers.addresses, config, servers.first + number, experiment.actors.cache_mib)
        connections.append(connection)
        # A prime, so that the seeds of groups and those of other actors (`seed_of`) do not meet.
        group_seed = (seed + 104_729 * number) % 2**31
        core = selfplay_core(group, env, served_evaluation(encoding, env.spec, connection))
        report = with_metrics(group_clients.report, connection.metrics)
        served = group_clients._replace(source=ServedParams(connection), report=report)
        actors.append(SelfPlayActor(experiment=group, name=name, clients=served, seed=group_seed, core=core))
    return ActorGroups(actors, connections)


def _device_actor(
    experiment: Experiment, name: str, seed: int, clients: ActorClients, devices: Sequence[jax.Device]
) -> DeviceActor:
    games = experiment.actors.games
    if games % len(devices):
        raise ConfigError(
            f"actors.games {games} is not a multiple of the {len(devices)} devices that play; "
            f"set it to {(games // len(devices) + 1) * len(devices)}"
        )
    own = experiment.changed(actors={"games": games // len(devices)})
    piece = own.actors.moves_per_dispatch * own.actors.games
    core: RolloutCore | MuZeroRollout
    if experiment.learns_model:
        env = make_env(experiment.env)
        core = MuZeroRollout(env, model_search(own, env.spec), own)
        piece = math.ceil(piece / experiment.muzero.stride)  # as many as there are windows
    else:
        core, placed = device_parts(own)
        clients = clients._replace(source=FoldedSource(clients.source, placed.fold))
        if (int8 := placed.int8) is not None:
            clients = clients._replace(record=int8.record, report=with_metrics(clients.report, int8.metrics))
    chips = ChipRollouts(core, devices, piece=piece)
    return DeviceActor(experiment=experiment, name=name, clients=clients, seed=seed, chips=chips)


def device_parts(experiment: Experiment) -> tuple[RolloutCore, PlacedNetwork]:
    """Self-play on one accelerator, and the network that it evaluates."""
    placed = placed_network(experiment)
    core = selfplay_core(experiment, placed.env, network_evaluation(placed.env, placed.apply))
    return RolloutCore(core, experiment), placed


def make_reanalysis(experiment: Experiment, seed: int) -> tuple[Reanalyse, Callable[[Params], Params]]:
    """The search of stored states, and the function that turns published parameters into its own.

    Environments with action masks are refused, since stored windows do not hold these.
    """
    if isinstance(experiment.network, ModelNetworkConfig):
        spec = spec_of(experiment.env)
        if spec.masked:
            raise ConfigError(
                f"reanalyse.share is {experiment.reanalyse.share:g}, but {spec.name} has action masks, which replay "
                "does not store, so that old positions cannot be searched again; set reanalyse.share=0"
            )
        network = make_model_network(experiment.network, spec)
        return window_reanalysis(experiment, network, model_search(experiment, spec), seed), lambda params: params
    env = make_env(experiment.env)
    fold, inference = make_inference(experiment.network, env.spec)
    model = rules_model(env, network_evaluation(env, inference.apply), experiment.env.discount)
    return position_reanalysis(experiment, env, make_search(experiment.search, model), seed), jax.jit(fold)


def check_own_search(experiment: Experiment, spec: EnvSpec) -> None:
    """Checks a search algorithm of the user's own, and that stored states can be searched again if they are to be."""
    if experiment.reanalyse.share and spec.masked:
        make_reanalysis(experiment, seed=0)
    algorithm = experiment.search.algorithm
    if not isinstance(algorithm, OwnAlgorithmConfig):
        return
    name = f"search.algorithm.name = '{algorithm.name}'"
    simulations = min(experiment.search.simulations, _CHECKED_SIMULATIONS)
    config = experiment.search.model_copy(update={"simulations": simulations})
    network = trainable_network(experiment.network, spec)
    params, discount = jax.jit(network.init)(jax.random.key(0)), experiment.env.discount
    if isinstance(network, ModelNetwork):
        observations = np.zeros((_CHECKED_ROOTS, *spec.observation_shape), spec.observation_dtype)
        legal = np.ones((_CHECKED_ROOTS, config.candidates if spec.action_shape else spec.num_actions), bool)
        legal[:, 0] = not spec.masked
        search = partial(make_model_search(config, network, spec, discount), legal=legal)
        check_search(search, params, observations, legal, None, name)
        return
    env = make_env(experiment.env)
    model = rules_model(env, network_evaluation(env, network.apply), discount)
    own = make_search(config, model)
    openings = ActorsConfig(games=_CHECKED_ROOTS, opening_fraction=1.0, opening_plies=_RANDOM_PLIES)
    roots = jax.jit(SelfPlayCore(env, own, openings).init)(jax.random.key(0)).games
    legal = np.asarray(jax.vmap(env.view)(roots).legal)
    check_search(own, params, roots, legal, model.bounds, name)
