"""Builds learners' networks, actors and reanalysers from an experiment: for processes, benchmarks and compilation."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import jax

from podzero.actors import (
    ActorClients,
    EnvironmentActor,
    Reanalyse,
    ReanalysisActor,
    SelfPlayActor,
    SelfPlayCore,
    position_reanalysis,
    window_reanalysis,
)
from podzero.config import Experiment, GymnasiumConfig, ModelNetworkConfig
from podzero.envs import make_env, make_vector_env, spec_of
from podzero.networks import make_inference, make_model_network, make_network
from podzero.protocols import Env, ParamSource, ReplayWriter, Report, Search, StateReader
from podzero.search import ModelSearch, make_model_search, make_search, network_evaluation, rules_model
from podzero.types import Array, EnvSpec, ModelNetwork, Network, Params, Symmetry


def learner_parts(experiment: Experiment) -> tuple[Network | ModelNetwork, EnvSpec, Sequence[Symmetry]]:
    """The network of an experiment, the specification of its environment, and the symmetries of its observations."""
    if isinstance(experiment.network, ModelNetworkConfig):
        spec = spec_of(experiment.env)
        return make_model_network(experiment.network, spec), spec, ()
    env = make_env(experiment.env)
    return make_network(experiment.network, env.spec), env.spec, env.symmetries


def make_actor(
    experiment: Experiment,
    name: str,
    seed: int,
    clients: ActorClients,
) -> SelfPlayActor | EnvironmentActor:
    """The actor for the environment of an experiment: self-play for games, acting for Gymnasium environments."""
    common: dict[str, Any] = {"experiment": experiment, "name": name, "seed": seed, "clients": clients}
    if not isinstance(experiment.env, GymnasiumConfig):
        core, fold = actor_parts(experiment)
        return SelfPlayActor(core=core, fold=fold, **common)
    spec = spec_of(experiment.env)
    environments = partial(make_vector_env, experiment.env, experiment.actors.games, seed)
    search = model_search(experiment, spec)
    return EnvironmentActor(spec=spec, make_environments=environments, search=search, **common)


def model_search(experiment: Experiment, spec: EnvSpec) -> ModelSearch:
    """The search of an experiment that learns a model of its environment."""
    assert isinstance(experiment.network, ModelNetworkConfig)
    network = make_model_network(experiment.network, spec)
    return make_model_search(experiment.search, network, spec, experiment.env.discount)


def acting_network(
    experiment: Experiment, spec: EnvSpec
) -> tuple[Callable[[Array], Params], Callable[[Params, Array], tuple[jax.Array, jax.Array]]]:
    """The two functions of the network that actors evaluate.

    Returns:
      `init(key)`, which gives acting parameters, and `predict(params, observations)`, which gives policy and value.
    """
    if isinstance(experiment.network, ModelNetworkConfig):
        model = make_model_network(experiment.network, spec)
        return model.init, lambda params, observation: model.predict(params, model.represent(params, observation))
    fold, inference = make_inference(experiment.network, spec)
    network = make_network(experiment.network, spec)
    return lambda key: fold(network.init(key)), inference.apply


def actor_parts(experiment: Experiment) -> tuple[SelfPlayCore, Callable[[Params], Params]]:
    """The self-play core of an experiment, and the jitted function that turns published parameters into its own."""
    env, search, fold = _search_parts(experiment)
    keep_states = experiment.reanalyse.share > 0
    return SelfPlayCore(env, search, experiment.actors, keep_states), fold


def make_reanalyser(
    experiment: Experiment,
    name: str,
    seed: int,
    source: ParamSource,
    states: StateReader,
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
    """The search of stored states, and the function that turns published parameters into those it takes."""
    if isinstance(experiment.network, ModelNetworkConfig):
        spec = spec_of(experiment.env)
        network = make_model_network(experiment.network, spec)
        return window_reanalysis(experiment, network, model_search(experiment, spec), seed), lambda params: params
    env, search, fold = _search_parts(experiment)
    return position_reanalysis(env, search, experiment.actors, seed), fold


def _search_parts(experiment: Experiment) -> tuple[Env, Search, Callable[[Params], Params]]:
    """A game, the search with the game's rules as model, and the jitted function that prepares parameters for it."""
    env = make_env(experiment.env)
    fold, network = make_inference(experiment.network, env.spec)
    model = rules_model(env, network_evaluation(env, network.apply), experiment.env.discount)
    return env, make_search(experiment.search, model), jax.jit(fold)
