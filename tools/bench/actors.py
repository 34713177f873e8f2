"""The stage of many actors: samples/s that they write into sharded replay, where a sleep replaces each search.

Each actor runs the real loop, `SelfPlayActor.run`, with its own writer to all shards. Only the moves come from a
recording, after a sleep as long as the search took. So the load that grows with the number of actors is everything
else: assembling and shuffling games, checking, packing, sending and inserting samples.
"""

from __future__ import annotations

import logging
import os
import statistics
import threading
import time
from contextlib import ExitStack
from functools import partial
from multiprocessing.connection import Connection
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import psutil

from podzero.actors import ActorClients
from podzero.actors.build import actor_parts
from podzero.actors.core import SelfPlayCore, SelfPlayState, StartPool
from podzero.actors.selfplay import SelfPlayActor
from podzero.config import Experiment
from podzero.core.protocols import Env, ParamSource
from podzero.core.types import Array, Move, Params, Versioned
from podzero.envs import make_env, spec_of
from podzero.networks import make_network
from podzero.replay import ReplayServer, ShardedWriter
from podzero.tools.bench.measuring import BenchError, ChildProcess, answer, child_process, without_insert_limit

log = logging.getLogger(__name__)

SHARDS = 4
"""The number of replay servers, each in a process, whose limiter never blocks."""
PROCESSES = 8
"""The processes that the actors share, as threads: the memory would not suffice for 256 processes with JAX."""
COUNTS = (1, 2, 4, 8, 16, 32, 64, 128, 256)
"""Increasing numbers of actors."""
FULL = 0.9
"""The share of CPU time from which the machine counts as saturated."""
_RECORDED = 64
"""The number of recorded moves: with dozens of games played at once, enough for games of all lengths."""
_LEAST_MOVES = 4
"""A round lasts at least as long as this number of searches."""
_SETTLE_S = 2.0
"""How long new actors play, at most, before counting begins."""
_GROWTH = 5.0
"""The time in which all actors may start, as a multiple of the measured time. Numbers that need longer are left out."""
_LEAST_GROW_S = 20.0
"""The least time in which all actors may start."""
_ANSWER_S = 60.0
"""The longest wait for the counters of a process."""
_MOVE_S = 60.0


def bench_actors(experiment: Experiment, seconds: float) -> dict[str, Any]:
    """Measures how writing to replay scales with the number of actors.

    Returns:
      `ratio`, the lowest efficiency before the machine is saturated (None if it was from the start, or if there is only
      one number of actors); `search_ms`, the length of each sleep; `left_out`, the numbers of actors that did not start
      in time; and for each other number of actors the samples/s of all shards and of each one, `efficiency` (samples/s
      over the number of actors times the samples/s of one actor in the first round), `machine`, the share of CPU time
      that all processes used, and the cores used by all actors and by all shards.
    """
    env = make_env(experiment.env)
    log.info("compiling self-play, and recording %d moves", _RECORDED)
    moves, search_s = record(experiment, _RECORDED)
    opened = without_insert_limit(experiment, SHARDS)
    with ExitStack() as stack:
        servers = [stack.enter_context(ReplayServer(opened, env.spec, shard)) for shard in range(SHARDS)]
        addresses = [server.address() for server in servers]
        players = [
            stack.enter_context(child_process(_serve, opened, addresses, search_s, index)) for index in range(PROCESSES)
        ]
        for player in players:
            stack.callback(player.close)  # all at once, before any of them is waited for
            player.send(moves)  # not with the arguments, since a process starts only when it has read those
        for player in players:
            player.receive()
        round_s = max(seconds / len(COUNTS), _LEAST_MOVES * search_s)
        rounds = measure_counts(players, servers, COUNTS, round_s, max(_GROWTH * seconds, _LEAST_GROW_S))
    alone = rounds[0]["samples_per_s"] / rounds[0]["actors"]
    if not alone:
        raise BenchError(f"no game has ended within {round_s:g} s: measure for longer (--seconds) or smaller games")
    for entry in rounds:
        entry["efficiency"] = entry["samples_per_s"] / (entry["actors"] * alone)
    return {
        "ratio": min((entry["efficiency"] for entry in rounds[1:] if entry["machine"] < FULL), default=None),
        "ratio_of": "samples/s of N actors over N times those of one, worst N before the machine is saturated",
        "full_from": next((entry["actors"] for entry in rounds if entry["machine"] >= FULL), None),
        "search_ms": 1e3 * search_s,
        "games": experiment.actors.games,
        "actor_processes": PROCESSES,
        "left_out": list(COUNTS[len(rounds) :]),
        "rounds": rounds,
    }


def record(experiment: Experiment, count: int) -> tuple[Move, float]:
    """Plays `count` moves of a real actor; returns them, `[count, B, ...]` on each field, and their median seconds.

    The network is untrained: its parameters do not change the time of a search.
    """
    core, fold, _ = actor_parts(experiment)
    network = make_network(experiment.network, spec_of(experiment.env))
    params = fold(network.init(jax.random.key(experiment.seed)))
    state = jax.jit(core.init)(jax.random.key(experiment.seed))
    play = jax.jit(core.move, donate_argnums=1)
    state, _ = play(params, state)  # compiles
    moves, times = [], []
    for _ in range(count):
        start = time.perf_counter()
        state, move = play(params, state)
        moves.append(jax.device_get(move))
        times.append(time.perf_counter() - start)
    return jax.tree.map(lambda *column: np.stack(column), *moves), statistics.median(times)


