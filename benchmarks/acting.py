"""Steps/s of a complete actor in gymnasium environments, beside its bare search at the same batch size."""

from __future__ import annotations

import time
from collections.abc import Callable
from statistics import median
from typing import Any

import jax
import jax.numpy as jnp

from podzero.actors import ActorClients
from podzero.benchmarks.material import FixedSource, open_to_inserts
from podzero.benchmarks.rates import calls_per_s
from podzero.benchmarks.serving import served
from podzero.benchmarks.watching import Watch, running
from podzero.config import Experiment, GymnasiumConfig
from podzero.driver.build import learner_parts, make_actor, model_search
from podzero.errors import ConfigError
from podzero.types import EnvSpec, Params

ROUND_S = 10.0
"""How long the actor runs before the bare search has its turn."""
BARE_S = 5.0


def bench_acting(experiment: Experiment, seconds: float) -> dict[str, Any]:
    """Measures what environments, cutting windows and writing them cost beside the search.

    A complete actor, which writes its windows to a Reverb server in another process that holds nobody back, takes
    turns with the same search alone, on as many observations. Its parameters are untrained, so that episodes are
    short, and end and begin as often as they ever will.

    Args:
      experiment: its environment, network, search and `actors` are measured.
      seconds: how long to measure after compilation; at least three rounds of each are run.

    Returns:
      `ratio` (actor over bare, of the medians over rounds), both rates in network evaluations/s and those of all
      rounds; of the actor steps/s, windows/s and the wall-time share of each stage of its loop (`environment`:
      stepping; `assemble`: cutting windows; `write`: sending them, of which a part is beside the search).

    Raises:
      ConfigError: the experiment is about a game.
    """
    if not isinstance(experiment.env, GymnasiumConfig):
        raise ConfigError(f"{experiment.env.title} is played, not acted in: see podzero bench selfplay")
    network, spec, _ = learner_parts(experiment)
    params = network.init(jax.random.key(experiment.seed))
    bare, evaluations = _bare_search(experiment, spec, params), experiment.search.simulations + 1
    rounds: list[dict[str, float]] = []
    rates: dict[str, list[float]] = {"actor": [], "bare": []}
    with served(open_to_inserts(experiment), spec) as address:
        from podzero.replay import make_writer  # imports TensorFlow

        watch, writer = Watch(), make_writer([address], spec, experiment)
        actor = make_actor(experiment, "actor-0", experiment.seed, ActorClients(FixedSource(params), writer, watch))
        with running(actor):
            watch.next_report()  # compiles
        until = time.perf_counter() + seconds
        while len(rounds) < 3 or time.perf_counter() < until:
            bare()
            rates["bare"].append(calls_per_s(bare, BARE_S) * experiment.actors.games * evaluations)
            with running(actor):
                watch.next_report()  # makes its environments
                rounds.append(watch.measure(ROUND_S))
            rates["actor"].append(rounds[-1]["count/evaluations"])
        writer.close()
    return {
        "ratio": median(rates["actor"]) / median(rates["bare"]),
        "actor_evaluations_per_s": median(rates["actor"]),
        "bare_evaluations_per_s": median(rates["bare"]),
        "steps_per_s": median(each["count/moves"] for each in rounds),
        "windows_per_s": median(each["count/samples"] for each in rounds),
        **{
            f"{stage}_share": median(each.get(f"time/{stage}", 0.0) for each in rounds)
            for stage in ("search", "environment", "assemble", "write", "params")
        },
        "environments": experiment.actors.games,
        "simulations": experiment.search.simulations,
        "platform": jax.devices()[0].platform,
        "actor_rounds": rates["actor"],
        "bare_rounds": rates["bare"],
    }


def _bare_search(experiment: Experiment, spec: EnvSpec, params: Params) -> Callable[[], object]:
    """One search of `actors.games` observations, all the same, and what it found brought to the host."""
    games = experiment.actors.games
    search, key = jax.jit(model_search(experiment, spec)), jax.random.key(experiment.seed)
    observation = jnp.zeros((games, *spec.observation_shape), spec.observation_dtype)
    temperature = jnp.ones(games)
    return lambda: jax.device_get(search(params, key, observation, temperature))
