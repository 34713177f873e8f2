"""A discrete-event simulation of a run: actors on their nodes, replay's limiter, the learner, and lost machines.

The actors of a node play some moves, and the learner makes some steps, as one event: so many that there are about
`EVENTS`. No mean rate depends on it, since a wait is as long as the work that is missing.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from random import Random
from typing import Any, NamedTuple

import simpy

EVENTS = 40_000


class Players(NamedTuple):
    """The actors of a node, or all devices of a learner that plays as one."""

    number: int
    moves_per_s: float
    """Of each, while nothing makes it wait."""
    threads: float = 1
    """Of each, where they share cores."""


class System(NamedTuple):
    """What is simulated."""

    nodes: Sequence[Players]
    step_s: float
    """Seconds of a learner step while nothing makes it wait."""
    batch_size: float
    """Samples of self-play in a step."""
    reads_per_move: float
    """Samples that the learner reads for each move."""
    min_moves: float = 0.0
    """Moves before the first step."""
    tolerance: float = 0.0
    """Samples by which either side may run ahead."""
    save_s: float = 60.0
    """Seconds between the learner's checkpoints."""
    hosts: int = 1
    """Machines of the learner, each of which is needed; the others have a node each."""
    shards: int = 1
    """Nodes that have a replay server, too."""
    cores: float | None = None
    """What players and learner share: the cores of one machine, or 1 for chips that play and train; None if nothing."""
    start_s: float = 0.0
    """Seconds until all processes work at first."""
    mtbf_s: float = math.inf
    """Mean seconds until a machine fails or is preempted."""
    repair_s: float = 0.0
    """Seconds until the processes of a lost machine work again."""


def simulate(system: System, seconds: float, seed: int = 0) -> dict[str, Any]:
    """What `system` does in `seconds`; with equal seeds the same machines are lost at the same times.

    Returns:
      Moves and steps, without those that a lost learner had made since its checkpoint, and their rates from the first
      step on (`first_step_s`: infinite if there was none); losses; and shares of the time of the learner and of the
      mean node: what work takes alone, lost machines, and waiting, also for shared cores.
    """
    run = _Run(system, seconds, Random(seed))
    run.env.run(seconds)
    since_s, nodes = max(seconds - run.first_step_s, 0.0) or math.inf, max(1, len(run.machines))
    trained = (run.steps + run.lost_steps) * system.step_s / seconds
    stopped = (run.learner.away_s + run.stopped_s) / seconds
    played, away = run.played_s / seconds / nodes, sum(one.away_s for one in run.machines) / seconds / nodes
    return {
        "hours": seconds / 3600,
        "moves_per_s": (run.moves - run.moves_before) / since_s,
        "steps_per_s": run.steps / since_s,
        "learner_time": {"training": trained, "lost": stopped, "waiting": max(0.0, 1.0 - trained - stopped)},
        "actor_time": {"playing": played, "lost": away, "waiting": max(0.0, 1.0 - played - away)},
        "first_step_s": run.first_step_s,
        "moves": run.moves,
        "steps": run.steps,
        "lost_steps": run.lost_steps,
        "lost_machines": sum(machine.losses for machine in {run.learner, *run.machines}),
    }


