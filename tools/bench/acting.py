"""Network evaluations/s of an actor in gymnasium environments, beside its bare search at the same batch size."""

from __future__ import annotations

from collections.abc import Callable
from statistics import median
from typing import Any

import jax
import jax.numpy as jnp

from podzero.actors import explore
from podzero.config import Experiment, GymnasiumConfig
from podzero.errors import ConfigError
from podzero.runtime.build import learner_parts, model_search
from podzero.tools.bench.actor_rates import compare_actor
from podzero.types import EnvSpec, Params


def bench_acting(experiment: Experiment, seconds: float) -> dict[str, Any]:
    """Measures what stepping environments, cutting windows and writing them cost beside the search.

    A complete actor takes turns with the bare search on as many observations. Its parameters are untrained, so that
    episodes are short: the share of resets is as large as it ever is in a run.

    Args:
      experiment: its environment, network, search and `actors` are measured.
      seconds: how long to measure after compilation; one round in any case, in which the actor reports twice.

    Returns:
      what `compare` returns for `actor` and `bare`; of the actor also steps/s, windows/s and the share of wall time of
      each stage of its loop (`environment`: steps; `assemble`: cutting windows; `write`: writing them, which partly
      overlaps with the search).

    Raises:
      ConfigError: the experiment is about a game.
    """
    if not isinstance(experiment.env, GymnasiumConfig):
        raise ConfigError(f"{experiment.env.title} is a game: measure its actor with podzero bench selfplay")
    network, spec, _ = learner_parts(experiment)
    params = network.init(jax.random.key(experiment.seed))
    bare, games = _search(experiment, spec, params), experiment.actors.games
    bare()  # compiles
    evaluations = games * (experiment.search.simulations + 1)
    found, rounds = compare_actor(experiment, spec, params, bare, evaluations, "bare search", seconds)
    return found | {
        "steps_per_s": median(each["count/moves"] for each in rounds),
        "windows_per_s": median(each["count/samples"] for each in rounds),
        **{
            f"{stage}_share": median(each.get(f"time/{stage}", 0.0) for each in rounds)
            for stage in ("search", "environment", "assemble", "write", "params")
        },
        "environments": games,
        "simulations": experiment.search.simulations,
        "platform": jax.devices()[0].platform,
    }


def _search(experiment: Experiment, spec: EnvSpec, params: Params) -> Callable[[], object]:
    """One search of `actors.games` equal observations, with its results copied to the host."""
    games = experiment.actors.games
    search, key = jax.jit(model_search(experiment, spec)), jax.random.key(experiment.seed)
    observation = jnp.zeros((games, *spec.observation_shape), spec.observation_dtype)
    exploration = explore(experiment.actors, jnp.zeros(games))
    return lambda: jax.device_get(search(params, key, observation, exploration))
