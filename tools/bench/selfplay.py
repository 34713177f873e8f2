"""Stages in which a network plays: complete actors, and the self-play core with each kind of evaluation and tree."""

from __future__ import annotations

import logging
import math
import threading
import time
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping
from contextlib import closing, contextmanager
from queue import Empty, Queue
from statistics import median
from typing import Any

import jax
import jax.numpy as jnp

from podzero.actors import ActorClients
from podzero.actors.build import Actor, actor_parts, make_actor, model_search
from podzero.actors.clients import ActorLoop
from podzero.actors.core import explore
from podzero.config import Experiment, parse
from podzero.core.clock import REPORT_EVERY_S
from podzero.core.errors import ConfigError
from podzero.core.machine import has_int8_instructions
from podzero.core.protocols import ParamSource
from podzero.core.types import EnvSpec, Params, Versioned
from podzero.envs import make_env
from podzero.inference import BackgroundSource
from podzero.learner.build import learner_parts
from podzero.networks import make_inference, make_network
from podzero.replay import ReplayServer, ShardedWriter
from podzero.tools.bench.measuring import BenchError, Side, calls_per_s, compare, without_insert_limit

log = logging.getLogger(__name__)

_ROUNDS = 3
"""Turns are shortened until this number of rounds fits."""
_ACTOR_S = 10.0
"""The longest turn of an actor; that of the bare calls is half as long."""
START_S = 600.0
"""The longest wait for an actor's report or first parameters: it may compile. Also for an actor to end."""


# Complete actors.


