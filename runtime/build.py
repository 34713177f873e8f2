"""Builds networks, actors, inference servers and reanalysers: for processes, benchmarks and compilation."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any, NamedTuple, Protocol

import jax
import numpy as np

from podzero.actors import (
    ActorClients,
    ActorGroups,
    DeviceActor,
    EnvironmentActor,
    Opponent,
    Reanalyse,
    ReanalysisActor,
    RolloutCore,
    SelfPlayActor,
    SelfPlayCore,
    position_reanalysis,
    window_reanalysis,
)
from podzero.config import Experiment, GymnasiumConfig, ModelNetworkConfig, ResNetConfig
from podzero.core.errors import ConfigError
from podzero.core.protocols import BatchedSearch, Env, ParamSource, ReplayWriter, Report
from podzero.core.types import Array, EnvSpec, ModelNetwork, Network, Params, StoredState, Symmetry, Window
from podzero.envs import make_env, make_vector_env, spec_of
from podzero.inference import (
    BackgroundSource,
    CalibrationPositions,
    Int8Network,
    NotingWriter,
    QuantizedNetwork,
    RecentPositions,
    has_bfloat16_instructions,
    has_int8_instructions,
    host_resnet,
    quantized_network,
    random_positions,
)
from podzero.inference.serving import (
    Encoding,
    Hello,
    Identity,
    InferenceServer,
    NetworkDevice,
    NetworkServer,
    ServedParams,
    ServerClient,
    encoding_of,
    identity_of,
    served_evaluation,
)
from podzero.networks import make_inference, make_model_network, make_network
from podzero.search import Evaluate, ModelSearch, make_model_search, make_search, network_evaluation, rules_model

log = logging.getLogger(__name__)

Apply = Callable[[Params, Array], tuple[jax.Array, jax.Array]]
"""`Network.apply`."""


class ActorParts(NamedTuple):
    """The parts of a self-play actor."""

    core: SelfPlayCore
    fold: Callable[[Params], Params]
    """Turns published parameters into the core's."""
    quantized: QuantizedNetwork | None = None
    """The int8 network that the core calls; None if the network is part of the search's own program."""


class HasMetrics(Protocol):
    """An object with metrics of its own."""

    def metrics(self) -> Mapping[str, float]:
        """Its newest metrics."""
        ...


def learner_parts(experiment: Experiment) -> tuple[Network | ModelNetwork, EnvSpec, Sequence[Symmetry]]:
    """The network of an experiment, and its environment's specification and symmetries."""
    if isinstance(experiment.network, ModelNetworkConfig):
        spec = spec_of(experiment.env)
        return make_model_network(experiment.network, spec), spec, ()
    env = make_env(experiment.env)
    check_values(experiment, env.spec)
    return _trained_network(experiment, env.spec), env.spec, env.symmetries


def check_values(experiment: Experiment, spec: EnvSpec) -> None:
    """Refuses settings that need a single value per position, in a game in which each player has one.

    Raises:
      ConfigError: a setting is not supported.
    """
    if spec.values == 1:
        return
    actors = experiment.actors
    refused = {
        "actors.root_value_weight": actors.root_value_weight > 0,
        "actors.td_lambda": actors.td_lambda < 1,
        "actors.opponents": bool(actors.opponents),
        "actors.inference=int8": actors.inference == "int8",
        "int8.on_tpu": experiment.int8.on_tpu,
        "network.auxiliary": experiment.has_auxiliary_heads,
        "reanalyse.share": experiment.reanalyse.share > 0,
        "data.records": experiment.data.records is not None,
    }
    if found := [name for name, is_set in refused.items() if is_set]:
        raise ConfigError(
            f"{', '.join(found)}: supported only in games for one player and zero-sum games for two; in {spec.name} "
            f"each of {spec.players} players has a value of its own. Remove these settings"
        )


def _trained_network(experiment: Experiment, spec: EnvSpec) -> Network:
    """The network that the learner trains; experiment and CPU decide what computes its tower.

    Raises:
      ConfigError: OpenVINO is not installed.
    """
    network = experiment.network
    if experiment.learner.cpu_convolutions == "openvino" and experiment.cluster.tpu is None:
        assert isinstance(network, ResNetConfig)
        if has_bfloat16_instructions():
            return host_resnet(network, spec)
        log.warning("this CPU has no bfloat16 instructions: learner.cpu_convolutions = openvino uses XLA here")
    return make_network(network, spec)


