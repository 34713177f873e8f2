"""Stages in which a network plays: complete actors, the self-play core with each kind of evaluation, tree and game, and
`podzero analyze`.
"""

from __future__ import annotations

import json
import logging
import threading
import time
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping
from contextlib import closing, contextmanager
from multiprocessing.connection import Connection
from statistics import median
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from podzero.actors import ActorClients, explore
from podzero.actors.build import Actor, actor_parts, make_actor, model_search
from podzero.config import Experiment, GameConfig, GymnasiumConfig, ResNetConfig, SimulatorConfig, parse
from podzero.core.clock import REPORT_EVERY_S
from podzero.core.errors import ConfigError
from podzero.core.protocols import Env
from podzero.core.types import EnvSpec, Params, Versioned
from podzero.envs import make_env
from podzero.evaluation.analysis import BATCH, Analyst
from podzero.evaluation.arena import Arena
from podzero.evaluation.players import NetworkPlayers, RandomPlayer
from podzero.inference import BackgroundSource, has_int8_instructions
from podzero.learner.build import learner_parts
from podzero.networks import make_inference, make_network
from podzero.replay import ReplayServer, make_writer
from podzero.tools.bench.measuring import (
    BenchError,
    FixedParams,
    Side,
    answer,
    calls_per_s,
    child_process,
    compare,
    without_insert_limit,
)

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

    A complete actor takes turns with the bare forward pass of the same folded network on as many observations.

    Args:
      experiment: its game, network, search and `actors` are measured.
      seconds: how long to measure after compilation, but at least one round, in which the actor reports twice.

    Returns:
      what `compare` returns for `actor` and `bare`; the actor's moves/s and games/s.

    Raises:
      ConfigError: the experiment's actors ask inference servers.
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

    Args:
      experiment: its environment, network, search and `actors` are measured.
      seconds: how long to measure after compilation, but at least one round, in which the actor reports twice.

    Returns:
      what `compare` returns for `actor` and `bare`; the actor's steps/s, windows/s and the share of wall time of each
      stage of its loop (`environment`: steps; `assemble`: cutting windows; `write`: writing them, which partly
      overlaps with the search).

    Raises:
      ConfigError: the experiment is about a game.
    """
    if not isinstance(experiment.env, GymnasiumConfig):
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

    Args:
      experiment: its actor is measured.
      spec: the specification of its environment.
      params: the network's parameters, which never change.
      bare: the call, already compiled.
      evaluations: the network evaluations of one call.
      what: a name for the call.
      seconds: see `bench_selfplay`.

    Returns:
      what `compare` returns for `actor` and `bare`; for each round of the actor its `ReportTotals.measure`.
    """
    totals, rounds = ReportTotals(), []
    with (
        ReplayServer(without_insert_limit(experiment), spec, 0) as server,
        closing(make_writer(lambda: [server.address()], spec, experiment)) as writer,
    ):
        # A turn of the actor begins and ends with a report, so reports must not be further apart than a turn is long.
        every_s = min(REPORT_EVERY_S, seconds / (2 * _ROUNDS))
        clients = ActorClients(FixedParams(params), writer, totals, report_every_s=every_s)
        actor = make_actor(experiment, "actor-0", experiment.seed, [clients], devices=jax.local_devices())

        def actor_rate(turn_s: float) -> float:
            with _running(actor):
                totals.next_report()  # the first one covers the start
                rounds.append(totals.measure(turn_s))
            return rounds[-1]["count/evaluations"]

        def bare_rate(turn_s: float) -> float:
            bare()  # waits until the device has finished the actor's last call
            return calls_per_s(bare, turn_s / 2) * evaluations

        log.info("starting an actor; it has %g s to compile and to play the first moves", START_S)
        with _running(actor):
            totals.next_report()
        found = compare(
            {"actor": actor_rate, "bare": bare_rate}, "evaluations_per_s",
            f"evaluations/s, complete actor over {what}", seconds, longest_s=_ACTOR_S, rounds=_ROUNDS,
        )  # fmt: skip
    return found, rounds


class ReportTotals:
    """Adds up what an actor reports; a `Report`."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._totals: dict[str, float] = defaultdict(float)
        self._reports = 0
        self._at = time.perf_counter()

    def __call__(self, worker: str, metrics: Mapping[str, float]) -> None:
        """Takes a report: counts, and stages' shares of the time since the last report."""
        with self._changed:
            now = time.perf_counter()
            for name, value in metrics.items():
                if name.startswith("count/"):
                    self._totals[name] += value
                elif name.startswith("time/"):
                    self._totals[name] += value * (now - self._at)
            self._at = now
            self._reports += 1
            self._changed.notify_all()

    def next_report(self) -> None:
        """Waits for the actor's next report.

        Raises:
          BenchError: there was none within `START_S`.
        """
        with self._changed:
            before = self._reports
            if not self._changed.wait_for(lambda: self._reports > before, START_S):
                raise BenchError(f"the actor has not reported for {START_S:g} s: measure a smaller experiment")

    def measure(self, seconds: float) -> dict[str, float]:
        """The increase per second between two reports at least `seconds` apart: rates `count/...`, shares `time/...`.

        Raises:
          BenchError: the actor does not report.
        """
        first, since = dict(self._totals), self._at
        while self._at - since < seconds:
            self.next_report()
        elapsed = self._at - since
        return {name: (total - first.get(name, 0.0)) / elapsed for name, total in self._totals.items()}


