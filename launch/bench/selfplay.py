"""Network evaluations/s of a running actor, beside the bare forward pass at the same batch size."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from statistics import median
from typing import Any

import jax
import jax.numpy as jnp

from podzero.actors import SelfPlayActor
from podzero.config import Experiment
from podzero.envs import make_env, spec_of
from podzero.launch.bench.material import FixedSource, open_to_inserts
from podzero.launch.bench.serving import served
from podzero.launch.build import actor_parts
from podzero.networks import make_network
from podzero.types import EnvSpec, Params

ROUND_S = 10.0
"""How long the actor runs before the bare pass has its turn."""
BARE_S = 3.0
_MOVE_S = 600.0
"""Longest wait for a move to end."""


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
    counts: dict[str, float] = {}
    rates: dict[str, list[float]] = {"actor": [], "bare": [], "moves": [], "games": []}
    with served(open_to_inserts(experiment), env.spec) as address:
        actor = _actor(experiment, address, params, counts)
        with _running(actor):
            _next_report(counts)  # compiles
        until = time.perf_counter() + seconds
        while len(rates["actor"]) < 3 or time.perf_counter() < until:
            rates["bare"].append(_bare_rate(bare, experiment.actors.games))
            with _running(actor):
                _next_report(counts)
                totals = _measure(counts, ROUND_S)
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


def _actor(experiment: Experiment, address: Any, params: Params, counts: dict[str, float]) -> SelfPlayActor:
    from podzero.replay import make_writer  # imports TensorFlow

    def report(role: str, figures: Any) -> None:
        """Adds up what the actor counts, with the time of the last report under `at`."""
        for name, value in figures.items():
            if name.startswith("count/"):
                counts[name] = counts.get(name, 0.0) + value
        counts["at"] = time.perf_counter()

    core, fold = actor_parts(experiment)
    spec = spec_of(experiment.env)
    return SelfPlayActor(
        experiment=experiment,
        name="actor-0",
        seed=experiment.seed,
        core=core,
        fold=fold,
        source=FixedSource(params),
        writer=make_writer([address], spec, experiment),
        report=report,
    )


@contextmanager
def _running(actor: SelfPlayActor) -> Iterator[None]:
    """Lets the actor play in a thread for as long as the context lasts."""
    thread = threading.Thread(target=actor.run, name="bench-actor")
    thread.start()
    try:
        yield
    finally:
        actor.stop()
        thread.join(_MOVE_S)


def _next_report(counts: dict[str, float]) -> None:
    """Waits until the actor reports again."""
    before, deadline = counts.get("at"), time.perf_counter() + _MOVE_S
    while counts.get("at") == before:
        if time.perf_counter() > deadline:
            raise TimeoutError(f"the actor has not finished a move in {_MOVE_S:g} s")
        time.sleep(0.01)


def _measure(counts: dict[str, float], seconds: float) -> dict[str, float]:
    """Growth per second of each count between two reports at least `seconds` apart."""
    first = dict(counts)
    while counts["at"] - first["at"] < seconds:
        _next_report(counts)
    last = dict(counts)
    elapsed = last["at"] - first["at"]
    return {name: (last[name] - first.get(name, 0.0)) / elapsed for name in last if name != "at"}


def _bare_pass(experiment: Experiment, spec: EnvSpec, params: Params) -> Callable[[], Any]:
    """The forward pass of the folded network on `actors.games` observations."""
    from podzero.networks import make_inference

    fold, network = make_inference(experiment.network, spec)
    folded = jax.jit(fold)(params)
    observation = jnp.zeros((experiment.actors.games, *spec.observation_shape), spec.observation_dtype)
    apply = jax.jit(network.apply)
    return lambda: jax.tree.map(lambda x: x.block_until_ready(), apply(folded, observation))


def _bare_rate(bare: Callable[[], Any], batch: int) -> float:
    """Evaluations/s of back-to-back forward passes."""
    bare()
    start, passes = time.perf_counter(), 0
    while time.perf_counter() - start < BARE_S:
        bare()
        passes += 1
    return passes * batch / (time.perf_counter() - start)