def make_actor(
    experiment: Experiment,
    name: str,
    seed: int,
    clients: ActorClients,
    opponents: Sequence[Opponent] = (),
) -> SelfPlayActor | EnvironmentActor:
    """The actor of a CPU host: self-play for games, in some against `opponents`; acting for Gymnasium environments."""
    if isinstance(experiment.env, GymnasiumConfig):
        spec = spec_of(experiment.env)
        return EnvironmentActor(
            experiment=experiment,
            name=name,
            seed=seed,
            spec=spec,
            make_environments=partial(make_vector_env, experiment.env, experiment.actors.games, seed),
            search=model_search(experiment, spec),
            clients=clients,
        )
    core, fold, quantized = actor_parts(experiment)
    if quantized is not None:
        # The source makes the int8 version of new parameters in the background; the actor uses them unchanged.
        source = BackgroundSource(clients.source, fold)
        clients = clients._replace(source=source, report=with_metrics(clients.report, quantized))
        fold = _unchanged
    return SelfPlayActor(
        experiment=experiment, name=name, seed=seed, core=core, fold=fold, clients=clients, opponents=opponents
    )


def _unchanged(params: Params) -> Params:
    return params


def model_search(experiment: Experiment, spec: EnvSpec) -> ModelSearch:
    """The search of an experiment whose network learns a model of its environment."""
    assert isinstance(experiment.network, ModelNetworkConfig)
    network = make_model_network(experiment.network, spec)
    return make_model_search(experiment.search, network, spec, experiment.env.discount)


def acting_network(experiment: Experiment, spec: EnvSpec) -> tuple[Callable[[Array], Params], Apply]:
    """The network that actors evaluate, as two functions.

    Returns:
      `init(key)`, which gives acting parameters, and `predict(params, observations)`, which gives policy and value.
    """
    if isinstance(experiment.network, ModelNetworkConfig):
        model = make_model_network(experiment.network, spec)
        return model.init, lambda params, observation: model.predict(params, model.represent(params, observation))
    if experiment.int8.on_tpu:
        placed = placed_network(experiment)
        return placed.init, placed.apply
    network = make_inference(experiment.network, spec)[1]
    return network.init, network.apply


def actor_parts(experiment: Experiment) -> ActorParts:
    """The parts of a self-play actor; experiment and CPU decide whether it evaluates in int8.

    Raises:
      ConfigError: the package that evaluates in int8 is not installed.
    """
    if experiment.actors.inference == "int8":
        if has_int8_instructions():
            return _int8_parts(experiment)
        log.warning("this CPU has no int8 instructions (VNNI): actors.inference = int8 evaluates in float32 here")
    return local_parts(experiment)


def local_parts(experiment: Experiment) -> ActorParts:
    """The parts of an actor that evaluates the network within the search's program, whatever the experiment says."""
    env, network, fold = local_network(experiment)
    return ActorParts(selfplay_core(experiment, env, network_evaluation(env, network.apply)), fold)


