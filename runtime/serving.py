"""Builds inference servers, and the actors whose network they evaluate."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import jax

from podzero.actors import ActorClients, ActorGroups, SelfPlayActor
from podzero.config import Experiment
from podzero.envs import make_env
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
from podzero.protocols import ParamSource, Report
from podzero.runtime.build import selfplay_core, with_metrics
from podzero.runtime.placed import placed_network
from podzero.types import EnvSpec


def make_served_actor(
    experiment: Experiment,
    name: str,
    seed: int,
    clients: Sequence[ActorClients],
    run: str,
    servers: Callable[[], Mapping[str, str]],
    preferred: int,
) -> ActorGroups:
    """The actor on a CPU host whose network inference servers evaluate.

    Args:
      experiment: of the run.
      name: of the actor.
      seed: of the actor; the games of its first group depend on it as those of a local actor with as many games.
      clients: of each group of games; the sources of parameters are replaced.
      run: id of the run.
      servers: finds the addresses of the present servers, by name.
      preferred: number of the server with which the first group begins.
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
        core = selfplay_core(group, env, served_evaluation(encoding, env.spec.num_actions + 1, connection))
        actors.append(
            SelfPlayActor(
                experiment=group,
                name=name,
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
    """The inference server of an experiment on some devices of this process.

    Args:
      experiment: of the run.
      name: of the server.
      host: name or IP at which actors reach it.
      run: id of the run.
      source: of the published parameters.
      report: of metrics.
      announce: is called with the address every few seconds.
      devices: that evaluate.

    Raises:
      ConfigError: the devices cannot share the batches evenly.
    """
    placed, config = placed_network(experiment), experiment.server
    env, int8 = placed.env, placed.int8
    encoding = encoding_of(env, experiment.int8.on_tpu)
    device = NetworkDevice(encoding, placed.apply, config.batch_sizes, devices, int8.note if int8 else None)
    server = InferenceServer(
        name=name,
        host=host,
        identity=_identity(experiment, env.spec, encoding, run),
        device=device,
        version=lambda: device.version,
        config=config,
        request_positions=experiment.actors.games,
        report=with_metrics(report, int8) if int8 else report,
        announce=announce,
    )
    return NetworkServer(server, device, source, placed.fold)


def _identity(experiment: Experiment, spec: EnvSpec, encoding: Encoding, run: str) -> Identity:
    return identity_of(experiment, run, encoding.row_bytes, spec.num_actions + 1)
