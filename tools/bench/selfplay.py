"""Network evaluations/s of a self-play actor, beside the bare forward pass at the same batch size."""

from __future__ import annotations

from collections.abc import Callable
from statistics import median
from typing import Any

import jax
import jax.numpy as jnp

from podzero.config import Experiment
from podzero.envs import make_env
from podzero.networks import make_inference, make_network
from podzero.tools.bench.actor_rates import compare_actor
from podzero.types import EnvSpec, Params


def bench_selfplay(experiment: Experiment, seconds: float) -> dict[str, Any]:
    """Measures what search, game, sample assembly and writing cost beside the network.

    A complete actor takes turns with the bare forward pass of the same folded network on as many observations.

    Args:
      experiment: its game, network, search and `actors` are measured.
      seconds: how long to measure after compilation; one round in any case, in which the actor reports twice.

    Returns:
      what `compare` returns for `actor` and `bare`; moves/s and games/s of the actor.
    """
    spec = make_env(experiment.env).spec
    params = make_network(experiment.network, spec).init(jax.random.key(experiment.seed))
    bare, games = _forward_pass(experiment, spec, params), experiment.actors.games
    bare()  # compiles
    found, rounds = compare_actor(experiment, spec, params, bare, games, "bare forward pass", seconds)
    return found | {
        "moves_per_s": median(each["count/moves"] for each in rounds),
        "games_per_s": median(each["count/games"] for each in rounds),
        "games": games,
        "simulations": experiment.search.simulations,
        "platform": jax.devices()[0].platform,
    }


def _forward_pass(experiment: Experiment, spec: EnvSpec, params: Params) -> Callable[[], object]:
    """The forward pass of the folded network on `actors.games` observations."""
    fold, network = make_inference(experiment.network, spec)
    folded = jax.jit(fold)(params)
    observation = jnp.zeros((experiment.actors.games, *spec.observation_shape), spec.observation_dtype)
    apply = jax.jit(network.apply)
    return lambda: jax.tree.map(lambda x: x.block_until_ready(), apply(folded, observation))
