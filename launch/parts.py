"""Makes the parts of an experiment, and checks those of the user's own; JAX is imported only then."""

from __future__ import annotations

import os
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from podzero.config import (
    Experiment,
    GymnasiumConfig,
    ModelNetworkConfig,
    OwnAlgorithmConfig,
    OwnModelConfig,
    OwnNetworkConfig,
    OwnOptimizerConfig,
)
from podzero.core.importing import restore_path

if TYPE_CHECKING:
    from podzero.core.protocols import Env
    from podzero.core.types import EnvSpec, EnvState, ModelNetwork, Network, Params

_STEPS = 8
"""Random steps in an environment of gymnasium, of which half may fail: a run goes on after a rare failure."""
_ROOTS = 6
"""Roots of the check of a search."""
_PLIES = 3
"""Random plies before them, so that some actions are illegal."""
_SIMULATIONS = 16
"""The largest number of simulations of that check."""


def make_parts(experiment: Experiment) -> None:
    """Makes environment, network and opponents, checks the parts of the user's own, reads `init_from` and `teacher`,
    opens `data.records`.

    Raises:
      ConfigError: one of them fails.
    """
    restore_path()
    os.environ["JAX_PLATFORMS"] = "cpu"
    import jax

    from podzero.envs import check_steps, check_values, spec_of
    from podzero.networks import check_model, check_network, make_model_network, make_network

    env = experiment.env
    spec = check_steps(env, 1, _STEPS, _STEPS // 2) if isinstance(env, GymnasiumConfig) else spec_of(env)
    check_values(experiment, spec)
    network: Network | ModelNetwork
    if isinstance(experiment.network, ModelNetworkConfig):
        network = make_model_network(experiment.network, spec)
        if isinstance(experiment.network, OwnModelConfig):
            check_model(network, spec, f"network.name = '{experiment.network.name}'")
    else:
        network = make_network(experiment.network, spec)
        if isinstance(experiment.network, OwnNetworkConfig):
            jitted = network._replace(init=jax.jit(network.init), apply=jax.jit(network.apply))
            check_network(jitted, spec, f"network.name = '{experiment.network.name}'")
    if set(experiment.own_parts) - {"network"}:
        _check_parts_around(experiment, network, spec, jax.jit(network.init)(jax.random.key(0)))
    if experiment.reanalyse.share and spec.masked:
        from podzero.actors.build import make_reanalysis

        make_reanalysis(experiment, seed=0)  # which refuses action masks
    if experiment.init_from is not None:
        from podzero.learner.warm_start import read_warm_start

        read_warm_start(experiment.init_from, jax.eval_shape(network.init, jax.random.key(0)))
    if experiment.teacher is not None:
        from podzero.learner.teacher import read_teacher

        read_teacher(experiment, spec)
    if experiment.actors.opponents:
        from podzero.evaluation.resolve import make_opponents

        make_opponents(experiment, Path(), seed=0)
    if experiment.data.records is not None:
        from podzero.replay import open_records

        open_records(experiment, spec)


def _check_parts_around(experiment: Experiment, network: Network | ModelNetwork, spec: EnvSpec, params: Params) -> None:
    """Checks the parts of the user's own that work on a network with its initial `params`."""
    from podzero.learner.contract import check_objective, check_optimizer, example_batch
    from podzero.learner.objectives import make_objective
    from podzero.learner.optimizers import own_optimizer

    algorithm, optimizer = experiment.search.algorithm, experiment.learner.optimizer
    if isinstance(algorithm, OwnAlgorithmConfig):
        _check_search(experiment, network, spec, params, f"search.algorithm.name = '{algorithm.name}'")
    if isinstance(optimizer, OwnOptimizerConfig):
        check_optimizer(own_optimizer(optimizer), params, f"learner.optimizer.name = '{optimizer.name}'")
    if (loss := experiment.learner.objective) is not None:
        objective, batch = make_objective(experiment, network, spec, ()), example_batch(experiment, spec)
        check_objective(objective, params, batch, f"learner.objective.name = '{loss.name}'")


def _check_search(
    experiment: Experiment, network: Network | ModelNetwork, spec: EnvSpec, params: Params, name: str
) -> None:
    import jax
    import numpy as np

    from podzero.core.types import ModelNetwork
    from podzero.envs import make_env
    from podzero.search import check_search, make_model_search, make_search, network_evaluation, rules_model

    simulations, discount = min(experiment.search.simulations, _SIMULATIONS), experiment.env.discount
    config = experiment.search.model_copy(update={"simulations": simulations})
    if isinstance(network, ModelNetwork):
        observations = np.zeros((_ROOTS, *spec.observation_shape), spec.observation_dtype)
        legal = np.ones((_ROOTS, config.candidates if spec.action_shape else spec.num_actions), bool)
        legal[:, 0] = not spec.masked
        search = partial(make_model_search(config, network, spec, discount), legal=legal)
        check_search(search, params, observations, legal, None, name)
        return
    assert not isinstance(experiment.env, GymnasiumConfig), "its networks learn a model"
    env = make_env(experiment.env)
    model = rules_model(env, network_evaluation(env, network.apply), discount)
    roots = _positions(env)
    legal = np.asarray(jax.vmap(env.view)(roots).legal)
    check_search(make_search(config, model), params, roots, legal, model.bounds, name)


def _positions(env: Env) -> EnvState:
    """States `[_ROOTS, ...]` after random plies, without those that end the game."""
    import jax
    import jax.numpy as jnp
    import optax

    def ply(state: EnvState, key: jax.Array) -> tuple[EnvState, None]:
        logits = jnp.where(jnp.asarray(env.view(state).legal), 0.0, -jnp.inf)
        after = env.step(state, jax.random.categorical(key, logits).astype(jnp.int32))
        return optax.tree.where(env.view(after).done, state, after), None

    def played(key: jax.Array) -> EnvState:
        start, *plies = jax.random.split(key, 1 + _PLIES)
        state, _ = jax.lax.scan(ply, env.init(start), jnp.stack(plies))
        return state

    return jax.jit(jax.vmap(played))(jax.random.split(jax.random.key(0), _ROOTS))