@contextmanager
def _running(actor: Actor) -> Iterator[None]:
    """Runs the actor in a thread while the context lasts."""
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

    The third side is the same self-play with plain pgx and mctx, in a process that waits while the others play.

    Args:
      experiment: its game, network, search and `actors` are measured.
      seconds: how long to measure after compilation, but at least one round.

    Returns:
      what `compare` returns for `int8`, `float32` and `plain`, with `moves_per_version`.

    Raises:
      ConfigError: this CPU has no int8 instructions, the network cannot be quantized, or plain mctx cannot play the
        experiment.
    """
    if not has_int8_instructions():
        raise ConfigError("this CPU has no int8 instructions (VNNI), so int8 would be float32: use another machine")
    settings = _plain_settings(experiment)
    experiments = {
        side: _changed(experiment, "actors", inference=kind) for side, kind in (("int8", "int8"), ("float32", "local"))
    }
    with child_process(_serve_plain, settings) as plain:
        plain.receive()
        sides = _self_plays(experiments, experiment.actors.games) | {"plain": lambda turn_s: float(plain.ask(turn_s))}
        found = compare(
            sides, "moves_per_s", "moves/s, self-play in int8 over float32", seconds, longest_s=5.0, rounds=_ROUNDS
        )
    return found | _sizes(experiment) | {"moves_per_version": moves_per_version(experiment)}


def bench_tree(experiment: Experiment, seconds: float) -> dict[str, Any]:
    """Measures self-play in dense search trees, in turn with those of mctx.

    Args:
      experiment: its game, network, search and `actors` are measured.
      seconds: how long to measure after compilation, but at least one round.

    Returns:
      what `compare` returns for `dense` and `mctx`.
    """
    trees = {
        "dense": _changed(experiment, "search", tree="dense"),
        "mctx": _changed(experiment, "search", tree="mctx", slots=None),
    }
    sides = _self_plays(trees, experiment.actors.games)
    ratio_of = "moves/s, dense trees over those of mctx"
    return compare(sides, "moves_per_s", ratio_of, seconds, longest_s=5.0, rounds=_ROUNDS) | _sizes(experiment)


GAMES = ("connect_four", "tic_tac_toe", "othello")
"""The games that are the same in pgx and in OpenSpiel."""


def bench_simulators(experiment: Experiment, seconds: float) -> dict[str, Any]:
    """Measures the cost of a game that runs on the host: self-play through OpenSpiel, in turn with the game in JAX.

    Args:
      experiment: its game, network, search and `actors` are measured.
      seconds: how long to measure after compilation, but at least one round.

    Returns:
      what `compare` returns for `host` and `jax`.

    Raises:
      ConfigError: the game is not one of `GAMES`.
    """
    game = experiment.env
    if not isinstance(game, GameConfig) or game.name not in GAMES:
        raise ConfigError(
            f"env.name = '{game.name}': this bench compares games that are both in JAX and in OpenSpiel: "
            f"{', '.join(GAMES)}"
        )
    on_host = experiment.model_copy(update={"env": SimulatorConfig(name="open_spiel", id=game.name)})
    sides = _self_plays(
        {"host": on_host, "jax": experiment}, experiment.actors.games * experiment.search.simulations
    )  # fmt: skip
    ratio_of = "simulations/s, game in OpenSpiel over game in JAX"
    found = compare(sides, "simulations_per_s", ratio_of, seconds, longest_s=10.0, rounds=_ROUNDS)
    return found | _sizes(experiment)


def _self_plays(experiments: Mapping[str, Experiment], per_move: int) -> dict[str, Side]:
    """The side of each experiment: the rate of its self-play, as `per_move` times the moves/s of one game."""

    def side(move: Callable[[], None]) -> Side:
        return lambda seconds: per_move * calls_per_s(move, seconds)

    return {name: side(_self_play(experiment)) for name, experiment in experiments.items()}


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


class _Published:
    """A `ParamSource` with the same parameters as a new version after every `moves` polls."""

    def __init__(self, params: Params, moves: int) -> None:
        self._params = params
        self._moves = moves
        self._polls = self._version = 0

    def wait(self, timeout_s: float) -> Versioned:
        return Versioned(self._version, self._params)

    def poll(self) -> Versioned | None:
        self._polls += 1
        if self._polls // self._moves == self._version:
            return None
        self._version = self._polls // self._moves
        return Versioned(self._version, self._params)


def moves_per_version(experiment: Experiment) -> int:
    """The moves of an actor, each of all its games, between two versions of the parameters, if play and learning keep
    pace.
    """
    learner, actors = experiment.learner, experiment.actors
    samples = learner.publish_every * learner.batch_size / experiment.replay.samples_per_insert
    return max(1, round(samples / (actors.count * actors.games)))


def _plain_settings(experiment: Experiment) -> tuple[str, int, int, int, int]:
    """The arguments of `plain_mctx.self_play` for the sizes of an experiment.

    Raises:
      ConfigError: the experiment is not Gumbel AlphaZero with a ResNet in a game of pgx.
    """
    env, network, search = experiment.env, experiment.network, experiment.search
    if not (isinstance(env, GameConfig) and isinstance(network, ResNetConfig) and search.algorithm == "gumbel"):
        raise ConfigError(
            "this bench compares with plain pgx and mctx, which needs a game written in JAX, network.name=resnet and "
            "search.algorithm=gumbel"
        )
    return env.name, network.channels, network.blocks, experiment.actors.games, search.simulations


def _serve_plain(settings: tuple[str, int, int, int, int], parent: Connection) -> None:
    """In the child: sends None, then answers each number of seconds with moves/s."""
    from podzero.tools.bench.plain_mctx import self_play as plain_self_play  # imports pgx and Haiku

    measure = plain_self_play(*settings)
    parent.send(None)
    answer(parent, measure)


def _changed(experiment: Experiment, section: str, **changes: Any) -> Experiment:
    """The experiment with `changes` in a section, checked.

    Raises:
      ConfigError: the settings do not suit the experiment.
    """
    settings = experiment.model_dump()
    settings[section] |= changes
    return parse(settings, experiment.name)


# Analysis.

POSITIONS = 1000
"""The positions in one call of `analyze`."""


def bench_analyze(experiment: Experiment, seconds: float) -> dict[str, Any]:
    """Measures what replaying the moves, the search tree and JSON cost `podzero analyze` in addition to the network.

    Args:
      experiment: its game, network and search are measured; the network is untrained.
      seconds: how long to measure after compilation, but at least one call of `analyze`.

    Returns:
      what `compare` returns for `analyze` and `bare`; the number of positions in a call, and positions/s.
    """
    env = make_env(experiment.env)
    params = make_network(experiment.network, env.spec).init(jax.random.key(experiment.seed))
    players = NetworkPlayers(env, experiment.network, experiment.search, experiment.env.discount)
    player, usual = players.player("untrained", params), experiment.search.simulations
    analyst, lines = Analyst(env, lambda _: player, usual), _lines(env)
    evaluations = POSITIONS * (experiment.search.simulations + 1)

    def analyze(_seconds: float) -> float:
        began = time.perf_counter()
        answers = [json.dumps(answer) for answer in analyst.answers(lines)]
        assert len(answers) == POSITIONS, len(answers)
        return evaluations / (time.perf_counter() - began)

    log.info("compiling: %d positions with %d simulations", POSITIONS, experiment.search.simulations)
    for few in (lines[:1], lines[:BATCH]):  # a batch of one is a separate program
        list(analyst.answers(few))
    forward = _forward_pass(experiment, env.spec, params, BATCH)
    sides: dict[str, Side] = {"analyze": analyze, "bare": lambda turn_s: BATCH * calls_per_s(forward, turn_s)}
    found = compare(
        sides, "evaluations_per_s", "evaluations/s, analyze over bare forward pass", seconds,
        longest_s=1.0, rounds=_ROUNDS,
    )  # fmt: skip
    return found | {
        "positions": POSITIONS,
        "positions_per_s": POSITIONS * found["analyze_evaluations_per_s"] / evaluations,
        "batch": BATCH,
        "simulations": experiment.search.simulations,
        "platform": jax.devices()[0].platform,
    }


def _lines(env: Env) -> list[str]:
    """Positions from games between random players, as input of `analyze`."""
    player, random = RandomPlayer(env), np.random.default_rng(0)
    played = Arena(env).pairs(player, player, POSITIONS // 2, jax.random.key(0), 0)
    games = [game.moves for pair in played for game in pair]
    assert len(games) == POSITIONS, len(games)
    lengths = [random.integers(len(moves)) for moves in games]
    return [json.dumps({"id": i, "moves": games[i][: lengths[i]]}) for i in range(POSITIONS)]
