"""The stage of the whole loop: play and training share one device, through real replay, beside both of them alone.

Learner, actor, writer and reader run in this process as in a learner's process that plays, each replay server in a
process of its own.

With a stand-in, nothing is computed: the programs of play and training sleep as long as the chip takes, one after the
other, and hand over random samples. What remains is the host's part of the loop, without copies between host and chip.
"""

from __future__ import annotations

import logging
import time
from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack, closing
from functools import cache
from itertools import pairwise
from statistics import harmonic_mean
from typing import Any, NamedTuple

import jax
import numpy as np

from podzero.actors import ActorClients
from podzero.actors.build import make_actor
from podzero.actors.clients import Played
from podzero.actors.device_actor import ChipRollouts, DeviceActor, Rows
from podzero.config import ClusterConfig, Experiment, StopConfig, parse
from podzero.core.chips import find_slice
from podzero.core.clock import whole
from podzero.core.errors import ConfigError
from podzero.core.types import EnvSpec, PackedBatch, Params
from podzero.envs import sample_packing
from podzero.learner import Learner, make_training
from podzero.learner.build import Training, learner_parts, timed
from podzero.learner.sharding import batch_sharding, replicated
from podzero.learner.step import StepOutput, StepSums, TrainState
from podzero.replay import ReplayServer, ShardedWriter, make_reader
from podzero.runtime.params import LocalParams
from podzero.tools.bench.learner import resident_side
from podzero.tools.bench.measuring import (
    START_S,
    BenchError,
    DeviceQueue,
    Side,
    calls_per_s,
    compiled,
    random_batch,
    random_samples,
    with_replay,
)

log = logging.getLogger(__name__)

_ACTOR, _LEARNER = "actor-0", "learner"
_ALONE_S = 8.0
"""The longest turn of play or training alone: one of each before the loop, and one after it."""
_STATES = ("open", "blocks_inserts", "blocks_samples")
"""What the limiter of replay may do."""
_POLL_S = 0.5
"""How often to look at the limiters of replay."""
_FIRST_S = 600.0
"""The longest wait until the loop has written samples and trained on a batch."""
_DISTINCT = 4_096
"""Random samples that fill replay, and that a stand-in's games consist of, are repeated after so many."""


def bench_loop(experiment: Experiment, seconds: float, stand_in: str | None = None) -> dict[str, Any]:
    """Measures the loop, and before and after it play alone and training alone on a batch that stays on the device.

    With `stand_in`, programs sleep as long as this chip takes (`chip_times`); of a slice, one host is measured.

    Returns:
      `ratio`, the time that the moves and steps of the loop take in turns, each at its speed alone, over the time that
      they took together; moves/s and steps/s of the loop and of both `alone`; `in_turn_moves_per_s` (see `in_turn`);
      shares of time that add up to one: of the device by its programs, of actor and learner by what they did or waited
      for (their metrics `time/...`), and of the limiters by what they block; and the cores that were used, with which
      rates rise and fall on a machine that has other work.
    """
    experiment = _of_learner_that_plays(experiment)
    times = None if stand_in is None else chip_times(experiment, stand_in)
    if times is not None:
        steps = experiment.learner.dispatch_steps(times.step_s)
        experiment = _of_one_host(experiment, times.hosts).changed(learner={"steps_per_dispatch": steps})
    network, spec, symmetries = learner_parts(experiment)
    experiment = timed(experiment, network, spec, symmetries)
    training, local, reports = make_training(experiment, network, spec, symmetries), LocalParams(), list[Reported]()
    learner: Learner
    with ExitStack() as stack:
        shards = range(experiment.replay.shards)
        servers = [stack.enter_context(ReplayServer(experiment, spec, shard)) for shard in shards]
        addresses = [server.address() for server in servers]
        writer = stack.enter_context(closing(ShardedWriter(lambda: addresses, spec, experiment)))
        rows = _fill(experiment, spec, writer)
        clients = ActorClients(
            local,
            writer,
            lambda name, metrics: reports.append(Reported(time.perf_counter(), name, metrics, learner.step)),
        )
        if times is None:
            actor = make_actor(experiment, _ACTOR, experiment.seed, [clients], devices=jax.local_devices())
            assert isinstance(actor, DeviceActor)
        else:
            queue = DeviceQueue()
            training = _stand_in_training(training, queue, times)
            chips = _StandInRollouts(queue, times, experiment, rows)
            actor = DeviceActor(experiment=experiment, name=_ACTOR, clients=clients, seed=experiment.seed, chips=chips)
        local.publish(0, training.init().ema)
        # What a stand-in does alone is known.
        sides = _sides(actor, training, experiment, spec) if times is None else {}
        alone = [_measured(sides, min(_ALONE_S, seconds / 4))]
        reader = make_reader(lambda: addresses, spec, experiment)
        learner = Learner(
            experiment, network, spec, symmetries, reader=reader, sink=None, report=clients.report, local_sink=local,
            training=training,
        )  # fmt: skip
        observed = _run(learner, actor, reports, servers, seconds)
        alone.append(_measured(sides, min(_ALONE_S, seconds / 4)))
    return summary(experiment, observed, alone if times is None else [times.rates(experiment)]) | {
        "device": jax.devices()[0].platform if stand_in is None else f"stand-in {stand_in}",
        "sample_bytes": training.packing.row_bytes,
    }