def make_device_actor(
    experiment: Experiment, name: str, seed: int, clients: ActorClients, devices: Sequence[jax.Device]
) -> DeviceActor:
    """The actor that plays on this process's accelerators.

    Raises:
      ConfigError: the devices cannot share the games evenly, or the length of games is unlimited.
    """
    games = experiment.actors.games
    if games % len(devices):
        raise ConfigError(
            f"actors.games {games} is not a multiple of the {len(devices)} devices that play; "
            f"set it to {(games // len(devices) + 1) * len(devices)}"
        )
    actors = experiment.actors.model_copy(update={"games": games // len(devices)})
    core, placed = device_parts(experiment.model_copy(update={"actors": actors}))
    if (int8 := placed.int8) is not None:
        writer, report = NotingWriter(clients.writer, int8.note), with_metrics(clients.report, int8)
        clients = clients._replace(writer=writer, report=report)
    return DeviceActor(
        experiment=experiment, name=name, seed=seed, core=core, devices=devices, fold=placed.fold, clients=clients
    )


def device_parts(experiment: Experiment) -> tuple[RolloutCore, PlacedNetwork]:
    """Self-play on an accelerator and the network that it evaluates."""
    placed = placed_network(experiment)
    core = selfplay_core(experiment, placed.env, network_evaluation(placed.env, placed.apply))
    return RolloutCore(core, placed.env, experiment), placed


def _int8_parts(experiment: Experiment) -> ActorParts:
    """The parts of an actor that evaluates the network in int8."""
    env = make_env(experiment.env)
    network = quantized_network(experiment, env, experiment.actors.games)
    fold = jax.jit(make_inference(experiment.network, env.spec)[0])
    core = selfplay_core(experiment, env, network.evaluation(env))
    return ActorParts(core, lambda params: network.load(fold(params)), network)


def selfplay_core(experiment: Experiment, env: Env, evaluate: Evaluate) -> SelfPlayCore:
    """The self-play step, whose searches evaluate states with `evaluate`."""
    search = _search(experiment, env, evaluate)
    return SelfPlayCore(env, search, experiment.actors, keep_states=experiment.reanalyse.share > 0)


def with_metrics(report: Report, of: HasMetrics) -> Report:
    """A report that adds the metrics of an object that the worker uses."""
    return lambda worker, metrics: report(worker, {**metrics, **of.metrics()})


def make_reanalyser(
    experiment: Experiment,
    name: str,
    seed: int,
    source: ParamSource,
    states: Iterator[StoredState | Window],
    writer: ReplayWriter,
    report: Report,
) -> ReanalysisActor:
    """The reanalyser, which searches stored states again with newer parameters."""
    reanalyse, prepare = make_reanalysis(experiment, seed)
    return ReanalysisActor(
        experiment=experiment,
        name=name,
        reanalyse=reanalyse,
        prepare=prepare,
        source=source,
        states=states,
        writer=writer,
        report=report,
    )


def make_reanalysis(experiment: Experiment, seed: int) -> tuple[Reanalyse, Callable[[Params], Params]]:
    """The search of stored states, and the function that turns published parameters into its own.

    Raises:
      ConfigError: the environment has action masks, which stored windows do not keep.
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
    env, local, fold = local_network(experiment)
    search = _search(experiment, env, network_evaluation(env, local.apply))
    return position_reanalysis(env, search, experiment.actors, seed, experiment.has_auxiliary_heads), fold


def local_network(experiment: Experiment) -> tuple[Env, Network, Callable[[Params], Params]]:
    """A game, its network for use within a search's program, and the jitted `fold` for published parameters."""
    env = make_env(experiment.env)
    fold, network = make_inference(experiment.network, env.spec)
    return env, network, jax.jit(fold)


def _search(experiment: Experiment, env: Env, evaluate: Evaluate) -> BatchedSearch:
    """The search with the game's rules as model."""
    return make_search(experiment.search, rules_model(env, evaluate, experiment.env.discount))


class PlacedNetwork(NamedTuple):
    """The network as accelerators evaluate it for self-play: as it is, or with its tower in int8."""

    env: Env
    """The game."""
    init: Callable[[Array], Params]
    """Maps a key to parameters for `apply`; traceable."""
    apply: Callable[[Params, Array], tuple[jax.Array, jax.Array]]
    """Maps parameters and observations to logits and values; traceable."""
    fold: Callable[[Params], Params]
    """Turns published parameters into parameters for `apply`."""
    int8: Int8Network | None = None
    """Quantizes the network; None if it is evaluated as it is."""


def placed_network(experiment: Experiment) -> PlacedNetwork:
    """The network of inference servers and of actors that play on accelerators."""
    env = make_env(experiment.env)
    if experiment.int8.on_tpu:
        # A CPU is not refused: `podzero compile` builds the programs of TPUs there.
        if jax.default_backend() != "gpu":
            return _int8_network(experiment, env)
        log.warning("int8.on_tpu is for TPUs, and this is a GPU: the network is evaluated without int8 here")
    fold, network = make_inference(experiment.network, env.spec)
    return PlacedNetwork(env, network.init, network.apply, jax.jit(fold))


def _int8_network(experiment: Experiment, env: Env) -> PlacedNetwork:
    """The network with its tower in int8, calibrated on the positions that a server evaluates or a device plays."""
    assert isinstance(experiment.network, ResNetConfig)
    limits, seed, encoding = experiment.int8, experiment.seed, encoding_of(env, with_legal=True)
    assert encoding.legal is not None
    observed, legal = jax.jit(encoding.decode), jax.jit(encoding.legal)

    def decode(rows: np.ndarray[Any, Any]) -> CalibrationPositions:
        # A server fills its batches with rows of zeros, which are no positions.
        sent = rows.any(axis=1)
        return CalibrationPositions(np.asarray(observed(rows))[sent], np.asarray(legal(rows))[sent])

    def positions() -> RecentPositions:
        first = random_positions(env, jax.random.key(seed), limits.positions)
        if experiment.actors.inference == "device":
            return RecentPositions(first, every=1)
        return RecentPositions(first, decode=decode)

    network = Int8Network(experiment.network, env.spec, limits, positions)
    return PlacedNetwork(env, network.init, network.apply, network.fold, network)


def make_served_actor(
    experiment: Experiment,
    name: str,
    seed: int,
    clients: Sequence[ActorClients],
    run: str,
    servers: Callable[[], Mapping[str, str]],
    preferred: int,
) -> ActorGroups:
    """The actor of a CPU host whose network inference servers evaluate.

    Args:
      experiment: the run's experiment.
      name: the actor's name.
      seed: the actor's seed; its first group plays the games of a local actor with this seed and as many games.
      clients: the clients of each group of games, whose sources of parameters are replaced.
      run: the id of the run.
      servers: finds the addresses of the servers that are up, by name.
      preferred: the number of the server that the first group asks first.
    """
    config, games = experiment.server, experiment.actors.games // experiment.server.groups
    group = experiment.model_copy(update={"actors": experiment.actors.model_copy(update={"games": games})})
    actors, connections = [], []
    for number, own in enumerate(clients):
        env = make_env(experiment.env)
        encoding = encoding_of(env, experiment.int8.on_tpu)
        hello = Hello(f"{name}, group {number}", games, _identity(experiment, env.spec, encoding, run))
        connection = ServerClient(hello, servers, config, preferred + number)
        connections.append(connection)
        core = selfplay_core(group, env, served_evaluation(encoding, env.spec, connection))
        actors.append(
            SelfPlayActor(
                experiment=group,
                name=name,
                # A prime, so that the seeds of groups and those of other actors (`seed_of`) do not meet.
                seed=(seed + 104_729 * number) % 2**31,
                core=core,
                fold=lambda version: version,
                clients=own._replace(source=ServedParams(connection), report=with_metrics(own.report, connection)),
            )
        )

    def interrupt() -> None:
        for connection in connections:
            connection.close()

    def cause() -> Exception | None:
        return next((found for connection in connections if (found := connection.failure)), None)

    return ActorGroups(actors, interrupt, cause)


def make_server(
    experiment: Experiment,
    name: str,
    host: str,
    run: str,
    source: ParamSource,
    report: Report,
    announce: Callable[[str], None],
    devices: Sequence[jax.Device],
) -> NetworkServer:
    """The inference server of an experiment on devices of this process.

    Args:
      experiment: the run's experiment.
      name: the server's name.
      host: the name or IP at which actors reach it.
      run: the id of the run.
      source: the published parameters.
      report: receives metrics.
      announce: called with the server's address every few seconds.
      devices: the devices that evaluate.

    Raises:
      ConfigError: the devices cannot share the batches evenly.
    """
    placed, config = placed_network(experiment), experiment.server
    env, int8 = placed.env, placed.int8
    encoding = encoding_of(env, experiment.int8.on_tpu)
    initial = jax.jit(lambda key: encoding.encode(jax.vmap(env.init)(key[None]))[0])(jax.random.key(0))
    device = NetworkDevice(
        encoding, placed.apply, config.batch_sizes, devices, np.asarray(initial), int8.note if int8 else None
    )
    server = InferenceServer(
        name=name,
        host=host,
        identity=_identity(experiment, env.spec, encoding, run),
        device=device,
        version=lambda: device.version,
        known=lambda: device.known,
        config=config,
        request_positions=experiment.actors.games,
        report=with_metrics(report, int8) if int8 else report,
        announce=announce,
    )
    return NetworkServer(server, device, source, placed.fold)


def _identity(experiment: Experiment, spec: EnvSpec, encoding: Encoding, run: str) -> Identity:
    return identity_of(experiment, run, encoding.row_bytes, spec.outputs)
