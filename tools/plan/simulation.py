"""A discrete-event simulation of a run: actors on their nodes, replay's limiter, the learner, and lost machines.

The actors of a node play one block of moves, and the learner makes one dispatch, as one event. In a long time they are
longer, so that there are about `EVENTS`: no mean rate changes, since a wait is as long as the work that is missing.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from contextlib import nullcontext
from random import Random
from typing import Any, NamedTuple

import simpy

EVENTS = 40_000


class Players(NamedTuple):
    """The actors of a node, or all devices of a learner that plays."""

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
    samples_per_insert: float
    min_size: float = 0.0
    tolerance: float = 0.0
    samples_per_move: float = 1.0
    steps_per_dispatch: int = 1
    save_s: float = 60.0
    """Seconds between the learner's checkpoints."""
    hosts: int = 1
    """Machines of the learner, each of which is needed; the others have a node each."""
    shards: int = 1
    in_turns: bool = False
    """Whether the learner's chips play, too."""
    cores: float | None = None
    """The CPU cores that actors and a learner that wants all of them share; None if they share none."""
    start_s: float = 0.0
    """Seconds until all processes work at first."""
    mtbf_s: float = math.inf
    """Mean seconds until a machine fails or is preempted."""
    repair_s: float = 0.0
    """Seconds until the processes of a lost machine work again."""


class Outcome(NamedTuple):
    """What happened in `seconds`."""

    seconds: float
    first_step_s: float
    """When the first step began; infinite if none did."""
    moves: float
    steps: float
    """Those that were not lost."""
    moves_per_s: float
    """From the first step on."""
    steps_per_s: float
    lost_steps: float
    """Steps since the last checkpoint of a lost learner."""
    lost_machines: int
    learner: Mapping[str, float]
    """Shares of its time."""
    players: Mapping[str, float]
    """The same in the mean over all actors."""
    cores_used: float
    """Share of shared cores."""


def simulate(system: System, seconds: float, seed: int = 0) -> Outcome:
    """What `system` does in `seconds`; with equal seeds the same machines are lost at the same times."""
    return _Run(system, seconds, seed).outcome()


class _Machines:
    """Machines that are away together: until each of them is there."""

    def __init__(self, env: simpy.Environment, system: System, count: int, random: Random) -> None:
        self.losses = 0
        self.back = env.event().succeed()
        self._env, self._up_s, self._since = env, 0.0, 0.0
        if math.isfinite(system.mtbf_s):
            env.process(self._fail(system.mtbf_s / count, system.repair_s, random))

    def up_s(self) -> float:
        """How long they have been there so far."""
        return self._up_s + (self._env.now - self._since if self.back.triggered else 0.0)

    def _fail(self, mtbf_s: float, repair_s: float, random: Random) -> Iterator[simpy.Event]:
        while True:
            yield self._env.timeout(random.expovariate(1 / mtbf_s))
            self._up_s, self.losses, self.back = self.up_s(), self.losses + 1, self._env.event()
            yield self._env.timeout(repair_s)
            self._since = self._env.now
            self.back.succeed()