class _Machine:
    """A machine, or several that are lost together, with cores for the threads of all work."""

    def __init__(self, run: _Run, cores: float, hosts: int = 1) -> None:
        self.losses, self.away_s, self.back = 0, 0.0, run.env.event().succeed()
        self._env, self._cores, self._threads, self._changed = run.env, cores, 0.0, run.env.event()
        if math.isfinite(run.system.mtbf_s):
            run.env.process(self._fail(run, hosts))

    def work(self, seconds: float, threads: float) -> Iterator[simpy.Event]:
        """Does what takes so long alone: all threads get equal parts of the cores, at most one core each."""
        self._change(threads)
        while seconds > 1e-6:  # rounding leaves less
            yield self.back
            began, speed = self._env.now, min(1.0, self._cores / self._threads)
            yield self._env.timeout(seconds / speed) | self._changed
            seconds -= (self._env.now - began) * speed
        self._change(-threads)

    def _fail(self, run: _Run, hosts: int) -> Iterator[simpy.Event]:
        while True:
            yield run.env.timeout(run.random.expovariate(hosts / run.system.mtbf_s))
            self.losses, self.back = self.losses + 1, run.env.event()
            self.away_s += min(run.system.repair_s, run.seconds - run.env.now)
            self._change(0)
            yield run.env.timeout(run.system.repair_s)
            self.back.succeed()

    def _change(self, threads: float) -> None:
        self._threads += threads
        self._changed.succeed()
        self._changed = self._env.event()


class _Run:
    """The processes of a run."""

    def __init__(self, system: System, seconds: float, random: Random) -> None:
        self.system, self.seconds, self.random = system, seconds, random
        self.env = simpy.Environment()
        self.moves = self.steps = self.lost_steps = self.moves_before = self.played_s = self.stopped_s = 0.0
        self.first_step_s = math.inf
        self.dispatch = math.ceil(seconds / system.step_s / EVENTS)
        # Reverb's limiter: `inserted * samples_per_insert - sampled` stays within the tolerance around its value at
        # `min_size`. It must have room for a block and a dispatch, as Reverb's has for an item and a batch.
        blocks = [max(1.0, node.moves_per_s * seconds * len(system.nodes) / EVENTS) for node in system.nodes]
        largest = max((node.number * moves for node, moves in zip(system.nodes, blocks, strict=True)), default=0.0)
        room = max(system.tolerance, largest * system.reads_per_move + self.dispatch * system.batch_size)
        self.ahead, self.filled = simpy.Container(self.env, 2 * room, room), self.env.event()
        self.learner = _Machine(self, system.cores or math.inf, system.hosts)
        self.machines = [self.learner if system.cores else _Machine(self, math.inf) for _ in system.nodes]
        for players, machine, block in zip(system.nodes, self.machines, blocks, strict=True):
            self.env.process(self._play(players, machine, block))
        self.env.process(self._learn())

    def _play(self, players: Players, machine: _Machine, block: float) -> Iterator[Any]:
        yield self.env.timeout(self.system.start_s)
        moves = self.random.uniform(0.1, 1.0)  # nodes do not move in step
        while True:
            yield from machine.work(moves / players.moves_per_s, players.number * players.threads)
            if self.filled.triggered:
                yield self.ahead.put(players.number * moves * self.system.reads_per_move)
            self.moves += players.number * moves
            self.played_s += moves / players.moves_per_s
            if self.moves >= self.system.min_moves and not self.filled.triggered:
                self.filled.succeed()
            moves = min(2 * moves, block)  # short at first, so that the first step is not late

    def _learn(self) -> Iterator[Any]:
        system, losses = self.system, 0
        yield self.env.timeout(system.start_s)
        while True:
            if system.nodes:
                yield self.filled
                yield self.ahead.get(self.dispatch * system.batch_size)
            yield self.learner.back
            began = self.env.now
            for machine in self.machines[: system.shards]:
                yield machine.back
            self.stopped_s += self.env.now - began
            if math.isinf(self.first_step_s):
                self.first_step_s, self.moves_before = self.env.now, self.moves
            yield from self.learner.work(self.dispatch * system.step_s, system.cores or 1.0)
            # A loss takes back what was trained since the checkpoint, at any time between two.
            since_s = sum(self.random.uniform(0.0, system.save_s) for _ in range(losses, self.learner.losses))
            trained, losses = self.steps + self.dispatch, self.learner.losses
            lost = trained * min(1.0, since_s / (self.env.now - self.first_step_s))
            self.steps, self.lost_steps = trained - lost, self.lost_steps + lost