def measure_counts(
    players: list[ChildProcess], servers: list[ReplayServer], counts: tuple[int, ...], seconds: float, left_s: float
) -> list[dict[str, Any]]:
    """Measures a round of `seconds` for each number of actors, until the starts have taken `left_s` seconds in all."""
    found: list[dict[str, Any]] = []
    for count in counts:
        log.info("starting actors until %d play; all starts together have %.0f s more", count, left_s)
        began = time.monotonic()
        for index, player in enumerate(players):
            player.send(count // len(players) + (index < count % len(players)))
        try:
            for player in players:
                player.receive(max(0.0, left_s - (time.monotonic() - began)))
        except BenchError:
            if not found:
                raise
            return found
        left_s -= time.monotonic() - began
        log.info("measuring %d actors for %g s", count, seconds)
        found.append(measure_round(players, servers, count, seconds))
    return found


def measure_round(
    players: list[ChildProcess], servers: list[ReplayServer], count: int, seconds: float
) -> dict[str, Any]:
    """Counts the samples that `count` actors, which have started, insert in about `seconds`."""
    settle_s = min(_SETTLE_S, seconds / 2)
    time.sleep(settle_s)
    before = _Reading(players, servers)
    time.sleep(seconds - settle_s)
    after = _Reading(players, servers)
    elapsed = after.at - before.at
    shards = [float(rate) for rate in (after.inserted - before.inserted) / elapsed]
    return {
        "actors": count,
        "samples_per_s": sum(shards),
        "shards": shards,
        # `psutil.cpu_times` is of all CPUs, also of those that this process may not use.
        "machine": 1.0 - (after.idle_s - before.idle_s) / elapsed / (os.cpu_count() or 1),
        "actors_cores": (after.players_s - before.players_s) / elapsed,
        "shards_cores": (after.servers_s - before.servers_s) / elapsed,
    }


class _Reading:
    """All counters at one time."""

    def __init__(self, players: list[ChildProcess], servers: list[ReplayServer]) -> None:
        self.inserted = np.array([server.limits().inserted for server in servers])
        self.at = time.perf_counter()
        self.servers_s = sum(server.cpu_seconds for server in servers)
        # The request for at least 0 actors starts none, and is answered with the CPU time.
        self.players_s = sum(player.ask(0, timeout_s=_ANSWER_S) for player in players)
        times = psutil.cpu_times()
        self.idle_s = times.idle + times.iowait


class Playback(SelfPlayCore):
    """A self-play core that repeats a recording; the `games` of its state are an index into it."""

    def __init__(self, env: Env, moves: Move) -> None:
        self.env, self._moves = env, moves

    def init(self, key: Array) -> SelfPlayState:
        """Starts at a random index, so that actors are not synchronized."""
        index, none = jax.random.randint(key, (), 0, len(self._moves.done)), jnp.zeros((), jnp.int32)
        return SelfPlayState(key, index, none, StartPool((), none, none))

    def move(self, params: Params, state: SelfPlayState) -> tuple[SelfPlayState, Move]:
        """The next recorded move."""
        move = jax.tree.map(lambda column: jnp.asarray(column)[state.games], self._moves)
        return state._replace(games=(state.games + 1) % len(self._moves.done)), move


class _Sleep(ParamSource):
    """A source of parameters whose `poll`, which an actor calls once a move, sleeps as long as a search."""

    def __init__(self, seconds: float) -> None:
        self._seconds = seconds

    def wait(self, timeout_s: float) -> Versioned:
        del timeout_s
        return Versioned(0, {})

    def poll(self) -> Versioned | None:
        time.sleep(self._seconds)
        return None


def _serve(experiment: Experiment, addresses: list[str], search_s: float, process: int, parent: Connection) -> None:
    """In the child: takes the recorded moves and sends None, then starts actors until the requested number play or the
    pipe is closed, each with a thread and a writer to all shards. It answers each request with its CPU seconds.
    """
    (moves,) = parent.recv()
    env, source = make_env(experiment.env), _Sleep(search_s)
    core, make_writer = Playback(env, moves), partial(ShardedWriter, lambda: addresses, env.spec, experiment)
    playing: list[tuple[SelfPlayActor, threading.Thread, ShardedWriter]] = []

    def grow(count: int) -> float:
        while len(playing) < count and not parent.poll():
            seed, writer = process + 1000 * len(playing), make_writer()  # a seed that no actor of any process has
            clients = ActorClients(source, writer, report=lambda worker, metrics: None)
            actor = SelfPlayActor(experiment=experiment, name=f"actor-{seed}", seed=seed, core=core, clients=clients)
            thread = threading.Thread(target=actor.run, name=f"actor-{seed}", daemon=True)
            thread.start()
            playing.append((actor, thread, writer))
        return time.process_time()

    make_writer().close()  # connects before counting begins
    parent.send(None)
    answer(parent, grow)
    for actor, _, _ in playing:
        actor.stop()
    for _, thread, writer in playing:
        thread.join(_MOVE_S)
        writer.close()
