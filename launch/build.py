"""Builds what an actor is made of, for the actor's process and for benchmarks alike."""

from __future__ import annotations

from collections.abc import Callable

import jax

from podzero.actors import SelfPlayCore
from podzero.config import Experiment
from podzero.envs import make_env
from podzero.networks import make_inference
from podzero.search import make_search, network_evaluation, rules_model
from podzero.types import Params


def actor_parts(experiment: Experiment) -> tuple[SelfPlayCore, Callable[[Params], Params]]:
    """The self-play core of an experiment, and the jitted function that prepares published parameters for it."""
    env = make_env(experiment.env.name)
    fold, network = make_inference(experiment.network, env.spec)
    search = make_search(experiment.search, rules_model(env, network_evaluation(env, network.apply)))
    return SelfPlayCore(env, search, experiment.actors), jax.jit(fold)
