"""Network evaluations/s of a running actor, beside the bare forward pass at the same batch size."""

from __future__ import annotations

import time
from collections.abc import Callable
from statistics import median
from typing import Any

import jax
import jax.numpy as jnp

from podzero.actors import ActorClients, SelfPlayActor
from podzero.benchmarks.material import FixedSource, open_to_inserts
from podzero.benchmarks.rates import calls_per_s
from podzero.benchmarks.serving import served
from podzero.benchmarks.watching import Watch, running
from podzero.config import Experiment
from podzero.driver.build import actor_parts
from podzero.envs import make_env, spec_of
from podzero.networks import make_network
from podzero.types import EnvSpec, Params

ROUND_S = 10.0
"""How long the actor runs before the bare pass has its turn."""
BARE_S = 3.0


def bench_selfplay(experiment: Experiment, seconds: float) -> dict[str, Any]:
    """Measures what search, game, assembly and writing cost beside the network.

    A complete actor, which writes its games to a Reverb server in another process, takes turns with the bare
    forward pass of the same folded network on the same number of observations.

    Args:
      experiment: its game, network, search and `actors` are measured.
      seconds: how long to measure after compilation; at least three rounds of each are run.

    Returns:
      `ratio` (actor over bare, of the medians over rounds), both rates in evaluations/s, moves/s and games/s of the
      actor, and the rates of all rounds.
    """
    env = make_env(experiment.env)
    params = make_network(experiment.network, env.spec).init(jax.random.key(experiment.seed))
    bare = _bare_pass(experiment, env.spec, params)
    watch = Watch()
    rates: dict[str, list[float]] = {"actor": [], "bare": [], "moves": [], "games": []}
    with served(open_to_inserts(experiment), env.spec) as address:
        actor = _actor(experiment, address, params, watch)
        with running(actor):
            watch.next_report()  # compiles
        until = time.perf_counter() + seconds
        while len(rates["actor"]) < 3 or time.perf_counter() < until:
            bare()  # waits out what the actor left running
            rates["bare"].append(calls_per_s(bare, BARE_S) * experiment.actors.games)
            with running(actor):
                watch.next_report()
                totals = watch.measure(ROUND_S)
            rates["actor"].append(totals["count/evaluations"])
            rates["moves"].append(totals["count/moves"])
            rates["games"].append(totals["count/games"])
    return {
        "ratio": median(rates["actor"]) / median(rates["bare"]),
        "actor_evaluations_per_s": median(rates["actor"]),
        "bare_evaluations_per_s": median(rates["bare"]),
        "moves_per_s": median(rates["moves"]),
        "games_per_s": median(rates["games"]),
        "games": experiment.actors.games,
        "simulations": experiment.search.simulations,
        "platform": jax.devices()[0].platform,
        "actor_rounds": rates["actor"],
        "bare_rounds": rates["bare"],
    }


def _actor(experiment: Experiment, address: Any, params: Params, watch: Watch) -> SelfPlayActor:
    from podzero.replay import make_writer  # imports TensorFlow

    core, fold = actor_parts(experiment)
    spec = spec_of(experiment.env)
    return SelfPlayActor(
        experiment=experiment,
        name="actor-0",
        seed=experiment.seed,
        core=core,
        fold=fold,
        clients=ActorClients(FixedSource(params), make_writer([address], spec, experiment), watch),
    )


def _bare_pass(experiment: Experiment, spec: EnvSpec, params: Params) -> Callable[[], Any]:
    """The forward pass of the folded network on `actors.games` observations."""
    from podzero.networks import make_inference

    fold, network = make_inference(experiment.network, spec)
    folded = jax.jit(fold)(params)
    observation = jnp.zeros((experiment.actors.games, *spec.observation_shape), spec.observation_dtype)
    apply = jax.jit(network.apply)
    return lambda: jax.tree.map(lambda x: x.block_until_ready(), apply(folded, observation))