def _of_learner_that_plays(experiment: Experiment) -> Experiment:
    """The experiment whose learner plays, without limits of the run."""
    if not experiment.has_self_play:
        raise ConfigError("data.share is 1, so nobody plays: the loop is that of experiments with self-play")
    # Only what the experiment sets: the defaults of search are others where the learner's devices play.
    settings = experiment.model_dump(exclude_unset=True)
    settings["actors"] = settings.get("actors", {}) | {"inference": "device", "resources": {}}
    settings |= {"cluster": ClusterConfig(), "stop": StopConfig()}
    return with_replay(parse(settings, experiment.name), port=0)


def _fill(experiment: Experiment, spec: EnvSpec, writer: ShardedWriter) -> np.ndarray[Any, Any]:
    """Writes `replay.min_size` random samples, or a little more; returns the rows that are repeated."""
    left, per_item = experiment.replay.min_size, experiment.replay.samples_per_item
    rows: np.ndarray[Any, Any] = sample_packing(experiment, spec).pack(random_samples(experiment, spec, _DISTINCT))
    while left > 0:
        count = min(_DISTINCT, -(-left // per_item) * per_item)
        writer.write(rows[:count])
        left -= count
    writer.flush()
    return rows


def _sides(actor: DeviceActor, training: Training, experiment: Experiment, spec: EnvSpec) -> dict[str, Side]:
    """The programs of play alone, and those of training alone; compiled already."""
    log.info("compiling play and the train step")
    version, params = actor.clients.source.wait(START_S)
    state = actor.chips.init(jax.random.key(experiment.seed))

    def play() -> None:
        nonlocal state
        state, _, played = actor.chips.play(params, version, state)
        jax.device_get(played)

    play()
    moves = experiment.actors.games * experiment.actors.moves_per_dispatch
    return {
        "play_moves_per_s": lambda seconds: moves * calls_per_s(play, seconds),
        "train_steps_per_s": resident_side(training, random_batch(experiment, spec)),
    }


def _measured(sides: Mapping[str, Side], seconds: float) -> dict[str, float]:
    """The rates of play and training alone, in turn, and the cores that this process used for each."""
    found: dict[str, float] = {}
    for name, side in sides.items():
        cpu, began = time.process_time(), time.perf_counter()
        found[name] = side(seconds)
        found[f"{name.partition('_')[0]}_cores"] = (time.process_time() - cpu) / (time.perf_counter() - began)
    return found


# What is observed, and what it means.


class Reported(NamedTuple):
    """A report of the actor or the learner."""

    at: float
    worker: str
    metrics: Mapping[str, float]
    step: int
    """The learner's step at that time."""


class Observed(NamedTuple):
    """What was seen of the loop between two reports of the actor."""

    reports: Sequence[Reported]
    """All of both, beginning with the actor's report at which counting begins."""
    limiter: Counter[str]
    """How often the limiters were seen in each state."""
    cores: Mapping[str, float]
    """Used by this process and by the replay servers."""


def _run(
    learner: Learner, actor: DeviceActor, reports: Sequence[Reported], servers: Sequence[ReplayServer], seconds: float
) -> Observed:
    """Runs both, in a thread each, while they are observed; then ends them. Raises the error of either."""
    with closing(learner), ThreadPoolExecutor(2, "bench-loop") as pool:
        running = [pool.submit(learner.run), pool.submit(actor.run)]
        try:
            observed = _observe(reports, running, servers, seconds)
        finally:
            learner.stop()
            actor.stop()
    for ended in running:
        ended.result()
    return observed


def _observe(
    reports: Sequence[Reported], running: Sequence[Future[None]], servers: Sequence[ReplayServer], seconds: float
) -> Observed:
    """Observes the loop for `seconds`, until the actor's next report, once it has written samples and trained."""
    log.info("starting the loop; it has %g s to write samples and to train", _FIRST_S)
    began, filled = time.perf_counter(), _inserted(servers)
    first, limiter = None, Counter[str]()
    while True:
        time.sleep(_POLL_S)
        for ended in running:
            if ended.done():
                ended.result()
                raise BenchError("the loop has ended by itself, although it has no limit")
        now, seen = time.perf_counter(), list(reports)
        if first is None:
            # At first the actor keeps samples back, so that items mix games.
            if _inserted(servers) > filled and seen and seen[-1].step:
                log.info("measuring the loop for %g s, and until the actor reports", seconds)
                first, cpu, since = len(seen), _cpu_s(servers), now
            elif now - began > _FIRST_S:
                raise BenchError(f"no samples were written and trained on within {_FIRST_S:g} s: {_state(servers)}")
            continue
        limiter[_state(servers)] += 1
        mine, trained = ([one for one in seen[first:] if one.worker == worker] for worker in (_ACTOR, _LEARNER))
        if mine and mine[-1].at - mine[0].at >= seconds and len(trained) > 1 and trained[-2].at > mine[0].at:
            cores = {name: (used - cpu[name]) / (now - since) for name, used in _cpu_s(servers).items()}
            return Observed(seen[seen.index(mine[0]) :], limiter, cores)


def _inserted(servers: Sequence[ReplayServer]) -> int:
    return sum(server.limits().inserted for server in servers)


def _state(servers: Sequence[ReplayServer]) -> str:
    """Of `_STATES` that of the limiters: whether that of any shard blocks."""
    limits, (opened, inserts, samples) = [server.limits() for server in servers], _STATES
    if any(each.insert_blocked for each in limits):
        return inserts
    return samples if any(each.sample_blocked for each in limits) else opened


def _cpu_s(servers: Sequence[ReplayServer]) -> dict[str, float]:
    return {"host": time.process_time(), "replay": sum(server.cpu_seconds for server in servers)}


def in_turn(play: float, train: float, samples_per_insert: float, batch_size: int) -> float:
    """Moves/s of play at P moves/s in turn with training at L steps/s: `1 / (1 / P + samples_per_insert / (batch L))`.

    Each move becomes a sample.
    """
    return 1 / (1 / play + samples_per_insert / (batch_size * train))


def summary(experiment: Experiment, observed: Observed, alone: Sequence[Mapping[str, float]]) -> dict[str, Any]:
    """What `bench_loop` returns, apart from the device; `alone` before and after the loop, as `_measured` returns."""
    actors, batch, ratio = experiment.actors, experiment.learner.batch_size, experiment.replay.samples_per_insert
    mine = [one for one in observed.reports if one.worker == _ACTOR]
    elapsed, steps = mine[-1].at - mine[0].at, mine[-1].step - mine[0].step
    moves = sum(one.metrics["count/moves"] for one in mine[1:])
    # Harmonic means: the turns before and after the loop are equally long in work, not in time.
    play, train = (harmonic_mean([turn[name] for turn in alone]) for name in ("play_moves_per_s", "train_steps_per_s"))
    busy = {"play": moves / play / elapsed, "train": steps / train / elapsed}
    expected = in_turn(play, train, ratio, batch)
    return {
        "ratio": sum(busy.values()),
        "ratio_of": "work per time, the loop over play and training in turns",
        "moves_per_s": moves / elapsed,
        "in_turn_moves_per_s": expected,
        "steps_per_s": steps / elapsed,
        "samples_per_move": steps * batch / moves if moves else None,
        "play_moves_per_s": play,
        "train_steps_per_s": train,
        "alone": [dict(turn) for turn in alone],
        "device_time": whole(busy, "idle"),
        "actor_time": stage_shares(mine),
        "learner_time": stage_shares([one for one in observed.reports if one.worker == _LEARNER]),
        "limiter_time": {state: observed.limiter[state] / observed.limiter.total() for state in _STATES},
        "cores": dict(observed.cores),
        "games": actors.games,
        "moves_per_dispatch": actors.moves_per_dispatch,
        "batch_size": batch,
        "steps_per_dispatch": experiment.learner.dispatch_steps(),
        "samples_per_insert": ratio,
    }


def stage_shares(reports: Sequence[Reported]) -> dict[str, float]:
    """The shares of the time from a worker's first report to its last in each stage of its loop, and in `other`."""
    seconds: dict[str, float] = defaultdict(float)
    for before, one in pairwise(reports):
        for name, share in one.metrics.items():
            if name.startswith("time/"):
                seconds[name.removeprefix("time/")] += share * (one.at - before.at)
    return {name: spent / (reports[-1].at - reports[0].at) for name, spent in seconds.items()}


# Stand-ins.


class ChipTimes(NamedTuple):
    """Seconds of an experiment's programs on the chips of one host."""

    move_s: float
    """A move in all games of the host."""
    step_s: float
    """A learner step."""
    dispatch_s: float = 0.0
    """What a dispatch takes in addition to its steps."""
    hosts: int = 1
    """Hosts that train together."""

    def dispatch(self, steps: int) -> float:
        """Seconds of a dispatch of so many steps."""
        return self.dispatch_s + steps * self.step_s

    def rates(self, experiment: Experiment) -> dict[str, float]:
        """The rates of play and training alone; see `_measured`."""
        steps = experiment.learner.dispatch_steps()
        return {
            "play_moves_per_s": experiment.actors.games / self.move_s,
            "train_steps_per_s": steps / self.dispatch(steps),
        }


def measured_times(games: int, moves_per_s: float, steps_per_s: Mapping[int, float]) -> ChipTimes:
    """The times of rates that were measured on a chip. A dispatch of K steps takes `dispatch_s + K step_s`.

    Learner steps/s are by `learner.steps_per_dispatch`, for two numbers of them.
    """
    (few, few_s), (many, many_s) = ((steps, steps / rate) for steps, rate in steps_per_s.items())
    step_s = (many_s - few_s) / (many - few)
    return ChipTimes(games / moves_per_s, step_s, few_s - few * step_s)


_C4 = "connect_four network=(name=resnet, channels=32, blocks=3) search.simulations=32 actors.games=4096"
MEASURED = {
    # One H200 with jax 0.11.2 in bfloat16, 2026-11-27, 16 moves a program; medians of three.
    "h200": {
        f"{_C4} learner.batch_size=512": measured_times(4096, 233_347, {4: 1167.1, 32: 1879.3}),
        f"{_C4} learner.batch_size=4096": measured_times(4096, 233_347, {4: 873.1, 32: 892.5}),
    },
}
"""What was measured by chip and experiment, which the texts describe as `_described` does."""


def chip_times(experiment: Experiment, name: str) -> ChipTimes:
    """The times of an experiment on a chip of `MEASURED`, or on a TPU slice, by the TPU compiler.

    Raises `ConfigError` for other names, and for experiments that were not measured or that the compiler refuses.
    """
    if (measured := MEASURED.get(name)) is not None:
        found = measured.get(_described(experiment))
        if found is None:
            raise ConfigError(
                f"--stand-in {name}: {_described(experiment)} was not measured; measured were "
                f"{'; '.join(measured)}. TPU slices, such as v5e-1, stand in for all experiments, by the TPU compiler"
            )
        return found
    try:
        where = find_slice(name)
    except ConfigError as unknown:
        raise ConfigError(f"--stand-in: {', '.join(MEASURED)}, or a TPU slice: {unknown}") from None
    log.info("compiling play and the train step for %s; this takes minutes for large networks", where.short_name)
    step, play = (compiled(experiment, where.topology, program) for program in ("learner", "device"))
    return ChipTimes(
        move_s=play["estimated_seconds"] / play["trip_count"],
        step_s=step["estimated_seconds"] / step["trip_count"],
        hosts=where.hosts,
    )


def _described(experiment: Experiment) -> str:
    """What the times of an experiment's programs depend on, as its settings."""
    network = {"name": experiment.network.name} | experiment.network.model_dump(exclude_defaults=True)
    described = ", ".join(f"{name}={value}" for name, value in network.items())
    return (
        f"{experiment.env.title} network=({described}) search.simulations={experiment.search.simulations} "
        f"actors.games={experiment.actors.games} learner.batch_size={experiment.learner.batch_size}"
    )


def _of_one_host(experiment: Experiment, hosts: int) -> Experiment:
    """What one of `hosts` hosts that train together reads and holds."""
    learner, replay = experiment.learner, experiment.replay
    parts = {name: max(1, getattr(replay, name) // hosts) for name in ("shards", "capacity", "min_size")}
    if replay.tolerance is not None:
        parts["tolerance"] = replay.tolerance / hosts
    batch = learner.model_copy(update={"batch_size": learner.batch_size // hosts})
    return with_replay(experiment, **parts).model_copy(update={"learner": batch})


class _Pending:
    """A result of a stand-in's program, for which JAX waits as for one of a device."""

    def __init__(self, ready_at: float, value: np.ndarray[Any, Any]) -> None:
        self._ready_at = ready_at
        self._value = value

    def block_until_ready(self) -> _Pending:
        time.sleep(max(0.0, self._ready_at - time.perf_counter()))
        return self

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> np.ndarray[Any, Any]:
        self.block_until_ready()
        return self._value


def _stand_in_training(training: Training, queue: DeviceQueue, times: ChipTimes) -> Training:
    """Training whose steps sleep, on a state without parameters."""
    mesh = training.mesh

    def init() -> TrainState:
        step, progress = jax.device_put((np.int32(0), np.float32(0)), replicated(mesh))
        return TrainState(step, progress, params={}, ema={}, opt_state=(), key=jax.random.key(0))

    @cache
    def errors(*shape: int) -> jax.Array:
        zeros: jax.Array = jax.device_put(np.zeros(shape, np.float32), batch_sharding(mesh))
        return zeros

    def step(state: TrainState, batches: PackedBatch) -> StepOutput:
        steps, size = batches.rows.shape[:2]
        done: Any = _Pending(queue.add(times.dispatch(steps)), np.asarray(steps, np.float32))
        none: Any = 0.0
        return StepOutput(state, StepSums(done, none, none, none, {}), [errors(steps, size)])

    return training._replace(init=init, step=step)


class _StandInRollouts(ChipRollouts):
    """Play whose programs sleep, and finish as many samples as they play moves."""

    def __init__(
        self, queue: DeviceQueue, times: ChipTimes, experiment: Experiment, rows: np.ndarray[Any, Any]
    ) -> None:
        """The packed samples `rows` `[N, row_bytes]` are handed over again and again."""
        self._queue = queue
        self._program_s = times.move_s * experiment.actors.moves_per_dispatch
        self._count = experiment.actors.games * experiment.actors.moves_per_dispatch
        self._rows = rows[None]

    def init(self, key: jax.Array) -> Any:
        return None

    def put(self, params: Params) -> Params:
        return params

    def play(self, params: Params, version: int, state: Any) -> Any:
        count: Any = _Pending(self._queue.add(self._program_s), np.array([self._count], np.int32))
        none = np.zeros(1, np.int32)
        return state, None, Played(samples=count, games=none, dropped=None, depth=None, abs_root_value=none)

    def take(self, state: Any, finished: Any, counts: Any) -> list[Any]:
        left = (counts - start for start in range(0, int(counts[0]), _DISTINCT))
        return [(Rows(self._rows, None), np.minimum(lengths, _DISTINCT)) for lengths in left]