class _Run:
    """The processes of a run."""

    def __init__(self, system: System, seconds: float, seed: int) -> None:
        self.system, self.seconds, self.random = system, seconds, Random(seed)
        self.env = env = simpy.Environment()
        self.spent: dict[str, float] = defaultdict(float)
        self.moves = self.steps = self.lost_steps = self.moves_before = 0.0
        self.first_step_s = math.inf
        self.dispatch = max(system.steps_per_dispatch, math.ceil(seconds / system.step_s / EVENTS))
        self.cores = _Cores(env, system.cores) if system.cores else None
        self.chips, self.filled, self.now = simpy.Resource(env), env.event(), env.event().succeed()
        # Reverb's limiter: `inserted * samples_per_insert - sampled` stays within the tolerance around its value at
        # `min_size`. It must have room for a block and a dispatch, as Reverb's has for an item and a batch.
        largest = max((players.number * self._moves(players) for players in system.nodes), default=0.0)
        room = max(system.tolerance, self._samples(largest) + self.dispatch * system.batch_size)
        self.ahead = simpy.Container(env, 2 * room, room)
        self.learners = _Machines(env, system, system.hosts, self.random)
        self.machines = [
            self.learners if system.in_turns else _Machines(env, system, 1, self.random) for _ in system.nodes
        ]
        for players, machine in zip(system.nodes, self.machines, strict=True):
            env.process(self._play(players, machine))
        env.process(self._learn())

    def outcome(self) -> Outcome:
        """Runs the processes until the end."""
        self.env.run(self.seconds)
        since, system = max(self.seconds - self.first_step_s, 0.0) or math.inf, self.system
        actors = sum(players.number for players in system.nodes)
        up_s = sum(node.number * machine.up_s() for node, machine in zip(system.nodes, self.machines, strict=True))
        away_s = self.seconds - self.learners.up_s() + self.spent["shards"]
        return Outcome(
            self.seconds, self.first_step_s, self.moves, self.steps,
            (self.moves - self.moves_before) / since, self.steps / since, self.lost_steps,
            sum(machine.losses for machine in {self.learners, *self.machines}),
            self._shares(training=self.spent["training"], lost=away_s),
            self._shares(playing=self.spent["playing"] / actors, lost=self.seconds - up_s / actors) if actors else {},
            self.cores.used_s / self.seconds / system.cores if self.cores and system.cores else 0.0,
        )  # fmt: skip

    def _shares(self, **spent_s: float) -> dict[str, float]:
        shares = {name: seconds / self.seconds for name, seconds in spent_s.items()}
        return shares | {"waiting": max(0.0, 1.0 - sum(shares.values()))}

    def _moves(self, players: Players) -> float:
        """The moves of a block in a long time, of each actor."""
        return max(players.games, players.moves_per_s * self.seconds * len(self.system.nodes) / EVENTS)

    def _samples(self, moves: float) -> float:
        """How many samples may be read for so many moves."""
        return moves * self.system.samples_per_move * self.system.samples_per_insert

    def _play(self, players: Players, machine: _Machines) -> Iterator[Any]:
        yield self.env.timeout(self.system.start_s)
        moves = players.games * self.random.uniform(0.1, 1.0)  # nodes do not move in step
        while True:
            with self._turn() as turn:
                yield turn
                began, up_s = self.env.now, machine.up_s()
                yield self._work(moves / players.moves_per_s, players.number * players.threads)
                passed, there = self.env.now - began, machine.up_s() - up_s
            self.spent["playing"] += players.number * there
            made = players.number * moves * there / passed
            if self.filled.triggered and made:
                yield self.ahead.put(self._samples(made))
            self.moves += made
            if self.moves * self.system.samples_per_move >= self.system.min_size and not self.filled.triggered:
                self.filled.succeed()
            moves = min(2 * moves, self._moves(players))  # short at first, so that the first step is not late

    def _learn(self) -> Iterator[Any]:
        system, losses = self.system, 0
        yield self.env.timeout(system.start_s)
        while True:
            if system.nodes:
                yield self.filled
                yield self.ahead.get(self.dispatch * system.batch_size)
            yield self.learners.back
            began = self.env.now
            for machine in self.machines[: system.shards]:
                if not machine.back.triggered:
                    yield machine.back
            self.spent["shards"] += self.env.now - began
            with self._turn() as turn:
                yield turn
                began, up_s = self.env.now, self.learners.up_s()
                if math.isinf(self.first_step_s):
                    self.first_step_s, self.moves_before = began, self.moves
                yield self._work(self.dispatch * system.step_s, system.cores or 0.0)
                there = self.learners.up_s() - up_s
            self.spent["training"] += there
            self.steps += self.dispatch * there / (self.env.now - began)
            # A loss takes back what was trained since the checkpoint, at any time between two.
            since_s = sum(self.random.uniform(0.0, system.save_s) for _ in range(losses, self.learners.losses))
            lost = self.steps * min(1.0, since_s / (self.env.now - self.first_step_s))
            self.steps, self.lost_steps, losses = self.steps - lost, self.lost_steps + lost, self.learners.losses

    def _turn(self) -> Any:
        """The chips, if play and training share them, else nothing to wait for."""
        return self.chips.request() if self.system.in_turns else nullcontext(self.now)

    def _work(self, seconds: float, threads: float) -> simpy.Event:
        """The end of what takes so long alone."""
        return self.cores.work(seconds, threads) if self.cores else self.env.timeout(seconds)


class _Cores:
    """The cores of a machine, of which all threads get equal parts, at most one core each."""

    def __init__(self, env: simpy.Environment, number: float) -> None:
        self.used_s = 0.0
        self._env, self._number, self._planned = env, number, env.event()
        self._done_s = self._since = 0.0
        self._jobs: list[tuple[float, float, simpy.Event]] = []
        """Of each job what a thread that began first has done when it ends, its threads, and its end."""

    def work(self, seconds: float, threads: float) -> simpy.Event:
        """The end of what takes so many threads so long with a core each."""
        end, self.used_s = self._env.event(), self.used_s + threads * seconds
        self._go_on()
        self._jobs.append((self._done_s + seconds, threads, end))
        self._plan()
        return end

    def _speed(self) -> float:
        return min(1.0, self._number / sum(threads for _, threads, _ in self._jobs))

    def _go_on(self) -> None:
        if self._jobs:
            self._done_s += (self._env.now - self._since) * self._speed()
        self._since = self._env.now

    def _plan(self) -> None:
        if self._jobs:
            self._planned = self._env.timeout(
                max(0.0, min(end_s for end_s, _, _ in self._jobs) - self._done_s) / self._speed()
            )
            self._planned.callbacks.append(self._end)

    def _end(self, planned: simpy.Event) -> None:
        if planned is self._planned:  # no job has begun or ended since
            self._go_on()
            first = min(self._jobs, key=lambda job: job[0])
            self._jobs.remove(first)
            first[-1].succeed()
            self._plan()