def bench_selfplay(experiment: Experiment, seconds: float) -> dict[str, Any]:
    """Measures what search, game, sample assembly and writing cost in addition to the network.

    A complete actor takes turns with the bare forward pass of the same folded network on as many observations. In a
    round the actor reports twice.

    Returns:
      what `compare` returns for `actor` and `bare`; the actor's moves/s and games/s.
    """
    if experiment.actors.inference == "server":
        raise ConfigError("actors.inference=server: measure actors that ask servers with podzero bench server")
    spec = make_env(experiment.env).spec
    params = make_network(experiment.network, spec).init(jax.random.key(experiment.seed))
    games = experiment.actors.games
    # With several devices, all would compute their share of the games at the same time.
    devices = len(jax.local_devices()) if experiment.actors.inference == "device" else 1
    bare = _forward_pass(experiment, spec, params, games // devices)
    found, rounds = _compare_actor(experiment, spec, params, bare, games, "bare forward pass", seconds)
    return found | {
        "moves_per_s": median(each["count/moves"] for each in rounds),
        "games_per_s": median(each["count/games"] for each in rounds),
        "inference": experiment.actors.inference,
        **_sizes(experiment),
    }


def bench_acting(experiment: Experiment, seconds: float) -> dict[str, Any]:
    """Measures what stepping environments, cutting windows and writing them cost in addition to the search.

    A complete actor takes turns with the bare search on as many observations. Its parameters are untrained, so episodes
    are short, and the share of resets is as large as it ever is in a run.

    Returns:
      what `compare` returns for `actor` and `bare`; the actor's steps/s, windows/s and the share of wall time of each
      stage of its loop (`environment`: steps; `assemble`: cutting windows; `write`: writing them, which partly
      overlaps with the search).
    """
    if not experiment.learns_model:
        raise ConfigError(f"{experiment.env.title} is a game: measure its actor with podzero bench selfplay")
    network, spec, _ = learner_parts(experiment)
    params = network.init(jax.random.key(experiment.seed))
    games = experiment.actors.games
    bare = _search(experiment, spec, params)
    evaluations = games * (experiment.search.simulations + 1)
    found, rounds = _compare_actor(experiment, spec, params, bare, evaluations, "bare search", seconds)
    sizes = _sizes(experiment)
    return found | {
        "steps_per_s": median(each["count/moves"] for each in rounds),
        "windows_per_s": median(each["count/samples"] for each in rounds),
        **{
            f"{stage}_share": median(each.get(f"time/{stage}", 0.0) for each in rounds)
            for stage in ("search", "environment", "assemble", "write", "params")
        },
        "environments": sizes.pop("games"),
        **sizes,
    }


def _sizes(experiment: Experiment) -> dict[str, Any]:
    return {
        "games": experiment.actors.games,
        "simulations": experiment.search.simulations,
        "platform": jax.devices()[0].platform,
    }


def _forward_pass(experiment: Experiment, spec: EnvSpec, params: Params, batch: int) -> Callable[[], object]:
    """The forward pass of the folded network on `batch` equal observations; already compiled."""
    fold, network = make_inference(experiment.network, spec)
    folded, apply = jax.jit(fold)(params), jax.jit(network.apply)
    observation = jnp.zeros((batch, *spec.observation_shape), spec.observation_dtype)

    def forward() -> object:
        return jax.tree.map(lambda x: x.block_until_ready(), apply(folded, observation))

    forward()
    return forward


def _search(experiment: Experiment, spec: EnvSpec, params: Params) -> Callable[[], object]:
    """One search of `actors.games` equal observations, with its results copied to the host; already compiled."""
    games = experiment.actors.games
    search, key = jax.jit(model_search(experiment, spec)), jax.random.key(experiment.seed)
    observation = jnp.zeros((games, *spec.observation_shape), spec.observation_dtype)
    exploration = explore(experiment.actors, jnp.zeros(games))

    def searched() -> object:
        return jax.device_get(search(params, key, observation, exploration))

    searched()
    return searched


def _compare_actor(
    experiment: Experiment, spec: EnvSpec, params: Params, bare: Callable[[], object], evaluations: int, what: str,
    seconds: float,
) -> tuple[dict[str, Any], list[dict[str, float]]]:  # fmt: skip
    """Compares a complete actor with bare calls of what takes most of its time.

    The actor writes to a Reverb server in another process, whose rate limiter never blocks it.

    `bare` is compiled already, makes `evaluations` of the network, and is called `what`. The parameters never change.

    Returns:
      what `compare` returns for `actor` and `bare`; for each round of the actor what `between_reports` returns.
    """
    reports, rounds = Reports(), []
    with (
        ReplayServer(without_insert_limit(experiment), spec, 0) as server,
        closing(ShardedWriter(lambda: [server.address()], spec, experiment)) as writer,
    ):
        # A turn of the actor begins and ends with a report, so reports must not be further apart than a turn is long.
        every_s = min(REPORT_EVERY_S, seconds / (2 * _ROUNDS))
        clients = ActorClients(
            _Published(params),
            writer,
            lambda _, metrics: reports.put((time.perf_counter(), metrics)),
            report_every_s=every_s,
        )
        actor = make_actor(experiment, "actor-0", experiment.seed, [clients], devices=jax.local_devices())

        def actor_rate(turn_s: float) -> float:
            while not reports.empty():  # from the end of the turn before
                reports.get()
            with _running(actor):
                rounds.append(between_reports(reports, turn_s))
            return rounds[-1]["count/evaluations"]

        def bare_rate(turn_s: float) -> float:
            bare()  # waits until the device has finished the actor's last call
            return calls_per_s(bare, turn_s / 2) * evaluations

        log.info("starting an actor; it has %g s to compile and to play the first moves", START_S)
        with _running(actor):
            next_report(reports)
        found = compare(
            {"actor": actor_rate, "bare": bare_rate}, "evaluations_per_s",
            f"evaluations/s, complete actor over {what}", seconds, longest_s=_ACTOR_S, rounds=_ROUNDS,
        )  # fmt: skip
    return found, rounds


Reports = Queue[tuple[float, Mapping[str, float]]]
"""The metrics that an actor reports, each with the time of `time.perf_counter`."""


def next_report(reports: Reports) -> tuple[float, Mapping[str, float]]:
    """Waits for the actor's next report, for at most `START_S`."""
    try:
        return reports.get(timeout=START_S)
    except Empty:
        raise BenchError(f"the actor has not reported for {START_S:g} s: measure a smaller experiment") from None


def between_reports(reports: Reports, seconds: float) -> dict[str, float]:
    """The increase per second from the next report to one at least `seconds` later.

    `count/...` are counts since the report before, and `time/...` shares of the time since then.
    """
    began, _ = next_report(reports)
    totals, at = defaultdict[str, float](float), began
    while at - began < seconds:
        before, (at, metrics) = at, next_report(reports)
        for name, value in metrics.items():
            if name.startswith(("count/", "time/")):
                totals[name] += value * (at - before if name.startswith("time/") else 1.0)
    return {name: total / (at - began) for name, total in totals.items()}


@contextmanager
def _running(actor: Actor) -> Iterator[None]:
    """Runs the actor in a thread while the context lasts; again, if it was stopped."""
    assert isinstance(actor, ActorLoop)
    actor.stopping.clear()
    thread = threading.Thread(target=actor.run, name="bench-actor")
    thread.start()
    try:
        yield
    finally:
        actor.stop()
        thread.join(START_S)


# The self-play core (search, move, auto-reset: one program per move) without an actor's loop.


def bench_int8(experiment: Experiment, seconds: float) -> dict[str, Any]:
    """Measures what quantized evaluation gains: self-play in int8 in turn with float32.

    Returns:
      what `compare` returns for `int8` and `float32`, with `moves_per_version`.
    """
    if not has_int8_instructions():
        raise ConfigError("this CPU has no int8 instructions (VNNI), so int8 would be float32: use another machine")
    sides = {
        "int8": _changed(experiment, "actors", inference="int8"),
        "float32": _changed(experiment, "actors", inference="local"),
    }
    found = _compare_self_play(sides, "moves/s, self-play in int8 over float32", seconds)
    return found | {"moves_per_version": moves_per_version(experiment)}


def bench_tree(experiment: Experiment, seconds: float) -> dict[str, Any]:
    """Measures self-play in dense search trees, in turn with those of mctx.

    Returns:
      what `compare` returns for `dense` and `mctx`.
    """
    trees = {
        "dense": _changed(experiment, "search", tree="dense"),
        "mctx": _changed(experiment, "search", tree="mctx", slots=None),
    }
    return _compare_self_play(trees, "moves/s, dense trees over those of mctx", seconds)


def _compare_self_play(experiments: Mapping[str, Experiment], ratio_of: str, seconds: float) -> dict[str, Any]:
    """What `compare` returns for the self-play of each experiment, and the sizes that they share."""

    def side(experiment: Experiment) -> Side:
        move = _self_play(experiment)
        return lambda turn_s: experiment.actors.games * calls_per_s(move, turn_s)

    sides = {name: side(experiment) for name, experiment in experiments.items()}
    found = compare(sides, "moves_per_s", ratio_of, seconds, longest_s=5.0, rounds=_ROUNDS)
    return found | _sizes(next(iter(experiments.values())))


def _self_play(experiment: Experiment) -> Callable[[], None]:
    """A function that plays one move of all games and fetches it; already compiled.

    New parameters are published as often as in training, and taken in the background, not too often, as an actor with
    int8 does. So the cache of int8 holds no more than in a run. The network is untrained. This changes the time of a
    search only through the cache: trained networks return to the same positions more often.
    """
    log.info("compiling self-play: %s, actors.inference=%s", experiment.env.title, experiment.actors.inference)
    parts = actor_parts(experiment)
    trained: Params = make_network(experiment.network, make_env(experiment.env).spec).init(jax.random.key(0))
    source = BackgroundSource(_Published(trained, moves_per_version(experiment)), parts.fold)
    play = jax.jit(parts.core.move, donate_argnums=1)
    state, params = jax.jit(parts.core.init)(jax.random.key(experiment.seed)), source.wait(START_S).params

    def move() -> None:
        nonlocal state, params
        if newer := source.poll():
            params = newer.params
        state, played = play(params, state)
        jax.device_get(played)

    move()
    return move


class _Published(ParamSource):
    """A `ParamSource` with the same parameters as a new version after every `moves` polls; by default never."""

    def __init__(self, params: Params, moves: float = math.inf) -> None:
        self._params = params
        self._moves = moves
        self._polls = 0

    def wait(self, timeout_s: float) -> Versioned:
        return Versioned(0, self._params)

    def poll(self) -> Versioned | None:
        self._polls += 1
        version, between = divmod(self._polls, self._moves)
        return None if between else Versioned(int(version), self._params)


def moves_per_version(experiment: Experiment) -> int:
    """The moves of an actor, each of all its games, between two versions of the parameters, if play and learning keep
    pace.
    """
    learner, actors = experiment.learner, experiment.actors
    samples = learner.publish_every * learner.batch_size / experiment.replay.samples_per_insert
    return max(1, round(samples / (actors.count * actors.games)))


def _changed(experiment: Experiment, section: str, **changes: Any) -> Experiment:
    """The experiment with `changes` in a section, checked."""
    settings = experiment.model_dump()
    settings[section] |= changes
    return parse(settings, experiment.name)
