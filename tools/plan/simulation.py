"""A discrete-event simulation of a run: actors on their nodes, replay's limiter, the learner, and lost machines.

The actors of a node play one block of moves, and the learner makes one dispatch, as one event. In a long time they are
longer, so that there are about `EVENTS`: no mean rate changes, since a wait is as long as the work that is missing.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from random import Random
from typing import Any, NamedTuple

import simpy

EVENTS = 40_000


class Players(NamedTuple):
    """The actors of a node, or all devices of a learner that plays as one."""

    number: int
    moves_per_s: float
    """Of each, while nothing makes it wait."""
    games: int = 1
    """The moves that each makes at once."""
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
    steps_per_dispatch: int = 1
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


class Outcome(NamedTuple):
    """What happened."""

    moves_per_s: float
    """From the first step on, as `steps_per_s`."""
    steps_per_s: float
    learner_time: Mapping[str, float]
    """Shares of its time: what training takes alone, machines that are lost, and waiting, also for shared cores."""
    actor_time: Mapping[str, float]
    """The same in the mean over all nodes."""
    first_step_s: float
    """When the first step began; infinite if none did."""
    moves: float
    steps: float
    """Those that were not lost, as those since the last checkpoint are with a machine of the learner."""
    lost_steps: float
    lost_machines: int


def simulate(system: System, seconds: float, seed: int = 0) -> Outcome:
    """What `system` does in `seconds`; with equal seeds the same machines are lost at the same times."""
    return _Run(system, seconds, Random(seed)).outcome()


class _Machine:
    """A machine with cores for which its threads queue, or several that are lost together."""

    def __init__(self, env: simpy.Environment, cores: float) -> None:
        self.losses, self.away_s = 0, 0.0
        self.back = env.event().succeed()
        self._env, self._cores, self._threads, self._changed = env, cores, 0.0, env.event()

    def work(self, seconds: float, threads: float) -> Iterator[simpy.Event]:
        """Does what takes so long alone: all threads get equal parts of the cores, at most one core each."""
        self._change(threads)
        while seconds > 1e-6:  # rounding leaves less
            yield self.back
            began, speed = self._env.now, min(1.0, self._cores / self._threads)
            yield self._env.timeout(seconds / speed) | self._changed
            seconds -= (self._env.now - began) * speed
        self._change(-threads)

    def fail(self, mtbf_s: float, repair_s: float, random: Random, end_s: float) -> Iterator[simpy.Event]:
        """Is lost and comes back until the end."""
        while True:
            yield self._env.timeout(random.expovariate(1 / mtbf_s))
            self.losses, self.back = self.losses + 1, self._env.event()
            self.away_s += min(repair_s, end_s - self._env.now)
            self._change(0)
            yield self._env.timeout(repair_s)
            self.back.succeed()

    def _change(self, threads: float) -> None:
        self._threads += threads
        self._changed.succeed()
        self._changed = self._env.event()


class _Run:
    """The processes of a run."""

    def __init__(self, system: System, seconds: float, random: Random) -> None:
        self.system, self.seconds, self.random = system, seconds, random
        self.env = env = simpy.Environment()
        self.moves = self.steps = self.lost_steps = self.moves_before = self.played_s = self.stopped_s = 0.0
        self.first_step_s = math.inf
        self.dispatch = max(system.steps_per_dispatch, math.ceil(seconds / system.step_s / EVENTS))
        # Reverb's limiter: `inserted * samples_per_insert - sampled` stays within the tolerance around its value at
        # `min_size`. It must have room for a block and a dispatch, as Reverb's has for an item and a batch.
        largest = max((node.number * self._block(node) for node in system.nodes), default=0.0)
        room = max(system.tolerance, largest * system.reads_per_move + self.dispatch * system.batch_size)
        self.ahead, self.filled = simpy.Container(env, 2 * room, room), env.event()
        self.learner = _Machine(env, system.cores or math.inf)
        self.machines = [self.learner if system.cores else _Machine(env, math.inf) for _ in system.nodes]
        if math.isfinite(system.mtbf_s):
            for machine in dict.fromkeys([self.learner, *self.machines]):
                mtbf_s = system.mtbf_s / (system.hosts if machine is self.learner else 1)
                env.process(machine.fail(mtbf_s, system.repair_s, random, seconds))
        for players, machine in zip(system.nodes, self.machines, strict=True):
            env.process(self._play(players, machine))
        env.process(self._learn())

    def outcome(self) -> Outcome:
        """Runs the processes until the end."""
        self.env.run(self.seconds)
        since_s, nodes = max(self.seconds - self.first_step_s, 0.0) or math.inf, len(self.machines)
        trained_s = (self.steps + self.lost_steps) * self.system.step_s
        away_s = sum(machine.away_s for machine in self.machines)
        return Outcome(
            moves_per_s=(self.moves - self.moves_before) / since_s,
            steps_per_s=self.steps / since_s,
            learner_time=self._shares(training=trained_s, lost=self.learner.away_s + self.stopped_s),
            actor_time=self._shares(playing=self.played_s / nodes, lost=away_s / nodes) if nodes else {},
            first_step_s=self.first_step_s,
            moves=self.moves,
            steps=self.steps,
            lost_steps=self.lost_steps,
            lost_machines=sum(machine.losses for machine in {self.learner, *self.machines}),
        )

    def _shares(self, **spent_s: float) -> dict[str, float]:
        shares = {name: seconds / self.seconds for name, seconds in spent_s.items()}
        return shares | {"waiting": max(0.0, 1.0 - sum(shares.values()))}

    def _block(self, players: Players) -> float:
        """The moves of a block in a long time, of each actor."""
        return max(players.games, players.moves_per_s * self.seconds * len(self.system.nodes) / EVENTS)

    def _play(self, players: Players, machine: _Machine) -> Iterator[Any]:
        yield self.env.timeout(self.system.start_s)
        moves = players.games * self.random.uniform(0.1, 1.0)  # nodes do not move in step
        while True:
            yield from machine.work(moves / players.moves_per_s, players.number * players.threads)
            if self.filled.triggered:
                yield self.ahead.put(players.number * moves * self.system.reads_per_move)
            self.moves += players.number * moves
            self.played_s += moves / players.moves_per_s
            if self.moves >= self.system.min_moves and not self.filled.triggered:
                self.filled.succeed()
            moves = min(2 * moves, self._block(players))  # short at first, so that the first step is not late

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
